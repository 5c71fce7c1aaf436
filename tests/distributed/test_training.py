"""Joined batches and given noise in two real processes, for every weighting."""

from typing import NamedTuple

import pytest
import torch
import torch.distributed
from torch import nn

import training_cases
from elliptica import Elliptic
from elliptica.baselines import ERM
from elliptica.distributed import Ranks, current_ranks, over_global_batch, rank_generator, shard
from laws import ALPHA
from processes import once
from training_cases import ROWS, SAMPLERS, class_weighted, cut, global_batch, global_paths
from two_processes import WEIGHTINGS, network, noise, objective_for

slow = pytest.mark.slow
pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed"),
    pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return once(tmp_path_factory, training_cases.run)


def gradients(objective, *args, **kwargs):
    return torch.autograd.grad(objective(*args, **kwargs), list(objective.parameters()))


def mean_over(parts, weighting, model=network):
    """Mean of the gradients on parts of the batch."""
    x, y = global_batch()
    paths = global_paths(objective_for(weighting))
    each = [gradients(objective_for(weighting, model()), x[p], y[p], paths=cut(paths, p)) for p in parts]
    return [sum(values) / len(parts) for values in zip(*each, strict=True)]


def on_joined_batch(weighting, **settings):
    objective = objective_for(weighting, **settings)
    return gradients(objective, *global_batch(), paths=global_paths(objective))


def assert_equal(found, key, expected, **tolerance):
    tolerance = tolerance or {"rtol": 1e-10, "atol": 1e-13}
    for one in found:
        assert not isinstance(one[key], str), one[key]
        for a, b in zip(one[key], expected, strict=True):
            torch.testing.assert_close(a, b.to(a.dtype), **tolerance)


@slow
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_over_the_global_batch_two_processes_are_one(weighting, found):
    """Also with different numbers of rows, where the mean over processes is not the mean over rows."""
    expected = on_joined_batch(weighting)
    for kind in ("ddp", "fsdp"):
        assert_equal(found, ("joined", kind, weighting), expected)
    assert_equal(found, ("joined", "left", weighting), on_joined_batch(weighting, quadrature="left"))
    parts = [slice(0, 5), slice(5, 8)]
    local = mean_over(parts, weighting)
    assert max(float((a - b).abs().max()) for a, b in zip(local, expected, strict=True)) > 1e-3


@slow
@pytest.mark.parametrize("quadrature", ["mean", "left"])
def test_class_weights_over_the_global_batch(quadrature, found):
    objective = class_weighted(network(), quadrature=quadrature)
    x, y = global_batch()
    paths = objective.sample(x, y, generator=noise(7))
    expected = gradients(objective, x, y, paths=paths)
    for one in found:
        one["gradients"] = one["class weights", quadrature][:-1]
    assert_equal(found, "gradients", expected)
    objective.eval()
    torch.testing.assert_close(found[0]["class weights", quadrature][-1], objective(x, y).detach())


@slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_given_noise_several_processes_are_one(name, found):
    weighting = None if name == "marginal" else "girsanov"
    objective = objective_for(weighting, **SAMPLERS[name])
    weight = torch.linspace(0, 2, ROWS, dtype=torch.float64)
    expected = gradients(objective, *global_batch(), paths=global_paths(objective, sample_weight=weight))
    assert_equal(found, ("sharded", name), expected)


@slow
def test_given_partners_in_the_global_batch_several_processes_are_one(found):
    partners = torch.randperm(ROWS, generator=noise(1))
    objective = objective_for("gradient_norm", sigma=0.0)
    assert_equal(found, "far ends", gradients(objective, *global_batch(), partners=partners))


class Pair(NamedTuple):
    x: torch.Tensor
    target: torch.Tensor


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_parts_make_up_the_whole(size):
    x, y = torch.randn(7, 2), torch.arange(7)
    value = {"x": x, "rest": [y, None], "pair": Pair(x, y)}
    parts = [shard(value, Ranks(rank, size)) for rank in range(size)]
    assert torch.equal(torch.cat([part["x"] for part in parts]), x)
    assert torch.equal(torch.cat([part["rest"][0] for part in parts]), y)
    assert {part["rest"][1] for part in parts} == {None}
    assert torch.equal(torch.cat([part["pair"].target for part in parts]), y)
    assert max(len(part["x"]) for part in parts) - min(len(part["x"]) for part in parts) <= 1


@pytest.mark.bad_input
def test_what_has_no_part_is_refused(own_checks):
    two = Ranks(0, 2)
    with pytest.raises(ValueError, match="rows"):
        shard(torch.zeros(1), two)
    for value in (torch.zeros(()), 1.0):
        with pytest.raises(TypeError):
            shard(value, two)
    hidden = objective_for(None, at="1").sample(*global_batch())
    with pytest.raises(ValueError, match="paths"):
        shard(hidden, two)
    with pytest.raises(TypeError, match="objective"):
        over_global_batch(ERM(nn.Linear(1, 1), nn.MSELoss()))


def test_a_process_alone_is_whole():
    assert current_ranks() == Ranks(0, 1)
    x = torch.randn(3, 2)
    assert torch.equal(shard(x), x)
    assert over_global_batch(Elliptic(nn.Linear(1, 1), nn.MSELoss())).gather_ranks is None
    assert current_ranks().from_first("a") == "a"
    current_ranks().wait()


@pytest.mark.statistical
def test_streams_of_processes_are_unrelated_and_the_same_again(seed):
    """Correlation of 40 000 normals: a shared stream is 200 standard errors away."""
    from scipy import stats

    draws = [torch.randn(40_000, generator=rank_generator(seed, rank)) for rank in range(4)]
    draws.append(torch.randn(40_000, generator=rank_generator(seed + 1, 0)))
    assert torch.equal(draws[2], torch.randn(40_000, generator=rank_generator(seed, 2)))
    assert torch.equal(draws[0], torch.randn(40_000, generator=rank_generator(seed)))  # alone: the first
    for i, a in enumerate(draws):
        for b in draws[:i]:
            assert stats.pearsonr(a, b).pvalue > ALPHA
    with pytest.raises(AssertionError):
        assert stats.pearsonr(draws[0], draws[0] + draws[1]).pvalue > ALPHA
