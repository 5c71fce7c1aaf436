"""Plans: methods, sizes, draws of settings, borders of their ranges."""

import numpy as np
import pytest

from elliptica.tables import plan as plan_module
from elliptica.tables.plan import (
    METHODS,
    NETWORKS,
    SEES_GROUPS,
    Plan,
    at_border,
    choose_methods,
    draw_settings,
    parse_duration,
    sizes,
)
from elliptica.tables.table import TableError

bad_input = pytest.mark.bad_input


def test_networks_share_draws_of_rate_and_decay():
    """A stack of all methods then has few distinct pairs, and luck decides for none."""
    plan = Plan(NETWORKS, trials=8)
    for trial in range(8):
        shared = {
            tuple(draw_settings(method, trial, plan)[k] for k in ("learning_rate", "weight_decay"))
            for method in NETWORKS
        }
        assert len(shared) == 1
    assert len({draw_settings("erm", trial, plan)["learning_rate"] for trial in range(8)}) == 8
    assert draw_settings("elliptic", 1, plan)["sigma"] != draw_settings("elliptic-weighted", 1, plan)["sigma"]
    assert draw_settings("erm", 1, plan) != draw_settings("erm", 1, Plan(("erm",), seed=1))
    assert draw_settings("erm", 0, plan) == draw_settings("erm", 0, Plan(("erm",), seed=1))


@pytest.mark.parametrize("method", METHODS)
def test_trials_cover_every_range_evenly(method):
    """Every third of every range has its trials; independent draws would leave a third empty now and then."""
    plan = Plan(("erm",), trials=25)
    drawn = [draw_settings(method, trial, plan) for trial in range(1, 25)]
    for name, (usual, low, high) in METHODS[method].own.items():
        values = np.array([each[name] for each in drawn])
        assert low <= usual <= high
        assert values.min() >= low * 0.99
        assert values.max() <= high * 1.01
        places = np.log(values / low) / np.log(high / low)
        assert np.histogram(places, 3, (-0.01, 1.01))[0].min() >= 6


def test_the_ranges_are_those_of_the_committed_results():
    """Other ranges are other trials: resumed comparisons would change, and so would the committed record."""
    usual = {name: dict(method.own) for name, method in METHODS.items() if method.own}
    sigma = {"sigma": (0.1, 0.01, 1.0)}
    assert usual == {
        "noise": sigma,
        "smoothing": {"smoothing": (0.1, 0.01, 0.4)},
        "mixup": {"alpha": (0.4, 0.1, 4.0)},
        "c-mixup": {"alpha": (2.0, 0.2, 4.0), "bandwidth": (1.0, 0.1, 3.0)},
        "elliptic": sigma,
        "elliptic-weighted": {**sigma, "xi": (1.0, 0.3, 3.0)},
        "groupdro": {"eta": (0.05, 0.005, 0.5)},
        "lisa": {"alpha": (2.0, 0.5, 4.0)},
        "jtt": {"upweight": (5.0, 2.0, 50.0)},
        "trees": {
            "learning_rate": (0.1, 0.02, 0.3),
            "l2_regularization": (1e-3, 1e-3, 10.0),
            "max_leaf_nodes": (31.0, 4.0, 63.0),
            "min_samples_leaf": (20.0, 5.0, 50.0),
        },
        "linear": {"penalty": (1.0, 1e-3, 1e3)},
    }
    assert plan_module._SHARED == {"learning_rate": (1e-3, 3e-4, 1e-2), "weight_decay": (1e-4, 1e-6, 1e-1)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", range(3))
def test_few_trials_leave_no_wide_gap(method, seed):
    """As many as there are by default; a step of a tenth would leave half of a range empty."""
    plan = Plan(("erm",), seed=seed)
    drawn = [draw_settings(method, trial, plan) for trial in range(1, plan.trials)]
    ranges = plan_module._ranges(method)
    assert len(ranges) <= plan_module._MOST_SETTINGS
    for name, (_, low, high) in ranges.items():
        places = np.sort([np.log(each[name] / low) / np.log(high / low) for each in drawn])
        gaps = np.diff([*places, places[0] + 1])  # a random shift turns the circle
        assert gaps.max() < 0.36, name


def test_the_logarithm_is_learnt_in_every_second_trial():
    plain, log = Plan(("erm",)), Plan(("erm",), log_target=True)
    assert [log.logs_target(trial) for trial in range(4)] == [False, True, False, True]
    assert not any(plain.logs_target(trial) for trial in range(4))
    assert draw_settings("noise", 1, log) == draw_settings("noise", 0, log)  # the first trial, with it
    assert draw_settings("noise", 1, plain) != draw_settings("noise", 0, plain)


def test_methods_of_a_task():
    classes = choose_methods("classification", None, grouped=False)
    assert classes == (
        *("erm", "noise", "smoothing", "mixup", "elliptic", "elliptic-weighted", "trees", "linear"),
    )
    numbers = choose_methods("regression", None, grouped=False)
    assert set(numbers) - set(classes) == {"c-mixup"}
    assert set(classes) - set(numbers) == {"smoothing"}
    grouped = set(choose_methods("classification", None, grouped=True)) - set(classes)
    assert grouped == {"groupdro", "lisa", "balanced", "jtt"}
    assert set(SEES_GROUPS) == {"groupdro", "lisa", "balanced"}  # JTT sees errors, not groups
    assert set(choose_methods("regression", None, grouped=True)) - set(numbers) == {"groupdro", "balanced"}
    assert choose_methods("classification", ["trees"], grouped=False) == ("erm", "trees")
    assert choose_methods("classification", ["jtt"], grouped=False) == ("erm", "jtt")


@bad_input
def test_methods_that_do_not_fit():
    with pytest.raises(
        TableError, match=r"Method 'c-mixup' does not exist for classification. Choose from erm, noise"
    ):
        choose_methods("classification", ["c-mixup"], grouped=False)
    with pytest.raises(TableError, match=r"GroupDRO needs groups. Name their column with --group"):
        choose_methods("classification", ["groupdro"], grouped=False)


@bad_input
@pytest.mark.parametrize(
    "wrong",
    [
        {"trials": 0},
        {"epochs": 1.5},
        {"networks": 0},
        {"select": "best"},
        {"hidden": ()},
        {"hidden": (8, 0)},
        {"seed": -1},
        {"seed": 0.5},
    ],
)
def test_plans_that_make_no_sense(wrong):
    with pytest.raises(TableError, match=next(iter(wrong))):
        Plan(("erm",), **wrong)


@bad_input
def test_budgets():
    assert [parse_duration(text) for text in ("90s", "2m", "1h", "0.5 min", 15)] == [90, 120, 3600, 30, 15]
    for wrong in ("", "fast", "2 weeks", "-1m", "0s", "1e3s"):
        with pytest.raises(TableError, match=r"is not a positive time. Write it like 90s, 2m or 1h"):
            parse_duration(wrong)


def test_larger_tables_get_larger_batches_and_fewer_networks():
    found = [sizes(n) for n in (200, 400, 4000, 40_000)]
    assert [each["batch_size"] for each in found] == [32, 32, 128, 256]
    assert [each["networks"] for each in found] == [3, 3, 3, 1]
    assert [each["trials"] for each in found] == [8] * 4
    assert sizes(400, quick=True)["trials"] < 8


@pytest.mark.parametrize(
    ("n", "epochs", "patience", "first", "hidden"),
    [
        (2_000, 100, 10, 12, (64, 64)),
        (2_001, 60, 6, 5, (64, 64)),
        (10_000, 60, 6, 5, (64, 64)),
        (10_001, 60, 4, 5, (128, 128)),
    ],
)
def test_training_is_shorter_on_larger_tables(n, epochs, patience, first, hidden):
    """Other lengths are other records: a comparison that is resumed would mix the two."""
    found = sizes(n)
    assert [found[name] for name in ("epochs", "patience", "first_epochs")] == [epochs, patience, first]
    assert found["hidden"] == hidden


def test_borders_by_hand():
    """A tenth of the way from 0.01 to 1 on a logarithmic scale ends at 0.01 * 100^0.1 = 0.0158."""
    for sigma, is_border in ((0.0157, True), (0.0159, False), (0.62, False), (0.64, True)):
        assert (at_border("elliptic", {"sigma": sigma}) == {"sigma": (0.01, 1.0)}) == is_border
    assert at_border("trees", {"l2_regularization": 1e-3}) == {}  # the usual value
    assert at_border("trees", {"l2_regularization": 9.0}) == {"l2_regularization": (1e-3, 10.0)}
