"""The whole objective as slow, obvious loops in float64, written from the formulas alone.

Everything is evaluated one row at a time: point by point a forward pass, a loss and its gradients. Nothing
here calls the library; it reads only the points of `Paths` (``x``, ``y``, ``free_y``, ``s``).
"""

import math
from dataclasses import replace

import torch


def cross_entropy(output, target):
    """``- sum_c target_c log p_c`` of one row."""
    return -(target * (output - output.logsumexp(0))).sum()


def squared_error(output, target):
    return ((output - target) ** 2).mean()


def binary_cross_entropy(output, target):
    p = 1 / (1 + torch.exp(-output))
    return -(target * p.log() + (1 - target) * (1 - p).log()).mean()


def points_of(paths):
    """Indices ``(row, bridge, time)`` of all points."""
    n, n_bridges, n_times = paths.s.shape
    return [(i, j, t) for i in range(n) for j in range(n_bridges) for t in range(n_times)]


def with_points(paths, **parts):
    """Paths with other points, given as they are shown (``x``, ``y``, ``s``, ...), or other attributes."""
    shown = {"y": "targets", "s": "times", "free_y": "free_targets", "weight": "weights"}

    def rows(values):
        return values.transpose(0, 2).flatten(0, 2)

    if "x" in parts:
        x = parts.pop("x")
        named = dict(enumerate(x)) if isinstance(x, tuple) else {"x": x}
        parts |= {"template": x, "points": {name: rows(value) for name, value in named.items()}}
    if "s" in parts:
        parts |= {"n_bridges": parts["s"].shape[1], "n_times": parts["s"].shape[2]}
    return replace(paths, **{shown.get(k, k): rows(v) if k in shown else v for k, v in parts.items()})


def evaluate(model, row_loss, paths):
    """Loss of each point, and its gradients with respect to the input and to the target."""
    losses, slopes = {}, {}
    for p in points_of(paths):
        x, y = (v[p].detach().clone().requires_grad_() for v in (paths.x, paths.y))
        losses[p] = row_loss(model(x.unsqueeze(0))[0], y)
        slopes[p] = torch.autograd.grad(losses[p], (x, y), create_graph=True)
    return losses, slopes


def quadratic_form(g, variance):
    """``g . V g`` for a number, one per feature, or a matrix."""
    if isinstance(variance, torch.Tensor) and variance.ndim == 2:
        return g.flatten() @ variance @ g.flatten()
    return (variance * g**2).sum()


def log_weights(model, row_loss, paths, *, xi=1.0, variance=None, variance_y=None, drift="input"):
    """The log-weight of each path, by ``(row, bridge)``, with increments from the left point.

    ``xi sum g.dZ - 1/2 xi**2 sum g.Vg ds`` with the loss gradient ``g``, or ``g = mu / V`` for a drift.
    A variance may be a function of row and bridge.
    """
    n, n_bridges, n_times = paths.s.shape
    slopes = evaluate(model, row_loss, paths)[1] if isinstance(drift, str) else {}
    variances = (variance, variance_y)[: 1 if drift == "input" else 2]
    logs = {}
    for i in range(n):
        for j in range(n_bridges):
            total = torch.zeros((), dtype=torch.float64)
            own = [v(i, j) if callable(v) else v for v in variances]
            for t in range(n_times - 1):
                g = slopes.get((i, j, t))
                if g is None:
                    mu = drift(paths.x[i, j, t].unsqueeze(0), paths.free_y[i, j, t].unsqueeze(0))
                    mu = mu if isinstance(mu, tuple) else (mu,)
                    g = [part[0] / v for part, v in zip(mu, own, strict=False)]
                ds = paths.s[i, j, t + 1] - paths.s[i, j, t]
                for part, z, v in zip(g, (paths.x, paths.free_y), own, strict=False):
                    total = total + xi * (part * (z[i, j, t + 1] - z[i, j, t])).sum()
                    total = total - 0.5 * xi**2 * quadratic_form(part, v) * ds
            logs[i, j] = total
    return logs


def quadrature_weights(quadrature, n_times):
    """Weights of the points of one path; they sum to one."""
    if quadrature == "left" and n_times > 1:
        return [1 / (n_times - 1)] * (n_times - 1) + [0.0]
    return [1 / n_times] * n_times


def weighted_losses(model, row_loss, paths, *, weighting=None, xi=1.0, quadrature="mean", **law):
    """Losses of all points after the weighting, by ``(row, bridge, time)``."""
    losses, slopes = evaluate(model, row_loss, paths)
    n, n_bridges, n_times = paths.s.shape
    size = {p: slopes[p][0].square().sum().sqrt() for p in losses}
    if weighting == "gradient_norm":
        return {p: losses[p] + xi * size[p] for p in losses}
    if weighting == "gradient_softmax":
        # every sum over points counts a point as often as the quadrature does
        over_time = quadrature_weights(quadrature, n_times)
        share = {p: over_time[p[2]] / (n * n_bridges) for p in losses}
        mean = sum(share[p] * size[p].item() for p in losses)
        spread = sum(share[p] * (size[p].item() - mean) ** 2 for p in losses)
        count = sum(share[p] > 0 for p in losses)
        std = (spread * count / (count - 1)) ** 0.5
        raw = {p: math.exp(xi * (size[p].item() - mean) / std) for p in losses}
        total = sum(share[p] * raw[p] for p in losses)
        return {p: losses[p] * raw[p] / total for p in losses}
    if weighting is None:
        return losses
    logs = log_weights(model, row_loss, paths, xi=xi, **law)
    if weighting == "girsanov":
        return {p: losses[p] - logs[p[:2]] for p in losses}
    assert weighting == "multiplicative"
    raw = {q: log.detach().exp() for q, log in logs.items()}
    mean = [sum(raw[i, j] for j in range(n_bridges)) / n_bridges for i in range(n)]
    return {p: losses[p] * raw[p[:2]] / mean[p[0]] for p in losses}


def objective(
    model, row_loss, paths, *, quadrature="mean", sample_weight=None, partners=None, divisor=1.0, **law
):
    """The objective at given points, a scalar with a graph; ``divisor`` is the mean class weight."""
    losses = weighted_losses(model, row_loss, paths, quadrature=quadrature, **law)
    n, n_bridges, n_times = paths.s.shape
    over_time = quadrature_weights(quadrature, n_times)
    total = torch.zeros((), dtype=torch.float64)
    for (i, j, t), loss in losses.items():
        weight = 1.0
        if sample_weight is not None:
            s = paths.s[i, j, t]
            weight = (1 - s) * sample_weight[i] + s * sample_weight[partners[i, j]]
        total = total + over_time[t] * weight * loss / (n * n_bridges)
    return total / divisor


def gradients(value, module):
    """Gradient with respect to every parameter, zeros where there is none."""
    parameters = list(module.parameters())
    found = torch.autograd.grad(value, parameters, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def assert_same(value, expected, module, tolerance=1e-9):
    """Value and all parameter gradients agree to rounding, and are not all zero."""
    torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance)
    ours, theirs = gradients(value, module), gradients(expected, module)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert any(g.abs().max() > 0 for g in ours)
