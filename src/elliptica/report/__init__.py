"""The parts of a results page, whatever their source: studies, verdicts, charts (extra: lab)."""

from elliptica.report.content import Difference as Difference
from elliptica.report.content import Grid as Grid
from elliptica.report.content import Measure as Measure
from elliptica.report.content import Parts as Parts
from elliptica.report.content import Report as Report
from elliptica.report.content import ReportError as ReportError
from elliptica.report.content import Study as Study
from elliptica.report.content import Verdict as Verdict
from elliptica.report.page import render_page as render_page
