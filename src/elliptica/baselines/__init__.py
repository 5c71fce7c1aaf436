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

from elliptica.baselines.controls import InputNoise as InputNoise
from elliptica.baselines.controls import LabelSmoothing as LabelSmoothing
from elliptica.baselines.controls import matched_smoothing as matched_smoothing
from elliptica.baselines.dro import DORO as DORO
from elliptica.baselines.dro import DRO as DRO
from elliptica.baselines.dro import Focal as Focal
from elliptica.baselines.dro import Tilted as Tilted
from elliptica.baselines.dro import chi2_weights as chi2_weights
from elliptica.baselines.dro import cvar_weights as cvar_weights
from elliptica.baselines.erm import ERM as ERM
from elliptica.baselines.groups import LISA as LISA
from elliptica.baselines.groups import DomainMix as DomainMix
from elliptica.baselines.groups import GroupDRO as GroupDRO
from elliptica.baselines.groups import group_balanced_weights as group_balanced_weights
from elliptica.baselines.invariance import CORAL as CORAL
from elliptica.baselines.invariance import IBIRM as IBIRM
from elliptica.baselines.invariance import IRM as IRM
from elliptica.baselines.invariance import VREx as VREx
from elliptica.baselines.invariance import fish_step as fish_step
from elliptica.baselines.invariance import split_by_group as split_by_group
from elliptica.baselines.mixup import NFM as NFM
from elliptica.baselines.mixup import ManifoldMixup as ManifoldMixup
from elliptica.baselines.mixup import Mixup as Mixup
from elliptica.baselines.mixup import MixupE as MixupE
from elliptica.baselines.mixup import RegMixup as RegMixup
from elliptica.baselines.regression import ADA as ADA
from elliptica.baselines.regression import FOMA as FOMA
from elliptica.baselines.regression import CMixup as CMixup
from elliptica.baselines.regression import TargetKernel as TargetKernel
from elliptica.baselines.regression import anchor_clusters as anchor_clusters
from elliptica.baselines.regression import neighbour_order as neighbour_order
from elliptica.baselines.stages import UMIX as UMIX
from elliptica.baselines.stages import CorrectnessTable as CorrectnessTable
from elliptica.baselines.stages import ErrorRecorder as ErrorRecorder
from elliptica.baselines.stages import smote_rows as smote_rows
from elliptica.baselines.stages import umix_weights as umix_weights
from elliptica.baselines.stages import upsampled_rows as upsampled_rows
