"""The study of uncertainty: what it trains and measures, and that its page shows its records."""

import copy
import itertools
import statistics
from dataclasses import replace

import pytest
import torch
from scipy import stats
from sklearn.metrics import log_loss
from torch import nn

import uncertainty
import uncertainty_page
import uncertainty_table
from elliptica.lab.experiments.records import read_lines
from uncertainty_data import (
    Part,
    Problem,
    corruptions,
    half_shuffled,
    leave_out,
    scaled,
    shuffled_columns,
)


def toy(n_classes=3, rows=60):
    """Overlapping blobs as images of 3 x 3 pixels."""
    generator = torch.Generator().manual_seed(n_classes)
    parts = []
    for _ in range(3):
        y = torch.arange(rows) % n_classes
        parts.append(Part(torch.randn(rows, 9, generator=generator) + y[:, None], y))
    return Problem(*parts, {"elsewhere": 5 * torch.randn(20, 9, generator=generator)}, (1, 3, 3))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(uncertainty, "N_STEPS", 30)
    monkeypatch.setattr(uncertainty, "LOOK", 10)


def test_the_page_shows_the_records():
    page = (uncertainty.HERE / "README.md").read_text(encoding="utf-8")
    assert page == uncertainty_page.page(*uncertainty_page.read_records(uncertainty.HERE))


def test_records_are_cells_of_the_study_and_seeds_have_no_gaps():
    records = read_lines(uncertainty.HERE / uncertainty.RECORDS)
    found = {(record["labels"], record["data"], record["seed"]) for record in records}
    assert found <= {(labels, name, seed) for labels, _, name, seed in uncertainty.cells()}
    seeds = {}
    for labels, name, seed in sorted(found):
        seeds.setdefault((labels, name), []).append(seed)
    assert all(numbers == list(range(len(numbers))) for numbers in seeds.values())
    assert len([name for labels, name in seeds if labels == "right"]) >= 4
    assert {name for labels, name in seeds if labels == "shuffled"} == set(uncertainty.SHUFFLED)


def test_records_hold_every_strength_and_validation_rows_chose():
    records, _ = uncertainty_page.read_records(uncertainty.HERE)
    by_cell = {}
    for record in records:
        by_cell.setdefault((record["data"], record["seed"], record["method"]), []).append(record)
    for (_, _, method), found in by_cell.items():
        best = min(found, key=lambda record: record["validation_nll"])
        assert [record for record in found if record["chosen"]] == [best]
        if method in uncertainty.METHODS:
            assert [r["strength"] for r in found] == [c.strength for c in uncertainty.METHODS[method]]
    assert {method for _, _, method in by_cell} == set(uncertainty_table.METHODS)


@pytest.mark.parametrize(
    "make", [uncertainty._noise(0.0), uncertainty._smoothing(0.0), uncertainty._mixup(0.0)]
)
def test_without_strength_every_control_is_ordinary_training(make, short):
    problem = toy()
    ours, plain = (uncertainty.train(problem, m, 0).model for m in (make, uncertainty._erm))
    for first, second in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(first, second)


def test_strength_seed_and_looks_matter(short):
    problem = toy()
    plain = uncertainty.train(problem, uncertainty._erm, 0, look=True)
    for make, seed in ((uncertainty._noise(1.0), 0), (uncertainty._paper(0.3), 0), (uncertainty._erm, 1)):
        other = uncertainty.train(problem, make, seed).model
        assert not torch.equal(other[0].weight, plain.model[0].weight)
    assert [look.step for look in plain.looks] == [10, 20, 30]
    best = uncertainty.best_look(plain.looks)
    assert uncertainty._loss(plain.stopped, problem.validation) == pytest.approx(best.validation_nll)
    assert plain.looks[-1].accuracy == uncertainty._accuracy(plain.model, problem.test)


def test_early_stopping_keeps_the_best_look_not_the_last(monkeypatch, short):
    losses = itertools.chain([3.0, 1.0, 2.0], itertools.repeat(2.0))
    monkeypatch.setattr(uncertainty, "_loss", lambda model, part: next(losses))
    found = uncertainty.train(toy(), uncertainty._erm, 0, look=True)
    assert uncertainty.best_look(found.looks).step == 20
    assert not torch.equal(found.stopped[0].weight, found.model[0].weight)


def test_scores_against_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(50, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(4, (50,), generator=generator)
    found = uncertainty.scores(logits, y, 2.5)
    assert found["nll"] == pytest.approx(log_loss(y, logits.softmax(1)))
    assert found["nll_t"] == pytest.approx(log_loss(y, (logits / 2.5).softmax(1)))
    assert found["confidence_t"] < found["confidence"]


def test_detection_counts_pairs():
    def answers(logits):
        return uncertainty.Answers(torch.tensor(logits).double(), torch.tensor(logits).double().logsumexp(1))

    inside, outside = [[3.0, 0.0], [1.0, 0.0], [9.0, 8.0]], [[2.0, 0.0], [1.0, 0.0]]
    found = uncertainty.detection(answers(inside), answers(outside))
    pairs = list(itertools.product(inside, outside))
    gaps = [(abs(a[0] - a[1]), abs(b[0] - b[1])) for a, b in pairs]
    assert found["softmax"] == pytest.approx(statistics.mean((a > b) + (a == b) / 2 for a, b in gaps))
    assert found["energy"] == pytest.approx(statistics.mean((a[0] > b[0]) + (a == b) / 2 for a, b in pairs))


def test_an_ensemble_of_equal_networks_is_one_of_them():
    problem, model = toy(), nn.Linear(9, 3)
    one = uncertainty.measure([model], problem, 0)
    several = uncertainty.measure([model, copy.deepcopy(model)], problem, 0)
    disagreement = several.pop("disagreement")
    assert all(abs(value) < 1e-12 for value in disagreement.values())
    assert several["test"] == pytest.approx(one["test"])
    assert several["outside"]["elsewhere"] == pytest.approx(one["outside"]["elsewhere"])
    assert uncertainty.disagreement([model, nn.Linear(9, 3)], problem.test.x) > 0


def test_test_labels_decide_nothing(short):
    problem = toy()
    other = replace(problem, test=problem.test._replace(y=problem.test.y.flip(0)))
    first, second = (uncertainty.train(p, uncertainty._elliptic(0.3), 0).model for p in (problem, other))
    assert torch.equal(first[0].weight, second[0].weight)
    mine, theirs = (uncertainty.measure([first], p, 0) for p in (problem, other))
    assert mine["temperature"] == theirs["temperature"]
    assert mine["outside"] == theirs["outside"]
    assert mine["test"]["nll"] != theirs["test"]["nll"]


def test_left_out_classes_are_gone_and_scaling_uses_training_rows():
    problem = toy()
    left = leave_out(problem, [1])
    assert left.train.y.unique().tolist() == [0, 1]
    torch.testing.assert_close(left.test.x[left.test.y == 1], problem.test.x[problem.test.y == 2])
    torch.testing.assert_close(left.outside["left-out classes"], problem.test.x[problem.test.y == 1])
    found = scaled(left)
    torch.testing.assert_close(found.train.x.mean(0), torch.zeros(9), atol=1e-6, rtol=0)
    assert float(found.train.x.var(0).mean()) == pytest.approx(1)
    shift = (found.test.x[0] - found.train.x[0]) / (left.test.x[0] - left.train.x[0])
    torch.testing.assert_close(shift, shift[:1].expand(9))  # one number for all inputs


@pytest.mark.statistical
def test_corruptions(seed):
    problem = toy()
    found = corruptions(problem, seed)
    assert list(found) == ["noise 0.5", "noise 1", "blur"]
    noise = found["noise 0.5"] - problem.test.x
    assert float(noise.std()) == pytest.approx(0.5, rel=0.15)
    image = problem.test.x[0].view(3, 3)
    blurred = found["blur"][0].view(3, 3)
    torch.testing.assert_close(blurred[1, 1], image.mean())
    torch.testing.assert_close(blurred[0, 0], image[:2, :2].mean())
    missing = corruptions(replace(problem, shape=None), seed)["half missing"]
    assert ((missing == 0) | (missing == problem.test.x)).all()
    assert 0.4 < float((missing == 0).float().mean()) < 0.6


def test_shuffled_columns_keep_their_values():
    x = torch.randn(40, 3)
    found = shuffled_columns(x, 0)
    torch.testing.assert_close(found.sort(0).values, x.sort(0).values)
    assert not torch.isin(found[:, 0] * 1e3 + found[:, 1], x[:, 0] * 1e3 + x[:, 1]).all()


@pytest.mark.statistical
def test_half_of_the_labels_are_shuffled_but_not_those_of_the_test(seed):
    problem = toy(n_classes=6, rows=600)
    found = half_shuffled(problem, seed)
    for part in ("train", "validation"):
        before, after = getattr(problem, part).y, getattr(found, part).y
        assert torch.equal(before.bincount(), after.bincount())
        assert float((before != after).float().mean()) == pytest.approx(5 / 12, abs=0.06)
    assert torch.equal(found.test.y, problem.test.y)


def record(method, seed, nll, **others):
    scores = dict.fromkeys(("accuracy", "nll", "nll_t", "ece", "ece_t", "aurc"), nll)
    return {
        "data": "digits",
        "method": method,
        "seed": seed,
        "strength": "0.1",
        "chosen": True,
        "test": scores,
        "corrupted": {"a": {"nll": nll}, "b": {"nll": 3 * nll}},
        "outside": {"a": {"softmax": nll}},
    } | others


def test_paired_differences_and_their_direction():
    values = {"elliptic": [0.1, 0.2, 0.3], "mixup": [0.2, 0.4, 0.35]}
    records = [
        record(method, seed, values.get(method, [0.5, 0.6, 0.8])[seed])
        for method in uncertainty_table.METHODS
        for seed in range(3)
    ]
    runs = uncertainty_table.Runs([*records, record("elliptic", 0, 9.0, chosen=False)])
    found = uncertainty_table.differences(runs)
    assert len(found) == 2 * len(uncertainty_table.COMPARED) * len(uncertainty_table.CONTROLS)
    (nll,) = (d for d in found if (d.method, d.control, d.measure) == ("elliptic", "mixup", "test.nll"))
    assert nll.mean == pytest.approx(-0.35 / 3)
    assert nll.p == pytest.approx(stats.ttest_rel(values["elliptic"], values["mixup"]).pvalue)
    assert nll.adjusted >= nll.p
    assert nll.is_better
    auroc = next(d for d in found if (d.control, d.measure) == ("mixup", "outside.softmax"))
    assert not auroc.is_better
    assert runs.values("digits", "mixup", "corrupted.nll") == pytest.approx([0.4, 0.8, 0.7])
    assert uncertainty_page.ahead_of_all(runs, "test.nll") == ["digits"]
    assert uncertainty_page.ahead_of_all(runs, "outside.softmax") == []
    assert runs.better("test.nll_t", "mixup", "elliptic", "test.nll") == []


def test_shuffled_strengths_are_chosen_by_noisy_validation_rows():
    def run(strength, last, stopped):
        pairs = {"last": last, "stopped": stopped}
        return {"data": "digits", "method": "noise", "seed": 0, "strength": strength} | {
            name: {"validation_nll": nll, "accuracy": accuracy} for name, (nll, accuracy) in pairs.items()
        }

    found = uncertainty_table.Shuffling(
        [run("0.1", (2.0, 0.9), (1.0, 0.6)), run("1", (1.5, 0.7), (1.2, 0.8))]
    )
    assert found.accuracies("digits", "noise", "last") == [0.7]
    assert found.accuracies("digits", "noise", "stopped") == [0.6]


@pytest.mark.slow
def test_a_cell_of_each_part(monkeypatch, short):
    monkeypatch.setattr(uncertainty, "load", lambda name, seed, all_classes=False: toy(rows=40))
    monkeypatch.setattr(uncertainty, "N_NETWORKS", 2)
    records = uncertainty.uncertainty("digits", 0)
    assert {r["method"] for r in records} == set(uncertainty_table.METHODS)
    assert sum(r["chosen"] for r in records) == len(uncertainty_table.METHODS)
    assert all("far" in r for r in records if r["chosen"])
    noisy = uncertainty.shuffled("digits", 0)
    assert list(dict.fromkeys(r["method"] for r in noisy)) == list(uncertainty_table.SHUFFLED)
    assert all(r["stopped"]["validation_nll"] <= r["last"]["validation_nll"] for r in noisy)


def area_of_order(wrong, order):
    return statistics.mean(sum(wrong[i] for i in order[:k]) / k for k in range(1, len(order) + 1))


def test_risk_coverage_area_against_all_orders():
    confidence, wrong = [0.9, 0.5, 0.5, 0.9, 0.5, 0.2], [1, 0, 1, 0, 0, 1]
    orders = [
        order
        for order in itertools.permutations(range(6))
        if all(confidence[i] >= confidence[j] for i, j in itertools.pairwise(order))
    ]
    assert len(orders) == 12
    expected = statistics.mean(area_of_order(wrong, order) for order in orders)
    assert uncertainty.risk_coverage_area(torch.tensor(confidence), torch.tensor(wrong)) == pytest.approx(
        expected
    )
