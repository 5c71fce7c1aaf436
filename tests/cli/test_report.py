"""`elliptica report`: which records are shown, robustness, wrong sources, kept models."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.cli.report import Request, make_report, write_report
from elliptica.report import ReportError, render_page
from report_cases import make_record, write_records

RESULTS = Path(__file__).resolve().parents[2] / "results"


def seeds(*values):
    return dict(enumerate(values))


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
    from elliptica.lab.experiments.choice import Choice
    from elliptica.lab.experiments.records import read_records
    from elliptica.lab.experiments.specification import load_specification
    from elliptica.lab.experiments.table import make_table, render

    report = make_report(Request(str(RESULTS / "tables")))
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


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (None, None, "does not exist"),
        ("folder/", None, "holds no record"),
        ("folder/results.json", "{", "is damaged"),
        ("one.json", "{}", "Pass the folder"),
    ],
    ids=["absent", "empty folder", "damaged", "file"],
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


def test_a_page_does_not_overwrite_what_it_is_made_from(tmp_path):
    write_records(tmp_path, [make_record("erm", 0, 0.7)])
    with pytest.raises(ReportError, match="is a folder"):
        write_report(Request(str(tmp_path)), tmp_path)
    out = tmp_path / "new" / "report.html"
    write_report(Request(str(tmp_path)), out)
    assert out.read_text().startswith("<!doctype html>")
    assert not list(out.parent.glob("*.part"))


def test_errors_are_shown_without_a_minus(tmp_path):
    record = make_record("erm", 0, 0.7)
    record["run"]["metric"] = "rmse"
    record["curves"]["validation"] = [-0.5, -0.4, -0.45]  # as records have it: larger is better
    (study,) = make_report(Request(str(write_records(tmp_path, [record])))).studies
    assert study.curves["erm"][0]["validation"] == [0.5, 0.4, 0.45]
    assert study.score_label == "validation RMSE"


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


@pytest.mark.slow
def test_models_are_kept(tmp_path, data_dir):
    words = ["run", "table3", "--dataset", "no2", "--methods", "erm,marginal", "--seeds", 1, "--epochs", 1]
    words += ["--data-dir", data_dir, "--out", tmp_path]
    code, output = run(*words, "--keep-models")
    assert code == 0, output
    assert f"elliptica report {tmp_path}" in "".join(output.split("\n"))
    files = sorted(tmp_path.rglob("*.model.safetensors"))
    assert len(files) == 2
    record = json.loads(files[0].with_name(files[0].name.replace(".model.safetensors", ".json")).read_text())
    assert record["rows"]["train"]["rows"] == 200
    (study,) = make_report(Request(str(tmp_path))).studies
    assert "epochs = 1" in study.subtitle
    files[0].unlink()
    code, output = run(*words, "--keep-models")  # recorded already: says that it is too late
    assert "1 of 2 runs have no model" in output


def test_a_file_that_is_no_page_is_not_overwritten(tmp_path):
    """Someone's table, given to -o by mistake."""
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    source = Path(__file__).resolve().parent.parent / "fixtures" / "runs"
    done = CliRunner().invoke(app, ["report", str(source), "-o", str(table)])
    assert done.exit_code == 2
    assert "exists and is not a page" in " ".join(done.output.split())
    assert table.read_text() == "a,b\n1,2\n"
    page = tmp_path / "page.html"
    words = ["report", str(source), "-o", str(page)]
    for _ in range(2):  # a page may be written again
        assert CliRunner().invoke(app, words).exit_code == 0


@pytest.mark.bad_input
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_page_does_not_take_the_place_of_a_device(tmp_path):
    """As root, -o /dev/full would remove it from the machine."""
    write_records(tmp_path / "runs", [make_record("erm", seed, 0.5) for seed in range(2)])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReportError, match="pipe is a device or a pipe"):
        write_report(Request(source=str(tmp_path / "runs")), tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "content",
    [
        '{"experiment": 1, "runs": []}',
        '{"experiment": 1, "runs": [{"method": "erm", "seed": 0, "n_evaluations": 1, "seconds": 1, '
        '"evaluation": {"accuracy": NaN, "inside": {"share_above": 0.1}}}]}',
        "[" * 100_000,
        '{"about": {}, "records": [], "format": 2}',
    ],
    ids=["no runs", "nan", "deep", "nothing compared"],
)
def test_damaged_results_are_named(tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    done = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 2, done.output
    assert "error:" in done.output
    assert "results.json" in done.output.replace("\n", "")
