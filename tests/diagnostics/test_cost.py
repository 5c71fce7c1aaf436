"""The cost of a step: passes counted exactly, bytes against torch's own allocator, operations by hand."""

import copy

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from elliptica import Elliptic
from elliptica.core.weighting import VARIANTS, WEIGHTINGS
from elliptica.diagnostics import StepCost, step_cost
from elliptica.lab.models import mlp, preact_resnet


class Double(torch.autograd.Function):
    """The gradient of `Counted`, itself differentiable, and counted."""

    @staticmethod
    def forward(ctx, grad, counts):
        ctx.counts = counts
        counts["backward"] += len(grad)
        return grad.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.counts["double_backward"] += len(grad)
        return grad, None


class Counted(torch.autograd.Function):
    """The identity; counts rows in both directions."""

    @staticmethod
    def forward(ctx, x, counts):
        ctx.counts = counts
        counts["forward"] += len(x)
        counts["largest"] = max(counts["largest"], len(x))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return Double.apply(grad, ctx.counts), None


class CountingModel(nn.Module):
    """A perceptron that counts the rows that pass its middle."""

    def __init__(self, counts):
        super().__init__()
        self.first, self.last, self.counts = nn.Linear(3, 8), nn.Linear(8, 4), counts

    def forward(self, x):
        return self.last(torch.tanh(Counted.apply(self.first(x), self.counts)))


def data(n, generator):
    return torch.randn(n, 3, generator=generator), torch.randint(4, (n,), generator=generator)


@pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning")
@pytest.mark.parametrize("chunk_size", [None, 1, 11, 1000])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": "marginal"},
        {"sampling": "marginal", "n_bridges": 3},
        {"sampling": "path", "n_times": 4},
        {"sampling": "path", "n_times": 5, "n_bridges": 2, "bn": "clean"},
        {"sampling": "path", "n_times": 2, "xi": 0.0},
    ],
    ids=["marginal", "marginal-3", "path", "path-clean", "no-strength"],
)
def test_passes_are_those_of_a_model_that_counts(settings, weighting, chunk_size, generator):
    variant = VARIANTS.get(weighting)
    if variant is not None and variant.needs_path and settings["sampling"] == "marginal":
        pytest.skip("not a combination")
    if variant is not None and variant.within_pairs:
        settings = {"n_bridges": 2, **settings}
    counts = dict.fromkeys(("forward", "backward", "double_backward", "largest"), 0)
    objective = Elliptic(
        CountingModel(counts),
        nn.CrossEntropyLoss(),
        num_classes=4,
        weighting=weighting,
        chunk_size=chunk_size,
        **settings,
    )
    x, y = data(7, generator)
    objective(x, y, generator=generator).backward()
    found = step_cost(objective, x, y)
    assert found.forward_rows == counts["forward"]
    assert found.backward_rows == counts["backward"]
    assert found.rows == objective.sample(x, y).rows
    assert found.chunk_rows == counts["largest"]


def test_a_drift_of_ones_own_needs_no_gradient(generator):
    counts = dict.fromkeys(("forward", "backward", "double_backward", "largest"), 0)
    objective = Elliptic(
        CountingModel(counts),
        nn.CrossEntropyLoss(),
        num_classes=4,
        sampling="path",
        n_bridges=2,
        weighting="multiplicative",
        drift=lambda x, y: x,
    )
    objective(*data(6, generator), generator=generator).backward()
    found = step_cost(objective, *data(6, generator))
    assert (found.forward_rows, found.backward_rows) == (60, 60)
    assert (counts["forward"], counts["backward"]) == (60, 60)


def test_operations_of_a_perceptron_by_hand():
    """Two for each product; the first layer of ordinary training needs no gradient of its inputs."""
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    x, y = torch.randn(4, 20), torch.randint(5, (4,))
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=5, sampling="path", n_times=3)
    first, last = 2 * 20 * 64, 2 * 64 * 5
    cost = step_cost(objective, x, y, batch_size=100)
    assert cost.ordinary.flops == 100 * (2 * first + 3 * last)
    assert cost.flops == 300 * (2 * first + 3 * last)
    # back to the inputs and on to the parameters: the inputs of the first layer have a gradient, too
    weighted = Elliptic(
        model,
        nn.CrossEntropyLoss(),
        num_classes=5,
        sampling="path",
        n_times=3,
        n_bridges=2,
        weighting="multiplicative",
    )
    extra = first + last + first
    assert step_cost(weighted, x, y, batch_size=100).flops == 600 * (2 * first + 3 * last + extra)
    chunked = Elliptic(model, nn.CrossEntropyLoss(), num_classes=5, sampling="path", n_times=3, chunk_size=30)
    assert step_cost(chunked, x, y, batch_size=100).flops == 300 * (3 * first + 4 * last)


def small_net():
    """Smooth, for second derivatives, and with enough channels that kernels do not pad them."""
    return nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.SiLU(),
        nn.Conv2d(32, 32, 3, padding=1, stride=2),
        nn.BatchNorm2d(32),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def images(n, channels=16, size=16):
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, channels, size, size, generator=generator), torch.randint(
        4, (n,), generator=generator
    )


def allocated_peak(step):
    """What torch's own allocator reports, through the profiler: also memory inside of kernels."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        step()
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def training_step(objective, optimizer, x, y):
    def step():
        optimizer.zero_grad()
        objective(x, y, generator=torch.Generator().manual_seed(1)).backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    return step


SETTINGS = {
    "marginal": {},
    "marginal-bridges": {"n_bridges": 4},
    "path": {"sampling": "path", "n_times": 5},
    "softmax": {"weighting": "gradient_softmax"},
    "norm": {"sampling": "path", "weighting": "gradient_norm"},
    "multiplicative": {"sampling": "path", "weighting": "multiplicative", "n_bridges": 2},
    "chunks": {"sampling": "path", "chunk_size": 40},
    "chunks-marginal": {"n_bridges": 4, "chunk_size": 32},
    "chunks-norm": {"sampling": "path", "weighting": "gradient_norm", "chunk_size": 40},
    "nearest": {"pairing": "nearest"},
}
#: Prediction and allocator agree within these factors; convolutions take memory within their kernels.
FACTORS = {"perceptron": 1.2, "convolutions": 1.25}


def check_peak(objective, few, many, optimizer, factor):
    cost = step_cost(objective, *few, batch_size=len(many[1]), optimizer=optimizer)
    own = optimizer(objective.parameters(), lr=1e-6)
    measured = allocated_peak(training_step(objective, own, *many))
    predicted = cost.peak - cost.parameters - cost.optimizer
    assert 1 / factor < predicted / measured < factor, f"{predicted} predicted, {measured} measured"
    state = sum(t.nbytes for s in own.state.values() for t in s.values() if isinstance(t, torch.Tensor))
    assert cost.optimizer == state
    assert cost.parameters == sum(t.nbytes for t in objective.model.state_dict().values())
    assert cost.gradients == sum(p.nbytes for p in objective.parameters())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("name", SETTINGS)
def test_peak_memory_of_a_perceptron_is_that_of_the_allocator(name, optimizer, generator):
    """From the shapes of four samples to 96 of them."""
    objective = Elliptic(mlp(40, 4), nn.CrossEntropyLoss(), num_classes=4, sigma_y=0.0, **SETTINGS[name])
    many = torch.randn(96, 40, generator=generator), torch.randint(4, (96,), generator=generator)
    few = many[0][:4], many[1][:4]
    check_peak(objective, few, many, optimizer, FACTORS["perceptron"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "marginal-bridges"])
def test_peak_memory_of_a_residual_network_is_that_of_the_allocator(name):
    """From the shapes of four images to 24 of them."""
    net = preact_resnet(18, 4, width=16)
    objective = Elliptic(net, nn.CrossEntropyLoss(), num_classes=4, sigma_y=0.0, **SETTINGS[name])
    check_peak(objective, images(4, 3), images(24, 3), torch.optim.SGD, FACTORS["convolutions"])


@pytest.mark.parametrize("features", [8, 200])
@pytest.mark.parametrize("pairing", ["nearest", "inverse_distance"])
def test_distances_within_a_large_batch_are_in_the_peak(pairing, features):
    """They are quadratic in the batch: with few features they are the peak, with more they share it."""
    objective = Elliptic(
        nn.Linear(features, 4),
        nn.CrossEntropyLoss(),
        num_classes=4,
        pairing=pairing,
        n_bridges=2,
        sigma_y=0.0,
    )
    many = torch.randn(400, features), torch.arange(400) % 4
    # cdist copies its arguments inside of its kernel, which is not seen
    factor = 1.25 if features == 8 else 1.4
    check_peak(objective, (many[0][:4], many[1][:4]), many, torch.optim.SGD, factor)


@pytest.mark.parametrize("name", ["marginal", "path", "norm", "multiplicative"])
def test_activations_are_what_autograd_saves_at_another_size(name):
    objective = Elliptic(small_net(), nn.CrossEntropyLoss(), num_classes=4, sigma_y=0.0, **SETTINGS[name])
    cost = step_cost(objective, *images(4), batch_size=24)
    x, y = images(24)
    kept = {}
    own = {p.untyped_storage().data_ptr() for p in objective.model.state_dict(keep_vars=True).values()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = tensor  # alive, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = objective(x, y, generator=torch.Generator().manual_seed(1))
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert loss.requires_grad
    assert cost.activations == pytest.approx(measured, rel=0.02)
    assert cost.ordinary.activations < measured or name == "marginal"


def test_drawing_many_points_can_be_the_peak_of_a_step_in_chunks():
    """A linear layer keeps next to nothing; its points are drawn all at once."""
    objective = Elliptic(nn.Linear(400, 1), nn.MSELoss(), sampling="path", chunk_size=20, sigma_y=0.0)
    x, y = torch.randn(128, 400), torch.randn(128, 1)
    cost = step_cost(objective, x, y)
    own = torch.optim.SGD(objective.parameters(), lr=1e-6)
    measured = allocated_peak(training_step(objective, own, x, y))
    assert (cost.peak - cost.parameters) / measured == pytest.approx(1, abs=0.2)
    assert cost.peak > 1.5 * 5 * x.nbytes


def test_a_step_in_chunks_needs_the_memory_of_a_chunk_and_gives_the_same_gradient():
    """Within 1.3 of ordinary training on as many rows as a chunk has; all at once needs far more."""
    torch.manual_seed(0)
    net = preact_resnet(18, 4, width=16)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()  # which sees chunks otherwise, and has other statistics for them
    x, y = images(16, channels=3, size=32)
    peaks, gradients = {}, {}
    for name, chunk_size in (("whole", None), ("chunks", 16)):
        objective = Elliptic(
            net, nn.CrossEntropyLoss(), num_classes=4, sampling="path", n_times=4, chunk_size=chunk_size
        )
        cost = step_cost(objective, x, y)
        peaks |= {name: cost.peak, "ordinary": cost.ordinary.peak}
        net.zero_grad()
        objective(x, y, generator=torch.Generator().manual_seed(2)).backward()
        gradients[name] = [p.grad.clone() for p in net.parameters()]
    assert peaks["chunks"] <= 1.3 * peaks["ordinary"]
    assert peaks["whole"] > 2.5 * peaks["ordinary"]
    for a, b in zip(gradients["chunks"], gradients["whole"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert any(float(g.abs().max()) > 1e-4 for g in gradients["whole"])


def test_nothing_of_the_callers_is_changed():
    objective = Elliptic(small_net(), nn.CrossEntropyLoss(), num_classes=4, sigma="auto").eval()
    objective.model[0].weight.grad = torch.ones_like(objective.model[0].weight)
    x, y = images(5)
    before = copy.deepcopy(objective.state_dict())
    random, kept = torch.get_rng_state(), (x.clone(), y.clone())
    step_cost(objective, x, y, batch_size=64)
    assert all(
        torch.equal(a, b) for a, b in zip(before.values(), objective.state_dict().values(), strict=True)
    )
    assert torch.equal(torch.get_rng_state(), random)
    assert not objective.training
    assert not objective.model.training
    assert bool((objective.model[0].weight.grad == 1).all())
    assert objective.auto_sigma is None
    assert torch.equal(x, kept[0])
    assert torch.equal(y, kept[1])


def test_half_precision_keeps_less():
    objective = Elliptic(mlp(64, 4), nn.CrossEntropyLoss(), num_classes=4)
    x, y = torch.randn(4, 64), torch.randint(4, (4,))
    full, half = (step_cost(objective, x, y, batch_size=512, autocast=d) for d in (None, torch.bfloat16))
    assert half.ordinary.activations < 0.7 * full.ordinary.activations
    assert half.parameters == full.parameters


def test_tuples_of_inputs_and_hidden_layers():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 1)

        def forward(self, a, b):
            return self.head(torch.tanh(self.body(a) + b))

    x, y = (torch.randn(4, 3), torch.randn(4, 5)), torch.randn(4, 1)
    assert step_cost(Elliptic(Two(), nn.MSELoss(), bridged=(0,)), x, y, batch_size=9).rows == 9
    hidden = Elliptic(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)), nn.MSELoss(), at="1")
    assert step_cost(hidden, x[0], y, batch_size=9).peak > 0


@pytest.mark.parametrize("name", ["marginal", "path", "norm", "multiplicative", "chunks"])
def test_flops_are_those_that_torch_counts_in_a_real_step(name):
    objective = Elliptic(small_net(), nn.CrossEntropyLoss(), num_classes=4, sigma_y=0.0, **SETTINGS[name])
    x, y = images(10)
    with FlopCounterMode(display=False) as counted:
        objective(x, y).backward()
    assert step_cost(objective, x[:4], y[:4], batch_size=10).flops == counted.get_total_flops()


def test_a_model_without_memory_costs_what_a_real_one_does():
    """Parameters, inputs and targets may all be on the meta device."""
    with torch.device("meta"):
        model, x, y = small_net(), torch.empty(6, 16, 16, 16), torch.empty(6, dtype=torch.long)
    settings = {"num_classes": 4, "sigma_y": 0.0, "sampling": "path"}
    imagined = Elliptic(model, nn.CrossEntropyLoss(), **settings)
    real = Elliptic(small_net(), nn.CrossEntropyLoss(), **settings)
    assert step_cost(imagined, x, y) == step_cost(real, *images(6))
    assert all(p.is_meta for p in imagined.parameters())


@pytest.mark.parametrize("sigma", ["auto", "green", ("screened", 1.0)])
def test_noise_that_depends_on_values(sigma):
    """Points have the size that they have with a number for sigma."""
    numbers, law = (
        Elliptic(mlp(8, 4), nn.CrossEntropyLoss(), num_classes=4, sampling="path", sigma_y=0.0, sigma=each)
        for each in (0.05, sigma)
    )
    x, y = torch.randn(32, 8), torch.arange(32) % 4
    assert step_cost(law, x, y).rows == 160
    assert step_cost(law, x, y).peak == pytest.approx(step_cost(numbers, x, y).peak, rel=0.02)


def test_a_weight_that_is_used_twice_is_counted_once():
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 8, bias=False))
    model[2].weight = model[0].weight
    cost = step_cost(Elliptic(model, nn.MSELoss()), torch.randn(4, 8), torch.randn(4, 8))
    assert (cost.parameters, cost.gradients) == (256, 256)


def test_a_table_to_read():
    objective = Elliptic(mlp(40, 4), nn.CrossEntropyLoss(), num_classes=4, sampling="path")
    cost = step_cost(objective, torch.randn(4, 40), torch.arange(4), batch_size=1000)
    assert isinstance(cost, StepCost)
    assert cost.ordinary.ordinary is None
    lines = {line[:20].strip(): line[20:].split() for line in str(cost).splitlines()}
    assert lines["step of 1000 samples"] == ["elliptic", "ordinary", "ratio"]
    assert lines["rows"] == ["5,000", "1,000", "5.00"]
    assert lines["parameters"] == ["87.02", "KiB", "87.02", "KiB", "1.00"]
    assert lines["optimizer"] == ["0", "B", "0", "B", "-"]


@pytest.mark.bad_input
def test_errors_say_what_to_do():
    x, y = torch.zeros(4, 2), torch.zeros(4, 1)
    with pytest.raises(TypeError, match=r"got Linear\. Wrap the model: Elliptic"):
        step_cost(nn.Linear(2, 1), x, y)
    with pytest.raises(ValueError, match="batch_size"):
        step_cost(Elliptic(nn.Linear(2, 1), nn.MSELoss()), x, y, batch_size=0)
