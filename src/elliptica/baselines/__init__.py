"""Methods to compare with, called as `elliptica.Elliptic` is, ``objective(x, y)``.

Those that know the groups of the training rows are called ``objective(x, y, group)``. JTT and UMIX have a
first stage, functions from a trained model, or from the course of its training, to rows or weights; Fish is
a step.
"""

from elliptica.baselines.cmixup import CMixup as CMixup
from elliptica.baselines.cmixup import TargetKernel as TargetKernel
from elliptica.baselines.coral import CORAL as CORAL
from elliptica.baselines.domainmix import DomainMix as DomainMix
from elliptica.baselines.doro import DORO as DORO
from elliptica.baselines.dro import DRO as DRO
from elliptica.baselines.dro import chi2_penalty_weights as chi2_penalty_weights
from elliptica.baselines.dro import chi2_weights as chi2_weights
from elliptica.baselines.dro import cvar_weights as cvar_weights
from elliptica.baselines.erm import ERM as ERM
from elliptica.baselines.fish import fish_step as fish_step
from elliptica.baselines.fish import split_by_group as split_by_group
from elliptica.baselines.focal import Focal as Focal
from elliptica.baselines.groupdro import GroupDRO as GroupDRO
from elliptica.baselines.groupdro import group_balanced_weights as group_balanced_weights
from elliptica.baselines.ibirm import IBIRM as IBIRM
from elliptica.baselines.input_noise import InputNoise as InputNoise
from elliptica.baselines.irm import IRM as IRM
from elliptica.baselines.jtt import ErrorRecorder as ErrorRecorder
from elliptica.baselines.jtt import error_weights as error_weights
from elliptica.baselines.jtt import find_errors as find_errors
from elliptica.baselines.jtt import upsampled_rows as upsampled_rows
from elliptica.baselines.lisa import LISA as LISA
from elliptica.baselines.manifold_mixup import ManifoldMixup as ManifoldMixup
from elliptica.baselines.mixup import Mixup as Mixup
from elliptica.baselines.mixup import mixup_batch as mixup_batch
from elliptica.baselines.mixupe import MixupE as MixupE
from elliptica.baselines.nfm import NFM as NFM
from elliptica.baselines.regmixup import RegMixup as RegMixup
from elliptica.baselines.smoothing import LabelSmoothing as LabelSmoothing
from elliptica.baselines.smoothing import matched_smoothing as matched_smoothing
from elliptica.baselines.smote import smote_rows as smote_rows
from elliptica.baselines.tilted import Tilted as Tilted
from elliptica.baselines.umix import UMIX as UMIX
from elliptica.baselines.umix import CorrectnessTable as CorrectnessTable
from elliptica.baselines.umix import umix_weights as umix_weights
from elliptica.baselines.vrex import VREx as VREx

__all__ = [
    "CORAL",
    "DORO",
    "DRO",
    "ERM",
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
    "chi2_penalty_weights",
    "chi2_weights",
    "cvar_weights",
    "error_weights",
    "find_errors",
    "fish_step",
    "group_balanced_weights",
    "matched_smoothing",
    "mixup_batch",
    "smote_rows",
    "split_by_group",
    "umix_weights",
    "upsampled_rows",
]
