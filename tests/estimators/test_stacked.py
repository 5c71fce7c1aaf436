"""Networks of a stack are trained as each would be by an ordinary loop, on the points that were drawn."""

import math
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from elliptica import Elliptic, GradientSoftmax
from elliptica._utils.perceptron import mlp
from elliptica.baselines import ERM, LISA, CMixup, GroupDRO, LabelSmoothing, Mixup, groups, mixup
from elliptica.core.bridge import Paths
from elliptica.estimators import stacked
from elliptica.estimators import stacked_points as points
from elliptica.estimators.stacked import METHODS, StackedJob, predict_stacked, train_stacked
from laws import assert_distribution

OWN = {
    "noise": {"sigma": 0.4},
    "mixup": {"alpha": 0.7},
    "c-mixup": {"bandwidth": 0.4},
    "elliptic": {"sigma": 0.3, "n_times": 4},
    "elliptic-weighted": {"sigma": 0.3, "xi": 1.5},
    "groupdro": {"eta": 0.2},
    "lisa": {"alpha": 0.7},
}
CASES = [(m, k) for k in ("classes", "real") for m in METHODS if points._OF_ONE_LOSS.get(m, k) == k]
BATCH = 16


def data(loss, n=90, width=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=generator)
    signal = x[:, 0] - x[:, 1].abs()
    y = (signal > 0).long() + (signal > 1).long() if loss == "classes" else torch.stack([signal, x[:, 2]], 1)
    return x, y, torch.randint(3, (n,), generator=generator)


def job(method, seed=0, rows=75, validation=None, weight=None, data=0, **settings):
    settings = {"learning_rate": 3e-3, **OWN.get(method, {}), **settings}
    return StackedJob(np.arange(rows), data, seed, method, settings, validation, weight)


def train(loss, jobs, tables=None, **options):
    """Train on the usual data, or on other tables."""
    tables = tables or [data(loss)]
    x, y, group = zip(*tables, strict=True)
    how = {
        "n_outputs": 3 if loss == "classes" else 2,
        "hidden": (8, 6),
        "batch_size": BATCH,
        "patience": None,
    }
    return train_stacked(x, y, jobs, loss=loss, groups=group, **(how | options))


def distance(a, b):
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


def initial(loss, one):
    """The network before training: the stack stops at once."""
    found = train(loss, [one], deadline=0.0)
    assert (found.ended, found.best_epoch, found.epochs) == (["deadline"], [0], [0])
    return found.network(0)


# ------------------------------------------------------------------------------ against a plain loop


def drawn_batches(one, loss):
    """Points that a network draws, batch after batch."""
    x, y, group = data(loss)
    table = points.join_tables([x], [y], [group], loss, 3 if loss == "classes" else 2)
    network = points.Network(0, one, table, BATCH)
    steps = points.ROWS_AT_ONCE // BATCH
    noise = torch.zeros(1, steps, BATCH, x.shape[1])
    while True:
        chunk = points.draw_points([network], table, BATCH, steps, noise)
        for k in range(steps):
            yield points.Points(*(part[0, k].clone() for part in chunk))


def elliptic_loss(one, model, criterion, p):
    weighted = one.method == "elliptic-weighted"
    extra = {"weighting": GradientSoftmax(one.setting("xi"))} if weighted else {}
    is_classes = isinstance(criterion, nn.CrossEntropyLoss)
    space = {"num_classes": 3, "target_space": "simplex"} if is_classes else {"target_space": "real"}
    paths = Paths(p.x, {"x": p.x}, p.y, p.s, 1, {"x": 0.0}, p.y)
    return Elliptic(model, criterion, **space, **extra).loss_on(paths)


def lisa_loss(one, model, criterion, p, x, y, group, monkeypatch):
    places = (p.rows == p.partners[:, None]).int().argmax(1)
    monkeypatch.setattr(groups, "draw_partners", lambda *_: (places, torch.zeros(BATCH, dtype=torch.bool)))
    monkeypatch.setattr(groups, "draw_shares", lambda *_: 1 - p.s)
    return LISA(model, criterion)(x[p.rows], y[p.rows], group[p.rows])


def loop(one, loss, steps, monkeypatch, factor=lambda _: 1.0):
    """Plain training with torch's AdamW and the repository's own objectives, with the draws of the stack."""
    x, y, group = data(loss)
    model, method = initial(loss, one), one.method
    criterion = nn.CrossEntropyLoss() if loss == "classes" else nn.MSELoss()
    rate, decay = one.setting("learning_rate"), one.setting("weight_decay")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    sizes = torch.bincount(group[one.rows], minlength=3)
    dro = GroupDRO(model, criterion, 3, step_size=one.settings.get("eta", 0.0), group_sizes=sizes)
    losses = []
    for step, p in zip(range(steps), drawn_batches(one, loss), strict=False):
        near, far = (x[p.rows], y[p.rows]), (x[p.partners], y[p.partners])
        monkeypatch.setattr(mixup, "draw_share", lambda *_, s=p.s: 1 - float(s[0]))
        if method in ("erm", "balanced"):
            value = ERM(model, criterion)(*near)
        elif method == "noise":
            value = ERM(model, criterion)(p.x, near[1])
        elif method == "smoothing":
            value = LabelSmoothing(model, criterion, smoothing=one.setting("smoothing"))(*near)
        elif method == "mixup":
            value = Mixup(model, criterion)(*near, end=far)
        elif method == "c-mixup":
            value = CMixup(model, criterion, bandwidth=1.0)(*near, end=far)
        elif method == "groupdro":
            value = dro(*near, group[p.rows])
        elif method == "lisa":
            value = lisa_loss(one, model, criterion, p, x, y, group, monkeypatch)
        else:
            value = elliptic_loss(one, model, criterion, p)
        optimizer.param_groups[0]["lr"] = rate * factor(step)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return model, losses


@pytest.mark.parametrize(("method", "loss"), CASES)
def test_a_stack_agrees_with_a_plain_loop(method, loss, monkeypatch):
    """Every method in one stack with all others: 5 steps, then 30.

    A weight of a row, a share or a group that is off, or a decay that is not decoupled, moves weights by
    more than 1e-4.
    """
    others = [job(name, seed=5, max_iter=2) for name, kind in CASES if kind == loss]
    for epochs, tolerance in ((1, 2e-6), (6, 1e-4)):
        one = job(method, seed=3, max_iter=epochs, weight_decay=0.1)
        found = train(loss, [*others, one])
        model, losses = loop(one, loss, 5 * epochs, monkeypatch)
        assert distance(model, initial(loss, one)) > 1e-3
        assert distance(model, found.network(len(others))) < tolerance
        weighs = method in ("groupdro", "elliptic-weighted") or (method, loss) == ("mixup", "real")
        if not weighs:  # curves show the loss at the points; for these the objective is another number
            assert found.loss_curves[-1][0] == pytest.approx(np.mean(losses[:5]), rel=1e-5)


def test_weights_of_rows_tell_methods_apart(monkeypatch):
    """The comparison has teeth: the weighted objectives are not the plain ones."""
    for method, plain in (("elliptic-weighted", "elliptic"), ("groupdro", "balanced")):
        one = job(method, seed=3, max_iter=1)
        model, _ = loop(one, "classes", 5, monkeypatch)
        settings = {k: v for k, v in one.settings.items() if k not in ("xi", "eta")}
        other = train("classes", [replace(one, method=plain, settings=settings)])
        assert distance(model, other.network(0)) > 1e-4


def test_the_cosine_schedule_warms_up_and_decays(monkeypatch):
    one = job("elliptic", max_iter=8)  # 40 steps, two of them warm up
    factors = [(1 + t) / 3 if t < 2 else 0.5 * (1 + math.cos(math.pi * (t - 2) / 38)) for t in range(40)]
    found = train("real", [one, job("erm", max_iter=3)], schedule="cosine")
    model, _ = loop(one, "real", 40, monkeypatch, factors.__getitem__)
    assert distance(model, found.network(0)) < 1e-4
    assert distance(model, train("real", [one]).network(0)) > 1e-3


# ---------------------------------------------------------------------------------- independence


@pytest.mark.parametrize("block", [1, 2**14, 2**30])
@pytest.mark.parametrize("loss", ["classes", "real"])
def test_a_network_does_not_depend_on_its_neighbours(loss, block, monkeypatch):
    """Other methods, rates, lengths and a wider table beside it, in one block or in many."""
    monkeypatch.setattr(stacked, "_BLOCK_BYTES", block)
    tables = [data(loss), data(loss, n=120, width=9, seed=1)]
    held = np.arange(75, 90)
    names = [method for method, kind in CASES if kind == loss]
    jobs = [
        job(name, seed=i, data=i % 2, max_iter=3 + i % 3, learning_rate=[1e-3, 3e-3][i % 2], validation=v)
        for i, name in enumerate(names)
        for v in (held, None)
    ]
    found = train(loss, jobs, tables)
    for number, one in enumerate(jobs):
        alone = train(loss, [replace(one, data=0)], [tables[one.data]])
        assert distance(alone.network(0), found.network(number)) < 1e-5
        assert alone.best_epoch[0] == found.best_epoch[number]
        assert alone.loss_curves[0] == pytest.approx(found.loss_curves[number], rel=1e-4)
        assert alone.validation_curves[0] == pytest.approx(found.validation_curves[number], rel=1e-4)
    assert [found.network(i)[0].in_features for i in range(4)] == [5, 5, 9, 9]


def test_same_seed_same_networks_and_torchs_stream_is_left_alone():
    jobs = [job("elliptic", seed=1, max_iter=2), job("elliptic", seed=2, max_iter=2)]
    state = torch.get_rng_state()
    one, two = train("real", jobs), train("real", jobs)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(one.weights, two.weights, strict=True))
    assert distance(one.network(0), one.network(1)) > 1e-2


@pytest.mark.parametrize("loss", ["classes", "real"])
def test_neighbours_change_no_bit(loss):
    """All together, alone, in two parts and in another order, with layers that fill whole vectors."""
    methods = [m for m, kind in CASES if kind == loss]
    jobs = [
        job(method, seed, rows=60 + 5 * seed, validation=np.arange(75, 90), max_iter=4, learning_rate=rate)
        for method in methods
        for seed, rate in enumerate((3e-3, 1e-2, 3e-3))
    ]
    options = {"hidden": (64, 32), "patience": 2}
    whole = train(loss, jobs, **options)
    every = list(range(len(jobs)))
    for parts in ([[number] for number in every], [every[:4], every[4:]], [every[::-1]]):
        for part in parts:
            stack = train(loss, [jobs[number] for number in part], **options)
            for i, number in enumerate(part):
                assert distance(stack.network(i), whole.network(number)) == 0
                assert stack.validation_curves[i] == whole.validation_curves[number]
                assert stack.loss_curves[i] == whole.loss_curves[number]


@pytest.mark.statistical
def test_initial_weights_are_those_of_torchs_linear_layers(seed):
    many = train("real", [job("erm", seed=seed + i) for i in range(200)], deadline=0.0)
    for weight, bias in zip(many.weights, many.biases, strict=True):
        bound = 1 / math.sqrt(weight.shape[1])
        for part in (weight, bias):
            scaled = (part / bound).flatten()[:5000]
            assert_distribution(scaled, lambda v: np.clip((v + 1) / 2, 0, 1))
            assert float(scaled.abs().max()) <= 1
            with pytest.raises(AssertionError):  # a bound that is a third too small
                assert_distribution(scaled / 1.5, lambda v: np.clip((v + 1) / 2, 0, 1))


def test_a_weight_of_two_is_two_copies():
    rows = np.arange(40)
    twice = StackedJob(rows, 0, 0, "elliptic", {"max_iter": 2}, weight=np.full(40, 2.0))
    copies = StackedJob(np.repeat(rows, 2), 0, 0, "elliptic", {"max_iter": 2})
    found = train("classes", [twice, copies, replace(twice, weight=None)])
    assert distance(found.network(0), found.network(1)) < 1e-6
    assert distance(found.network(0), found.network(2)) > 1e-3


# -------------------------------------------------------------------------------- ends of training


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_best_epoch_is_kept_and_a_refit_reaches_it(schedule):
    held = np.arange(75, 90)
    jobs = [
        job(m, max_iter=40, learning_rate=0.03, validation=held) for m in ("erm", "elliptic", "smoothing")
    ]
    found = train("classes", jobs, patience=4, schedule=schedule)
    x, y, _ = data("classes")
    outputs = predict_stacked(found, x[held])
    refits = [
        replace(one, validation=None, settings={**one.settings, "stop_after": best})
        for one, best in zip(jobs, found.best_epoch, strict=True)
    ]
    again = train("classes", refits, schedule=schedule)
    for i, curve in enumerate(found.validation_curves):
        assert found.best_epoch[i] == 1 + int(np.argmin(curve))
        assert float(nn.functional.cross_entropy(outputs[i], y[held])) == pytest.approx(min(curve), rel=1e-5)
        assert found.epochs[i] == len(curve) == len(found.loss_curves[i])
        assert found.ended[i] == ("patience" if found.epochs[i] < 40 else "length")
        if found.ended[i] == "patience":
            assert found.epochs[i] == found.best_epoch[i] + 4
        assert distance(found.network(i), again.network(i)) < 1e-4
        assert again.best_epoch[i] == again.epochs[i] == found.best_epoch[i]
        assert again.ended[i] == "length"
    assert "patience" in found.ended


def test_a_network_that_diverges_leaves_the_others_alone():
    held = np.arange(75, 90)
    good = job("elliptic", max_iter=4)
    bad = job("erm", max_iter=4, learning_rate=1e30)
    found = train("real", [bad, good, replace(bad, validation=held)])
    assert found.failed == [True, False, True]
    assert found.epochs[1] == 4
    assert found.epochs[0] < 4
    assert distance(found.network(1), train("real", [good]).network(0)) < 1e-6


def test_deadline_and_progress(monkeypatch):
    """The clock moves by one with each look at it; what is there after the third chunk is returned."""
    held = np.arange(75, 90)
    jobs = [job("erm", max_iter=50), job("erm", max_iter=50, validation=held), job("erm", max_iter=2)]
    clock = iter(range(1000))
    monkeypatch.setattr(stacked.time, "monotonic", lambda: next(clock))
    shares = []
    found = train("real", jobs, deadline=2.5, callback=shares.append)  # three chunks of 16 steps
    assert found.ended == ["deadline", "deadline", "length"]
    assert found.epochs == [9, 9, 2]  # of five steps
    assert found.best_epoch[0] == 10  # 48 steps
    assert len(shares) == 3
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 0.3
    assert found.best_epoch[1] == 1 + int(np.argmin(found.validation_curves[1]))
    assert len(found.validation_curves[1]) == 10
    short = train("real", [job("erm", max_iter=2)], callback=shares.append)
    assert short.ended == ["length"]
    assert shares[-1] == 1


def test_two_threads_train_two_stacks_and_threads_are_restored():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = [train("real", [job("elliptic", seed=s, max_iter=20)]) for s in range(2)]
        found = {}

        def run(s):
            found[s] = train("real", [job("elliptic", seed=s, max_iter=20)])

        workers = [threading.Thread(target=run, args=(s,)) for s in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert torch.get_num_threads() == 2
        for s in range(2):
            assert torch.equal(found[s].weights[0], expected[s].weights[0])
    finally:
        torch.set_num_threads(before)


# ------------------------------------------------------------------------------------ the result


@pytest.mark.parametrize("at_once", [50, 2**22])
def test_states_load_into_the_perceptron_and_predictions_are_its_outputs(at_once, monkeypatch):
    monkeypatch.setattr(stacked, "_PREDICTED", at_once)
    tables = [data("classes"), data("classes", n=120, width=9, seed=1)]
    found = train("classes", [job("erm", max_iter=2), job("erm", max_iter=2, data=1)], tables)
    assert len(found) == 2
    for number, (x, _, _) in enumerate(tables):
        net = mlp(x.shape[1], 3, hidden=(8, 6))
        net.load_state_dict(found.state_dict(number))
        outputs = predict_stacked(found, x.numpy(), [number])
        torch.testing.assert_close(outputs[0], net(x))
        torch.testing.assert_close(predict_stacked(found, x.double(), [number])[0], net.double()(x.double()))
    with pytest.raises(ValueError, match="one table at a time"):
        predict_stacked(found, tables[0][0])


def test_a_linear_model_and_a_single_row():
    found = train("real", [job("elliptic", rows=1, max_iter=2)], hidden=())
    assert found.ended == ["length"]
    assert len(found.weights) == 1


# ------------------------------------------------------------------------------------- bad input


BAD = {
    "method": job("sgd", max_iter=1),
    "setting": job("erm", sigma=0.1),
    "loss": job("c-mixup"),
    "sigma_y": job("elliptic", sigma_y=0.1),
    "n_times": job("elliptic", n_times=1),
    "n_times must": job("elliptic", n_times=2.5),
    "learning_rate": job("erm", learning_rate=0),
    "max_iter": job("erm", max_iter=0),
    "smoothing": job("smoothing", smoothing=1.5),
    "sigma": job("noise", sigma=math.nan),
    "data": job("erm", data=1),
    "rows": job("erm", rows=91),
    "rows must": job("erm", rows=0),
    "validation": job("erm", validation=np.array([90])),
    "weight": job("erm", weight=np.ones(3)),
    "weight must": job("erm", weight=np.zeros(75)),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", BAD)
def test_bad_jobs_are_refused(name):
    with pytest.raises(ValueError, match=name):
        train("classes", [job("erm"), BAD[name]])


@pytest.mark.bad_input
def test_bad_tables_are_refused():
    x, y, group = data("classes")
    for name, given in {
        "groups": {"jobs": [job("lisa")]},
        "y must": {"y": [y + 1]},
        "y ": {"y": [y[1:]]},
        "n_outputs": {"y": [x], "loss": "real"},
        "x must": {"x": [x / 0]},
        "groups must": {"groups": [group - 1]},
    }.items():
        plain = {"x": [x], "y": [y], "jobs": [job("erm")], "loss": "classes", "n_outputs": 3, "hidden": (4,)}
        with pytest.raises(ValueError, match=name):
            train_stacked(**plain | given)
