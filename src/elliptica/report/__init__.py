"""What pages of results share: the judge of differences, the page and its charts."""

from elliptica.report.judge import Difference as Difference
from elliptica.report.judge import Measure as Measure
from elliptica.report.judge import Verdict as Verdict
from elliptica.report.judge import judge_seeds as judge_seeds
from elliptica.report.page import Bar as Bar
from elliptica.report.page import Chart as Chart
from elliptica.report.page import Page as Page
from elliptica.report.page import Section as Section
from elliptica.report.page import render as render
from elliptica.report.page import to_html as to_html
from elliptica.report.page import to_markdown as to_markdown
