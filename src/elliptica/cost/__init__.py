"""What a training step costs, before it is run: rows, passes, operations, bytes, seconds."""

from elliptica.cost.estimate import Cost as Cost
from elliptica.cost.estimate import estimate as estimate
from elliptica.cost.passes import Passes as Passes
from elliptica.cost.passes import count_passes as count_passes
from elliptica.cost.rate import Rate as Rate
from elliptica.cost.rate import calibrate as calibrate
from elliptica.cost.trace import Trace as Trace
from elliptica.cost.trace import trace_step as trace_step

__all__ = ["Cost", "Passes", "Rate", "Trace", "calibrate", "count_passes", "estimate", "trace_step"]
