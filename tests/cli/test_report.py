"""`elliptica report`: pages of records, of a comparison and of a saved model; no file is lost."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from elliptica.cli import app
from elliptica.lab.experiments.choice import Choice
from elliptica.lab.experiments.page import runs_page
from elliptica.lab.experiments.records import DRAWS, Records, write_lines
from record_cases import make_record, write_records
from reproduction import parse


def report(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


def records(rows=("erm", "new"), n_seeds=4):
    more = {"by_class": {"0": 0.6, "1": 0.8}, "worst": 0.6, "curves": {"validation": [0.5, 0.6, 0.55]}}
    return [
        make_record(row, seed, 0.7 + 0.1 * i + 0.003 * ((3 * seed + i) % 5), **more)
        for i, row in enumerate(rows)
        for seed in range(n_seeds)
    ]


def test_records_become_a_page_in_the_units_of_the_table(tmp_path):
    page = runs_page(write_records(tmp_path, records()))
    (section,) = page.sections
    head, erm, new = section.table
    assert (erm[0], new[0]) == ("erm", "new")
    assert head[1] == "accuracy, %"
    assert new[1].startswith("80.")
    assert head[-1] == "seeds"
    assert new[-1] == "4"
    assert page.headline.startswith("new: accuracy +9.9 points")
    assert any("--table" in text for text in section.paragraphs)  # it is not known: no command
    charts = {chart.title for chart in section.charts}
    assert {"Every seed", "Validation score"} <= charts


MINE = """
title = "Mine"
metric = "accuracy"
seeds = 3
[methods.erm]
[methods.short]
method = "erm"
epochs = 10
[datasets.two_moons]
model = { name = "linear" }
training = { epochs = 20, batch_size = 20, lr = 1e-2 }
"""


@pytest.mark.parametrize("changed", [{}, {"training": {"epochs": 4}}, {"matched": True}])
def test_the_printed_commands_give_the_runs_of_the_page(tmp_path, changed):
    """With options that changed the settings, and another number of seeds for each row."""
    (tmp_path / "mine.toml").write_text(MINE)
    given = {"match_evaluations": changed.pop("matched", False), **changed}
    choice = Choice(str(tmp_path / "mine.toml"), **given)
    done = [run for run in choice.runs(tmp_path) if run.row == "erm" or run.seed < 2]
    write_records(tmp_path, [make_record(run.row, run.seed, 0.5 + run.seed / 10, run=run) for run in done])
    (section,) = runs_page(tmp_path, tables=[choice.table], plugins=["code.py"]).sections
    commands = [text for text in section.paragraphs if text.startswith("elliptica run")]
    assert all("--plugin code.py" in command for command in commands)
    printed = [run for command in commands for run in parse(command).runs(tmp_path)]
    assert sorted(run.model_dump_json() for run in printed) == sorted(run.model_dump_json() for run in done)


def test_several_tables_have_an_overview(tmp_path, results):
    old = Records(results / "tables" / "table3.jsonl.gz").read()
    runs = [record.model_copy(update={"draws": DRAWS}) for record in old if record.run.seed < 4]
    kept = [*runs, make_record("erm", 0, 0.5, draws=DRAWS - 1)]
    write_lines(tmp_path / "table3.jsonl.gz", [record.model_dump(mode="json") for record in kept])
    page = runs_page(tmp_path)
    assert page.sections[0].heading == "All tables"
    assert len(page.sections[0].table) >= 3
    assert page.kind.startswith(f"{len(runs)} runs")
    assert "1 run with" in page.kind  # of earlier draws
    (no2,) = [s for s in page.sections if s.heading.endswith(": no2")]
    assert any("corrected for training rows that seeds share" in text for text in no2.paragraphs)


@pytest.mark.parametrize("name", ["page.html", "page.md"])
def test_a_comparison_has_written_its_page(tmp_path, name):
    out = tmp_path / "out"
    out.mkdir()
    for file in ("results.json", "report.html", "report.md"):
        (out / file).write_text(f"# {file}")
    assert report(out, "-o", tmp_path / name).exit_code == 0
    assert (tmp_path / name).read_text() == f"# report{Path(name).suffix}"


@pytest.mark.bad_input
def test_wrong_sources_and_places_end_with_one_sentence(tmp_path):
    folder, kept = write_records(tmp_path / "runs", records(n_seeds=1)), tmp_path / "table.csv"
    kept.write_text("a,b\n1,2\n")
    (tmp_path / "empty").mkdir()
    for words in (
        (folder, "-o", kept),
        (folder, "-o", tmp_path),
        (tmp_path / "empty", "-o", tmp_path / "page.html"),
        (tmp_path / "absent", "-o", tmp_path / "page.html"),
        (kept, "-o", tmp_path / "page.html"),
    ):
        done = report(*words)
        assert done.exit_code in (1, 2), done.output
        assert "Traceback" not in done.output
    assert kept.read_text() == "a,b\n1,2\n"
    assert not (tmp_path / "page.html").exists()
