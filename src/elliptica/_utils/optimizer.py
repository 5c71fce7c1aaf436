"""Make Adam with torch's fused kernel where possible: the same steps in less time for small networks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def make_adam(
    parameters: Iterable[nn.Parameter],
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> torch.optim.Optimizer:
    """Make Adam, or AdamW if weight decay is ``decoupled``, fused where torch supports it.

    Fused and ordinary steps differ by rounding only. Parameters on other devices or of other types than
    float32 get the ordinary one.

    Example:
        >>> make_adam(nn.Linear(2, 1).parameters()).defaults["fused"]
        True
        >>> make_adam(nn.Linear(2, 1).double().parameters()).defaults["fused"] is None
        True
    """
    params = list(parameters)
    fused = all(p.device.type in ("cpu", "cuda") and p.dtype == torch.float32 for p in params)
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    return kind(params, lr=lr, weight_decay=weight_decay, fused=fused or None)
