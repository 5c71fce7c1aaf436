"""Reports for practitioners: what the landscape says about a trained model, and how far to believe it."""

from elliptica.landscape.reports.defect import Defect as Defect
from elliptica.landscape.reports.defect import mean_value_defect as mean_value_defect
from elliptica.landscape.reports.hitting import HittingReport as HittingReport
from elliptica.landscape.reports.hitting import hitting_report as hitting_report
from elliptica.landscape.reports.lipschitz import certified_lipschitz as certified_lipschitz
from elliptica.landscape.reports.lipschitz import estimated_lipschitz as estimated_lipschitz
from elliptica.landscape.reports.loss_map import loss_map as loss_map
from elliptica.landscape.reports.maximum import MaximumPrincipleReport as MaximumPrincipleReport
from elliptica.landscape.reports.maximum import maximum_principle_report as maximum_principle_report
from elliptica.landscape.reports.occupation import OccupationReport as OccupationReport
from elliptica.landscape.reports.occupation import occupation_report as occupation_report
from elliptica.landscape.reports.ordering import OrderingReport as OrderingReport
from elliptica.landscape.reports.ordering import ordering_report as ordering_report
from elliptica.landscape.reports.probes import bridge_probes as bridge_probes
from elliptica.landscape.reports.probes import shifted_probes as shifted_probes
from elliptica.landscape.reports.shift import ShiftBound as ShiftBound
from elliptica.landscape.reports.shift import shift_bound as shift_bound
from elliptica.landscape.reports.subharmonicity import SubharmonicityReport as SubharmonicityReport
from elliptica.landscape.reports.subharmonicity import subharmonicity_report as subharmonicity_report
from elliptica.landscape.reports.weights import WeightsReport as WeightsReport
from elliptica.landscape.reports.weights import weights_report as weights_report
