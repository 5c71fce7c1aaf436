"""The cost of a step: passes counted exactly, bytes against torch's own allocator, operations by hand."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from typer.testing import CliRunner

from elliptica import Elliptic
from elliptica.cli import app
from elliptica.core.weighting import READINGS, WEIGHTINGS
from elliptica.cost import Cost, Rate, calibrate, count_passes, estimate, trace_step
from elliptica.cost.command import bytes_text, time_text
from elliptica.cost.networks import make_network
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
@pytest.mark.parametrize("chunk_size", [None, 1, 8, 11, 1000])
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
    reading = READINGS.get(weighting)
    if reading is not None and reading.needs_path and settings["sampling"] == "marginal":
        pytest.skip("not a combination")
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
    found = count_passes(objective, 7)
    assert found.forward == counts["forward"]
    assert found.input_gradient + found.backward == counts["backward"]
    assert found.double_backward == counts["double_backward"]
    assert found.rows == objective.sample(x, y).rows
    assert max(found.chunk_rows, 7 if settings.get("bn") == "clean" else 0) == counts["largest"]


def test_a_drift_of_ones_own_needs_no_gradient(generator):
    counts = dict.fromkeys(("forward", "backward", "double_backward", "largest"), 0)
    objective = Elliptic(
        CountingModel(counts),
        nn.CrossEntropyLoss(),
        num_classes=4,
        sampling="path",
        weighting="multiplicative",
        drift=lambda x, y: x,
    )
    objective(*data(6, generator), generator=generator).backward()
    found = count_passes(objective, 6)
    assert (found.forward, found.input_gradient, found.backward) == (30, 0, 30)
    assert (counts["forward"], counts["backward"]) == (30, 30)


def test_operations_of_a_perceptron_by_hand():
    """Two for each product; the first layer of ordinary training needs no gradient of its inputs."""
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    x, y = torch.randn(4, 20), torch.randint(5, (4,))
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=5, sampling="path", n_times=3)
    first, last = 2 * 20 * 64, 2 * 64 * 5
    cost = estimate(objective, x, y, batch=100)
    assert cost.ordinary.flops == 100 * (2 * first + 3 * last)
    assert cost.flops == 300 * (2 * first + 3 * last)
    # back to the inputs and on to the parameters: the inputs of the first layer have a gradient, too
    weighted = Elliptic(
        model, nn.CrossEntropyLoss(), num_classes=5, sampling="path", n_times=3, weighting="multiplicative"
    )
    extra = first + last + first
    assert estimate(weighted, x, y, batch=100).flops == 300 * (2 * first + 3 * last + extra)
    chunked = Elliptic(model, nn.CrossEntropyLoss(), num_classes=5, sampling="path", n_times=3, chunk_size=30)
    assert estimate(chunked, x, y, batch=100).flops == 300 * (3 * first + 4 * last)


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
    cost = estimate(objective, *few, batch=len(many[1]), optimizer=optimizer)
    make = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    own = make(objective.parameters(), lr=1e-6)
    measured = allocated_peak(training_step(objective, own, *many))
    predicted = cost.peak - cost.parameters - cost.optimizer
    assert 1 / factor < predicted / measured < factor, f"{predicted} predicted, {measured} measured"
    state = sum(t.nbytes for s in own.state.values() for t in s.values() if isinstance(t, torch.Tensor))
    assert cost.optimizer == state
    assert cost.parameters == sum(t.nbytes for t in objective.model.state_dict().values())
    assert cost.gradients == sum(p.nbytes for p in objective.parameters())


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", SETTINGS)
def test_peak_memory_of_a_perceptron_is_that_of_the_allocator(name, optimizer, generator):
    """From two and four samples to 96 of them."""
    objective = Elliptic(mlp(40, 4), nn.CrossEntropyLoss(), num_classes=4, sigma_y=0.0, **SETTINGS[name])
    many = torch.randn(96, 40, generator=generator), torch.randint(4, (96,), generator=generator)
    few = many[0][:4], many[1][:4]
    check_peak(objective, few, many, optimizer, FACTORS["perceptron"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "marginal-bridges"])
def test_peak_memory_of_a_residual_network_is_that_of_the_allocator(name):
    """From two and four images to 24 of them."""
    net = preact_resnet(18, 4, width=16)
    objective = Elliptic(net, nn.CrossEntropyLoss(), num_classes=4, sigma_y=0.0, **SETTINGS[name])
    check_peak(objective, images(4, 3), images(24, 3), "sgd", FACTORS["convolutions"])


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
    check_peak(objective, (many[0][:4], many[1][:4]), many, "sgd", 1.25)


@pytest.mark.parametrize("name", ["marginal", "path", "norm", "multiplicative"])
def test_activations_are_what_autograd_saves_at_another_size(name):
    objective = Elliptic(small_net(), nn.CrossEntropyLoss(), num_classes=4, sigma_y=0.0, **SETTINGS[name])
    cost = estimate(objective, *images(4), batch=24)
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


def test_a_peak_that_moves_is_found():
    """Few rows: gradients and Adam's temporaries of a wide layer; many rows: activations."""
    model = nn.Sequential(nn.Linear(4, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    objective = Elliptic(model, nn.MSELoss(), sampling="path")
    x, y = torch.randn(4, 4), torch.randn(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    for batch in (2, 1000):
        rows = [t.repeat(batch // 2, 1) for t in (x[:2], y[:2])]
        cost = estimate(objective, x, y, batch=batch, optimizer="adam")
        measured = trace_step(training_step(objective, optimizer, *rows)).peak
        assert cost.peak - cost.parameters - cost.optimizer == pytest.approx(measured, rel=0.03)
    straight = estimate(objective, x, y, batch=4, optimizer="adam").peak / 4 * 1000
    assert straight > 10 * cost.peak  # a line through the origin would be far off


def test_drawing_many_points_can_be_the_peak_of_a_step_in_chunks():
    """A linear layer keeps next to nothing; its points are drawn all at once."""
    objective = Elliptic(nn.Linear(400, 1), nn.MSELoss(), sampling="path", chunk_size=20, sigma_y=0.0)
    x, y = torch.randn(128, 400), torch.randn(128, 1)
    cost = estimate(objective, x, y)
    own = torch.optim.SGD(objective.parameters(), lr=1e-6)
    measured = allocated_peak(training_step(objective, own, x, y))
    assert (cost.peak - cost.parameters) / measured == pytest.approx(1, abs=0.2)
    assert cost.peak > 1.5 * cost.bridges


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
        net.zero_grad()
        step = lambda own=objective: own(x, y, generator=torch.Generator().manual_seed(2)).backward()  # noqa: E731
        peaks[name] = trace_step(step).peak
        gradients[name] = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    peaks["ordinary"] = trace_step(lambda: nn.functional.cross_entropy(net(x), y).backward()).peak
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
    estimate(objective, x, y, batch=64)
    calibrate(objective, x, y, batch=4)
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


@pytest.mark.parametrize("name", ["marginal", "path", "norm", "multiplicative", "chunks"])
def test_a_simulated_step_costs_what_a_real_one_does(name):
    objective = Elliptic(small_net(), nn.CrossEntropyLoss(), num_classes=4, sigma_y=0.0, **SETTINGS[name])
    real, simulated = (
        estimate(objective, *images(4), batch=30, optimizer="adam", simulate=simulate)
        for simulate in (False, True)
    )
    for field in ("flops", "parameters", "gradients", "optimizer", "activations", "bridges", "drawn"):
        assert getattr(simulated, field) == getattr(real, field), field
    assert simulated.peak == pytest.approx(real.peak, rel=0.02)


def test_a_simulation_that_would_need_values_says_so():
    objective = Elliptic(mlp(3, 4), nn.CrossEntropyLoss(), num_classes=4, pairing="nearest")
    with pytest.raises(ValueError, match=r"depends on values.*simulate=False"):
        estimate(objective, torch.randn(4, 3), torch.arange(4), simulate=True)


def test_a_model_alone_is_trained_in_the_ordinary_way():
    model, (x, y) = small_net(), images(4)
    y = torch.arange(4)
    alone = estimate(model, x, y, loss_fn=nn.CrossEntropyLoss(), batch=10)
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=4)
    assert alone == estimate(objective, x, y, batch=10).ordinary
    assert alone.passes.rows == 10


def test_half_precision_keeps_less():
    objective = Elliptic(mlp(64, 4), nn.CrossEntropyLoss(), num_classes=4)
    x, y = torch.randn(4, 64), torch.randint(4, (4,))
    full, half = (estimate(objective, x, y, batch=512, precision=p) for p in ("float32", "bfloat16"))
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
    assert estimate(Elliptic(Two(), nn.MSELoss(), bridged=(0,)), x, y, batch=9).passes.rows == 9
    hidden = Elliptic(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)), nn.MSELoss(), at="1")
    assert estimate(hidden, x[0], y, batch=9).peak > 0


def test_time_is_arithmetic_on_a_rate():
    objective = Elliptic(nn.Linear(4, 1), nn.MSELoss(), sampling="path", n_times=5)
    cost = estimate(objective, torch.randn(4, 4), torch.randn(4, 1), batch=10)
    rate = Rate(flops=1e3, per_operation=0.5, per_draw=0.01, per_sample=2.0)
    by_hand = cost.flops / 1e3 + 0.5 * cost.operations + 2.0 + 0.01 * 50 * 5
    assert cost.seconds(rate) == pytest.approx(by_hand)
    assert cost.ordinary.seconds(rate) == pytest.approx(
        cost.ordinary.flops / 1e3 + 0.5 * cost.ordinary.operations
    )
    whole = cost.training_seconds(rate, rows=101, epochs=3, world_size=2)
    assert whole == pytest.approx(3 * 6 * by_hand)
    assert isinstance(cost, Cost)


def test_calibration_is_positive_and_finite():
    objective = Elliptic(mlp(8, 1), nn.MSELoss(), sampling="path")
    rate = calibrate(objective, torch.randn(8, 8), torch.randn(8, 1), batch=64)
    numbers = [rate.flops, rate.per_operation, rate.per_draw, rate.per_sample]
    assert all(math.isfinite(v) and v >= 0 for v in numbers)
    assert rate.flops > 0


def test_the_tracer_sees_what_lives_and_what_dies():
    def step():
        a = torch.zeros(1000)  # 4000 bytes
        b = a + 1  # 8000 together
        del a
        return b.view(10, 100) * 2  # 8000 again: the view is no memory

    found = trace_step(step)
    assert found.peak == 8000
    outside = torch.zeros(1000)
    assert trace_step(lambda: outside.view(10, 100).t()).peak == 0
    assert trace_step(lambda: outside.add_(1)).peak == 0


@pytest.mark.parametrize(
    ("name", "shape"),
    [("preactresnet18", (3, 32, 32)), ("WideResNet10-1", (3, 32, 32)), ("mlp-8-4", (2, 3)), ("linear", (5,))],
)
def test_networks_by_name(name, shape):
    assert make_network(name, shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


@pytest.mark.bad_input
def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="Pass loss_fn="):
        estimate(nn.Linear(2, 1), torch.zeros(4, 2), torch.zeros(4, 1))
    with pytest.raises(ValueError, match=r"no network 'lenet'.*package\.module:name"):
        make_network("lenet", (3,), 2)
    with pytest.raises(ValueError, match="optimizer must be one of"):
        estimate(
            Elliptic(nn.Linear(2, 1), nn.MSELoss()), torch.zeros(4, 2), torch.zeros(4, 1), optimizer="lion"
        )
    with pytest.raises(ValueError, match="batch"):
        estimate(Elliptic(nn.Linear(2, 1), nn.MSELoss()), torch.zeros(4, 2), torch.zeros(4, 1), batch=0)
    with pytest.raises(ValueError, match="batch"):
        estimate(nn.Linear(2, 1), torch.zeros(4, 2), torch.zeros(4, 1), batch=0, loss_fn=nn.MSELoss())


def test_units_for_people():
    assert [bytes_text(v) for v in (12, 2048, 3 * 2**20, 5000 * 2**30)] == [
        "12 B",
        "2 KiB",
        "3 MiB",
        "5e+03 GiB",
    ]
    shown = [time_text(v) for v in (1e-5, 0.02, 1.5, 300, 7200, 86400 * 3)]
    assert shown == ["10 us", "20 ms", "1.5 s", "5 min", "2 h", "3 days"]


def invoke(*arguments):
    return CliRunner().invoke(app, ["cost", *arguments])


def test_the_command_prints_a_table():
    arguments = [
        "--model",
        "mlp-16",
        "--input",
        "8",
        "--batch",
        "32",
        "--sampling",
        "path",
        "--chunk-size",
        "40",
    ]
    found = invoke(*arguments, "--rows", "1000", "--epochs", "10", "--world-size", "4", "--flops", "1e12")
    assert found.exit_code == 0, found.output
    text = " ".join(found.output.split())
    for part in (
        "rows 160 160 32",
        "forward passes 10 5 1",
        "backward passes 5 5 1",
        "peak memory",
        "training",
    ):
        assert part in text
    assert "10 epochs of 8 steps in 4 processes" in text
    assert "at 4e+11 flop per second" in text


def test_the_command_says_what_chunks_would_save_and_only_where_they_do():
    arguments = ["--input", "8", "--batch", "1024", "--sampling", "path", "--flops", "1e12"]
    found = invoke("--model", "mlp-64-64-64", *arguments).output
    assert "chunk_size=1024 would bring the peak to" in found
    assert "% less memory for 3" in found  # one more forward pass: a third more, or nearly
    arguments[1] = "400"  # a linear layer keeps little beside its points, which are drawn all at once
    assert "chunk_size" not in invoke("--model", "linear", *arguments).output


def test_the_command_knows_pairings(tmp_path, monkeypatch):
    peaks = {}
    for pairing in ("permutation", "nearest"):
        options = ["--pairing", pairing, "--flops", "1e12"]
        found = invoke("--model", "linear", "--input", "4", "--batch", "8192", *options)
        assert found.exit_code == 0, found.output
        peaks[pairing] = next(line for line in found.output.splitlines() if "peak memory" in line)
    assert "MiB" in peaks["permutation"] or "KiB" in peaks["permutation"]
    assert "GiB" in peaks["nearest"].split()[3]
    # nothing is multiplied here, so there is nothing to divide by
    (tmp_path / "plain_net.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = nn.Parameter(nn.init.ones_(__import__('torch').empty(3)))\n"
        "    def forward(self, x):\n        return x * self.a\n"
    )
    monkeypatch.chdir(tmp_path)
    shape = ["--input", "3", "--classes", "3", "--batch", "8", "--sampling", "path", "--chunk-size", "5"]
    found = invoke("--model", "plain_net:Net", *shape, "--flops", "1e12")
    assert found.exit_code == 0, found.output


@pytest.mark.slow
def test_the_command_measures_a_model_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "my_net.py").write_text("from torch import nn\ndef make():\n    return nn.Linear(6, 3)\n")
    monkeypatch.chdir(tmp_path)
    found = invoke("--model", "my_net:make", "--input", "6", "--classes", "3", "--batch", "8", "--measure")
    assert found.exit_code == 0, found.output
    assert "predicted / measured" in found.output


@pytest.mark.bad_input
def test_the_command_refuses_what_it_cannot_do():
    assert "3x32x32" in invoke("--model", "linear", "--input", "3,32").output
    assert (
        "Give one of them"
        in invoke("--model", "linear", "--input", "3", "--flops", "1e9", "--measure").output
    )
    found = invoke("--model", "linear", "--input", "3", "--weighting", "multiplicative")
    assert found.exit_code == 2
    assert 'sampling="path"' in found.output
    assert invoke("--model", "lenet", "--input", "3").exit_code == 2
    assert "3x32x32" in invoke("--model", "linear", "--input", "0x3").output
    found = invoke("--model", "linear", "--input", "3", "--device", "nowhere")
    assert (found.exit_code, "error: " in found.output, "Traceback" in found.output) == (2, True, False)
