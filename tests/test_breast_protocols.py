"""The page on the protocols of Table 6 is what the committed records give."""

import pytest

import breast_protocols
from elliptica.lab.experiments.specification import PaperValue
from record_cases import make_record


@pytest.mark.slow
def test_the_page_follows_from_the_records():
    assert breast_protocols.page() == breast_protocols.PAGE.read_text(encoding="utf-8")


def test_near_means_that_means_and_deviations_agree():
    score = breast_protocols.Score((80.0, 82.0, 84.0, 82.0, 82.0))  # deviation 1.41
    assert score.is_near(PaperValue(mean=82.9, std=1.5))
    assert not score.is_near(PaperValue(mean=85.0, std=1.5))  # means differ
    assert not score.is_near(PaperValue(mean=82.9, std=14.0))  # a hundredth of the variance
    assert str(score) == "82.0 ± 1.4"


def test_every_protocol_is_there_once():
    found = list(breast_protocols.protocols())
    assert len(found) == len(set(found)) == 3 * 7
    assert not any((part, epoch) == ("validation", "best") for _, part, epoch in found)  # the chosen one


@pytest.mark.parametrize(("right", "expected"), [((7, 9), (38.1, 6.7)), ((21, 9), None)])
def test_rows_whose_worst_class_is_the_other_one_are_left_out(right, expected):
    rows = {"validation": {"class": {"0": 21, "1": 57}}}
    records = [
        make_record("erm", 0, 0.5, rows=rows, right={"validation": {"0": [k], "1": [50]}}) for k in right
    ]
    assert breast_protocols._own_pair(records, "validation", 1) == expected


def test_averages_of_curves():
    curves = [{"validation": [0.0] * 18 + [0.5, last]} for last in (0.7, 0.9)]
    records = [make_record("erm", 0, 0.5, curves=curve) for curve in curves]
    assert breast_protocols.average_of_curves(records, "last").values == pytest.approx((70, 90))
    assert breast_protocols.average_of_curves(records, "late").values == pytest.approx((60, 70))
