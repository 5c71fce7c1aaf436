"""Compiled, in bfloat16, and through attention: the same objective, exact or within stated precision."""

import copy
import dataclasses
import importlib
import shutil
import sys

import pytest
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import reference
from elliptica import Elliptic

pytestmark = [
    pytest.mark.filterwarnings("ignore:With n_times"),
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),
]

WEIGHTINGS = ("none", "gradient_norm", "gradient_softmax", "girsanov", "multiplicative", "released")
N, LENGTH, WIDTH, CLASSES = 5, 4, 6, 3


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(LENGTH * WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Flatten(), nn.Linear(LENGTH * WIDTH, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)
        )


class Attention(nn.Module):
    """The fused kernel itself, which has no second derivative on the CPU."""

    def __init__(self):
        super().__init__()
        self.project, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        query, key, value = self.project(x).unsqueeze(1).chunk(3, -1)  # one head
        return self.head(F.scaled_dot_product_attention(query, key, value).mean((1, 2)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))


def data(generator, dtype=torch.float64, n=N):
    x = torch.randn(n, LENGTH, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(CLASSES, (n,), generator=generator)


def objective_for(model, weighting, kind=Elliptic, **settings):
    n_bridges = 2 if weighting == "multiplicative" else 1
    settings = {"sampling": "path", "n_times": 3, "sigma": 0.5, "n_bridges": n_bridges, **settings}
    return kind(model, nn.CrossEntropyLoss(), num_classes=CLASSES, weighting=weighting, **settings)


class Recorder:
    """A backend that counts graphs and remembers what was in them."""

    def __init__(self):
        self.graphs = []

    def __call__(self, graph, inputs):
        self.graphs.append({str(node.target) for node in graph.graph.nodes})
        return aot_eager(graph, inputs)


@pytest.fixture(scope="module")
def plain():
    """`Elliptic`, imported once more without the suite's shape checker, which cannot be compiled."""
    ours = [name for name in sys.modules if name.partition(".")[0] == "elliptica"]
    checked = {name: sys.modules.pop(name) for name in ours}
    finders = sys.meta_path.copy()
    sys.meta_path[:] = [finder for finder in finders if not type(finder).__module__.startswith("jaxtyping")]
    try:
        yield importlib.import_module("elliptica.core.elliptic").Elliptic
    finally:
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if name.partition(".")[0] == "elliptica"]:
            del sys.modules[name]
        sys.modules.update(checked)


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def assert_compiled_equals_eager(objective, x, y, generator, backend, tolerance=1e-9):
    twin = copy.deepcopy(objective)
    seed = generator.clone_state()
    compiled = torch.compile(objective, backend=backend)
    for _ in range(2):
        loss, expected = compiled(x, y, generator=generator), twin(x, y, generator=seed)
        torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
        ours, theirs = reference.gradients(loss, objective), reference.gradients(expected, twin)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for name, value in objective.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], msg=name)


COMPILED = [(architecture, weighting) for architecture in (Mlp, Attention) for weighting in WEIGHTINGS]
COMPILED += [(Transformer, "none"), (Transformer, "gradient_norm")]


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "weighting"), COMPILED)
def test_compiled_equals_eager(architecture, weighting, generator, plain):
    """One graph that holds the model, compiled once for two calls."""
    backend = Recorder()
    objective = objective_for(architecture().double(), weighting, plain)
    assert_compiled_equals_eager(objective, *data(generator), generator, backend)
    assert len(backend.graphs) == 1
    assert any("linear" in name for name in backend.graphs[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        (Mlp, {"sampling": "marginal", "n_bridges": 2, "antithetic": True}),
        (Mlp, {"quadrature": "trapezoid", "sigma": "auto"}),
        (Mlp, {"chunk_size": 6}),
        (Mlp, {"at": "1"}),
        (Normed, {"bn": "paths"}),
        (Normed, {"bn": "clean"}),
        (Normed, {"bn": "frozen"}),
    ],
)
@pytest.mark.parametrize("weighting", ["none", "gradient_norm"])
def test_compiled_settings(architecture, weighting, settings, generator, plain):
    """Also what runs eagerly inside a compiled objective: chunks, hidden layers, weighted batch norm."""
    objective = objective_for(architecture().double(), weighting, plain, **settings)
    assert_compiled_equals_eager(objective, *data(generator), generator, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["girsanov", "multiplicative"])
@pytest.mark.parametrize("drift", ["network", "both"])
def test_compiled_drift(drift, weighting, generator, plain):
    if drift == "network":
        drift = nn.Bilinear(WIDTH, CLASSES, WIDTH).double()
    model, settings = nn.Linear(WIDTH, CLASSES).double(), {"n_times": 5, "sigma_y": 0.2, "drift": drift}
    objective = objective_for(model, weighting, plain, **settings)
    x, y = data(generator)
    assert_compiled_equals_eager(objective, x[:, 0], y, generator, "aot_eager")


@pytest.mark.slow
def test_compiled_objectives_refuse_paths_of_different_pairs(generator, plain):
    objective = objective_for(Mlp().double(), "multiplicative", plain)
    x, y = data(generator)
    other = objective_for(Mlp().double(), "none", plain, n_bridges=2).sample(x, y, generator=generator)
    with pytest.raises(ValueError, match="differ at their ends"):
        torch.compile(objective, backend="eager")(x, y, paths=other)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["girsanov", "multiplicative"])
def test_compiled_gradients_reach_what_stands_in_front(weighting, generator, plain):
    """Points that require a gradient, as those between encoded samples do."""
    objective = objective_for(Mlp().double(), weighting, plain, drift="both", sigma_y=0.2)
    x, y = data(generator)
    paths = objective.sample(x, y, generator=generator)
    slopes = []
    for evaluate in (objective, torch.compile(objective, backend="aot_eager")):
        scale = torch.ones(WIDTH, dtype=torch.float64, requires_grad=True)
        loss = evaluate(x, y, paths=dataclasses.replace(paths, x=paths.x * scale))
        slopes.append(torch.autograd.grad(loss, scale)[0])
    torch.testing.assert_close(*slopes)
    assert slopes[0].abs().max() > 1e-4


@pytest.mark.slow
def test_compiled_batches_of_other_sizes_and_modes(generator, plain):
    """A last, smaller batch, evaluation, and sample weights through one compiled objective."""
    objective = objective_for(Mlp().double(), "multiplicative", plain)
    compiled = torch.compile(objective, backend="aot_eager")
    for n in (6, 5, 2):
        x, y = data(generator, n=n)
        weight = torch.rand(n, dtype=torch.float64, generator=generator)
        seed = generator.clone_state()
        loss = compiled(x, y, sample_weight=weight, generator=generator)
        torch.testing.assert_close(loss, objective(x, y, sample_weight=weight, generator=seed))
    objective.eval()
    torch.testing.assert_close(compiled(x, y), F.cross_entropy(objective.model(x), y))


@pytest.mark.parametrize("settings", [{}, {"sampling": "marginal"}, {"chunk_size": 6}])
def test_compiled_objectives_return_outputs(settings, generator, plain):
    """The same as the eager one, next to losses alone from the compiled graph."""
    objective = objective_for(Mlp().double(), "none", plain, **settings)
    compiled = torch.compile(objective, backend="eager")
    x, y = data(generator)
    for _ in range(2):
        seed = generator.clone_state()
        found = compiled(x, y, generator=generator, with_outputs=True)
        for a, b in zip(found, objective(x, y, generator=seed, with_outputs=True), strict=True):
            torch.testing.assert_close(a, b)
        assert all(g.abs().sum() > 0 for g in reference.gradients(found.loss, objective))
        seed = generator.clone_state()
        loss = compiled(x, y, generator=generator)
        torch.testing.assert_close(loss, objective(x, y, generator=seed))


def test_compiled_objectives_warn_once_at_the_callers_line(generator, plain, recwarn):
    """Of the mode and of the scale of the inputs."""
    objective = objective_for(Mlp().double(), "none", plain)
    compiled = torch.compile(objective, backend="eager")
    objective.model.eval()
    x, y = data(generator)
    for _ in range(3):
        compiled(5000 * x, y, generator=generator)
    ours = [w for w in recwarn if w.category.__name__ == "EllipticWarning"]
    assert sorted(str(w.message).partition(" ")[0] for w in ours) == ["The", "objective.training"]
    assert {w.filename for w in ours} == {__file__}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler: install g++")
def test_inductor_equals_eager(generator, plain):
    """Kernels generated in C++ (the other weightings differ from this one in arithmetic only)."""
    objective = objective_for(Mlp().double(), "gradient_norm", plain)
    assert_compiled_equals_eager(objective, *data(generator), generator, "inductor", tolerance=1e-8)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("architecture", [Mlp, Normed, Attention, Transformer])
def test_bfloat16_autocast_is_close_to_float32(architecture, weighting, generator):
    """bfloat16 keeps 8 bits, 0.4 %; through a few layers: 3 % of the value, 10 % of the gradient's norm."""
    model = architecture()
    x, y = data(generator, torch.float32, n=16)
    objective = objective_for(model, weighting)
    paths = objective.sample(x, y, generator=generator)
    exact = objective(x, y, paths=paths)
    expected = torch.cat([g.flatten() for g in reference.gradients(exact, model)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = objective(x, y, paths=paths)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.03, atol=0.01)
    found = torch.cat([g.flatten() for g in reference.gradients(loss, model)])
    assert (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("architecture", [Attention, Transformer])
@pytest.mark.parametrize("chunk_size", [None, 6])
def test_attention_can_be_differentiated_twice(architecture, weighting, chunk_size, generator):
    """The user need not know which kernel has second derivatives; values equal those of the plain one."""
    model = architecture().double()
    x, y = data(generator)
    objective = objective_for(model, weighting, chunk_size=chunk_size)
    paths = objective.sample(x, y, generator=generator)
    with sdpa_kernel(SDPBackend.MATH):
        expected = reference.objective(
            model, reference.cross_entropy, paths, weighting=weighting, variance=0.25
        )
        theirs = reference.gradients(expected, model)
    loss = objective(x, y, paths=paths)
    torch.testing.assert_close(loss, expected)
    for a, b in zip(reference.gradients(loss, model), theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_the_fused_kernel_alone_cannot(generator):
    """Why the above is needed; if this fails one day, the plain kernel need no longer be chosen."""
    x, _ = data(generator)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(Attention().double()(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        slope.square().sum().backward()
