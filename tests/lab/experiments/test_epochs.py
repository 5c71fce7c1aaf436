"""Right answers after every epoch: recorded where asked, deciding nothing, and tables from them."""

import pytest
import torch
from typer.testing import CliRunner

from elliptica import EllipticWarning
from elliptica.cli import app
from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import registry
from elliptica.lab.experiments.epochs import NoEpochsError, best_epoch, by_epoch, metrics_at
from elliptica.lab.experiments.records import is_recorded, read_record, record_file
from elliptica.lab.experiments.run import Options, do_run, finish_run
from elliptica.lab.experiments.specification import load_specification, parse_specification, runs
from elliptica.lab.experiments.table import make_table, render
from experiment_cases import TOY, load_toy, silent

TABLE = """
title = "Two classes"
paper = "nowhere"
metric = "accuracy"
columns = ["average", "worst"]
seeds = 2
[methods.erm]
[datasets.two]
model = { name = "mlp", hidden = [8] }
training = { epochs = 20, batch_size = 8, lr = 1e-2 }
"""


def load_two(seed=0, *, data_dir=None):
    """Two classes of unequal size that overlap; the parts differ."""
    generator = torch.Generator().manual_seed(seed)

    def part(*sizes):
        y = torch.tensor([0] * sizes[0] + [1] * sizes[1])
        return Split(torch.randn(len(y), 3, generator=generator) + y[:, None], y)

    return Dataset("two", part(20, 20), part(7, 19), part(14, 38), task="classification")


@pytest.fixture
def wanted(monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "two", load_two)
    return runs("two", parse_specification(TABLE, "two"))


def made_record(right, rows=(4, 10), metric="accuracy", select="average"):
    """A record with these right answers by class."""
    sizes = {"class": {str(i): n for i, n in enumerate(rows)}}
    return {
        "run": {"metric": metric, "select": select},
        "rows": {"test": sizes},
        "right": {"test": {str(i): list(course) for i, course in enumerate(right)}},
    }


def test_recording_changes_nothing_else(wanted, tmp_path):
    plain = do_run(wanted[0], Options(tmp_path / "plain"))
    full = do_run(wanted[0], Options(tmp_path / "full", every_epoch=True))
    right = full.pop("right")
    for entry in ("run", "metrics", "epoch", "curves", "rows"):
        assert plain[entry] == full[entry]
    assert [list(counts) for counts in right.values()] == [["0", "1"]] * 2
    full["right"] = right
    for part in ("validation", "test"):
        courses = by_epoch(full, part)
        for column in ("average", "worst"):  # what was measured after the chosen epoch is in the courses
            assert courses[column][full["epoch"]] == pytest.approx(full["metrics"][part][column], abs=1e-12)
    assert by_epoch(full, "validation")["average"] == pytest.approx(full["curves"]["validation"], abs=1e-5)
    assert metrics_at(full, "validation", "best") == pytest.approx(
        {name: full["metrics"]["validation"][name] for name in ("average", "worst")}
    )  # the usual choice is the best epoch of the validation part


def test_a_record_without_epochs_is_done_anew_only_where_they_are_asked_for(wanted, tmp_path):
    run = wanted[0]
    assert finish_run(run, Options(tmp_path), silent) == "done"
    assert is_recorded(tmp_path, run)
    assert not is_recorded(tmp_path, run, with_epochs=True)
    assert finish_run(run, Options(tmp_path), silent) == "skipped"
    assert finish_run(run, Options(tmp_path, every_epoch=True), silent) == "done"
    assert finish_run(run, Options(tmp_path, every_epoch=True), silent) == "skipped"
    assert finish_run(run, Options(tmp_path), silent) == "skipped"  # and stays, for those who do not ask
    assert "right" in read_record(record_file(tmp_path, run))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("before", [True, False])
def test_a_killed_run_ends_with_all_epochs(wanted, tmp_path, before):
    def die(end):
        if end.epoch == 8:
            raise Killed

    full = Options(tmp_path / "whole", every_epoch=True)
    options = Options(tmp_path, every_epoch=before)
    with pytest.raises(Killed):
        do_run(wanted[0], options, die)
    whole = do_run(wanted[0], full)
    if before:
        assert do_run(wanted[0], options)["right"] == whole["right"]
    else:  # nothing was recorded of the first epochs: from the beginning
        with pytest.warns(EllipticWarning, match="lacks what is to be recorded"):
            assert do_run(wanted[0], Options(tmp_path, every_epoch=True))["right"] == whole["right"]


def test_a_search_never_sees_the_test_part(wanted, tmp_path):
    record = do_run(wanted[0], Options(tmp_path, every_epoch=True), with_test=False)
    assert "right" not in record
    assert "test" not in record["metrics"]


def test_real_targets_have_no_right_answers(monkeypatch, tmp_path):
    monkeypatch.setitem(registry.DATASETS, "toy", load_toy)
    (run,) = runs("toy", parse_specification(TOY, "toy"), methods=["erm"], seeds=1)
    with pytest.raises(ValueError, match="toy has no classes"):
        do_run(run, Options(tmp_path, every_epoch=True))


def test_each_epoch_by_hand():
    record = made_record([(1, 4, 4, 2), (8, 5, 5, 6)])  # of 4 and of 10
    assert by_epoch(record, "test")["average"] == [9 / 14, 9 / 14, 9 / 14, 8 / 14]
    assert by_epoch(record, "test")["worst"] == [0.25, 0.5, 0.5, 0.5]
    assert metrics_at(record, "test", "last") == {"average": 8 / 14, "worst": 0.5}
    assert best_epoch(record, "test") == 2  # the last of three that are level
    assert best_epoch(made_record([(1, 4, 4, 2), (8, 5, 5, 6)], select="worst"), "test") == 3
    assert metrics_at(record, "test", "late") == metrics_at(record, "test", "last")  # one epoch at least


def test_late_is_the_mean_of_the_last_tenth():
    courses = [[0] * 18 + [4, 0], [0] * 18 + [0, 10]]  # each class once right, once wrong
    assert metrics_at(made_record(courses), "test", "late") == {"average": pytest.approx(0.5), "worst": 0.0}


def test_errors_are_best_where_they_are_least():
    record = made_record([(1, 4, 2), (8, 5, 5)], metric="error")
    assert best_epoch(record, "test") == 1
    assert metrics_at(record, "test", "best") == pytest.approx({"average": 5 / 14, "worst": 0.5})


def test_groups_go_before_classes():
    record = made_record([(3,), (5,)])
    record["rows"]["test"]["group"] = {"0": 3, "1": 10}
    assert metrics_at(record, "test", "last") == pytest.approx({"average": 8 / 13, "worst": 0.5})


def test_tables_of_other_epochs(wanted, tmp_path):
    specification = parse_specification(TABLE, "two")
    records = [do_run(run, Options(tmp_path, every_epoch=True)) for run in wanted]
    last = make_table("two", specification, wanted, records, epoch="last")
    cell = last.cells["erm", "two", "average"]
    assert cell.values[1] == pytest.approx(100 * by_epoch(records[1], "test")["average"][-1])
    assert "after the last epoch" in render(last, "markdown")
    best, chosen = (
        make_table("two", specification, wanted, records, epoch=epoch).cells["erm", "two", "average"]
        for epoch in ("best", "chosen")
    )
    assert all(best.values[seed] >= chosen.values[seed] for seed in (0, 1))
    assert "not for reporting" in render(
        make_table("two", specification, wanted, records, "validation", epoch="best"), "markdown"
    )
    with pytest.raises(NoEpochsError, match="Costs are those up to"):
        make_table("two", specification, wanted, records, "cost", epoch="last")
    del records[1]["right"]
    with pytest.raises(NoEpochsError, match=r"1 record of 2 .*two erm.*--every-epoch"):
        make_table("two", specification, wanted, records, epoch="last")


def test_the_command_says_what_is_missing(wanted, tmp_path, monkeypatch):
    specification = parse_specification(TABLE, "table6")
    for place in ("choice", "specification"):
        monkeypatch.setattr(f"elliptica.lab.experiments.{place}.load_specification", lambda _: specification)
    assert load_specification("table6") is not None
    (run,) = runs("table6", specification, seeds=1)
    options = ["table6", "--seeds", "1", "--out", str(tmp_path)]
    finish_run(run, Options(tmp_path), silent)
    found = CliRunner().invoke(app, ["table", *options, "--epoch", "late"])
    assert found.exit_code == 2
    assert "--every-epoch" in found.output
    assert CliRunner().invoke(app, ["run", *options, "--every-epoch"]).exit_code == 0
    found = CliRunner().invoke(app, ["table", *options, "--epoch", "late", "--part", "validation"])
    assert found.exit_code == 0
    assert "last tenth" in found.output
