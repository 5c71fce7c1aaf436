"""One self-contained page about runs, a comparison or a model (extra: report)."""

from elliptica.report.content import Report as Report
from elliptica.report.content import ReportError as ReportError
from elliptica.report.page import render_page as render_page
from elliptica.report.source import Request as Request
from elliptica.report.source import make_report as make_report
from elliptica.report.source import write_report as write_report
