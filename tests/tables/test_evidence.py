"""Single findings against independent computations, and cases on both sides of each."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from torch import nn

from elliptica.tables import diagnose as diagnosis
from elliptica.tables.evidence import Evidence, FittedModel, Rows, sample_by_part
from elliptica.tables.findings import Quantity


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def evidence(model, x, y, held=None, loss=None, groups=(None, None), **names):
    loss = loss or (nn.MSELoss() if y.is_floating_point() else nn.CrossEntropyLoss())
    model = model if isinstance(model, nn.Module) else Function(model)
    rows = {"training": Rows(x, y, groups[0])}
    if held is not None:
        rows["held-out"] = Rows(*held, groups[1])
    return Evidence(FittedModel(model, loss, rows, **names), 0.95)


def judge(name, e):
    return diagnosis.judge(name, e)[0]


def logits(x):
    return torch.stack([-2 * x[:, 0], 2 * x[:, 0]], 1)


def two_classes(n, generator, d=2):
    x = torch.randn(n, d, generator=generator)
    return x, (x[:, 0] > 0).long()


# ---- numbers against other implementations


def test_neighbours_are_scikit_learns(generator):
    x = torch.randn(120, 3, generator=generator) * torch.tensor([1.0, 50.0, 0.01])
    y = torch.arange(120) % 3
    e = evidence(lambda x: torch.zeros(len(x), 3), x, y)
    scaled = (x.double() - x.double().mean(0)) / x.double().std(0)
    search = NearestNeighbors(n_neighbors=11).fit(scaled.numpy())
    distances, _ = search.kneighbors()
    np.testing.assert_allclose(e.near[0], distances, rtol=1e-6)
    votes = KNeighborsClassifier(10).fit(scaled.numpy(), y.numpy())
    other = torch.randn(20, 3, generator=generator).double()
    np.testing.assert_allclose(e.average(e.nearest(other, 10)[1]), votes.predict_proba(other.numpy()))


def test_errors_are_one_for_a_constant_and_bounded(generator):
    x, y = two_classes(300, generator)
    share = y.double().mean()
    constant = torch.tensor([1 - share, share]).log().float()
    e = evidence(lambda x: constant.expand(len(x), 2), x, y)
    assert float(e.errors(e.train).mean()) == pytest.approx(1, rel=1e-5)
    values = torch.randn(300, 1, generator=generator)
    wild = evidence(lambda x: 1e9 * x[:, :1], x, values)
    assert (
        float(wild.errors(wild.train).max())
        <= float(((values - values.mean()) ** 2).max() / values.var()) + 0.1
    )
    exact = evidence(lambda x: x[:, :1], x, x[:, :1])
    assert float(exact.errors(exact.train).max()) == 0


def test_differences_are_students_and_welchs(generator):
    a, b = torch.randn(30, generator=generator).double(), 2 * torch.randn(50, generator=generator).double()
    paired = Quantity.mean(a, 0.95)
    expected = stats.t.interval(0.95, 29, float(a.mean()), stats.sem(a.numpy()))
    assert (paired.lower, paired.upper) == pytest.approx(expected, rel=1e-6)
    welch = stats.ttest_ind(a.numpy(), b.numpy(), equal_var=False).confidence_interval(0.95)
    found = Quantity.difference(a, b, 0.95)
    assert (found.lower, found.upper) == pytest.approx((welch.low, welch.high), rel=1e-3)
    assert Quantity.mean(a[:1], 0.95).lower == -math.inf


def test_a_sample_by_part_keeps_small_parts():
    parts = ["a"] * 5000 + ["b"] * 30 + ["c"] * 400
    rows = sample_by_part(parts, 500, torch.Generator().manual_seed(0))
    counts = {p: sum(parts[i] == p for i in rows.tolist()) for p in "abc"}
    assert counts["b"] == 30
    assert counts["c"] == 50
    assert counts["a"] == round(500 * 5000 / 5430)
    assert len(set(rows.tolist())) == len(rows)
    even = sample_by_part(parts, 500, torch.Generator().manual_seed(0), floor=1)
    assert sum(parts[i] == "b" for i in even.tolist()) == round(
        500 * 30 / 5430
    )  # no overall number is biased


# ---- labels


@pytest.mark.statistical
def test_wrong_labels_are_listed(generator):
    x, y = two_classes(600, generator)
    x[:, 0] += 2 * (2 * y - 1)
    wrong = torch.rand(600, generator=generator) < 0.1
    given = torch.where(wrong, 1 - y, y)
    e = evidence(logits, x, given)
    found = judge("labels", e)
    assert found.severity == "look"  # without held-out rows, classes might overlap
    assert np.mean(wrong[list(found.rows)].numpy()) > 0.9
    other, clean = two_classes(300, generator)
    other[:, 0] += 2 * (2 * clean - 1)
    assert judge("labels", evidence(logits, x, given, (other, clean))).severity == "warning"
    assert judge("labels", evidence(logits, x, y)).severity == "fine"


@pytest.mark.statistical
@pytest.mark.parametrize("distance", [1.0, 2.0, 4.0])
def test_overlapping_classes_are_not_called_wrong(distance, generator):
    """No label is wrong at any overlap; the model is the best there is."""
    warned = 0
    for _ in range(20):
        y = torch.arange(1200) % 2
        x = torch.randn(1200, 2, generator=generator)
        x[:, 0] += distance * (y - 0.5)
        best = Function(lambda x: torch.stack([x[:, 0] * 0, distance * x[:, 0]], 1))
        e = evidence(best, x[:500], y[:500], (x[500:], y[500:]))
        warned += judge("labels", e).severity == "warning"
    assert warned <= 1


def test_wrong_values_are_listed(generator):
    x = torch.randn(400, 2, generator=generator)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(400, 1, generator=generator)
    assert judge("labels", evidence(lambda x: x.sum(1, keepdim=True), x, y)).severity == "fine"
    y[:20] += 30
    total = Function(lambda x: x.sum(1, keepdim=True))
    assert judge("labels", evidence(total, x, y)).severity == "look"  # rare events, perhaps
    other = torch.randn(400, 2, generator=generator)
    found = judge("labels", evidence(total, x, y, (other, other.sum(1, keepdim=True))))
    assert found.severity == "warning"
    assert set(found.rows[:20]) == set(range(20))
    y[:20] -= 30
    y[0] = 1e4
    found = judge("labels", evidence(total, x, y))
    assert (found.title, found.rows[0]) == ("A few target values dwarf all others", 0)


# ---- copies and shared rows


def test_copies_are_told_from_values_in_few_steps(generator):
    few = torch.randint(3, (600, 4), generator=generator).float()  # 81 possible rows
    y = torch.arange(600) % 2
    assert judge("duplicates", evidence(lambda x: x[:, :2], few, y)).severity == "fine"
    x = torch.randn(60, 4, generator=generator).repeat(10, 1)
    found = judge("duplicates", evidence(lambda x: x[:, :2], x, y))
    assert found.severity == "warning"
    assert len(found.rows) == 540
    once = torch.randn(600, 4, generator=generator)
    assert judge("duplicates", evidence(lambda x: x[:, :2], once, y)).severity == "fine"


def test_shared_rows_are_found(generator):
    x, y = two_classes(300, generator)
    other, labels = two_classes(100, generator)
    other[:20], labels[:20] = x[:20], y[:20]
    other[10:20] += 1e-6  # rounded copies, too
    found = judge("leak", evidence(logits, x, y, (other, labels)))
    assert (found.severity, found.rows_of, set(found.rows)) == ("warning", "held-out", set(range(20)))


# ---- what moved


def test_moved_features_are_named(generator):
    x, y = two_classes(300, generator, d=4)
    other, labels = two_classes(300, generator, d=4)
    same = evidence(logits, x, y, (other, labels), feature_names=list("abcd"))
    assert same.moved_features(same.held.raw) == {}
    moved = other.clone()
    moved[:, 2] += 2
    assert list(same.moved_features(moved.double())) == ["c"]


@pytest.mark.statistical
def test_farther_rows_are_told_apart_at_the_level(generator):
    """Rows from the same law are hardly ever called farther."""
    false = 0
    for _ in range(60):
        x, y = two_classes(200, generator, d=5)
        e = evidence(logits, x[:120], y[:120], (x[120:], y[120:]))
        false += e.is_farther(e.held_distance).lower > 0.55
        wide = e.nearest(3 * e.held.x, 1)[0][:, 0]
        assert e.is_farther(wide).lower > 0.6
    assert false == 0


# ---- the model


def test_a_class_that_is_always_wrong_is_weak(generator):
    x, y = two_classes(400, generator)
    y = torch.where(torch.arange(400) % 10 == 0, 2, y)
    three = Function(lambda x: torch.cat([logits(x), torch.full((len(x), 1), -50.0)], 1))
    e = evidence(three, x, y, (x, y), class_names=["no", "yes", "rare"])
    found = judge("weak_part", e)
    assert found.severity == "warning"
    assert found.title == "Class rare is predicted badly"
    assert "40 of 400 training rows (10.0%)" in found.sentence
    assert all(y[i] == 2 for i in found.rows)
    even = torch.where(torch.rand(400, generator=generator) < 0.2, 1 - (y > 0).long(), (y > 0).long())
    assert judge("weak_part", evidence(logits, x, even, (x, even))).severity == "fine"


def test_predictions_beyond_the_range_matter_only_if_they_are_wrong(generator):
    x = torch.randn(300, 1, generator=generator).clamp(-2, 2)
    far = torch.linspace(4, 6, 50)[:, None]
    steep = Function(lambda x: x)
    rightly = evidence(steep, x, x, (torch.cat([x, far]) + 0.001, torch.cat([x, far])))
    assert judge("range", rightly).severity == "fine"
    assert "rightly" in judge("range", rightly).sentence
    wrongly = evidence(steep, x, x, (torch.cat([x, far]) + 0.001, torch.cat([x, far.clamp_max(2)])))
    found = judge("range", wrongly)
    assert found.severity == "warning"
    assert set(found.rows) == set(range(300, 350))


@pytest.mark.parametrize(("factor", "title"), [(6.0, "Over-confident"), (0.1, "Under-confident")])
def test_confidence_has_two_sides(factor, title, generator):
    x, _ = two_classes(1500, generator)
    y = logits(x).softmax(1).multinomial(1, generator=generator)[:, 0]
    right = evidence(logits, x[:500], y[:500], (x[500:], y[500:]))
    assert judge("confidence", right).severity == "fine"
    scaled = evidence(lambda x: factor * logits(x), x[:500], y[:500], (x[500:], y[500:]))
    found = judge("confidence", scaled)
    assert found.title == title
    assert found.numbers["temperature"].value == pytest.approx(factor, rel=0.3)


def test_wild_rows_do_not_decide_about_the_others(generator):
    """Twelve far rows carry nearly all of the loss, and 95 % of the rows are right."""
    x = torch.randn(240, 2, generator=generator)
    y = x[:, :1].clone()
    x[:12] *= 300
    e = evidence(lambda x: x[:, :1], x, y)
    assert float(e.train.losses[:12].sum() / e.train.losses.sum()) > 0.99
    assert judge("constant", e).severity == "fine"
    found = judge("outliers", e)
    assert found.severity == "warning"
    assert set(found.rows) == set(range(12))


def test_a_shortcut_is_a_relation_that_turns(generator):
    y = torch.arange(800) % 2
    side = (2 * y - 1).float()[:, None]
    true = side + torch.randn(800, 1, generator=generator)
    cue = side + 0.3 * torch.randn(800, 1, generator=generator)
    cue[400:] *= -1
    x = torch.cat([true, cue], 1)
    greedy = Function(lambda x: torch.stack([-x[:, 0] - 3 * x[:, 1], x[:, 0] + 3 * x[:, 1]], 1))
    split = (x[:400], y[:400], (x[400:], y[400:]))
    found = judge("shortcut", evidence(greedy, *split, feature_names=["size", "colour"]))
    assert found.title == "Shortcut: feature colour"
    assert "reverses" in found.sentence
    modest = Function(lambda x: torch.stack([-x[:, 0], x[:, 0]], 1))  # does not use it
    assert judge("shortcut", evidence(modest, *split)).severity == "fine"


def test_one_logit_is_two_classes(generator):
    x, y = two_classes(300, generator)
    e = evidence(lambda x: 4 * x[:, :1], x, y[:, None].float(), loss=nn.BCEWithLogitsLoss())
    assert e.task == "classes"
    assert not bool(e.is_wrong(e.train).any())
    p = evidence(lambda x: (4 * x[:, :1]).sigmoid(), x, y[:, None].float(), loss=nn.BCELoss())
    torch.testing.assert_close(p.train.outputs, e.train.outputs, rtol=1e-5, atol=1e-6)


# ---- what a newcomer stumbled over


def trained(x, y, outputs, steps=200):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = nn.CrossEntropyLoss() if outputs > 1 else nn.MSELoss()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("seed", range(4))
def test_labels_that_neighbours_cannot_know_are_not_called_wrong(seed):
    """No label is wrong, but in ten dimensions neighbours do not know the sign of a product."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(1100, 10, generator=g)
    y = (x[:, 0] * x[:, 1] > 0).long()
    e = evidence(trained(x[:500], y[:500], 2), x[:500], y[:500], (x[500:], y[500:]))
    assert judge("labels", e).severity != "warning"


def test_wrong_held_out_labels_are_told_from_overfitting(generator):
    x, y = two_classes(1000, generator)
    x[:, 0] += 2 * (2 * y - 1)
    flipped = y.clone()
    flipped[500::5] = 1 - y[500::5]
    found = judge("labels", evidence(logits, x[:500], y[:500], (x[500:], flipped[500:])))
    assert (found.title, found.rows_of) == ("Held-out labels look wrong", "held-out")
    assert all(row % 5 == 0 for row in found.rows)
    reverse = judge("label_order", evidence(logits, x[:500], y[:500], (x[500:], 1 - y[500:])))
    assert reverse.title == "Held-out labels are in another order"
    assert judge("labels", evidence(logits, x[:500], y[:500], (x[500:], y[500:]))).severity == "fine"


def test_targets_in_another_unit(generator):
    x = torch.randn(400, 2, generator=generator)
    y = x[:, :1] + 0.1 * torch.randn(400, 1, generator=generator)
    first = Function(lambda x: x[:, :1])
    same = evidence(first, x[:200], y[:200], (x[200:], y[200:]))
    assert judge("label_order", same).severity == "fine"
    other = evidence(first, x[:200], y[:200], (x[200:], 100 + 25 * y[200:]))
    found = judge("label_order", other)
    assert found.title == "Held-out targets are in another unit"
    assert "times the prediction plus 100" in found.sentence
    drifted = evidence(first, x[:200], y[:200], (x[200:] + 4, y[200:]))  # the input moved, not the unit
    assert not judge("label_order", drifted).computed
    useless = evidence(lambda x: 0 * x[:, :1] + x[:, 1:], x[:200], y[:200], (x[200:], y[200:]))
    assert judge("label_order", useless).severity == "fine"


def test_copies_make_no_targets_look_wrong(generator):
    x = torch.randn(200, 2, generator=generator)
    x = torch.cat([x, x[:20].repeat(20, 1)])
    y = x.sum(1, keepdim=True) + 0.2 * torch.randn(len(x), 1, generator=generator)
    e = evidence(lambda x: x.sum(1, keepdim=True), x, y)
    assert len(e.base) == 200
    assert judge("labels", e).severity == "fine"
    fresh = torch.randn(200, 2, generator=generator)
    held = evidence(lambda x: x.sum(1, keepdim=True), x, y, (fresh, fresh.sum(1, keepdim=True)))
    assert held.is_farther(held.held_distance).lower < 0.6


def test_a_feature_that_is_all_the_model_knows(generator):
    """Without it the model knows nothing, so that leaving it out does not lower the error."""
    y = torch.arange(600) % 2
    side = (2 * y - 1).float()[:, None]
    x = torch.cat(
        [side + 0.2 * torch.randn(600, 1, generator=generator), torch.randn(600, 3, generator=generator)], 1
    )
    x[300:, 0] = x[300:, 0][torch.randperm(300, generator=generator)]
    only = Function(lambda x: torch.stack([-4 * x[:, 0], 4 * x[:, 0]], 1))
    found = judge("shortcut", evidence(only, x[:300], y[:300], (x[300:], y[300:])))
    assert found.title == "Shortcut: feature 0"
    assert "vanishes" in found.sentence


# ---- what a critic broke


def test_one_wild_target_does_not_hide_overfitting(generator):
    """The error of all other rows keeps its size."""
    x = torch.randn(300, 10, generator=generator)
    y = x[:, :1] + torch.randn(300, 1, generator=generator)
    model = trained(x[:100], y[:100], 1, steps=400)
    y[0] = 1e4
    e = evidence(model, x[:100], y[:100], (x[100:], y[100:]))
    assert judge("overfitting", e).severity == "warning"


@pytest.mark.statistical
@pytest.mark.parametrize("d", [10, 14])
def test_equal_rows_by_chance_are_no_leak(d, generator):
    """Binary features, training and held-out rows of one law."""
    warned = 0
    for _ in range(20):
        x = (torch.rand(1000, d, generator=generator) < 0.5).float()
        y = (torch.rand(1000, generator=generator) < 0.5).long()
        e = evidence(lambda x: x[:, :2], x[:600], y[:600], (x[600:], y[600:]))
        warned += judge("leak", e).severity == "warning"
    assert warned <= 2  # the limit has a confidence: about 1 in 400 such sets is warned of


@pytest.mark.statistical
def test_a_weak_but_honest_model_is_not_called_a_constant(generator):
    """The best possible predictions with a tenth of the variance, sixty rows."""
    grades = []
    for _ in range(20):
        x = torch.randn(60, 1, generator=generator)
        y = x + 3 * torch.randn(60, 1, generator=generator)
        grades.append(judge("constant", evidence(lambda x: x, x, y)).severity)
    assert grades.count("warning") <= 2
    useless = evidence(lambda x: torch.zeros(len(x), 1) + y.mean(), x, y)
    assert judge("constant", useless).severity == "warning"


def test_kin_of_one_patient_are_no_underfitting(generator):
    """Ten rows per patient share what no input says; held-out patients are new."""
    patient = torch.arange(600) // 10
    x = torch.randn(60, 3, generator=generator)[patient] + 0.05 * torch.randn(600, 3, generator=generator)
    effect = torch.randn(60, 1, generator=generator)[patient]
    y = x[:, :1] + effect
    e = evidence(lambda x: x[:, :1], x[:300], y[:300], (x[300:], y[300:]))
    assert e.gain_of_neighbours(e.train.take(e.base), e.near[1]).lower > 0.05
    assert judge("underfit", e).severity == "fine"


def test_rare_classes_of_the_best_model_are_a_trade_off(generator):
    y = (torch.rand(2000, generator=generator) < 0.1).long()
    x = torch.randn(2000, 2, generator=generator)
    x[:, 0] += 2 * (y - 0.5)
    best = Function(lambda x: torch.stack([0 * x[:, 0], 2 * x[:, 0] + math.log(1 / 9)], 1))
    split = (x[:1000], y[:1000], (x[1000:], y[1000:]))
    assert judge("weak_part", evidence(best, *split)).severity == "look"
    shy = Function(lambda x: torch.stack([0 * x[:, 0], 2 * x[:, 0] - 6], 1))  # gives the class too little
    assert judge("weak_part", evidence(shy, *split)).severity == "warning"


def test_the_best_model_takes_no_shortcut_by_group(generator):
    """A class that is rarer in a group is missed there more often, by the best model, too."""
    town = torch.rand(3000, generator=generator) < 0.5
    y = (torch.rand(3000, generator=generator) < torch.where(town, 0.5, 0.1)).long()
    x = torch.randn(3000, 1, generator=generator) + 1.5 * (y[:, None] - 0.5)
    x = torch.cat([x, town[:, None].float()], 1)
    prior = Function(lambda x: torch.stack([0 * x[:, 0], 1.5 * x[:, 0] - (1 - x[:, 1]) * math.log(9)], 1))
    names = ["town" if t else "land" for t in town.tolist()]
    groups = names[:1500], names[1500:]
    e = evidence(prior, x[:1500], y[:1500], (x[1500:], y[1500:]), groups=groups)
    assert judge("shortcut", e).severity == "fine"
    blind = Function(lambda x: torch.stack([0 * x[:, 0], x[:, 0] * 0.1 + 8 * x[:, 1] - 4], 1))
    e = evidence(blind, x[:1500], y[:1500], (x[1500:], y[1500:]), groups=groups)
    assert judge("shortcut", e).title == "Shortcut: the group stands for the class"


def test_outputs_in_different_units_count_alike(generator):
    x = torch.randn(300, 2, generator=generator)
    y = x * torch.tensor([100.0, 1.0])
    half = evidence(lambda x: x * torch.tensor([100.0, -1.0]), x, y)  # the second output is reversed
    assert float(half.errors(half.train).mean()) > 1


def test_losses_whose_outputs_are_no_predictions(generator):
    x = torch.randn(200, 2, generator=generator)
    counts = torch.poisson(x[:, :1].exp(), generator=generator)
    e = evidence(lambda x: x[:, :1], x, counts, loss=nn.PoissonNLLLoss())
    assert e.task == "other"
    soft = (logits(x) / 4).softmax(1)
    e = evidence(lambda x: logits(x) / 4, x, soft, (x + 0.01, soft))
    assert e.lacks("classes", "labels")


@pytest.mark.statistical
def test_features_of_one_law_hardly_ever_move(generator):
    """Sixty features and ten tables: the limit allows for all of them."""
    moved = 0
    for _ in range(10):
        x = torch.randn(80, 60, generator=generator)
        e = evidence(logits, x[:40], torch.arange(40) % 2, (x[40:], torch.arange(40) % 2))
        moved += len(e.moved_features(e.held.raw))
    assert moved == 0


def test_held_out_rows_of_a_class_that_training_lacks_are_not_wrong(generator):
    """Twelve training rows of a class that overlaps another one; a third of the held-out rows."""
    rare = torch.arange(500) < 12
    y = torch.where(rare, 2, torch.arange(500) % 2)
    other = torch.arange(300) % 3
    places = torch.tensor([[-4.0, 0.0], [4.0, 0.0], [4.5, 0.5]])
    x, held = (places[each] + torch.randn(len(each), 2, generator=generator) for each in (y, other))
    model = Function(lambda x: -torch.cdist(x, places) + torch.tensor([0.0, 0.0, -3.0]))
    found = judge("labels", evidence(model, x, y, (held, other)))
    assert found.title != "Held-out labels look wrong"
