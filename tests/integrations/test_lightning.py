"""The mixin and the callback under Lightning's own trainer, in one process and in two."""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

L = pytest.importorskip("lightning", reason="Lightning is not installed (extra lightning)")

from elliptica import BridgeMix, Elliptic  # noqa: E402
from elliptica.integrations import BridgeMixCallback, EllipticLightningMixin  # noqa: E402
from elliptica.integrations.steps import StepNoise  # noqa: E402
from processes import once, pretend_torchrun  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*is smaller than the logging interval"),
]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STRAIGHT = {"sampling": "path", "n_times": 4, "sigma": 0.0, "sigma_y": 0.0}


def network(dropout=0.0):
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(dropout), nn.Tanh(), nn.Linear(8, 3))
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=numbers))
    return model


def without_batch_norm():
    model = network()
    return nn.Sequential(model[0], model[3], model[4])


def data(n=16):
    numbers = torch.Generator().manual_seed(1)
    return torch.randn(n, 5, generator=numbers), torch.randint(3, (n,), generator=numbers)


def loader(n=16, batch_size=4, **options):
    return DataLoader(TensorDataset(*data(n)), batch_size=batch_size, **options)


class Plain(L.LightningModule):
    seen = ()

    def __init__(self, net=None):
        super().__init__()
        self.net = network() if net is None else net

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch.values() if isinstance(batch, dict) else batch
        self.seen = [*self.seen, (x, y)]
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Lit(EllipticLightningMixin, Plain):
    """Records what it was given and what came out."""

    def __init__(self, net=None, partners=None, **settings):
        super().__init__(net)
        self.partners = partners
        self.losses = []
        settings = {"num_classes": 3, "sigma": 0.5, "seed": 0, **settings}
        self.use_elliptic(self.net, nn.CrossEntropyLoss(), **settings)

    def training_step(self, batch, batch_idx):
        given = {} if self.partners is None else {"partners": self.partners}
        loss = self.elliptic_loss(*batch, **given)
        self.losses.append(loss.item())
        return loss


def trainer(**options):
    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    settings = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, **dict.fromkeys(quiet, False)}
    return L.Trainer(**{**settings, **options})


def fitted(module, batches=None, **options):
    trainer(**options).fit(module, loader() if batches is None else batches)
    return module


def in_order(batches):
    """A loader of ready batches (Lightning takes a list for several loaders)."""
    return DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)


def parameters(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


EXACT = {
    **{name: {"weighting": name} for name in (None, "gradient_norm", "gradient_softmax", "girsanov")},
    "multiplicative": {"weighting": "multiplicative", "n_bridges": 2},
    **{name: {"pairing": name} for name in ("inverse_distance", "nearest")},
    "single points": {"sampling": "marginal", "n_bridges": 3},
    "hidden layer": {"at": "0", "weighting": "gradient_norm"},
    "clean statistics": {"bn": "clean"},
}


@pytest.mark.parametrize("name", EXACT)
def test_training_equals_a_plain_loop(name):
    """Losses, parameters and running statistics of two epochs, to the bit."""
    settings = {"sampling": "path", "n_times": 4, "sigma": 0.5, **EXACT[name]}
    module = fitted(Lit(**settings), max_epochs=2)
    model = network()
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(2):
        for index, (x, y) in enumerate(loader()):
            loss = objective(x, y, generator=StepNoise(0).generator(x.device, 0, epoch, index))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert module.losses == losses
    expected = model.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in module.net.state_dict().items())


def test_the_module_itself_can_be_the_model():
    itself, other = Lit(without_batch_norm()), Lit(without_batch_norm())
    itself.use_elliptic(itself, nn.CrossEntropyLoss(), num_classes=3, sigma=0.5, seed=0)
    assert torch.equal(parameters(fitted(itself)), parameters(fitted(other)))


def test_resumed_run_equals_the_uninterrupted_one_and_checkpoints_are_plain(tmp_path):
    whole = fitted(Lit(), max_epochs=3)
    first, resumed = Lit(), Lit()
    running = trainer(max_epochs=1)
    running.fit(first, loader())
    running.save_checkpoint(tmp_path / "last.ckpt")
    trainer(max_epochs=3).fit(resumed, loader(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert first.losses + resumed.losses == whole.losses
    assert torch.equal(parameters(resumed), parameters(whole))
    plain = Plain.load_from_checkpoint(tmp_path / "last.ckpt", strict=True, weights_only=True)
    assert torch.equal(parameters(plain), parameters(first))


def test_seed_of_seed_everything_is_the_default(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    assert fitted(Lit(seed=None)).losses == fitted(Lit(seed=1)).losses != fitted(Lit(seed=0)).losses


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_clean_loss_is_logged_and_changes_nothing(precision):
    """Neither running statistics nor the random state of dropout."""
    states = []
    for every in (0, 2):
        module = Lit(network(dropout=0.5), clean_loss_every=every)
        running = trainer(precision=precision)
        torch.manual_seed(0)
        running.fit(module, loader())
        states.append(module.state_dict())
        assert ("train_clean_loss" in running.callback_metrics) == bool(every)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert all(value.isfinite().all() and value.dtype != torch.bfloat16 for value in states[0].values())


def test_value_of_the_clean_loss():
    module = Lit(network(dropout=0.5), clean_loss_every=1)
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.0)
    module.net[1].momentum = 0.0  # keeps the running statistics
    running = trainer()
    running.fit(module, loader(4, 4))
    x, y = data(4)
    expected = nn.functional.cross_entropy(module.net.eval()(x), y)
    torch.testing.assert_close(running.callback_metrics["train_clean_loss"], expected)
    torch.testing.assert_close(module.eval().elliptic_loss(x, y), expected)  # always outside of training
    other = Lit()
    other.net[1].eval()
    other.elliptic_loss(x, y)
    assert other.net[1].num_batches_tracked == 0  # frozen parts stay frozen


MIX = BridgeMix(num_classes=3, sigma=0.5)


def test_callback_replaces_the_batch_and_leaves_the_data_alone():
    """In lists and dicts, by the points of the transform itself."""
    x, y = data(8)
    lists = [[x[:4], y[:4]], [x[4:], y[4:]]]  # the user's own containers
    for batches in (lists, [dict(zip(("image", "label"), pair, strict=True)) for pair in lists]):
        module = Plain(without_batch_norm())
        callback = BridgeMixCallback(MIX, x="image", y="label", seed=3)
        fitted(module, in_order(batches), max_epochs=2, callbacks=[callback])
        for (epoch, index), seen in zip([(0, 0), (0, 1), (1, 0), (1, 1)], module.seen, strict=True):
            noise = StepNoise(3).generator(x.device, 0, epoch, index)
            for a, b in zip(MIX(*lists[index], generator=noise), seen, strict=True):
                assert torch.equal(a, b)
        assert (batches[0][1] if isinstance(batches[0], list) else batches[0]["label"]).dtype == torch.long
    assert all(torch.equal(a, b) for a, b in zip((x, y), data(8), strict=True))


@pytest.mark.bad_input
def test_what_would_be_silently_wrong_is_refused():
    """A part that is not mixed, a model that is not trained, inputs that cannot be mixed."""
    with pytest.raises(ValueError, match="batch"):
        fitted(Plain(), in_order([[*data(4), torch.zeros(4)]]), callbacks=[BridgeMixCallback(MIX)])
    with pytest.raises(TypeError):  # tuples cannot be changed in place
        fitted(Plain(), in_order([data(4)]), callbacks=[BridgeMixCallback(MIX)])
    with pytest.raises(ValueError, match="model"):
        Lit().use_elliptic(nn.Linear(5, 3), nn.CrossEntropyLoss(), num_classes=3)
    with pytest.raises(TypeError, match="x"):
        Lit().elliptic_loss(torch.zeros(4, 5, dtype=torch.long), data(4)[1])


@pytest.mark.slow
def test_example_of_a_module():
    metrics = runpy.run_path(str(EXAMPLES / "lightning_module.py"))["main"]()
    assert metrics["val_loss"] < 0.5
    assert set(metrics) == {"train_loss", "train_clean_loss", "val_loss"}


PARTNERS = torch.tensor([2, 0, 3, 1])
TOGETHER = {
    "straight": {},
    "second order": {"weighting": "gradient_norm"},
    "hidden": {"weighting": "girsanov", "at": "0"},
    "noisy": {"sigma": 0.5, "partners": None},
}


def both_processes(rank):
    """Each process reads every other row."""
    pretend_torchrun(rank)
    found = {}
    for name, settings in TOGETHER.items():
        module = Lit(without_batch_norm(), **{"partners": PARTNERS, **STRAIGHT, **settings})
        x, y = (part[rank::2] for part in data(16))
        batches = DataLoader(TensorDataset(x, y), batch_size=4)
        fitted(module, batches, strategy="ddp", devices=2, use_distributed_sampler=False, max_epochs=2)
        found[name] = module.losses, parameters(module)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return once(tmp_path_factory, both_processes)


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("name", ["straight", "second order", "hidden"])
def test_two_processes_equal_one_on_the_joined_batch(name, found):
    """Process r has rows r, r + 2, ...; partners are rows of its own batch."""
    x, y = data(16)
    module = Lit(without_batch_norm(), torch.cat([PARTNERS, PARTNERS + 4]), **STRAIGHT, **TOGETHER[name])
    joined = []
    for step in range(2):
        rows = torch.cat([torch.arange(8 * step + rank, 8 * step + 8, 2) for rank in (0, 1)])
        joined.append([x[rows], y[rows]])
    fitted(module, in_order(joined), max_epochs=2)
    for one in found:
        torch.testing.assert_close(one[name][1], parameters(module))


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_draw_different_noise_and_stay_together(found):
    first, second = (one["noisy"] for one in found)
    assert torch.equal(first[1], second[1])
    assert len({*first[0], *second[0]}) == 8
