"""A training loop for any objective that can be killed and resumed."""

from elliptica._utils.random import stream as stream
from elliptica._utils.random import stream_seed as stream_seed
from elliptica.lab.training.batch import Batch as Batch
from elliptica.lab.training.batch import Objective as Objective
from elliptica.lab.training.batch import TrainingSettings as TrainingSettings
from elliptica.lab.training.loop import EpochEnd as EpochEnd
from elliptica.lab.training.loop import FitResult as FitResult
from elliptica.lab.training.loop import fit as fit
