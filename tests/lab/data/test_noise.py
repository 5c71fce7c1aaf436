"""Label noise: what is shuffled, what stays, and the law of what comes out."""

import numpy as np
import pytest
import torch
from scipy import stats

import laws
from elliptica.lab.data import PerBatchShuffle, shuffle_labels


@pytest.mark.parametrize(("n", "share", "expected"), [(546, 0.5, 273), (7, 0.5, 4), (5, 0.0, 0), (5, 1.0, 5)])
def test_share_of_rows_and_what_stays(n, share, expected, generator):
    y = torch.arange(n)
    before = y.clone()
    noisy, chosen = shuffle_labels(y, share, generator=generator)
    assert chosen.dtype == torch.bool
    assert int(chosen.sum()) == expected
    assert torch.equal(noisy[~chosen], y[~chosen])
    assert torch.equal(noisy.sort().values, y)  # a permutation: class counts stay
    assert torch.equal(noisy[chosen].sort().values, y[chosen])  # among the chosen rows
    assert torch.equal(y, before)


def test_generator_decides(generator):
    y = torch.arange(100)
    first, again, other = (
        shuffle_labels(y, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first.y, again.y)
    assert torch.equal(first.chosen, again.chosen)
    assert not torch.equal(first.y, other.y)
    state = torch.get_rng_state()
    shuffle_labels(y, generator=generator)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.statistical
def test_law_of_rows_and_labels(generator):
    """Rows are chosen uniformly; a chosen row gets each chosen label with the same probability."""
    n, repetitions = 6, 3000
    chosen_counts, kept = np.zeros(n), 0
    for _ in range(repetitions):
        noisy, chosen = shuffle_labels(torch.arange(n), 0.5, generator=generator)
        chosen_counts += chosen.numpy()
        kept += int((noisy == torch.arange(n))[chosen].sum())
    # rows of one call exclude each other, which makes the statistic smaller than a chi-square: no false alarm
    assert stats.chisquare(chosen_counts).pvalue > laws.ALPHA
    # a random order of three has one fixed point on average, with variance one
    assert 2 * stats.norm.sf(abs(kept - repetitions) / repetitions**0.5) > laws.ALPHA


def test_targets_of_any_shape_move_as_rows(generator):
    y = torch.arange(20.0).view(10, 2)
    noisy, chosen = shuffle_labels(y, 1.0, generator=generator)
    assert chosen.all()
    assert {tuple(row) for row in noisy.tolist()} == {tuple(row) for row in y.tolist()}


def test_per_batch_shuffle_differs_from_call_to_call():
    shuffle = PerBatchShuffle(0.5, generator=torch.Generator().manual_seed(0))
    x, y = torch.zeros(50, 2), torch.arange(50)
    (same, first), (_, second) = shuffle(x, y), shuffle(x, y)
    assert same is x
    assert not torch.equal(first, second)
    for noisy in (first, second):
        assert int((noisy != y).sum()) <= 25
        assert torch.equal(noisy.sort().values, y)
    again = PerBatchShuffle(0.5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again(x, y)[1], first)


@pytest.mark.bad_input
@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "half", True])
def test_bad_shares(share, own_checks):
    for call in (lambda: shuffle_labels(torch.arange(4), share), lambda: PerBatchShuffle(share)):
        with pytest.raises(ValueError, match="share must be a number between 0 and 1, but got"):
            call()


@pytest.mark.bad_input
@pytest.mark.parametrize("y", [torch.tensor(3), torch.zeros(0), [1, 2]])
def test_bad_labels(y, own_checks):
    with pytest.raises(ValueError, match="one row per sample, but got"):
        shuffle_labels(y)
