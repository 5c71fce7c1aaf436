"""The faults of the battery are really there, and its remedies help."""

import functools
import json
import statistics
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import diagnose_battery
import elliptica
from tables.battery import CASES, Rows, distant, first_copies, measure, suspects

SEEDS = (0, 1, 2)
BY_NAME = {case.name: case for case in CASES}
SOUND = [case.name for case in CASES if not case.truth]
SICK = [case.name for case in CASES if case.truth]
#: Quick to build, one of each kind: the rest is left to the slow tests.
QUICK = ["overlapping gaussians", "eighty rows", "one feature logistic"]
KNOWN = {
    *("constant", "underfit", "overfitting", "shift", "labels", "label_order", "outliers", "duplicates"),
    *("leak", "weak_part", "shortcut", "inputs", "range", "confidence", "prior"),
}


@functools.cache
def built(name, seed):
    return BY_NAME[name].build(seed)


@functools.cache
def cured(name, seed):
    return BY_NAME[name].remedy(seed)


def losses(situation, x, y):
    """Loss of each row."""
    with torch.no_grad():
        output = situation.model(x)
    if y.is_floating_point():
        return (output - y).square().flatten()
    return F.cross_entropy(output, y, reduction="none")


def trained_loss(situation):
    return losses(situation, situation.x, situation.y)


def held_out_loss(situation):
    return losses(situation, situation.x_test, situation.y_test)


def constant_loss(y):
    """Loss of the best constant prediction."""
    if y.is_floating_point():
        return y.var(correction=0).item()
    shares = torch.bincount(y).double() / len(y)
    return -(shares[shares > 0] * shares[shares > 0].log()).sum().item()


def displacement(situation, other):
    """Largest difference of a feature's mean, in deviations of the training rows."""
    deviation = situation.x.std(0)
    moved = (other.mean(0) - situation.x.mean(0)).abs()[deviation > 0] / deviation[deviation > 0]
    return moved.max().item()


def error(situation, x, y):
    with torch.no_grad():
        return (situation.model(x).argmax(1) != y).float().mean().item()


def calibration(situation):
    """Mean confidence on the held-out rows, and their share of right answers."""
    with torch.no_grad():
        sure = situation.model(situation.x_test).softmax(1).max(1).values.mean().item()
    return sure, 1 - error(situation, situation.x_test, situation.y_test)


def means_by(parts, values):
    parts = np.asarray(parts)
    return {name: values[torch.from_numpy(parts == name)].mean().item() for name in np.unique(parts)}


def as_rows(s):
    return Rows(s.x, s.y, s.x, s.y)


# -- one direct check for each kind of fault -------------------------------------------------------------


def is_overfitted(s):
    assert held_out_loss(s).mean() > 1.5 * trained_loss(s).mean()
    assert displacement(s, s.x_test) < 0.5


def is_shifted(s):
    if s.unlabelled is not None:
        assert displacement(s, s.x_test) < 0.3
        assert displacement(s, s.unlabelled) > 1
        assert held_out_loss(s).mean() < 1.5 * trained_loss(s).mean()
        assert losses(s, s.x_true, s.y_true).mean() > 2 * trained_loss(s).mean()
    else:
        assert displacement(s, s.x_test) > 1
        assert held_out_loss(s).mean() > 2 * trained_loss(s).mean()


def has_wrong_labels(s):
    marked = torch.zeros(len(s.x), dtype=torch.bool)
    marked[s.culprits] = True
    found = suspects(as_rows(s))
    assert (found & marked).sum() > 0.6 * marked.sum()  # the fault can be seen
    assert (found & ~marked).sum() < 0.05 * len(s.x)


def has_other_order(s):
    with torch.no_grad():
        output = s.model(s.x)
    wrong = output.argmax(1) != s.y
    assert wrong.float().mean() > 0.5
    table = torch.zeros(output.shape[1], output.shape[1])
    table.index_put_((s.y, output.argmax(1)), torch.ones(len(s.y)), accumulate=True)
    assert table.max(1).values.sum() > 0.9 * len(s.y)  # each class has an output of its own


def has_far_rows(s):
    marked = torch.zeros(len(s.x), dtype=torch.bool)
    marked[s.culprits] = True
    assert torch.equal(distant(s.x), marked)
    loss = trained_loss(s)
    assert loss[marked].sum() > 0.5 * loss.sum()


def has_copies(s):
    assert first_copies(s.x).sum() == 60
    assert len(s.culprits) == 600


def has_leak(s):
    both = torch.cat([s.x, s.x_test])
    assert len(both) - len(torch.unique(both, dim=0)) == 200
    assert error(s, s.x_test, s.y_test) < error(s, s.x_true, s.y_true) - 0.03


def has_weak_part(s):
    parts = s.y_test.numpy() if s.test_groups is None else s.test_groups
    means = means_by(parts, held_out_loss(s))
    assert max(means.values()) > 3 * statistics.median_low(sorted(means.values()))


def has_shortcut(s):
    if s.test_groups is None:  # the first feature goes with the label, and against it in the held-out rows
        signs = [np.corrcoef(x[:, 0], y)[0, 1] for x, y in ((s.x, s.y.numpy()), (s.x_test, s.y_test.numpy()))]
        assert signs[0] > 0.8
        assert signs[1] < -0.5
        assert held_out_loss(s).mean() > 3 * trained_loss(s).mean()
    else:
        means = means_by(s.test_groups, held_out_loss(s))
        crossed = [means["bird 0 on ground 1"], means["bird 1 on ground 0"]]
        assert min(crossed) > 3 * max(value for value in means.values() if value not in crossed)


def has_bad_inputs(s):
    deviation = s.x.std(0)
    assert (deviation == 0).any() or deviation.max() > 100 * deviation.min()


def leaves_range(s):
    with torch.no_grad():
        output = s.model(s.x_test)
    outside = (output < s.y.min() - 0.1) | (output > s.y.max() + 0.1)
    assert outside.float().mean() > 0.1
    assert held_out_loss(s).mean() > 3 * trained_loss(s).mean()


def is_constant(s):
    assert trained_loss(s).mean() > 0.9 * constant_loss(s.y)
    assert held_out_loss(s).mean() > 0.9 * constant_loss(s.y_test)


def is_miscalibrated(s):
    sure, right = calibration(s)
    assert abs(sure - right) > 0.1


def has_other_shares(s):
    shares = [torch.bincount(y).double() / len(y) for y in (s.y, s.y_test)]
    assert (shares[0] - shares[1]).abs().max() > 0.3


CHECKS = {
    "overfitting": is_overfitted,
    "shift": is_shifted,
    "labels": has_wrong_labels,
    "label_order": has_other_order,
    "outliers": has_far_rows,
    "duplicates": has_copies,
    "leak": has_leak,
    "weak_part": has_weak_part,
    "shortcut": has_shortcut,
    "inputs": has_bad_inputs,
    "range": leaves_range,
    "constant": is_constant,
    "confidence": is_miscalibrated,
    "prior": has_other_shares,
}


def check_fault(name, seed):
    CHECKS[BY_NAME[name].truth[0]](built(name, seed))


def check_sound(name, seed):
    s = built(name, seed)
    inside, level = trained_loss(s), constant_loss(s.y)
    assert inside.mean() < 0.9 * level
    if name in ("overlapping gaussians", "linear in 64 features", "sine"):
        assert not distant(s.x).any()
    table = torch.cat([s.x, s.y.reshape(len(s.y), 1)], 1)
    assert len(torch.unique(table, dim=0)) >= len(s.x) - 1  # iris has a pair of equal rows
    deviation = s.x.std(0)
    assert deviation[deviation > 0].max() < 2 * deviation[deviation > 0].min()
    if s.x_test is None:
        return
    outside = held_out_loss(s)
    chance = 2 * (outside.var() / len(outside) + inside.var() / len(inside)).sqrt()
    assert outside.mean() - inside.mean() < 0.05 * level + chance
    assert displacement(s, s.x_test) < 0.5 or name == "harmless shift"
    parts = s.test_groups or (None if s.y.is_floating_point() else s.y_test.numpy())
    if parts is not None:
        assert max(means_by(parts, outside).values()) < 3 * outside.mean() + 0.25 * level
    if not s.y.is_floating_point():
        sure, right = calibration(s)
        assert abs(sure - right) < 0.06


def test_battery_is_as_large_as_it_says():
    assert len(CASES) == len(BY_NAME)
    assert len(SOUND) >= 11
    assert len(SICK) >= 19
    assert {name for case in CASES for name in case.truth} <= KNOWN
    assert KNOWN - {"underfit"} == set(CHECKS) == {case.truth[0] for case in CASES if case.truth}
    assert all((case.remedy is not None) == bool(case.truth) == bool(case.advice) for case in CASES)


def test_situations_follow_from_the_seed():
    state = torch.get_rng_state()
    one, two = (BY_NAME["constant classifier"].build(1) for _ in range(2))
    other = BY_NAME["constant classifier"].build(2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.model(one.x), two.model(two.x))
    assert not torch.equal(one.x, other.x)


@pytest.mark.parametrize("name", QUICK)
def test_sound_models_are_sound(name):
    check_sound(name, 0)


@pytest.mark.parametrize("name", ["rare class", "leaked rows", "other class shares", "constant classifier"])
def test_faults_are_there(name):
    check_fault(name, 0)


def found(*findings):
    return [SimpleNamespace(name=name, severity=severity) for name, severity in findings]


def test_study_judges_by_the_first_three_that_were_raised():
    sick, sound = BY_NAME["rare class"], BY_NAME["sine"]
    noise = [("between", "info"), ("inputs", "fine"), ("labels", "look"), ("range", "warning")]
    near = diagnose_battery.judge(sick, found(*noise, ("weak_part", "look")))
    assert near["right"]
    assert near["rank"] == 3
    assert near["other_warnings"] == ["range"]
    assert [f["name"] for f in near["first"]] == ["labels", "range", "weak_part"]
    late = diagnose_battery.judge(sick, found(*noise, ("shift", "look"), ("weak_part", "warning")))
    assert not late["right"]
    assert late["rank"] == 4
    assert diagnose_battery.judge(sound, found(("labels", "look"), ("shift", "info")))["right"]
    assert not diagnose_battery.judge(sound, found(("shift", "info"), ("labels", "warning")))["right"]


def test_study_diagnoses_with_everything_known_and_writes_both_tables(monkeypatch):
    calls = []

    def diagnose(model, loss_fn, x, y, **known):
        calls.append(known)
        return SimpleNamespace(findings=found(("leak", "warning"), ("overfitting", "look")))

    monkeypatch.setattr(elliptica, "diagnose", diagnose, raising=False)
    records = [diagnose_battery.examine(BY_NAME[name], 0) for name in ("one feature logistic", "leaked rows")]
    assert set(calls[0]) == {"held_out", "groups", "held_out_groups", "unlabelled"}
    assert len(calls[1]["held_out"][0]) == 400
    page = diagnose_battery.blocks(json.loads(json.dumps(records)))["tables"]
    assert "Named among the first three: 1 of 1 runs" in page
    assert "Sound models with a warning: 1 of 1 runs" in page
    assert "| one feature logistic | sound | **leak**, overfitting | wrong |" in page
    assert "| leaked rows | leak | **leak**, overfitting | right |" in page
    assert "| leaked rows | remove the shared rows from the held-out rows | optimism |" in page


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SOUND)
def test_all_sound_models_are_sound(name, seed):
    check_sound(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", SICK)
def test_all_faults_are_there(name, seed):
    check_fault(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", SICK)
def test_remedies_help(name):
    metric = BY_NAME[name].metric
    before, after = (
        statistics.mean(measure(metric, make(name, seed)) for seed in SEEDS) for make in (built, cured)
    )
    assert after < before
    same = built(name, 0), cured(name, 0)
    assert len({len(s.x_true if s.y_test is None else s.x_test) for s in same}) == 1
