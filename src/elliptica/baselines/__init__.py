"""Methods to compare with, called as `elliptica.Elliptic` is: plain training, mixup, mixupE and C-Mixup."""

from elliptica.baselines.cmixup import CMixup as CMixup
from elliptica.baselines.cmixup import TargetKernel as TargetKernel
from elliptica.baselines.erm import ERM as ERM
from elliptica.baselines.mixup import Mixup as Mixup
from elliptica.baselines.mixup import mixup_batch as mixup_batch
from elliptica.baselines.mixupe import MixupE as MixupE

__all__ = ["ERM", "CMixup", "Mixup", "MixupE", "TargetKernel", "mixup_batch"]
