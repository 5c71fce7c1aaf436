"""Reports as data and text: which records are shown, verdicts, robustness, escaping."""

import json
import math
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scipy import stats

from elliptica.cli.report import Request, make_report, write_report
from elliptica.report import ReportError, render_page
from elliptica.report.content import Grid, Measure, Study, mean_interval
from elliptica.report.page import embed, highlighted, report_data, rounded
from elliptica.report.verdict import find_winners, headline, judge_rows, paired_differences
from report_cases import HOSTILE, hostile_report, make_record, write_records

RESULTS = Path(__file__).resolve().parents[2] / "results"
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


def test_result_needs_the_right_direction():
    rows = {"erm": seeds(2.0, 2.1, 1.9), "less": seeds(1.0, 1.2, 0.8), "more": seeds(3.0, 3.2, 2.8)}
    rows["even"] = seeds(1.9, 2.2, 1.9)
    methods = ["less", "more", "even"]
    found = paired_differences({RMSE.name: rows}, [RMSE], methods, "erm")
    assert [d.result for d in found] == ["better", "worse", "open"]


def test_a_winner_is_better_in_one_measure_and_worse_in_none():
    worst = Measure("worst", "worst RMSE", higher_is_better=False)
    low, middle, high = seeds(1.0, 1.2, 0.8, 1.1), seeds(2.0, 2.1, 1.9, 2.0), seeds(3.0, 3.2, 2.8, 3.1)
    lower = seeds(0.5, 0.6, 0.4, 0.55)
    values = {
        "average": {"erm": middle, "trade": low, "one": low, "both": lower, "none": middle},
        "worst": {"erm": middle, "trade": high, "one": middle, "both": low, "none": middle},
    }
    found = paired_differences(values, [RMSE, worst], ["trade", "one", "both", "none"], "erm")
    assert find_winners(found, [RMSE, worst]) == ["both", "one"]
    assert find_winners(found, [worst]) == ["both"]
    assert find_winners(found, [RMSE]) == ["both", "trade", "one"]


@pytest.mark.parametrize("n", [1, 2])
def test_few_seeds_give_no_verdict(n):
    verdict = judged({"erm": seeds(*[1.0, 1.1][:n]), "new": seeds(*[0.1, 0.12][:n])})
    assert verdict.best is None
    assert verdict.headline.startswith("No verdict")


def test_only_common_seeds_are_paired():
    verdict = judged({"erm": {0: 1.0, 1: 2.0, 2: 3.0, 7: 99.0}, "new": {0: 0.5, 1: 1.4, 2: 2.6, 8: -99.0}})
    assert verdict.differences[0].n_seeds == 3
    assert verdict.differences[0].mean == pytest.approx(-0.5)


@pytest.mark.parametrize("size", [1.0, 0.1, 1e5], ids=["exact", "rounded", "large"])
def test_equal_gaps_are_too_coarse_to_judge(size):
    rows = {"erm": seeds(*(size * v for v in (7, 8, 9))), "new": seeds(*(size * v for v in (6, 7, 8)))}
    assert judged(rows).differences[0].result == "open"


def test_words_never_promise_more_than_the_intervals():
    """Of 300 studies without any effect at most 5 % should name a winner; 30 would be 4 deviations more."""
    import numpy as np

    draws = np.random.default_rng(0)
    named = 0
    for _ in range(300):
        rows = {f"m{i}": seeds(*draws.normal(size=5)) for i in range(6)}
        named += judged(rows).best != "m0"
    assert named <= 30


def test_a_champion_is_named_only_if_its_interval_says_so():
    """The rule of bold cells is another family of tests: p = 0.03 is bold, and open among two comparisons."""
    erm = seeds(70.0, 71.0, 69.0, 70.5, 70.2)
    gaps = [1.0, 0.0, 1.2, 0.4, 0.9]
    rows = {"erm": erm, "new": {s: erm[s] + gap for s, gap in enumerate(gaps)}}
    assert 0.025 < stats.ttest_rel(list(rows["new"].values()), list(erm.values())).pvalue < 0.05
    accuracy, worst = (Measure(name, name, True, True) for name in ("average", "worst"))
    values = {"average": rows, "worst": rows}
    verdict = judge_rows(values, [accuracy, worst], ["erm", "new"], "erm", champion="new")
    assert verdict.differences[0].result == "open"
    assert verdict.best == "erm"
    assert verdict.headline == "No method is shown to be better than erm in average."
    assert verdict.facts[2][1:] == ("nothing better is shown", "0 of 1 shown better than erm; 5 seeds")
    alone = judge_rows({"average": rows}, [accuracy], ["erm", "new"], "erm", champion="new")
    assert alone.headline.startswith("new has the best average")
    swapped = {"erm": rows["new"], "new": erm}
    values = {"average": swapped, "worst": swapped}
    verdict = judge_rows(values, [accuracy, worst], list(rows), "erm", champion="erm")
    assert "better than every other" not in verdict.headline


def test_means_in_words_are_those_of_the_seeds_that_are_compared():
    """A half-finished method must not profit from easy seeds that it has already had."""
    erm = seeds(70.0, 71.0, 72.0, 71.5, 20.0, 21.0)
    verdict = judged({"erm": erm, "new": seeds(74.0, 75.5, 76.1, 75.2)}, Measure("a", "accuracy", True, True))
    assert verdict.headline == "new is better than erm in accuracy: 75.2 % against 71.1 %."
    assert verdict.facts[1][1] == "+4.1 points"


def test_few_seeds_are_said_to_rest_on_normal_differences():
    rows = {"erm": seeds(1.0, 1.2, 0.9, 1.1, 1.3, 1.0), "new": seeds(0.7, 0.9, 0.65, 0.7, 1.0, 0.8)}
    assert not any("normally distributed" in s for s in judged(rows).sentences)
    few = {name: dict(list(by.items())[:5]) for name, by in rows.items()}
    assert any("normally distributed" in s for s in judged(few).sentences)


def test_seeds_that_split_the_same_rows_have_wider_intervals():
    """Nadeau and Bengio: the variance of the mean is s^2 (1/J + share), for verdict and charts alike."""
    rows = {"erm": seeds(1.0, 1.2, 0.9, 1.1), "new": seeds(0.7, 0.9, 0.65, 0.7)}
    plain, shared = judged(rows).differences[0], judged(rows, test_share=0.25).differences[0]
    assert (shared.high - shared.low) / (plain.high - plain.low) == pytest.approx(math.sqrt(2))
    values = [3.0, 4.5, 2.5, 4.0]
    _, low, high = mean_interval(values, test_share=0.25)
    assert (high - low) / (mean_interval(values)[2] - mean_interval(values)[1]) == pytest.approx(math.sqrt(2))
    report = make_report(Request(str(RESULTS / "tables" / "table3"), landscape=False))
    study = next(s for s in report.studies if s.name == "table3-no2")
    assert study.test_share == 0.25
    erm, columns = study.values["average"]["erm"], report_data(report)["studies"]
    found = next(each for each in columns if each["name"] == study.name)["values"]["average"]
    assert found[study.methods.index("erm")]["mean"] == pytest.approx(
        mean_interval(list(erm.values()), test_share=0.25), rel=1e-4
    )
    assert any("corrected for training rows that seeds share" in s for s in study.verdict.sentences)


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


DAMAGE = [
    ("metrics.test.average", "high"),
    ("metrics.test.by_class", [1.0]),
    ("metrics.test.by_group.0", None),
    ("metrics.test.uncertainty", {"0": {}}),
    ("metrics.test.reliability", {"rows": [1], "confidence": [0.5], "right": []}),
    ("metrics.test", None),
    ("cost.epochs", 0),
    ("cost.seconds", None),
    ("cost.first_stage", {"evaluations": "many"}),
    ("curves.loss", ["low"]),
    ("curves", [1]),
    ("epoch", None),
    ("rows", {"train": {"class": {"0": "many"}}}),
    ("versions", ["2"]),
]


@pytest.mark.parametrize(("place", "value"), DAMAGE, ids=[place for place, _ in DAMAGE])
def test_a_damaged_entry_is_named_and_the_rest_is_shown(tmp_path, place, value):
    records = [make_record(row, seed, 0.7) for row in ("erm", "new") for seed in range(2)]
    *folders, last = place.split(".")
    entry = records[-1]
    for name in folders:
        entry = entry[name]
    entry[last] = value
    report = make_report(Request(str(write_records(tmp_path, records))))
    ((file, reason),) = report.unusable
    assert file.startswith("own/some/row003/")
    assert f"has a wrong entry: {place}" in reason
    assert report.studies[0].n_runs == 3


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
    from elliptica.lab.experiments.command import Choice
    from elliptica.lab.experiments.records import read_records
    from elliptica.lab.experiments.specification import load_specification
    from elliptica.lab.experiments.table import make_table, render

    report = make_report(Request(str(RESULTS / "tables"), landscape=False))
    study = next(s for s in report.studies if s.name.startswith("table4-waterbirds-features-settings-tuned"))
    wanted = Choice("table4", ["waterbirds-features"], tuned=True).runs(RESULTS / "tables")
    records = read_records(RESULTS / "tables", wanted)
    text = render(make_table("table4", load_specification("table4"), wanted, records), "markdown")
    cells = {line.split(" | ")[0][2:]: line for line in text.splitlines() if line.startswith("| ")}
    for row in study.table.rows:
        assert all(f"{cell} |" in cells[row[0][0]].replace("*", "") for cell, _, _ in row[1:4])
    assert study.verdict.best == "erm"  # the interval of groupdro, which is bold, contains zero
    assert any(sentence.startswith("groupdro is bold in the table") for sentence in study.verdict.sentences)
    mlp = next(
        s for s in report.studies if s.name.startswith("table4-waterbirds-features-mlp-settings-tuned")
    )
    assert mlp.verdict.headline.startswith("groupdro has the best worst-group accuracy")
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


def test_a_folder_of_comparisons_is_told_from_records(tmp_path):
    (tmp_path / "wine").mkdir()
    (tmp_path / "wine" / "results.json").write_text('{"about": {}, "records": []}')
    with pytest.raises(ReportError, match=r"wine/results\.json: is of elliptica compare"):
        make_report(Request(str(tmp_path)))


def test_several_tables_say_where_elliptic_training_is_worse_too():
    def study(erm, ours):
        rows = {"erm": seeds(*erm), "elliptic": seeds(*ours)}
        table = Grid("", [], [])
        measures, values = [RMSE], {RMSE.name: rows}
        return Study("", "", "", measures, list(rows), "erm", values, judged(rows), table, own={"elliptic"})

    low, high = (1.0, 1.1, 1.05, 0.95, 1.0, 1.02), (2.0, 2.2, 2.0, 1.9, 2.1, 2.05)
    better, worse, short = study(high, low), study(low, high), study(low[:1], high[:1])
    assert headline([better, worse, short]) == (
        "In 1 of 2 tables a method is shown to be better than the reference, in 1 of them elliptic training "
        "over another method. In 1, elliptic training is shown to be worse than it. 1 more has too few runs "
        "for a verdict."
    )
    assert headline([worse, short]).startswith("In none of 1 table is a method shown to be better")


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
