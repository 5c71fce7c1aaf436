"""Baselines to compare with, called like `elliptica.Elliptic`: ``objective(x, y)``.

All objectives share what follows; their own docstrings name only what is theirs.

- They are made by ``Method(model, loss_fn, **settings)``, see `ERM` for ``model``, ``loss_fn`` and
  ``num_classes``. The module owns the model: save ``objective.model``.
- In ``eval()`` mode they return the ordinary loss and draw nothing.
- Inputs are a tensor, or the tuple or dict of tensors that the model takes; targets are labels, soft labels
  or real values. Nothing that is passed in is changed.
- ``sample_weight`` is not normalised. ``end`` passes partners that are not in the batch to methods that mix.
- With ``generator`` the same call gives the same result. None means torch's default generator.

Methods that use the groups of the training rows, or their clusters (ADA), are called ``objective(x, y,
group)``. JTT and UMIX have a first stage: functions from a trained model, or from its training history,
to rows or weights. Fish replaces the optimiser step.

Example:
    >>> import torch
    >>> from torch import nn
    >>> model, loss_fn = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), nn.CrossEntropyLoss()
    >>> x, y, group = torch.randn(8, 4), torch.randint(3, (8,)), torch.arange(8) % 2
    >>> ManifoldMixup(model, loss_fn, layers=(None, "1"))(x, y).backward()
    >>> CORAL(model, loss_fn, at="1")(x, y, group).backward()
"""

from elliptica.baselines.controls import InputNoise, LabelSmoothing, matched_smoothing
from elliptica.baselines.dro import DORO, DRO, Focal, Tilted, chi2_penalty_weights, chi2_weights, cvar_weights
from elliptica.baselines.erm import ERM
from elliptica.baselines.groups import LISA, DomainMix, GroupDRO, group_balanced_weights
from elliptica.baselines.invariance import CORAL, IBIRM, IRM, VREx, fish_step, split_by_group
from elliptica.baselines.mixup import NFM, ManifoldMixup, Mixup, MixupE, RegMixup, mixup_batch
from elliptica.baselines.regression import (
    ADA,
    FOMA,
    CMixup,
    TargetKernel,
    anchor_clusters,
    anchor_rows,
    foma_batch,
    neighbour_order,
)
from elliptica.baselines.stages import (
    UMIX,
    CorrectnessTable,
    ErrorRecorder,
    find_errors,
    smote_rows,
    umix_weights,
    upsampled_rows,
)

__all__ = [
    "ADA",
    "CORAL",
    "DORO",
    "DRO",
    "ERM",
    "FOMA",
    "IBIRM",
    "IRM",
    "LISA",
    "NFM",
    "UMIX",
    "CMixup",
    "CorrectnessTable",
    "DomainMix",
    "ErrorRecorder",
    "Focal",
    "GroupDRO",
    "InputNoise",
    "LabelSmoothing",
    "ManifoldMixup",
    "Mixup",
    "MixupE",
    "RegMixup",
    "TargetKernel",
    "Tilted",
    "VREx",
    "anchor_clusters",
    "anchor_rows",
    "chi2_penalty_weights",
    "chi2_weights",
    "cvar_weights",
    "find_errors",
    "fish_step",
    "foma_batch",
    "group_balanced_weights",
    "matched_smoothing",
    "mixup_batch",
    "neighbour_order",
    "smote_rows",
    "split_by_group",
    "umix_weights",
    "upsampled_rows",
]
