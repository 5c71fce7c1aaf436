"""The whole objective as slow, obvious loops in float64, written from the formulas alone.

Everything is evaluated one row at a time: point by point a forward pass, a loss and an input gradient.
Nothing here calls the library; it reads only the points of `Paths` (``x``, ``y``, ``free_y``, ``s``).
"""

import math

import torch


def cross_entropy(output, target):
    """``- sum_c target_c log p_c`` of one row."""
    return -(target * (output - output.logsumexp(0))).sum()


def squared_error(output, target):
    return ((output - target) ** 2).mean()


def binary_cross_entropy(output, target):
    p = 1 / (1 + torch.exp(-output))
    return -(target * p.log() + (1 - target) * (1 - p).log()).mean()


def evaluate(model, row_loss, paths):
    """Loss and input gradient of each point, as nested lists ``[batch][bridge][time]``."""
    n, n_bridges, n_times = paths.s.shape
    losses = [[[None] * n_times for _ in range(n_bridges)] for _ in range(n)]
    slopes = [[[None] * n_times for _ in range(n_bridges)] for _ in range(n)]
    for i in range(n):
        for j in range(n_bridges):
            for t in range(n_times):
                z = paths.x[i, j, t].detach().clone().requires_grad_()
                loss = row_loss(model(z.unsqueeze(0))[0], paths.y[i, j, t])
                (slope,) = torch.autograd.grad(loss, z, create_graph=True)
                losses[i][j][t], slopes[i][j][t] = loss, slope
    return losses, slopes


def gradient_log_weight(slopes, points, times, xi, variance):
    """``xi sum g.dZ - 1/2 xi**2 V sum |g|**2 ds`` of one path, left-point rule."""
    total = torch.zeros((), dtype=torch.float64)
    for t in range(len(times) - 1):
        step, ds = points[t + 1] - points[t], times[t + 1] - times[t]
        total = total + xi * (slopes[t] * step).sum()
        total = total - 0.5 * xi**2 * (variance * slopes[t] ** 2).sum() * ds
    return total


def drift_log_weight(drift, points, targets, times, xi, variance, variance_y):
    """``sum mu.dZ / V - 1/2 sum |mu|**2 ds / V`` of one path with ``mu = xi * drift``, ``Z = (x, y)``."""
    total = torch.zeros((), dtype=torch.float64)
    for t in range(len(times) - 1):
        mu = drift(points[t].unsqueeze(0), targets[t].unsqueeze(0))
        mus = mu if isinstance(mu, tuple) else (mu,)
        ds = times[t + 1] - times[t]
        for part, z, v in zip(mus, (points, targets), (variance, variance_y), strict=False):
            scaled = xi * part[0]
            total = total + (scaled * (z[t + 1] - z[t]) / v).sum() - 0.5 * (scaled**2 / v).sum() * ds
    return total


def log_weights(model, row_loss, paths, *, xi, variance, drift=None, variance_y=None):
    """The log-weight of each path, nested ``[batch][bridge]``."""
    n, n_bridges, _ = paths.s.shape
    if drift is None:
        _, slopes = evaluate(model, row_loss, paths)
        return [
            [
                gradient_log_weight(slopes[i][j], paths.x[i, j], paths.s[i, j], xi, variance)
                for j in range(n_bridges)
            ]
            for i in range(n)
        ]
    return [
        [
            drift_log_weight(
                drift, paths.x[i, j], paths.free_y[i, j], paths.s[i, j], xi, variance, variance_y
            )
            for j in range(n_bridges)
        ]
        for i in range(n)
    ]


def quadrature_weights(quadrature, n_times):
    """Weights of the points of one path; they sum to one."""
    if quadrature == "mean" or n_times == 1:
        return [1 / n_times] * n_times
    step = 1 / (n_times - 1)
    if quadrature == "left":
        return [step] * (n_times - 1) + [0.0]
    return [step / 2] + [step] * (n_times - 2) + [step / 2]


def weighted_losses(
    model, row_loss, paths, *, weighting, xi, variance, drift=None, variance_y=None, quadrature="mean"
):
    """Losses of all points after the weighting, nested ``[batch][bridge][time]``."""
    losses, slopes = evaluate(model, row_loss, paths)
    n, n_bridges, n_times = paths.s.shape
    points = [(i, j, t) for i in range(n) for j in range(n_bridges) for t in range(n_times)]
    size = {(i, j, t): slopes[i][j][t].square().sum().sqrt() for i, j, t in points}
    factor = dict.fromkeys(points, 1.0)
    extra = dict.fromkeys(points, 0.0)
    if weighting == "gradient_norm":
        extra = {p: xi * size[p] for p in points}
    elif weighting == "gradient_softmax":
        # every sum over points counts a point as often as the quadrature does
        over_time = quadrature_weights(quadrature, n_times)
        share = {p: over_time[p[2]] / (n * n_bridges) for p in points}
        mean = sum(share[p] * float(size[p].detach()) for p in points)
        spread = sum(share[p] * (float(size[p].detach()) - mean) ** 2 for p in points)
        std = (spread * len(points) / (len(points) - 1)) ** 0.5
        raw = {p: math.exp(xi * (float(size[p].detach()) - mean) / std) for p in points}
        factor = {p: raw[p] / sum(share[q] * raw[q] for q in points) for p in points}
    elif weighting in ("girsanov", "multiplicative"):
        logs = log_weights(
            model, row_loss, paths, xi=xi, variance=variance, drift=drift, variance_y=variance_y
        )
        if weighting == "girsanov":
            extra = {(i, j, t): -logs[i][j] for i, j, t in points}
        else:
            raw = [[value.detach().exp() for value in row] for row in logs]
            factor = {(i, j, t): raw[i][j] * n_bridges / sum(raw[i]) for i, j, t in points}
    elif weighting == "released":
        rows = n * n_bridges  # g there is the gradient of the batch mean
        for i, j, t in points:
            own = [
                (slopes[i][j][k] / rows * paths.x[i, j, k]).sum()
                - 0.5 * (slopes[i][j][k] / rows).square().sum()
                for k in range(n_times)
            ]
            extra[i, j, t] = -xi * sum(own) / n_times  # both are summed over time there, averaged here
    else:
        assert weighting == "none"
    return {p: losses[p[0]][p[1]][p[2]] * factor[p] + extra[p] for p in points}


def objective(
    model,
    row_loss,
    paths,
    *,
    weighting="none",
    xi=1.0,
    variance=None,
    quadrature="mean",
    sample_weight=None,
    partners=None,
    drift=None,
    variance_y=None,
):
    """The objective at given points, a scalar with a graph."""
    losses = weighted_losses(
        model,
        row_loss,
        paths,
        weighting=weighting,
        xi=xi,
        variance=variance,
        drift=drift,
        variance_y=variance_y,
        quadrature=quadrature,
    )
    n, n_bridges, n_times = paths.s.shape
    over_time = quadrature_weights(quadrature, n_times)
    total = torch.zeros((), dtype=torch.float64)
    for (i, j, t), loss in losses.items():
        weight = 1.0
        if sample_weight is not None:
            s = paths.s[i, j, t]
            weight = (1 - s) * sample_weight[i] + s * sample_weight[partners[i, j]]
        total = total + over_time[t] * weight * loss / (n * n_bridges)
    return total


def gradients(value, module):
    """Gradient with respect to every parameter, zeros where there is none."""
    parameters = list(module.parameters())
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
