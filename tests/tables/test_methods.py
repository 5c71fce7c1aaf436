"""The registry of methods: draws of settings, borders of their ranges, and a method of one's own."""

import numpy as np
import polars as pl
import pytest
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from elliptica.estimators import load
from elliptica.tables import compare, fit_model, methods
from elliptica.tables.methods import (
    METHODS,
    Method,
    Plan,
    choose_methods,
    draw_settings,
    sizes,
)
from elliptica.tables.table import TableError


def test_networks_share_draws_of_rate_and_decay():
    """A stack of all methods then has few distinct pairs, and luck decides for none."""
    networks = tuple(name for name, method in METHODS.items() if method.make is None)
    plan = Plan(networks, trials=8)
    for trial in range(8):
        shared = {
            tuple(draw_settings(method, trial, plan)[k] for k in ("learning_rate", "weight_decay"))
            for method in networks
        }
        assert len(shared) == 1
    assert len({draw_settings("erm", trial, plan)["learning_rate"] for trial in range(8)}) == 8
    assert draw_settings("elliptic", 1, plan)["sigma"] != draw_settings("elliptic-weighted", 1, plan)["sigma"]
    assert draw_settings("erm", 1, plan) != draw_settings("erm", 1, Plan(("erm",), seed=1))
    assert draw_settings("erm", 0, plan) == draw_settings("erm", 0, Plan(("erm",), seed=1))


@pytest.mark.parametrize("method", METHODS)
def test_trials_cover_every_range_evenly(method):
    """Every third of every range has its trials; few trials leave no wide gap."""
    shared = methods._SHARED if METHODS[method].make is None else {}
    ranges = {**shared, **METHODS[method].settings}
    assert len(ranges) <= 4  # dimensions of methods._ROOT
    for n, fewest, widest in ((25, 6, 1.0), (8, 0, 0.36)):
        drawn = [draw_settings(method, trial, Plan(("erm",))) for trial in range(1, n)]
        for name, (usual, low, high) in ranges.items():
            assert low <= usual <= high
            places = np.sort([np.log(settings[name] / low) / np.log(high / low) for settings in drawn])
            assert -0.01 <= places[0] <= places[-1] <= 1.01
            assert np.histogram(places, 3, (-0.01, 1.01))[0].min() >= fewest
            assert np.diff([*places, places[0] + 1]).max() < widest, name  # a random shift turns the circle


def test_the_logarithm_is_learnt_in_every_second_trial():
    plain, log = Plan(("erm",)), Plan(("erm",), log_target=True)
    assert [log.logs_target(trial) for trial in range(4)] == [False, True, False, True]
    assert not any(plain.logs_target(trial) for trial in range(4))
    assert draw_settings("noise", 1, log) == draw_settings("noise", 0, log)  # the first trial, with it
    assert draw_settings("noise", 1, plain) != draw_settings("noise", 0, plain)
    binned = [[draw_settings("erm", trial, plan)["bins"] > 0 for trial in range(4)] for plan in (plain, log)]
    assert binned == [[False, True, False, True], [False, False, True, True]]


def test_methods_of_a_task():
    classes = choose_methods("classification", None, grouped=False)
    assert {"erm", "noise", "smoothing", "mixup", "elliptic", "trees", "linear"} <= set(classes)
    numbers = choose_methods("regression", None, grouped=False)
    assert set(numbers) ^ set(classes) == {"c-mixup", "smoothing"}
    grouped = set(choose_methods("classification", None, grouped=True)) - set(classes)
    assert grouped == {"groupdro", "lisa", "balanced"}
    assert choose_methods("classification", ["mixup", "trees"], grouped=False) == ("erm", "mixup", "trees")
    for wrong in ("c-mixup", "groupdro", "mixpu"):
        with pytest.raises(TableError, match="methods"):
            choose_methods("classification", [wrong], grouped=False)


def test_larger_tables_get_larger_batches_shorter_training_and_fewer_networks():
    found = [sizes(n) for n in (200, 2000, 2001, 10_001)]
    assert [each["batch_size"] for each in found] == [32, 64, 64, 256]
    assert [each["networks"] for each in found] == [3, 3, 3, 1]
    assert [each["epochs"] for each in found] == [200, 200, 100, 100]
    assert [each["patience"] for each in found] == [10, 10, 6, 4]
    assert sizes(400, quick=True)["trials"] < 8


@pytest.mark.parametrize("target", ["kind", "height"])
def test_a_new_method_is_one_entry(monkeypatch, tmp_path, flowers, tiny, target):
    """Compared, judged, refitted and saved like the others."""

    def make(task, settings, seed):
        model = KNeighborsClassifier if task == "classification" else KNeighborsRegressor
        return model(**settings, algorithm="brute")

    method = Method("nearest rows", {"n_neighbors": (5, 2, 20)}, make=make, calibrated=False)
    monkeypatch.setitem(METHODS, "nearest", method)
    monkeypatch.setitem(methods.NAMES, "nearest", "nearest rows")
    frame = flowers.drop("height" if target == "kind" else "kind")
    found = compare(frame, target, methods=["nearest"], **tiny)
    assert found.methods == ("erm", "nearest")
    assert len(found.of("nearest")[0].trials) == tiny["trials"]
    predicted = fit_model(found, method="nearest", file=tmp_path / "model").predict(frame.drop(target))
    assert list(load(tmp_path / "model").predict(frame.drop(target))) == list(predicted)
    assert isinstance(found.table(), pl.DataFrame)
