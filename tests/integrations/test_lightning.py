"""The mixin and the callback under Lightning's own trainer, in one process and in two."""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

L = pytest.importorskip("lightning", reason="Lightning is not installed (extra lightning)")

from elliptica import BridgeMix, Elliptic, switch_off  # noqa: E402
from elliptica.integrations import BridgeMixCallback, EllipticLightningMixin  # noqa: E402
from elliptica.integrations.steps import StepNoise  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning"),
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
    def __init__(self, net=None):
        super().__init__()
        self.net = network() if net is None else net

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

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
    return L.Trainer(
        **{
            "max_epochs": 1,
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **options,
        }
    )


def fitted(module, batches=None, **options):
    trainer(**options).fit(module, loader() if batches is None else batches)
    return module


def in_order(batches):
    """A loader of ready batches (Lightning takes a list for several loaders)."""
    return DataLoader(batches, batch_size=None, collate_fn=lambda batch: batch)


def parameters(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def test_step_equals_the_objective_alone(generator):
    x, y = data(6)
    module = Lit(without_batch_norm(), **STRAIGHT)
    partners = torch.randperm(6, generator=generator)
    alone = Elliptic(without_batch_norm(), nn.CrossEntropyLoss(), num_classes=3, **STRAIGHT)
    expected = alone(x, y, partners=partners)
    torch.testing.assert_close(module.elliptic_loss(x, y, partners=partners), expected)
    assert not torch.isclose(expected, nn.functional.cross_entropy(module.net(x), y))


def test_outside_of_training_it_is_the_ordinary_loss():
    x, y = data(6)
    module = Lit().eval()
    torch.testing.assert_close(module.elliptic_loss(x, y), nn.functional.cross_entropy(module.net(x), y))


def test_the_module_itself_can_be_the_model():
    class Itself(EllipticLightningMixin, Plain):
        def __init__(self):
            super().__init__(without_batch_norm())
            self.use_elliptic(self, nn.CrossEntropyLoss(), num_classes=3, seed=0)

        def training_step(self, batch, batch_idx):
            return self.elliptic_loss(*batch)

    other = Lit(without_batch_norm(), sigma=0.05)
    assert torch.equal(parameters(fitted(Itself())), parameters(fitted(other)))


def test_accumulated_gradients_are_those_of_the_joined_batch():
    """Partners within each batch of two; straight lines, so nothing is drawn."""
    pairs = torch.tensor([1, 0])
    four = torch.cat([pairs + 2 * i for i in range(4)])
    split = Lit(without_batch_norm(), pairs, **STRAIGHT)
    joined = Lit(without_batch_norm(), four, **STRAIGHT)
    fitted(split, loader(8, 2), accumulate_grad_batches=4)
    fitted(joined, loader(8, 8))
    torch.testing.assert_close(parameters(split), parameters(joined))
    unlike = fitted(Lit(without_batch_norm(), four.roll(1), **STRAIGHT), loader(8, 8))
    assert not torch.allclose(parameters(unlike), parameters(joined))


@pytest.mark.parametrize("sigma", [0.5, "auto"])
def test_resumed_run_equals_the_uninterrupted_one(sigma, tmp_path):
    whole = fitted(Lit(sigma=sigma), max_epochs=3)
    first = Lit(sigma=sigma)
    running = trainer(max_epochs=1)
    running.fit(first, loader())
    running.save_checkpoint(tmp_path / "last.ckpt")
    resumed = Lit(sigma=sigma)
    trainer(max_epochs=3).fit(resumed, loader(), ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert first.losses + resumed.losses == whole.losses
    assert torch.equal(parameters(resumed), parameters(whole))
    if sigma == "auto":
        assert torch.equal(resumed.objective.auto_sigma, whole.objective.auto_sigma)


def test_noise_is_new_in_every_batch_and_epoch_and_follows_the_seed():
    once = fitted(Lit(), max_epochs=2).losses
    assert len(set(once)) == len(once)
    assert fitted(Lit(), max_epochs=2).losses == once
    assert fitted(Lit(seed=1), max_epochs=2).losses != once


def test_seed_of_seed_everything_is_the_default(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    assert fitted(Lit(seed=None)).losses == fitted(Lit(seed=1)).losses


def test_checkpoints_are_those_of_the_module_without_the_mixin(tmp_path):
    module = Lit()
    running = trainer()
    running.fit(module, loader())
    running.save_checkpoint(tmp_path / "last.ckpt")
    assert set(module.state_dict()) == set(Plain().state_dict())
    plain = Plain.load_from_checkpoint(tmp_path / "last.ckpt", strict=True, weights_only=True)
    assert torch.equal(parameters(plain), parameters(module))


def test_schedule_follows_the_epoch():
    """Off from the second epoch on: training is then ordinary training."""
    module = Lit(without_batch_norm(), schedule=switch_off(after=0))
    plain = Plain(without_batch_norm())
    torch.testing.assert_close(parameters(fitted(module)), parameters(fitted(plain)))
    late = Lit(without_batch_norm(), schedule=switch_off(after=1))
    always = Lit(without_batch_norm())
    fitted(late, max_epochs=2), fitted(always, max_epochs=2)
    assert late.losses[:4] == always.losses[:4]
    assert late.losses[4:] != always.losses[4:]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_clean_loss_is_logged_and_changes_nothing(precision):
    """Neither running statistics nor the random state of dropout."""
    modules = []
    for every in (0, 2):
        module = Lit(network(dropout=0.5), clean_loss_every=every)
        running = trainer(precision=precision)
        torch.manual_seed(0)
        running.fit(module, loader())
        modules.append(module)
        assert ("train_clean_loss" in running.callback_metrics) == bool(every)
    quiet, logging = (module.state_dict() for module in modules)
    assert all(torch.equal(quiet[name], logging[name]) for name in quiet)
    assert all(value.dtype != torch.bfloat16 for value in quiet.values())
    assert torch.isfinite(parameters(modules[0])).all()


def test_value_of_the_clean_loss():
    module = Lit(network(dropout=0.5), clean_loss_every=1)
    module.configure_optimizers = lambda: torch.optim.SGD(module.parameters(), lr=0.0)
    module.net[1].momentum = 0.0  # keeps the running statistics
    running = trainer()
    running.fit(module, loader(4, 4))
    x, y = data(4)
    expected = nn.functional.cross_entropy(module.net.eval()(x), y)
    torch.testing.assert_close(running.callback_metrics["train_clean_loss"], expected)


def test_frozen_parts_stay_frozen():
    module = Lit()
    module.net[1].eval()
    module.elliptic_loss(*data(6))
    assert module.net[1].num_batches_tracked == 0
    assert not module.net[1].training


def test_manual_optimization_draws_anew_in_every_call():
    class Manual(Lit):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for _ in range(2):
                loss = super().training_step(batch, batch_idx)
                self.optimizers().zero_grad()
                self.manual_backward(loss)

    losses = fitted(Manual(), loader(4, 4)).losses
    assert losses[0] != losses[1]


def test_a_generator_can_be_given(generator):
    x, y = data(6)
    module = Lit(without_batch_norm())
    state = generator.get_state()
    once = module.elliptic_loss(x, y, generator=generator)
    generator.set_state(state)
    assert module.elliptic_loss(x, y, generator=generator) == once


class Soft(Plain):
    """Takes what it is given, and keeps it."""

    def __init__(self):
        super().__init__(without_batch_norm())
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y = batch.values() if isinstance(batch, dict) else batch
        self.seen.append((x, y))
        return nn.functional.cross_entropy(self.net(x), y)


MIX = BridgeMix(num_classes=3, sigma=0.5)


def test_callback_replaces_list_batches_and_leaves_the_data_alone():
    x, y = data(8)
    before = x.clone(), y.clone()
    batches = [[x[:4], y[:4]], [x[4:], y[4:]]]  # the user's own containers
    module = Soft()
    fitted(module, in_order(batches), max_epochs=2, callbacks=[BridgeMixCallback(MIX, seed=3)])
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])
    assert batches[0][1].dtype == torch.long
    for (epoch, index), seen in zip([(0, 0), (0, 1), (1, 0), (1, 1)], module.seen, strict=True):
        noise = StepNoise(3).generator(x.device, 0, epoch, index)
        for a, b in zip(MIX(*batches[index], generator=noise), seen, strict=True):
            assert torch.equal(a, b)


def test_callback_takes_dict_batches():
    x, y = data(4)
    module = Soft()
    fitted(
        module,
        in_order([{"image": x, "label": y}]),
        callbacks=[BridgeMixCallback(MIX, x="image", y="label", seed=3)],
    )
    assert module.seen[0][1].shape == (4, 3)


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (data(4), TypeError, "of type tuple, which cannot be changed in place"),
        ([*data(4), torch.zeros(4)], ValueError, "this one has 3 parts"),
        ([[*data(4)], [*data(4)]], TypeError, "must be a tensor, but are a list"),
        ({"image": data(4)[0]}, ValueError, "has no key 'x', only 'image'"),
    ],
)
def test_callback_says_which_batches_it_takes(batch, error, message):
    with pytest.raises(error, match=message):
        fitted(Soft(), in_order([batch]), callbacks=[BridgeMixCallback(MIX)])


@pytest.mark.bad_input
def test_errors_of_the_mixin():
    class Forgot(EllipticLightningMixin, Plain):
        pass

    with pytest.raises(RuntimeError, match="Call self"):
        Forgot().elliptic_loss(*data(4))
    with pytest.raises(ValueError, match="is not a submodule of Forgot"):
        Forgot().use_elliptic(nn.Linear(5, 3), nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="clean_loss_every"):
        Forgot().use_elliptic(nn.Linear(5, 3), nn.CrossEntropyLoss(), clean_loss_every=-1)

    class Lonely(EllipticLightningMixin, nn.Module):
        pass

    with pytest.raises(TypeError, match="Lonely is not a LightningModule"):
        Lonely().use_elliptic(nn.Linear(5, 3), nn.CrossEntropyLoss())
    with pytest.raises(TypeError, match="must be a BridgeMix, but got Linear"):
        BridgeMixCallback(nn.Linear(5, 3))


def test_integer_inputs_are_refused():
    with pytest.raises(TypeError, match="must be floating point"):
        Lit().elliptic_loss(torch.zeros(4, 5, dtype=torch.long), data(4)[1])


@pytest.mark.slow
def test_example_of_a_module():
    metrics = runpy.run_path(str(EXAMPLES / "lightning_module.py"))["main"]()
    assert metrics["val_loss"] < 0.5
    assert set(metrics) == {"train_loss", "train_clean_loss", "val_loss"}


@pytest.mark.slow
def test_example_of_fabric(tmp_path):
    model = runpy.run_path(str(EXAMPLES / "fabric_loop.py"))["main"](tmp_path / "model.pt")
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    fresh = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    fresh.load_state_dict(saved, strict=True)
    assert all(torch.equal(saved[name], value) for name, value in model.state_dict().items())
    x = torch.randn(500, 20, generator=torch.Generator().manual_seed(7))
    assert (fresh(x).argmax(1) == x[:, :3].argmax(1)).float().mean() > 0.7


# Two processes: Lightning forks them from a fresh process, in which no gradient has been computed yet.

PARTNERS = torch.tensor([2, 0, 3, 1])
TWO = {"strategy": "ddp_fork", "devices": 2, "use_distributed_sampler": False}


class Reporting(Lit):
    """Each process reads every other row, and writes its losses and its parameters."""

    def train_dataloader(self):
        x, y = (part[self.global_rank :: 2] for part in data(16))
        return DataLoader(TensorDataset(x, y), batch_size=4)

    def on_fit_end(self):
        report = {"losses": self.losses, "parameters": parameters(self).tolist()}
        Path(os.environ["REPORTS"], f"{self.name}{self.global_rank}.json").write_text(json.dumps(report))


def reports(folder, name):
    return [json.loads(Path(folder, f"{name}{rank}.json").read_text()) for rank in (0, 1)]


def run_two_processes():
    """Entry of the fresh process."""
    torch.set_num_threads(1)
    for name, settings in {
        "straight": {"partners": PARTNERS, **STRAIGHT},
        "second_order": {"partners": PARTNERS, "weighting": "gradient_norm", **STRAIGHT},
        "noisy": {"sigma": 0.5},
    }.items():
        module = Reporting(without_batch_norm(), **settings)
        module.name = name
        trainer(**TWO, max_epochs=2).fit(module)
    try:
        trainer(**TWO).fit(Reporting(without_batch_norm(), sigma="auto"))
    except Exception as error:
        Path(os.environ["REPORTS"], "auto.txt").write_text(str(error))


@pytest.fixture(scope="module")
def two_processes():
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
        result = subprocess.run(
            [sys.executable, "-W", "ignore", __file__],
            env={**os.environ, "REPORTS": folder, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "weighting"), [("straight", {}), ("second_order", {"weighting": "gradient_norm"})]
)
def test_two_processes_equal_one_on_the_joined_batch(name, weighting, two_processes):
    """Process r has rows r, r + 2, ...; partners are rows of its own batch."""
    x, y = data(16)
    module = Lit(without_batch_norm(), torch.cat([PARTNERS, PARTNERS + 4]), **STRAIGHT, **weighting)
    joined = []
    for step in range(2):
        rows = torch.cat([torch.arange(8 * step + rank, 8 * step + 8, 2) for rank in (0, 1)])
        joined.append([x[rows], y[rows]])
    fitted(module, in_order(joined), max_epochs=2)
    for one in reports(two_processes, name):
        torch.testing.assert_close(torch.tensor(one["parameters"]), parameters(module))


@pytest.mark.slow
def test_two_processes_draw_different_noise_and_stay_together(two_processes):
    first, second = reports(two_processes, "noisy")
    assert first["parameters"] == second["parameters"]
    assert not set(first["losses"]) & set(second["losses"])
    assert len(first["losses"]) == 4


@pytest.mark.slow
def test_two_processes_with_different_automatic_noise_are_refused(two_processes):
    said = Path(two_processes, "auto.txt").read_text()
    assert "each process has another one" in said
    assert "auto_sigma(x)" in said


if __name__ == "__main__":
    run_two_processes()
