"""Compiled, in bfloat16, and through attention: the same objective, exact or within stated precision."""

import copy
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
    pytest.mark.filterwarnings("ignore::elliptica.core.inputs.EllipticWarning"),
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),
]

WEIGHTINGS = (None, "gradient_norm", "gradient_softmax", "girsanov", "multiplicative")
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
    twin, seed = copy.deepcopy(objective), generator.clone_state()
    compiled = torch.compile(objective, backend=backend)
    for _ in range(2):
        loss, expected = compiled(x, y, generator=generator), twin(x, y, generator=seed)
        torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
        ours, theirs = reference.gradients(loss, objective), reference.gradients(expected, twin)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    for name, value in objective.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [Mlp, Normed, Attention])
@pytest.mark.parametrize("sampling", ["path", "marginal"])
def test_compiled_equals_eager(sampling, architecture, generator, plain):
    """One graph that holds the model, compiled once for two calls."""
    backend = Recorder()
    objective = objective_for(architecture().double(), None, plain, sampling=sampling)
    assert_compiled_equals_eager(objective, *data(generator), generator, backend)
    assert len(backend.graphs) == 1
    assert any("linear" in name for name in backend.graphs[0])


@pytest.mark.slow
@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [(Mlp, {"at": "1"}), (Mlp, {"quadrature": "left"}), (Normed, {"bn": "clean"}), (Attention, {})],
)
def test_what_runs_eagerly_inside_a_compiled_objective(architecture, settings, weighting, generator, plain):
    """Weightings and hidden layers; draws are always eager."""
    objective = objective_for(architecture().double(), weighting, plain, **settings)
    assert_compiled_equals_eager(objective, *data(generator), generator, "aot_eager")


@pytest.mark.slow
def test_compiled_batches_of_other_sizes_and_modes(generator, plain):
    """A last, smaller batch, evaluation, and sample weights through one compiled objective."""
    objective = objective_for(Mlp().double(), None, plain)
    compiled = torch.compile(objective, backend="aot_eager")
    for n in (6, 5, 2):
        x, y = data(generator, n=n)
        weight = torch.rand(n, dtype=torch.float64, generator=generator)
        seed = generator.clone_state()
        loss = compiled(x, y, sample_weight=weight, generator=generator)
        torch.testing.assert_close(loss, objective(x, y, sample_weight=weight, generator=seed))
    objective.eval()
    torch.testing.assert_close(compiled(x, y), F.cross_entropy(objective.model(x), y))
    objective.train().strength = None
    torch.testing.assert_close(compiled(x, y), F.cross_entropy(objective.model(x), y))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler: install g++")
def test_inductor_equals_eager(generator, plain):
    """Kernels generated in C++."""
    objective = objective_for(Mlp().double(), None, plain)
    assert_compiled_equals_eager(objective, *data(generator), generator, "inductor", tolerance=1e-8)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("settings", [{}, {"at": "1"}, {"pairing": "inverse_distance"}])
@pytest.mark.parametrize("architecture", [Mlp, Normed, Attention])
def test_bfloat16_autocast_is_close_to_float32(architecture, settings, weighting, generator):
    """bfloat16 keeps 8 bits, 0.4 %; through a few layers: 3 % of the value, 10 % of the gradient's norm."""
    if "at" in settings and architecture not in (Mlp, Normed):
        return
    model = architecture()
    x, y = data(generator, torch.float32, n=16)
    objective = objective_for(model, weighting, **settings)
    seed = generator.clone_state()
    exact = objective(x, y, generator=generator)
    expected = torch.cat([g.flatten() for g in reference.gradients(exact, model)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = objective(x, y, generator=seed)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=0.03, atol=0.01)
    found = torch.cat([g.flatten() for g in reference.gradients(loss, model)])
    assert (found - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_every_dtype(weighting, dtype, generator):
    """Points and targets have the dtype of the inputs; log-weights of paths are at least float32."""
    objective = objective_for(Mlp().to(dtype), weighting)
    x, y = data(generator, dtype)
    paths = objective.sample(x, y, generator=generator)
    assert paths.x.dtype == paths.y.dtype == dtype
    loss = objective.loss_on(paths)
    assert loss.dtype == (torch.promote_types(dtype, torch.float32) if weighting == "girsanov" else dtype)
    assert all(torch.isfinite(g).all() for g in reference.gradients(loss, objective))


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_attention_can_be_differentiated_twice(weighting, generator):
    """The user need not know which kernel has second derivatives; values equal those of the plain one."""
    model = Attention().double()
    x, y = data(generator)
    objective = objective_for(model, weighting)
    paths = objective.sample(x, y, generator=generator)
    with sdpa_kernel(SDPBackend.MATH):
        expected = reference.objective(
            model, reference.cross_entropy, paths, weighting=weighting, variance=0.25
        )
        reference.assert_same(objective.loss_on(paths), expected, model)
    reference.gradients(objective.loss_on(paths), model)
