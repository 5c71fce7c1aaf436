"""Two real processes over gloo: gradients equal to those of one process, or a refusal that says why."""

import pytest
import torch
import torch.distributed

import two_processes
from processes import once
from reference import with_points
from two_processes import (
    SECOND_ORDER,
    WEIGHTINGS,
    batch,
    combined,
    hidden,
    objective_for,
    step_noise,
)

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
    pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning"),
]

#: These normalise over, or scale with, the batch of a process.
BATCH_WISE = ("gradient_softmax",)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Results of both processes."""
    return once(tmp_path_factory, two_processes.run)


def gradients(objective, x, y, **given):
    parameters = list(objective.parameters())
    return torch.autograd.grad(objective(x, y, **given), parameters)


def one_process(weighting):
    """Gradients on the joined batch; where that makes no sense, the mean over the two batches."""
    paths = [two_processes.paths_of(rank, weighting) for rank in (0, 1)]
    if weighting in BATCH_WISE:
        each = [gradients(objective_for(weighting), *batch(r), paths=paths[r]) for r in (0, 1)]
        return [(a + b) / 2 for a, b in zip(*each, strict=True)]
    shown = ["x", "y", "s", "free_y"] + ["labels"] * (paths[0].labels is not None)
    joined = with_points(paths[0], **{name: torch.cat([getattr(p, name) for p in paths]) for name in shown})
    x, y = (torch.cat(pair) for pair in zip(batch(0), batch(1), strict=True))
    return gradients(objective_for(weighting), x, y, paths=joined)


def assert_equal_gradients(found, key, expected):
    for one in found:
        for a, b in zip(one[key], expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_wrapped_objectives(weighting, found):
    expected = one_process(weighting)
    for key in (("ddp", weighting, False), ("ddp", weighting, True), ("fsdp", weighting)):
        assert_equal_gradients(found, key, expected)


@pytest.mark.parametrize("weighting", [w for w in WEIGHTINGS if w not in SECOND_ORDER])
def test_functions_of_a_wrapped_model_where_that_is_exact(weighting, found):
    """Detached weights are constants, so the wrapper sees one ordinary backward pass."""
    assert_equal_gradients(found, ("outside", weighting), one_process(weighting))


def test_wrapped_models_are_refused_where_they_are_not(found):
    """Second derivatives of a wrapped or sharded model, and any weighting under a static graph."""
    for one in found:
        refused = {key: value for key, value in one.items() if key[0] in ("refused", "static")}
        assert len(refused) == len(SECOND_ORDER) + len(WEIGHTINGS) - 1
        assert all(refused.values())
        assert one["sharded layers"]


def test_sharded_layers_with_detached_weights(found):
    assert_equal_gradients(found, ("nested", "multiplicative"), one_process("multiplicative"))


def test_bridges_in_hidden_layers_take_several_steps(found):
    """The features come from a forward pass that ends in the layer; wrappers must survive it."""
    expected = {}
    for wrapper, at, weighting in combined():
        if (at, weighting) not in expected:
            expected[at, weighting] = three_steps(hidden(at, weighting))
        assert_equal_gradients(found, ("hidden", wrapper, at, weighting), expected[at, weighting])


def three_steps(objective):
    parameters = list(objective.parameters())
    for step in range(3):
        each = [gradients(objective, *batch(r), generator=step_noise(step, r)) for r in (0, 1)]
        with torch.no_grad():
            for parameter, *slopes in zip(parameters, *each, strict=True):
                parameter -= 0.05 * (slopes[0] + slopes[1]) / 2
    return [parameter.detach() for parameter in parameters]
