"""Reports on a trained model from its loss landscape, with the limits of what they show."""

from elliptica.diagnostics.cost import StepCost as StepCost
from elliptica.diagnostics.cost import step_cost as step_cost
from elliptica.diagnostics.expected_loss import LossMap as LossMap
from elliptica.diagnostics.expected_loss import OccupationReport as OccupationReport
from elliptica.diagnostics.expected_loss import loss_map as loss_map
from elliptica.diagnostics.expected_loss import occupation_report as occupation_report
from elliptica.diagnostics.hitting import HittingReport as HittingReport
from elliptica.diagnostics.hitting import hitting_report as hitting_report
from elliptica.diagnostics.importance_weights import WeightsReport as WeightsReport
from elliptica.diagnostics.importance_weights import weights_report as weights_report
from elliptica.diagnostics.maximum_principle import MaximumPrincipleReport as MaximumPrincipleReport
from elliptica.diagnostics.maximum_principle import maximum_principle_report as maximum_principle_report
from elliptica.diagnostics.neighbours import NeighbourLoss as NeighbourLoss
from elliptica.diagnostics.neighbours import neighbour_loss as neighbour_loss
from elliptica.diagnostics.ordering import OrderingReport as OrderingReport
from elliptica.diagnostics.ordering import ordering_report as ordering_report
from elliptica.diagnostics.probes import bridge_probes as bridge_probes
from elliptica.diagnostics.probes import shifted_probes as shifted_probes
from elliptica.diagnostics.shift import ShiftBound as ShiftBound
from elliptica.diagnostics.shift import certified_lipschitz as certified_lipschitz
from elliptica.diagnostics.shift import estimated_lipschitz as estimated_lipschitz
from elliptica.diagnostics.shift import shift_bound as shift_bound
from elliptica.diagnostics.subharmonicity import Defect as Defect
from elliptica.diagnostics.subharmonicity import SubharmonicityReport as SubharmonicityReport
from elliptica.diagnostics.subharmonicity import mean_value_defect as mean_value_defect
from elliptica.diagnostics.subharmonicity import subharmonicity_report as subharmonicity_report
