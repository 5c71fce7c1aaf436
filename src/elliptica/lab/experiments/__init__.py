"""Tables of experiments as specifications, runs and records: the paper's, and one's own.

What a file of one's own imports is here.
"""

from elliptica.lab.experiments.methods import Context as Context
from elliptica.lab.experiments.methods import ModuleObjective as ModuleObjective
from elliptica.lab.experiments.methods import Prepared as Prepared
from elliptica.lab.experiments.registry import register_dataset as register_dataset
from elliptica.lab.experiments.registry import register_method as register_method
from elliptica.lab.experiments.registry import register_model as register_model
