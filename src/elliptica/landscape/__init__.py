"""The loss as a function on the data space: domains, solvers and the objective of hitting times."""

from elliptica.landscape.data_domain import DataDomain as DataDomain
from elliptica.landscape.data_domain import Whitened as Whitened
from elliptica.landscape.domains import Ball as Ball
from elliptica.landscape.domains import Box as Box
from elliptica.landscape.domains import Domain as Domain
from elliptica.landscape.domains import Polytope as Polytope
from elliptica.landscape.estimate import LandscapeEstimate as LandscapeEstimate
from elliptica.landscape.hitting_times import HittingTimes as HittingTimes
from elliptica.landscape.hitting_times import WalkEnds as WalkEnds
from elliptica.landscape.loss import LossField as LossField
from elliptica.landscape.loss import MaximumPrinciple as MaximumPrinciple
from elliptica.landscape.loss import check_maximum_principle as check_maximum_principle
from elliptica.landscape.operator import Operator as Operator
from elliptica.landscape.solve import estimate_landscape as estimate_landscape
