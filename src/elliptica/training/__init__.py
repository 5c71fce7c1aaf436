"""A training loop that can be killed and continued, for any objective."""

from elliptica.training.batch import Batch as Batch
from elliptica.training.batch import Objective as Objective
from elliptica.training.loop import FitResult as FitResult
from elliptica.training.loop import fit as fit
from elliptica.training.progress import EpochEnd as EpochEnd
from elliptica.training.settings import TrainingSettings as TrainingSettings
from elliptica.training.tensorboard import TensorBoard as TensorBoard
