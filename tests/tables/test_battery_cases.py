"""The remedies of the battery help, so its faults are really there; its study counts right."""

import statistics
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

import diagnose_battery
from elliptica.tables.diagnose import JUDGES
from tables.battery import CASES, Rows, measure, suspects

BY_NAME = {case.name: case for case in CASES}
SOUND = [case.name for case in CASES if not case.truth]
SICK = [case.name for case in CASES if case.truth]


def mean_loss(situation, x, y):
    with torch.no_grad():
        output = situation.model(x)
    return (F.mse_loss if y.is_floating_point() else F.cross_entropy)(output, y).item()


def test_every_kind_of_fault_is_in_the_battery():
    assert len(CASES) == len(BY_NAME)
    assert len(SOUND) >= 17
    assert {name for case in CASES for name in case.truth} == set(JUDGES) - {"outputs"}


def test_situations_follow_from_the_seed():
    state = torch.get_rng_state()
    one, two = (BY_NAME["constant classifier"].build(1) for _ in range(2))
    other = BY_NAME["constant classifier"].build(2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.x, two.x)
    assert torch.equal(one.model(one.x), two.model(two.x))
    assert not torch.equal(one.x, other.x)


def test_wrong_labels_can_be_seen_by_another_method():
    for name in ("shuffled digits", "flipped gaussians", "corrupted targets"):
        s = BY_NAME[name].build(0)
        wrong = torch.zeros(len(s.x), dtype=torch.bool)
        wrong[s.culprits] = True
        marked = suspects(Rows(s.x, s.y, s.x, s.y))
        assert (marked & wrong).sum() > 0.6 * wrong.sum()
        assert (marked & ~wrong).sum() < 0.05 * len(s.x)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOUND)
def test_sound_models_are_sound(name):
    s = BY_NAME[name].build(0)
    constant = s.y.var(correction=0) if s.y.is_floating_point() else F.one_hot(s.y).float().mean(0)
    level = constant if s.y.is_floating_point() else -torch.special.xlogy(constant, constant).sum()
    inside = mean_loss(s, s.x, s.y)
    assert inside < 0.9 * level
    assert s.x_test is None or mean_loss(s, s.x_test, s.y_test) - inside < 0.15 * level


@pytest.mark.slow
@pytest.mark.parametrize("name", SICK)
def test_remedies_help(name):
    case = BY_NAME[name]
    before, after = (
        statistics.mean(measure(case.metric, make(seed)) for seed in (0, 1, 2))
        for make in (case.build, case.remedy)
    )
    assert after < before


def findings(*pairs):
    return [SimpleNamespace(name=name, severity=severity) for name, severity in pairs]


def test_study_judges_by_the_first_three_that_were_raised():
    sick, sound, labels = (BY_NAME[name] for name in ("rare class", "sine", "two classes swapped"))
    noise = [("between", "info"), ("inputs", "fine"), ("labels", "look"), ("range", "warning")]
    for case, pairs, right in (
        (sick, [*noise, ("weak_part", "look")], True),
        (sick, [*noise, ("shift", "look"), ("weak_part", "look")], False),
        (sound, [("labels", "look"), ("shift", "info")], True),
        (sound, [("shift", "info"), ("labels", "warning")], False),
        (labels, [("labels", "warning")], True),
        (labels, [("labels", "warning"), ("overfitting", "look")], False),
    ):
        assert diagnose_battery.judge(case, findings(*pairs))["right"] == right


def test_study_writes_its_page():
    names = ("one feature logistic", "leaked rows")
    made = diagnose_battery.blocks([diagnose_battery.examine(BY_NAME[name], 0) for name in names])
    assert "1 of 1 runs of sick models; sound models with a warning: 0 of 1. Wrong: none." in made["chosen"]
    assert "| leaked rows | leak | **leak**" in made["table"]
