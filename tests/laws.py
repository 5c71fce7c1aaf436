"""Statistical checks: each rejects a right sampler with probability ALPHA."""

import numpy as np
from scipy import stats

ALPHA = 1e-6


def assert_mean(samples, expected, std):
    """Independent samples with known deviation ``std`` have mean ``expected``."""
    samples = np.asarray(samples, dtype=np.float64).ravel()
    z = float((samples.mean() - expected) / (std / np.sqrt(len(samples))))
    p = 2 * stats.norm.sf(abs(z))
    assert p > ALPHA, f"mean off by {z:.1f} standard errors, p={p:.1e} (n={len(samples)})"


def assert_variance(samples, expected):
    """Samples are Gaussian with mean zero under the null."""
    samples = np.asarray(samples, dtype=np.float64).ravel()
    n, q = len(samples), float(np.square(samples).sum() / expected)
    p = 2 * min(stats.chi2.cdf(q, n), stats.chi2.sf(q, n))
    assert p > ALPHA, f"variance ratio {q / n:.4f}, p={p:.1e} (n={n})"


def assert_covariance(a, b, var_a, var_b, expected):
    """Pairs of Gaussians with mean zero and known variances have covariance ``expected``."""
    a, b = (np.asarray(v, dtype=np.float64).ravel() for v in (a, b))
    product = a * b
    std = np.sqrt(var_a * var_b + expected**2)  # deviation of the product of two Gaussians
    z = float((product.mean() - expected) / (std / np.sqrt(len(product))))
    p = 2 * stats.norm.sf(abs(z))
    assert p > ALPHA, f"covariance off by {z:.1f} standard errors, p={p:.1e} (n={len(a)})"


def assert_distribution(samples, cdf):
    """Kolmogorov-Smirnov against a law."""
    samples = np.asarray(samples, dtype=np.float64).ravel()
    p = stats.kstest(samples, cdf).pvalue
    assert p > ALPHA, f"Kolmogorov-Smirnov p={p:.1e} (n={len(samples)})"


def assert_frequencies(counts, probabilities):
    """Chi-square of counts against probabilities (zero-probability cells must be empty)."""
    counts, probabilities = np.asarray(counts, float), np.asarray(probabilities, float)
    assert (counts[probabilities == 0] == 0).all(), "an impossible outcome was drawn"
    seen = probabilities > 0
    expected = probabilities[seen] / probabilities[seen].sum() * counts.sum()
    p = stats.chisquare(counts[seen], expected).pvalue
    assert p > ALPHA, f"frequencies, p={p:.1e} (n={int(counts.sum())})"


def assert_coverage(hits, n, level):
    """At least a share ``level`` of ``n`` independent intervals holds (an exact binomial test)."""
    p = stats.binom.cdf(round(hits), n, level)
    assert p > ALPHA, f"{round(hits)} of {n} intervals of {level:.0%} hold, p={p:.1e}"


def assert_same_distribution(a, b):
    """Two-sample Kolmogorov-Smirnov."""
    a, b = (np.asarray(v, dtype=np.float64).ravel() for v in (a, b))
    p = stats.ks_2samp(a, b, method="asymp").pvalue
    assert p > ALPHA, f"two-sample Kolmogorov-Smirnov p={p:.1e} (n={len(a)}, {len(b)})"


def assert_equal_means(a, b):
    """Two independent samples, large enough for the central limit, have the same mean."""
    a, b = (np.asarray(v, dtype=np.float64).ravel() for v in (a, b))
    z = float((a.mean() - b.mean()) / np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b)))
    p = 2 * stats.norm.sf(abs(z))
    assert p > ALPHA, f"means differ by {z:.1f} standard errors, p={p:.1e} (n={len(a)}, {len(b)})"
