"""The maximum principle on hand-made losses, and on functions whose answer is known."""

import dataclasses
import math

import pytest
import torch

from elliptica.landscape import MaximumPrinciple, check_maximum_principle


def test_every_field_of_a_violation():
    result = check_maximum_principle(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 2.0, 3.0, 3.5]))
    assert result == MaximumPrinciple(
        boundary_min=1.0,
        boundary_max=3.0,
        interior_min=0.5,
        interior_max=3.5,
        share_above=0.25,
        excess=0.5,
        holds=False,
        minimum_holds=False,
    )


def test_equality_holds():
    result = check_maximum_principle(torch.tensor([1.0]), torch.tensor([1.0]))
    assert result.holds
    assert result.minimum_holds
    assert (result.share_above, result.excess) == (0.0, 0.0)


def test_excess_is_negative_with_room():
    result = check_maximum_principle(torch.tensor([0.0, 2.0]), torch.tensor([1.0]))
    assert result.holds
    assert result.excess == -1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype(dtype):
    edge = torch.tensor([0.1, 0.3], dtype=dtype)
    result = check_maximum_principle(edge, edge.clone())
    assert result.holds
    assert result.share_above == 0


def test_losses_that_differ_by_one_rounding():
    edge = torch.tensor([0.1])
    above = torch.nextafter(edge, torch.ones(1))
    assert not check_maximum_principle(edge, above).holds


def test_works_on_losses_with_a_graph_and_leaves_them_alone():
    losses = torch.tensor([1.0, 2.0], requires_grad=True)
    before = losses.detach().clone()
    assert check_maximum_principle(losses, losses * 0.75).minimum_holds is False
    assert torch.equal(losses.detach(), before)
    assert losses.grad is None


def test_result_is_frozen():
    result = check_maximum_principle(torch.ones(1), torch.ones(1))
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.holds = False


def disc(generator, n=4000):
    angle = 2 * math.pi * torch.rand(n, generator=generator, dtype=torch.float64)
    edge = torch.stack([angle.cos(), angle.sin()], 1)
    return edge, edge * 0.9 * torch.rand(n, 1, generator=generator, dtype=torch.float64).sqrt()


@pytest.mark.parametrize(
    ("function", "maximum", "minimum"),
    [
        (lambda x, y: x**2 - y**2, True, True),  # harmonic: both
        (lambda x, y: x**2 + y**2, True, False),  # subharmonic: maximum only
        (lambda x, y: 1 - x**2 - y**2, False, True),  # superharmonic: minimum only
    ],
)
def test_functions_on_the_disc(function, maximum, minimum, generator):
    edge, inside = disc(generator)
    result = check_maximum_principle(function(*edge.T), function(*inside.T))
    assert (result.holds, result.minimum_holds) == (maximum, minimum)


@pytest.mark.usefixtures("own_checks")
@pytest.mark.parametrize("name", ["boundary_losses", "interior_losses"])
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (torch.zeros(0), ValueError, "is empty"),
        (torch.tensor([1.0, math.nan]), ValueError, "must be finite.*rows 1"),
        (torch.tensor([math.inf]), ValueError, "must be finite"),
        (torch.tensor(1.0), ValueError, r"shape \(n,\), but has shape \(\)"),
        (torch.ones(2, 2), ValueError, 'reduction="none"'),
        (torch.ones(2, dtype=torch.long), TypeError, "floating point"),
        ([1.0, 2.0], TypeError, "got list"),
    ],
)
def test_bad_input_is_named(name, bad, error, message):
    arguments = {"boundary_losses": torch.ones(2), "interior_losses": torch.ones(2), name: bad}
    with pytest.raises(error, match=f"{name}.*{message}"):
        check_maximum_principle(**arguments)


@pytest.mark.parametrize("change", [torch.Tensor.to_sparse, lambda losses: losses.to("meta")])
def test_losses_without_ordinary_values(change, own_checks):
    with pytest.raises(TypeError, match="interior_losses must be an ordinary dense tensor"):
        check_maximum_principle(torch.ones(3), change(torch.ones(3)))
