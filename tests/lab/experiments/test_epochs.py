"""What a run measured after other epochs than the chosen one, from its record alone."""

import pytest
import torch

from elliptica.lab.data.splits import Dataset, Split
from elliptica.lab.experiments import registry
from elliptica.lab.experiments.metrics import best_epoch, by_epoch, metrics_at
from elliptica.lab.experiments.records import Record, is_recorded
from elliptica.lab.experiments.run import Options, do_run, do_runs
from experiment_cases import numbers, run_of


def load_two(seed=0):
    """Two classes of unequal size that overlap; the parts differ."""
    generator = torch.Generator().manual_seed(seed)

    def part(*sizes):
        y = torch.tensor([0] * sizes[0] + [1] * sizes[1])
        return Split(torch.randn(len(y), 3, generator=generator) + y[:, None], y)

    return Dataset("two", part(20, 20), part(7, 19), part(14, 38), task="classification")


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "two", load_two)
    return run_of("erm", load={"name": "two"}, select="average", training={"epochs": 20, "batch_size": 8})


def made_record(right, metric="accuracy", select="average", **sizes):
    """A record with these right answers by class, of 4 and 10 rows."""
    return Record.model_validate(
        {
            "run": run_of("erm", metric=metric, select=select),
            "draws": 1,
            "metrics": {},
            "epoch": 0,
            "cost": {"evaluations": 1, "seconds": 1, "epochs": 1},
            "versions": {},
            "rows": {"test": {"class": {"0": 4, "1": 10}, **sizes}},
            "right": {"test": {str(i): list(course) for i, course in enumerate(right)}},
        }
    )


def test_recording_changes_nothing_else(run, tmp_path):
    plain = do_run(run, Options(tmp_path / "plain"))
    full = do_run(run, Options(tmp_path / "full", every_epoch=True))
    assert numbers(full) == {**numbers(plain), "right": full.right}
    for part in ("validation", "test"):
        courses = by_epoch(full, part)
        for column in ("average", "worst"):  # what was measured after the chosen epoch is in the courses
            measured = getattr(full.metrics[part], column)
            assert courses[column][full.epoch] == pytest.approx(measured, abs=1e-12)
    assert by_epoch(full, "validation")["average"] == pytest.approx(full.curves["validation"], abs=1e-5)
    assert best_epoch(full, "validation") == full.epoch  # the usual choice
    with pytest.raises(ValueError):
        by_epoch(plain, "test")


def test_a_record_without_epochs_is_done_anew_only_where_they_are_asked_for(run, tmp_path):
    do_runs([run], Options(tmp_path))
    assert is_recorded(tmp_path, run)
    assert not is_recorded(tmp_path, run, with_epochs=True)
    do_runs([run], Options(tmp_path, every_epoch=True))
    assert is_recorded(tmp_path, run, with_epochs=True)
    do_runs([run], Options(tmp_path))
    assert is_recorded(tmp_path, run, with_epochs=True)  # it stays for those who do not ask


@pytest.mark.parametrize("before", [True, False])
def test_a_killed_run_ends_with_all_epochs(run, tmp_path, before):
    def kill(end):
        if end.epoch == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do_run(run, Options(tmp_path, every_epoch=before), kill)
    whole = do_run(run, Options(tmp_path / "whole", every_epoch=True))
    assert do_run(run, Options(tmp_path, every_epoch=True)).right == whole.right


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
    record = made_record([(3,), (5,)], group={"0": 3, "1": 10})
    assert metrics_at(record, "test", "last") == pytest.approx({"average": 8 / 13, "worst": 0.5})
