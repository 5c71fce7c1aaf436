"""``with_outputs=True``: what the model returned at the points, and the targets there, from the same pass."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elliptica import Elliptic, switch_off
from elliptica.core.formulations import SourceTerm
from reference import gradients

pytestmark = pytest.mark.filterwarnings("ignore:With n_times")

N, CLASSES = 6, 4


class Net(nn.Module):
    """Counts the rows that it sees, and returns them in one of several structures."""

    def __init__(self, returns=lambda logits, hidden: logits):
        super().__init__()
        self.below, self.above = nn.Linear(3, 5), nn.Linear(5, CLASSES)
        self.returns, self.rows = returns, 0
        self.double()

    def forward(self, x):
        self.rows += len(x)
        hidden = self.below(x).tanh()
        return self.returns(self.above(hidden), hidden)


def data(generator):
    x = torch.randn(N, 3, dtype=torch.float64, generator=generator)
    return x, torch.randint(CLASSES, (N,), generator=generator)


def objective_for(model, loss_fn=None, kind=Elliptic, **settings):
    loss_fn = nn.CrossEntropyLoss() if loss_fn is None else loss_fn
    return kind(model, loss_fn, num_classes=CLASSES, target_space="simplex", sigma=0.3, **settings)


PATH = {"sampling": "path", "n_times": 3, "n_bridges": 2}
CASES = [
    {},
    {"n_bridges": 3},
    {"n_bridges": 2, "antithetic": True, "quadrature": "uniform"},
    PATH,
    {**PATH, "chunk_size": 7},
    {**PATH, "quadrature": "left"},
    {"at": "below"},
    {**PATH, "at": "below"},
    {"bn": "clean"},
    {"n_bridges": 3, "chunk_size": 4},
    *({**PATH, "weighting": w} for w in ("gradient_norm", "gradient_softmax", "girsanov", "multiplicative")),
    {**PATH, "weighting": "released", "chunk_size": 7},
    {**PATH, "weighting": "gradient_norm", "at": "below"},
]


def shown(settings):
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "plain"


@pytest.mark.parametrize("settings", CASES, ids=shown)
def test_outputs_come_from_the_pass_of_the_loss(settings, generator):
    """Same loss and gradient as without, no further rows, outputs and targets in the order of the points."""
    x, y = data(generator)
    model = Net()
    objective = objective_for(model, **settings)
    twin = generator.clone_state()
    plain = objective(x, y, generator=twin)
    seen, model.rows = model.rows, 0
    loss, output, target = objective(x, y, generator=generator, with_outputs=True)
    assert model.rows == seen
    assert torch.equal(generator.get_state(), twin.get_state())
    torch.testing.assert_close(loss, plain)  # means in another order of operations
    for a, b in zip(gradients(loss, model), gradients(plain, model), strict=True):
        torch.testing.assert_close(a, b)
    assert not output.requires_grad
    assert not target.requires_grad
    assert output.shape == target.shape == (N * plain_rows(settings), CLASSES)
    torch.testing.assert_close(target.sum(1), torch.ones(len(target), dtype=torch.float64))
    if settings.get("weighting", "none") == "none" and "quadrature" not in settings:
        torch.testing.assert_close(F.cross_entropy(output, target), plain)  # rows belong together
    assert not objective.loss._forward_hooks


def plain_rows(settings):
    return settings.get("n_bridges", 1) * (settings.get("n_times", 5) if "sampling" in settings else 1)


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_rows_are_ordered_by_time_bridge_and_sample(chunk_size, generator):
    x, y = data(generator)
    model = Net()
    objective = objective_for(model, **PATH, chunk_size=chunk_size)
    paths = objective.sample(x, y, generator=generator)
    _, output, target = objective(x, y, paths=paths, with_outputs=True)
    for t in range(3):
        for j in range(2):
            for i in range(N):
                row = (t * 2 + j) * N + i
                torch.testing.assert_close(output[row], model(paths.x[i, j, t][None])[0])
                torch.testing.assert_close(target[row], paths.y[i, j, t])


def test_points_given_need_not_be_those_of_the_settings(generator):
    """Chunks are put together by the paths' own number of times."""
    x, y = data(generator)
    model = Net()
    paths = objective_for(model, **PATH).sample(x, y, generator=generator)
    chunked = objective_for(model, chunk_size=7)
    _, output, _ = chunked(x, y, paths=paths, with_outputs=True)
    torch.testing.assert_close(output, model(paths.x.transpose(0, 2).flatten(0, 2)))


@pytest.mark.parametrize("how", ["eval", "schedule"])
@pytest.mark.parametrize("kind", [Elliptic, SourceTerm])
def test_clean_outputs_where_bridges_are_off(kind, how, generator):
    x, y = data(generator)
    model = Net()
    objective = objective_for(model, kind=kind, schedule=switch_off(after=0))
    objective.set_epoch(0)
    if how == "eval":
        objective.eval()
    loss, output, target = objective(x, y, with_outputs=True)
    assert model.rows == N
    assert torch.equal(output, model(x))
    assert torch.equal(target, F.one_hot(y, CLASSES).double())
    torch.testing.assert_close(loss, F.cross_entropy(model(x), y))


@pytest.mark.parametrize("duration", [0.0, 0.5])
def test_source_term_shows_the_bridges(duration, generator):
    x, y = data(generator)
    model = Net()
    objective = objective_for(model, kind=SourceTerm, duration=duration)
    twin = generator.clone_state()
    loss, output, target = objective(x, y, with_outputs=True, generator=generator)
    expected = F.cross_entropy(model(x), y) + duration * F.cross_entropy(output, target)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(loss, objective(x, y, generator=twin))


STRUCTURES = {
    "dict": (lambda logits, hidden: {"logits": logits, "hidden": hidden}, lambda out: out["logits"]),
    "tuple": (lambda logits, hidden: (logits, {"hidden": hidden}), lambda out: out[0]),
}


@pytest.mark.parametrize(
    "settings", [{}, {**PATH, "chunk_size": 7}, {"weighting": "gradient_norm"}], ids=shown
)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_models_that_return_more_than_a_tensor(structure, settings, generator):
    returns, logits_of = STRUCTURES[structure]
    x, y = data(generator)
    model = Net(returns)

    def loss_fn(output, target):
        return F.cross_entropy(logits_of(output), target, reduction="none")

    objective = objective_for(model, loss_fn, **settings)
    paths = objective.sample(x, y, generator=generator)
    _, output, target = objective(x, y, paths=paths, with_outputs=True)
    expected = model(paths.x.transpose(0, 2).flatten(0, 2))
    assert type(output) is type(expected)
    torch.testing.assert_close(output, expected)
    assert not logits_of(output).requires_grad
    assert len(target) == len(logits_of(output))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (lambda logits: logits.mean(), r"one row per input row \(6\), but one is \(\).*chunk_size=None"),
        (lambda logits: "text", r"but one is str.*chunk_size=None"),
    ],
)
def test_what_cannot_be_joined_is_refused(extra, message, generator):
    """Only in chunks: one pass returns what the model returned."""
    x, y = data(generator)
    model = Net(lambda logits, hidden: {"logits": logits, "extra": extra(logits)})

    def loss_fn(output, target):
        return F.cross_entropy(output["logits"], target, reduction="none")

    _, output, _ = objective_for(model, loss_fn)(x, y, with_outputs=True)
    assert set(output) == {"logits", "extra"}
    chunked = objective_for(model, loss_fn, n_bridges=2, chunk_size=6)
    with pytest.raises(TypeError, match=message):
        chunked(x, y, with_outputs=True)
    assert not chunked.loss._forward_hooks


def test_regression_outputs(generator):
    x, y = data(generator)[0], torch.randn(N, CLASSES, dtype=torch.float64, generator=generator)
    objective = Elliptic(Net(), nn.MSELoss(), sigma=0.3)
    loss, output, target = objective(x, y, with_outputs=True, generator=generator)
    torch.testing.assert_close(loss, F.mse_loss(output, target))
