"""Reports as data and text: which records are shown, verdicts, robustness, escaping."""

import json
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scipy import stats

from elliptica.report import ReportError, Request, make_report, render_page, write_report
from elliptica.report.content import Measure, mean_interval
from elliptica.report.judge import judge_rows
from elliptica.report.payload import embed, highlighted, report_data, rounded
from report_cases import HOSTILE, hostile_report, make_record, write_records

RESULTS = Path(__file__).resolve().parent.parent / "results"
RMSE = Measure("average", "RMSE", higher_is_better=False, decimals=3)


def seeds(*values):
    return dict(enumerate(values))


def judged(rows, measure=RMSE, **more):
    return judge_rows({measure.name: rows}, [measure], list(rows), next(iter(rows)), **more)


def test_differences_agree_with_scipy():
    a, b, c = seeds(1.0, 1.2, 0.9, 1.1), seeds(0.7, 0.9, 0.65, 0.7), seeds(1.0, 1.3, 0.8, 1.2)
    verdict = judged({"erm": a, "new": b, "other": c})
    new, other = verdict.differences
    gaps = [b[s] - a[s] for s in range(4)]
    low, high = stats.t.interval(1 - 0.05 / 2, 3, statistics.mean(gaps), stats.sem(gaps))
    assert (new.low, new.high) == (pytest.approx(low), pytest.approx(high))
    assert (new.result, other.result) == ("better", "open")
    assert verdict.best == "new"
    assert verdict.headline.startswith("new is better than erm in RMSE: 0.738 against 1.050")
    assert stats.ttest_rel(list(b.values()), list(a.values())).pvalue < 0.025


def test_the_direction_of_a_measure_turns_the_verdict():
    rows = {"erm": seeds(1.0, 1.2, 0.9, 1.1), "new": seeds(0.7, 0.9, 0.65, 0.7)}
    accuracy = Measure("average", "accuracy", higher_is_better=True, percent=True)
    verdict = judged(rows, accuracy)
    assert verdict.differences[0].result == "worse"
    assert "No method is shown to be better" in verdict.headline
    assert any(s.startswith("Worse than erm: new (\u22120.3 points") for s in verdict.sentences)


@pytest.mark.parametrize("n", [1, 2])
def test_few_seeds_give_no_verdict(n):
    verdict = judged({"erm": seeds(*[1.0, 1.1][:n]), "new": seeds(*[0.1, 0.12][:n])})
    assert verdict.best is None
    assert verdict.headline.startswith("No verdict")


def test_only_common_seeds_are_paired():
    verdict = judged({"erm": {0: 1.0, 1: 2.0, 2: 3.0, 7: 99.0}, "new": {0: 0.5, 1: 1.4, 2: 2.6, 8: -99.0}})
    assert verdict.differences[0].n_seeds == 3
    assert verdict.differences[0].mean == pytest.approx(-0.5)


def test_equal_gaps_are_too_coarse_to_judge():
    verdict = judged({"erm": seeds(1.0, 2.0, 3.0), "new": seeds(0.5, 1.5, 2.5)})
    assert verdict.differences[0].result == "open"


def test_words_never_promise_more_than_the_intervals():
    """Of 300 studies without any effect at most 5 % should name a winner; 30 would be 4 deviations more."""
    import numpy as np

    draws = np.random.default_rng(0)
    named = 0
    for _ in range(300):
        rows = {f"m{i}": seeds(*draws.normal(size=5)) for i in range(6)}
        named += judged(rows).best != "m0"
    assert named <= 30


def test_mean_interval_agrees_with_scipy():
    values = [3.0, 4.5, 2.5, 4.0]
    low, high = stats.t.interval(0.95, 3, statistics.mean(values), stats.sem(values))
    assert mean_interval(values) == pytest.approx((statistics.mean(values), low, high))


def test_records_become_a_study_in_the_units_of_the_table(tmp_path):
    records = [make_record(row, s, a + s / 100) for row, a in (("erm", 0.7), ("new", 0.8)) for s in range(3)]
    report = make_report(Request(str(write_records(tmp_path, records))))
    (study,) = report.studies
    assert study.values["average"]["new"] == pytest.approx({0: 80, 1: 81, 2: 82})
    assert study.reference == "erm"
    assert [part.kind for part in study.parts] == ["group", "class"]
    assert study.cost["evaluations"]["erm"][0] == pytest.approx(2.0)  # two of three epochs
    assert study.missing["reliability"].startswith("Not recorded")
    assert "--seeds 3" in study.commands[0]


def test_reliability_bins_of_seeds_are_added(tmp_path):
    bins = [
        {"rows": [10, 0], "confidence": [6.0, 0.0], "right": [5, 0]},
        {"rows": [30, 2], "confidence": [15.0, 1.8], "right": [15, 1]},
    ]
    records = [make_record("erm", s, 0.7) for s in range(2)]
    for record, each in zip(records, bins, strict=True):
        record["metrics"]["test"]["reliability"] = each
    (study,) = make_report(Request(str(write_records(tmp_path, records)))).studies
    assert study.reliability["erm"] == {
        "rows": [40, 2],
        "confidence": [pytest.approx(21 / 40), pytest.approx(0.9)],
        "accuracy": [pytest.approx(0.5), pytest.approx(0.5)],
    }
    assert "reliability" not in study.missing


def test_half_finished_and_damaged_folders_say_what_is_missing(tmp_path):
    records = [make_record(row, s, 0.7) for row in ("erm", "new") for s in range(3)]
    write_records(tmp_path, records[:-1])
    folder = tmp_path / "own" / "some" / "row000"
    good = (folder / next(folder.glob("*.json")).name).read_text()
    (folder / "cut.json").write_text(good[: len(good) // 2])
    (folder / "empty.json").write_text("")
    (folder / "list.json").write_text("[1]")
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (folder / "other.json").write_text('{"a": 1}')
    (folder / "again.json").write_text(good)
    (folder / "nan.json").write_text(json.dumps(make_record("nan", 0, float("nan"))))
    (folder / "text.json").write_text(json.dumps(make_record("text", 0, 0.5) | {"run": {"table": 3}}))
    (folder / "a-seed4.safetensors").write_bytes(b"checkpoint")
    (folder / "b-seed5.json.123.part").write_text("{")
    (tmp_path / ".progress").mkdir()
    (tmp_path / ".progress" / "c.json").write_text("{}")  # of other commands: not looked at
    before = sorted((p.name, p.stat().st_size) for p in folder.iterdir())
    report = make_report(Request(str(tmp_path)))
    assert sorted((p.name, p.stat().st_size) for p in folder.iterdir()) == before  # a reader changes nothing
    reasons = {Path(name).name: reason for name, reason in report.unusable}
    assert set(reasons) == {
        *("cut.json", "empty.json", "list.json", "deep.json", "bytes.json", "other.json", "again.json"),
        *("nan.json", "text.json", "a-seed4.safetensors", "b-seed5.json.123.part"),
    }
    assert "no JSON" in reasons["cut.json"]
    assert "not finished" in reasons["a-seed4.safetensors"]
    assert "repeats" in reasons["again.json"]
    assert "nan" in reasons["nan.json"]
    assert report.studies[0].missing["seeds"] == "Not recorded: new seed 2."
    page = render_page(report)
    assert "a-seed4.safetensors" in page
    assert "11 files could not be used" in page


def test_places_on_the_page_have_names_of_their_own(tmp_path):
    names = [("a b", "x"), ("a-b", "x"), ("\u03b1", "\u03b2"), ("\u03b3", "\u03b4")]
    records = [make_record("erm", 0, 0.7, table=table, dataset=dataset) for table, dataset in names]
    report = make_report(Request(str(write_records(tmp_path, records))))
    assert len({study.name for study in report.studies}) == 4
    assert all(study.name.isascii() and study.name for study in report.studies)


def test_trials_of_a_tuning_are_counted_and_not_shown(tmp_path):
    write_records(tmp_path / "trials", [make_record("erm", 1000, 0.9)])
    with pytest.raises(ReportError, match="but 1 of tuning trials"):
        make_report(Request(str(tmp_path)))
    write_records(tmp_path, [make_record("erm", 0, 0.7)])
    report = make_report(Request(str(tmp_path)))
    assert report.studies[0].values["average"]["erm"] == pytest.approx({0: 70})
    assert report.notes == ["1 records of tuning trials are not shown: they chose settings only."]


def test_two_settings_of_a_row_are_not_mixed(tmp_path):
    records = [make_record("erm", s, 0.7) for s in range(3)]
    other = make_record("erm", 0, 0.1)
    other["run"]["settings"] = {"alpha": 2.0}
    report = make_report(Request(str(write_records(tmp_path, [*records, other]))))
    (study,) = report.studies
    assert study.values["average"]["erm"] == pytest.approx({0: 70, 1: 70, 2: 70})
    assert "1 records with other settings" in report.notes[0]


@pytest.mark.slow
def test_committed_tables_agree_with_the_tables_of_the_command_line():
    """Every cell of table 4 as `elliptica table --tuned` prints it."""
    from elliptica.experiments.command import Choice
    from elliptica.experiments.records import read_records
    from elliptica.experiments.render import render
    from elliptica.experiments.specification import load_specification
    from elliptica.experiments.table import make_table

    report = make_report(Request(str(RESULTS / "tables"), landscape=False))
    study = next(s for s in report.studies if s.name.startswith("table4-waterbirds-features-settings-tuned"))
    wanted = Choice("table4", ["waterbirds-features"], tuned=True).runs(RESULTS / "tables")
    records = read_records(RESULTS / "tables", wanted)
    text = render(make_table("table4", load_specification("table4"), wanted, records), "markdown")
    cells = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    for row in study.table.rows:
        assert all(f"{cell} |" in cells[row[0][0]].replace("*", "") for cell, _, _ in row[1:4])
    assert study.verdict.best == "groupdro"
    assert "groupdro has the best worst-group accuracy" in study.verdict.headline
    assert {s.name.split("-")[0] for s in report.studies} >= {"table1", "table3", "table4", "table11"}
    paper = next(s for s in report.studies if s.name == "table3-airfoil")
    assert paper.paper["average"]["c-mixup"] == (2.88, 0.187)
    assert not next(s for s in report.studies if s.name.startswith("table4")).paper["worst"]


def test_the_record_of_the_demo_becomes_a_page():
    report = make_report(Request(str(RESULTS / "two_moons")))
    assert report.studies[0].verdict.differences
    assert "share of points between the data" in render_page(report)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (None, None, "There is no"),
        ("folder/", None, "holds no record"),
        ("folder/results.json", "{", "cannot be read"),
        ("folder/results.json", '{"experiment": 1, "runs": [{}]}', "not what elliptica demo writes"),
        ("one.json", "{}", "Pass the folder"),
    ],
    ids=["absent", "empty folder", "damaged", "wrong demo", "file"],
)
def test_wrong_sources_are_refused_with_what_to_do(tmp_path, name, content, said):
    path = tmp_path / (name or "absent")
    (path if name == "folder/" else path.parent).mkdir(parents=True, exist_ok=True)
    if content is not None:
        path.write_text(content)
    source = path.parent if name and name.endswith("results.json") else path
    with pytest.raises(ReportError, match=said):
        make_report(Request(str(source)))


def test_a_page_does_not_overwrite_what_it_is_made_from(tmp_path):
    write_records(tmp_path, [make_record("erm", 0, 0.7)])
    with pytest.raises(ReportError, match="is a folder"):
        write_report(Request(str(tmp_path)), tmp_path)
    out = tmp_path / "new" / "report.html"
    write_report(Request(str(tmp_path)), out)
    assert out.read_text().startswith("<!doctype html>")
    assert not list(out.parent.glob("*.part"))


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
    assert plain.tags.count("script") == 2 + 7  # data, plotly and our own
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


def test_errors_are_shown_without_a_minus(tmp_path):
    record = make_record("erm", 0, 0.7)
    record["run"]["metric"] = "rmse"
    record["curves"]["validation"] = [-0.5, -0.4, -0.45]  # as records have it: larger is better
    (study,) = make_report(Request(str(write_records(tmp_path, [record])))).studies
    assert study.curves["erm"][0]["validation"] == [0.5, 0.4, 0.45]
    assert study.score_label == "validation RMSE"


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
