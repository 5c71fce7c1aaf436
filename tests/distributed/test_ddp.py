"""Two real processes over gloo: gradients equal to those of one process, or a refusal that says why."""

import dataclasses

import pytest
import torch
import torch.distributed

import two_processes
from processes import once
from two_processes import DRIFTS, SECOND_ORDER, WEIGHTINGS, batch, objective_for, with_drift

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
    pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning"),
]

#: These normalise over, or scale with, the batch of a process.
BATCH_WISE = ("gradient_softmax", "released")


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
    joined = dataclasses.replace(
        paths[0], **{k: torch.cat([getattr(p, k) for p in paths]) for k in ("x", "y", "s", "free_y")}
    )
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


def test_partners_within_each_process_are_partners_in_the_joined_batch(found):
    x, y = (torch.cat(pair) for pair in zip(batch(0), batch(1), strict=True))
    partners = torch.cat([two_processes.partners_of(r) + r * two_processes.ROWS for r in (0, 1)])
    expected = gradients(objective_for("gradient_norm", sigma=0.0), x, y, partners=partners)
    assert_equal_gradients(found, "partners", expected)


@pytest.mark.parametrize("weighting", [w for w in WEIGHTINGS if w not in SECOND_ORDER])
def test_functions_of_a_wrapped_model_where_that_is_exact(weighting, found):
    """Detached weights are constants, so the wrapper sees one ordinary backward pass."""
    assert_equal_gradients(found, ("outside", weighting), one_process(weighting))


@pytest.mark.parametrize("weighting", SECOND_ORDER)
def test_functions_of_a_wrapped_model_are_refused_where_it_is_not(weighting, found):
    assert all(one["refused", weighting] for one in found)


def test_sharded_layers_are_refused_for_second_derivatives(found):
    """Whether they were sharded before the objective was made or after."""
    assert all(one["sharded early"] and one["sharded late"] for one in found)


def test_sharded_layers_with_detached_weights(found):
    assert_equal_gradients(found, ("nested", "multiplicative"), one_process("multiplicative"))


@pytest.mark.parametrize("weighting", DRIFTS)
def test_drift_networks_take_several_steps(weighting, found):
    """Trained under ``"girsanov"``, fixed under ``"multiplicative"``, in step with one process."""
    objective = with_drift(weighting)
    before = [p.detach().clone() for p in objective.drift.parameters()]
    parameters = list(objective.parameters())
    for step in range(3):
        each = [
            gradients(objective, *batch(rank), generator=torch.Generator().manual_seed(100 * step + rank))
            for rank in (0, 1)
        ]
        with torch.no_grad():
            for parameter, *slopes in zip(parameters, *each, strict=True):
                parameter -= 0.01 * (slopes[0] + slopes[1]) / 2
    drift = list(objective.drift.parameters())
    moved = any(not torch.equal(a, b) for a, b in zip(before, drift, strict=True))
    assert moved == (weighting == "girsanov")
    expected = [p.detach() for p in (*objective.model.parameters(), *drift)]
    for wrapper in ("ddp", "fully_shard"):
        assert_equal_gradients(found, ("drift", weighting, wrapper), expected)
