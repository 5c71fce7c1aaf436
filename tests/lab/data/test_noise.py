"""Label noise: what is shuffled, what stays, and the law of what comes out."""

import numpy as np
import pytest
import torch
from scipy import stats

import laws
from elliptica.lab.data import shuffle_labels
from elliptica.lab.experiments.registry import label_noise


@pytest.mark.parametrize(("n", "share", "most"), [(546, 0.5, 273), (7, 0.5, 4), (5, 0.0, 0), (5, 1.0, 5)])
def test_share_of_rows_and_what_stays(n, share, most, generator):
    y = torch.arange(n)
    noisy = shuffle_labels(y, share, generator=generator)
    assert most - 10 < int((noisy != y).sum()) <= most  # few of the chosen rows get their own label again
    assert torch.equal(noisy.sort().values, y)  # class counts stay
    assert torch.equal(y, torch.arange(n))


def test_generator_decides():
    y = torch.arange(40.0).view(20, 2)  # targets of any shape move as rows
    state = torch.get_rng_state()
    per_batch = label_noise({"shuffled_per_batch": 0.5})
    for shuffle in (lambda g: shuffle_labels(y, generator=g), lambda g: per_batch(y, g)):
        first, again, other = (shuffle(torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert {tuple(row) for row in first.tolist()} == {tuple(row) for row in y.tolist()}
        same = torch.Generator().manual_seed(1)
        assert not torch.equal(shuffle(same), shuffle(same))  # from batch to batch
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.statistical
def test_law_of_rows_and_labels(generator):
    """Rows are chosen uniformly; a chosen row gets each chosen label with the same probability."""
    n, repetitions = 6, 3000
    moved, kept = np.zeros(n), 0
    for _ in range(repetitions):
        is_moved = shuffle_labels(torch.arange(n), 0.5, generator=generator) != torch.arange(n)
        moved += is_moved.numpy()
        kept += 3 - int(is_moved.sum())
    # rows of one call exclude each other, which makes the statistic smaller than a chi-square: no false alarm
    assert stats.chisquare(moved).pvalue > laws.ALPHA
    # a random order of three has one fixed point on average, with variance one
    assert 2 * stats.norm.sf(abs(kept - repetitions) / repetitions**0.5) > laws.ALPHA


@pytest.mark.bad_input
@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_bad_shares(share):
    with pytest.raises(ValueError, match="share"):
        shuffle_labels(torch.arange(4), share)
