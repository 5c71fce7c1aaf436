"""The summary of a comparison: computed once, kept as JSON, checked when it is read."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from elliptica.tables.comparison import Options, compare
from elliptica.tables.markdown import describe_model, markdown
from elliptica.tables.metrics import score
from elliptica.tables.summary import Summary, summarise


@pytest.fixture(scope="module")
def comparison():
    draws = np.random.default_rng(1)
    frame = pl.DataFrame({"x": draws.normal(size=90), "y": draws.normal(size=90)})
    return compare(frame, "y", methods=["elliptic", "linear"], folds=3, trials=2, epochs=25, hidden=(4,))


@pytest.fixture(scope="module")
def found(comparison):
    return summarise(comparison)


def test_it_comes_back_from_json_as_it_was(found):
    again = Summary.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found


def test_scores_of_folds_are_those_of_their_rows(comparison, found):
    """Fails if a fold is scored with rows of another, or with the mean of all."""
    rows = comparison.shift.folds[1].test
    target = comparison.problem.target[rows]
    gap = comparison.predictions.values["linear"][0, rows] - target
    assert found.by_fold["linear"]["rmse"][1] == pytest.approx(np.sqrt(np.mean(gap**2)))
    assert [len(own["rmse"]) for own in found.by_fold.values()] == [3, 3, 3, 3]
    assert found.scores["linear"]["rmse"] == score(comparison.predictions)["linear"]["rmse"]


def test_the_verdict_is_that_of_the_comparison(comparison, found):
    assert found.verdict.headline == comparison.verdict.headline
    assert found.saved == comparison.best
    assert found.trained[0] == min(comparison.methods, key=lambda m: comparison.scores[m]["rmse"])
    assert found.cells["linear"]["rmse"] == comparison.verdict.cell("linear", "rmse")
    assert not set(comparison.verdict.cautions) & set(found.verdict.sentences)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("scores", {"erm": {"rmse": "low"}}),
        ("methods", {"a": 1}),
        ("parts", []),
        ("notices", [3]),
        ("finished", ["one", 2]),
        ("verdict", {"headline": "x"}),
        ("columns", [{"name": 1}]),
        ("n_rows", float("nan")),
    ],
)
def test_damage_is_noticed(found, place, value):
    content = json.loads(json.dumps(found.to_json()))
    with pytest.raises(ValueError, match="the summary is damaged"):
        Summary.from_json({**content, place: value})
    del content[place]
    with pytest.raises(ValueError, match="the summary is damaged"):
        Summary.from_json(content)


@pytest.mark.parametrize("value", ["0.5", float("inf"), None])
def test_a_damaged_score_of_a_fold_is_noticed(found, value):
    content = json.loads(json.dumps(found.to_json()))
    content["by_fold"]["linear"]["rmse"][1] = value
    with pytest.raises(ValueError, match=r"the summary is damaged.*not finite numbers"):
        Summary.from_json(content)


def changed(comparison, method="elliptic", **values):
    """The comparison with other facts about the chosen trials of a method."""
    records = []
    for record in comparison.records:
        if record.method == method:
            trials = list(record.trials)
            trials[record.chosen] = replace(trials[record.chosen], **values)
            record = replace(record, trials=tuple(trials))
        records.append(record)
    return replace(comparison, records=tuple(records))


def test_a_search_that_ended_at_the_border_is_noted(comparison):
    """For ordinary training and the recommended method; others do not change the answer."""
    at_border = {"learning_rate": 0.0098, "weight_decay": 1e-4}
    high = changed(comparison, "erm", settings=at_border)
    (note,) = [each for each in summarise(high).cautions if "border" in each]
    assert "of ordinary training" in note
    assert "learning_rate (" in note
    inside = {"learning_rate": 1e-3, "weight_decay": 1e-3}
    within = summarise(changed(comparison, "erm", settings=inside)).cautions
    assert not any("ordinary training" in each for each in within if "border" in each)
    once = replace(high, plan=replace(comparison.plan, trials=1))
    notes = summarise(once).cautions
    assert any("There was no search" in note for note in notes)
    assert not any("border" in note for note in notes)


def test_failed_trainings_and_short_ones_are_noted(comparison):
    cautions = summarise(changed(comparison, "elliptic", error="the loss became nan")).cautions
    assert "3 of 6 training runs of elliptic training failed and were skipped." in cautions
    short = summarise(replace(comparison, plan=replace(comparison.plan, epochs=5))).cautions
    assert any(each.startswith("Few epochs: with --epochs 5") for each in short)
    assert not any("Few epochs" in each for each in summarise(comparison).cautions)


def test_quick_says_what_it_has_cut(comparison):
    usual = comparison.plan
    quick = replace(comparison, plan=replace(usual, trials=2, epochs=30, networks=1, quick=True))
    (note,) = [each for each in summarise(quick).cautions if "--quick" in each]
    assert "2 settings instead of 8, 30 epochs instead of 100, 1 network instead of 3" in note
    assert not any("--quick" in each for each in summarise(comparison).cautions)
    assert Options(quick=True).plan(comparison.problem, comparison.shift).quick


def test_the_answer_says_that_noise_is_not_predicted(comparison, found):
    """Inputs and targets of the fixture are independent."""
    assert found.verdict.headline.startswith("Nothing here ")
    assert not found.predicts
    assert "not shown to be better than always the mean" in describe_model(found)
    assert "always the mean" in markdown(found)
    assert found.saved in comparison.methods


def test_a_method_that_failed_is_named(comparison):
    records = [
        replace(r, error="All 2 settings failed.") if r.method == "linear" else r for r in comparison.records
    ]
    found = summarise(replace(comparison, records=tuple(records)))
    assert "linear" not in found.methods
    assert "Linear model was not compared. All 2 settings failed." in found.cautions


def test_nothing_finished_is_a_summary_too(comparison):
    empty = summarise(replace(comparison, records=()))
    assert empty.methods == []
    assert empty.finished == (0, 3)
    assert empty.verdict.headline.startswith("No verdict")
