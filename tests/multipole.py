"""Laplace's equation in a disk with round holes, by a least-squares series: an oracle for tests."""

import numpy as np


def solve_disk(centres, radii, ball_value, outer_value, *, outer_terms=24, ball_terms=8, per_circle=200):
    """Coefficients of ``sum a_k z^k`` plus a logarithm and inverse powers about each centre.

    Args:
        centres: Complex centres of the holes in the unit disk.
        radii: Their radii.
        ball_value: Value on each hole.
        outer_value: Function of complex points of the unit circle.

    Returns:
        The solution as a function of complex points, and its largest error on the boundary.
    """

    def basis(z):
        columns = [np.ones(z.shape)]
        for k in range(1, outer_terms + 1):
            columns += [(z**k).real, (z**k).imag]
        for c, r in zip(centres, radii, strict=True):
            columns.append(np.log(np.abs(z - c)))
            for k in range(1, ball_terms + 1):
                term = (r / (z - c)) ** k
                columns += [term.real, term.imag]
        return np.stack(columns, 1)

    def boundary(n, offset):
        circle = np.exp(2j * np.pi * (np.arange(n) + offset) / n)
        z = np.concatenate([circle, *(c + r * circle for c, r in zip(centres, radii, strict=True))])
        value = np.concatenate([outer_value(circle), np.repeat(ball_value, n)])
        return z, value

    z, value = boundary(per_circle, 0.0)
    coefficients = np.linalg.lstsq(basis(z), value, rcond=None)[0]
    z, value = boundary(per_circle, 0.5)  # between the points that were fitted
    residual = np.abs(basis(z) @ coefficients - value).max()
    return lambda z: basis(z) @ coefficients, float(residual)
