"""Pages as text and data: escaping, rounding, thinning."""

import json
from html.parser import HTMLParser

import pytest

from elliptica.cli.report import Request, make_report
from elliptica.report import render_page
from elliptica.report.content import mean_interval
from elliptica.report.page import embed, highlighted, report_data, rounded
from report_cases import HOSTILE, hostile_report, make_record, write_records


class Elements(HTMLParser):
    """Counts elements and remembers the text of scripts."""

    def __init__(self):
        super().__init__()
        self.tags, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("href", "src", "onclick", "onerror")]


def test_hostile_names_stay_text():
    page = render_page(hostile_report())
    plain = Elements()
    plain.feed(page)
    assert plain.tags.count("script") == 2 + 6  # data, plotly and our own
    assert plain.links == ["#verdict"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    data = page.split('id="report-data">')[1].split("</script>")[0]
    assert not set("<>&") & set(data)
    assert json.loads(data)["studies"][0]["methods"] == HOSTILE[:4]


def test_json_is_compact_and_finite():
    assert rounded({"a": [1.23456789, float("nan"), 2.0, "x", None, True]}) == {
        "a": [1.2346, None, 2, "x", None, True]
    }
    assert embed(["\u2028", "<!--"]) == '["\\u2028","\\u003c!--"]'
    with pytest.raises(ValueError):
        embed(float("nan"))


def test_long_curves_are_thinned_and_keep_the_chosen_epoch(tmp_path):
    record = make_record("erm", 0, 0.7)
    record["curves"] = {"loss": [1.0] * 1000, "validation": [0.5] * 1000}
    record["epoch"] = 617
    report = make_report(Request(str(write_records(tmp_path, [record]))))
    (curve,) = report_data(report)["studies"][0]["curves"]["erm"]
    assert len(curve["epochs"]) <= 123
    assert {1, 618, 1000} <= set(curve["epochs"])
    assert curve["chosen"] == 618


def test_intervals_of_accuracies_end_at_0_and_100_percent(tmp_path):
    found = [make_record("erm", seed, average, worst=1 - average) for seed, average in enumerate((0.9, 1.0))]
    report = make_report(Request(str(write_records(tmp_path, found))))
    cells = report_data(report)["studies"][0]["parts"][0]["cells"]["erm"]
    assert mean_interval([90.0, 100.0])[2] > 150
    assert cells["0"]["mean"] == pytest.approx([5.0, 0.0, mean_interval([0.0, 10.0])[2]], rel=1e-4)
    assert cells["1"]["mean"] == pytest.approx([95.0, mean_interval([90.0, 100.0])[1], 100.0], rel=1e-4)


def test_the_reference_and_the_best_are_in_colour():
    report = hostile_report()
    assert highlighted(report.studies[0], most=2) == [HOSTILE[0], HOSTILE[3]]
