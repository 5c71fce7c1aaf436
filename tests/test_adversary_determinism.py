"""The same result again: what is said to have the same bits has, and the docs say what was measured."""

import json

import numpy as np
import pytest
from adversary.determinism import (
    COMMANDS,
    LIBRARY,
    PAGE,
    RECORD,
    as_table,
    compare,
    difference,
    flatten,
    in_folder,
    library,
    table,
)


def test_differences():
    one = {"x": np.array([1.0, np.nan, -4.0]), "n": np.array(3), "s": np.array("erm")}
    assert difference(one, {k: v.copy() for k, v in one.items()}) == 0
    assert difference(one, {**one, "x": np.array([1.0, np.nan, np.nextafter(-4.0, 0)])}) == pytest.approx(
        1.1e-16, rel=0.01
    )
    assert difference(one, {**one, "s": np.array("mixup")}) == np.inf  # another decision
    assert difference(one, {"x": one["x"]}) == np.inf
    assert difference(one, {**one, "n": np.array(4)}) == pytest.approx(1 / 3)
    assert difference(one, {**one, "x": np.full(3, np.nan)}) == np.inf
    assert difference(one, {**one, "x": np.array([np.inf, np.nan, -4.0])}) == np.inf
    assert difference({"x": np.array([0.0])}, {"x": np.array([-0.0])}) > 0  # other bits


def test_clocks_are_no_result():
    record = {"metrics": {"rmse": [1.5, None]}, "cost": {"seconds": 3.0, "epochs": 2}}
    assert dict(flatten(record)) == {"/metrics/rmse/0": 1.5, "/metrics/rmse/1": "", "/cost/epochs": 2}


@pytest.mark.slow
def test_fresh_processes_and_workers_of_a_loader_change_no_bit():
    names = ("50 steps, weighted paths", "estimate_landscape", "PartnerIndex", "BridgeMix in a loader")
    one = in_folder(library, names)
    two = in_folder(library, names, PYTHONHASHSEED="random", WORKERS=2)
    for name in names:
        assert one[name]
        assert difference(one[name], two[name]) == 0, name


@pytest.mark.slow
def test_a_checkpoint_changes_no_bit():
    names = ("50 steps, perceptron",)
    one, two = in_folder(library, names), in_folder(library, names, RESUME=1)
    assert difference(one[names[0]], two[names[0]]) == 0


@pytest.mark.slow
def test_a_comparison_is_the_same_on_any_number_of_workers():
    """Networks are trained in other stacks, and trees in another order."""
    one = in_folder(compare)
    assert difference(one, in_folder(compare, "--jobs", "3", PYTHONHASHSEED="random")) == 0
    assert difference(one, in_folder(compare, "--jobs", "1", "--seed", "1")) > 0  # teeth


@pytest.mark.distributed
def test_a_table_is_the_same_in_processes_and_to_rounding_under_torchrun():
    one = in_folder(table)
    assert difference(one, in_folder(table, "--jobs", "2")) == 0
    assert difference(one, in_folder(table, torchrun=2)) < 1e-3


@pytest.fixture(scope="module")
def record():
    if not RECORD.exists():
        pytest.skip("nothing is recorded: python -m adversary determinism")
    return json.loads(RECORD.read_text(encoding="utf-8"))["differences"]


def test_the_record_is_complete(record):
    assert set(record) == {*LIBRARY, *COMMANDS}


def test_only_threads_and_torchrun_round_differently(record):
    for name, found in record.items():
        for way, value in found.items():
            most = 1e-5 if way == "torchrun" or (way == "2 threads" and "steps" in name) else 0
            assert value <= most, f"{name}, {way}: {value}"


def test_the_page_shows_the_record(record):
    assert as_table(record) in PAGE.read_text(encoding="utf-8")
