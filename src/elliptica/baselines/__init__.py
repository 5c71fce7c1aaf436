"""Baselines to compare with, called like `elliptica.Elliptic`: ``objective(x, y)``.

Methods that use the groups of the training rows, or their clusters (ADA), are called ``objective(x, y,
group)``. JTT and UMIX have a first stage: functions from a trained model, or from its training history,
to rows or weights. Fish replaces the optimiser step.
"""

from elliptica.baselines.ada import ADA, anchor_clusters, anchor_rows
from elliptica.baselines.cmixup import CMixup, TargetKernel
from elliptica.baselines.coral import CORAL
from elliptica.baselines.domainmix import DomainMix
from elliptica.baselines.doro import DORO
from elliptica.baselines.dro import DRO, chi2_penalty_weights, chi2_weights, cvar_weights
from elliptica.baselines.erm import ERM
from elliptica.baselines.fish import fish_step, split_by_group
from elliptica.baselines.focal import Focal
from elliptica.baselines.foma import FOMA, foma_batch, neighbour_order
from elliptica.baselines.groupdro import GroupDRO, group_balanced_weights
from elliptica.baselines.ibirm import IBIRM
from elliptica.baselines.input_noise import InputNoise
from elliptica.baselines.irm import IRM
from elliptica.baselines.jtt import ErrorRecorder, error_weights, find_errors, upsampled_rows
from elliptica.baselines.lisa import LISA
from elliptica.baselines.manifold_mixup import ManifoldMixup
from elliptica.baselines.mixup import Mixup, mixup_batch
from elliptica.baselines.mixupe import MixupE
from elliptica.baselines.nfm import NFM
from elliptica.baselines.regmixup import RegMixup
from elliptica.baselines.smoothing import LabelSmoothing, matched_smoothing
from elliptica.baselines.smote import smote_rows
from elliptica.baselines.tilted import Tilted
from elliptica.baselines.umix import UMIX, CorrectnessTable, umix_weights
from elliptica.baselines.vrex import VREx

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
    "error_weights",
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
