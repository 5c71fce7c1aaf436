"""Networks of a stack are trained as each would be by an ordinary loop, on the points that were drawn."""

import math
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
from elliptica.estimators.stacked import METHODS, Drawer, Job, Table, init_parameters, state_dict, train_stack
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
OF_ONE_LOSS = {"smoothing": "classes", "lisa": "classes", "c-mixup": "real"}
CASES = [(m, k) for k in ("classes", "real") for m in METHODS if OF_ONE_LOSS.get(m, k) == k]
BATCH, HELD = 16, np.arange(75, 90)


def data(loss, n=90, width=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=generator)
    signal = x[:, 0] - x[:, 1].abs()
    group = torch.randint(3, (n,), generator=generator)
    if loss == "real":
        return Table(x, torch.stack([signal, x[:, 2]], 1), torch.zeros(n, dtype=torch.long), group)
    if loss == "labels":
        y = torch.stack([signal > 0, x[:, 2] > 0, signal > 1], 1).float()
        return Table(x, y, torch.zeros(n, dtype=torch.long), group)
    y = (signal > 0).long() + (signal > 1).long()
    return Table(x, nn.functional.one_hot(y, 3).float(), y, group)


def job(method, loss, seed=0, rows=75, epochs=2, table=None, settings=None, rate=3e-3, **options):
    settings = {**OWN.get(method, {}), **(settings or {})}
    if loss == "real" and "sigma" in settings and method != "noise":
        settings["sigma_y"] = settings["sigma"]
    table = data(loss) if table is None else table
    return Job(table, np.arange(rows), seed, epochs, method, settings, rate, **options)


def train(loss, jobs, **options):
    how = {"hidden": (8, 6), "batch_size": BATCH, "patience": None}
    return train_stack(jobs, loss=loss, **(how | options))


def network(parameters, encoding=None):
    made = mlp(parameters[0].shape[0], parameters[-1].shape[0], hidden=(8, 6))
    made.load_state_dict(state_dict(parameters))
    return made if encoding is None else nn.Sequential(encoding, *made)


def distance(a, b):
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((p - q).detach().abs().max()) for p, q in pairs)


def initial(one):
    """The network before training."""
    width = one.table.x.shape[1] if one.encoding is None else one.encoding.width
    return network(init_parameters([width, 8, 6, one.table.y.shape[1]], one.seed), one.encoding)


# ------------------------------------------------------------------------------ against a plain loop


def drawn_batches(one):
    """Points that a network draws before their encoding, batch after batch."""
    drawer, steps = Drawer(replace(one, encoding=None)), stacked.MOST_ROWS // BATCH
    while True:
        chunk = drawer.draw(one.table, BATCH, steps)
        yield from (stacked.Points(*parts) for parts in zip(*chunk, strict=True))


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


def loop(one, loss, steps, monkeypatch):
    """Plain training with torch's AdamW and the repository's own objectives, with the draws of the stack."""
    x, y, label, group = one.table
    y = label if loss == "classes" else y
    model, method = initial(one), one.method
    criterion = {"classes": nn.CrossEntropyLoss, "real": nn.MSELoss, "labels": nn.BCEWithLogitsLoss}[loss]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=one.learning_rate, weight_decay=one.weight_decay)
    sizes = torch.bincount(group[one.rows], minlength=3)
    dro = GroupDRO(model, criterion, 3, step_size=one.settings.get("eta", 0.0), group_sizes=sizes)
    losses, visited = [], []
    for _, p in zip(range(steps), drawn_batches(one), strict=False):
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
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
        visited.append([part.detach().clone() for part in model.parameters()])
    shares = torch.tensor([math.comb(t + 7, 8) for t in range(1, steps + 1)])  # of polynomial decay 8
    for part, *values in zip(model.parameters(), *visited, strict=True):
        part.data = torch.einsum("t,t...->...", shares / shares.sum(), torch.stack(values))
    return model, losses


@pytest.mark.parametrize(
    ("method", "loss", "bins"),
    [(*case, 0) for case in [*CASES, ("erm", "labels"), ("noise", "labels")]]
    + [(method, "real", 2) for method in ("noise", "elliptic-weighted")],
)
def test_a_stack_agrees_with_a_plain_loop(method, loss, bins, monkeypatch):
    """Every method in one stack with all others: 5 steps, then 30; the average of weights is kept.

    A weight of a row, a share or a group that is off, or a decay that is not decoupled, moves weights by
    more than 1e-4.
    """
    encoding = stacked.Encoding(stacked.quantile_knots(data(loss).x.numpy(), bins)) if bins else None
    others = [job(name, loss, seed=5, encoding=encoding) for name, kind in CASES if kind == loss]
    for epochs, tolerance in ((1, 2e-6), (6, 1e-4)):
        one = job(method, loss, seed=3, epochs=epochs, weight_decay=0.1, encoding=encoding)
        trained = train(loss, [*others, one])[-1]
        model, losses = loop(one, loss, 5 * epochs, monkeypatch)
        assert distance(model, initial(one)) > 1e-3
        assert distance(model, network(trained.parameters, encoding)) < tolerance
        weighs = method in ("groupdro", "elliptic-weighted") or (method, loss) == ("mixup", "real")
        if not weighs:  # curves show the loss at the points; for these the objective is another number
            assert trained.progress.losses[0] == pytest.approx(np.mean(losses[:5]), rel=1e-5)


def test_weights_of_rows_tell_methods_apart(monkeypatch):
    """The comparison has teeth: the weighted objectives are not the plain ones."""
    for method, plain in (("elliptic-weighted", "elliptic"), ("groupdro", "balanced")):
        one = job(method, "classes", seed=3, epochs=1)
        model, _ = loop(one, "classes", 5, monkeypatch)
        (other,) = train("classes", [replace(one, method=plain)])
        assert distance(model, network(other.parameters)) > 1e-4


@pytest.mark.parametrize("block", [1, 2**14, 2**30])
@pytest.mark.parametrize("loss", ["classes", "real"])
def test_a_network_does_not_depend_on_its_neighbours(loss, block, monkeypatch):
    """Other methods, rates, lengths and tables beside it, in one block or in many."""
    monkeypatch.setattr(stacked, "_BLOCK_BYTES", block)
    tables = [data(loss), data(loss, n=120, seed=1)]
    names = [method for method, kind in CASES if kind == loss]
    jobs = [
        job(m, loss, i, epochs=3 + i % 3, table=tables[i % 2], rate=[1e-3, 3e-3][i % 2], validation=held)
        for i, m in enumerate(names)
        for held in (HELD, None)
    ]
    for one, trained in zip(jobs, train(loss, jobs), strict=True):
        (alone,) = train(loss, [one])
        a, b = alone.progress, trained.progress
        assert distance(network(alone.parameters), network(trained.parameters)) < 1e-5
        assert (a.best_epoch, a.epochs, a.ended) == (b.best_epoch, b.epochs, b.ended)
        assert a.losses == pytest.approx(b.losses, rel=1e-4)
        assert a.validation_losses == pytest.approx(b.validation_losses, rel=1e-4)


@pytest.mark.statistical
def test_initial_weights_are_those_of_torchs_linear_layers(seed):
    many = [init_parameters([5, 8], seed + i) for i in range(200)]
    for part in map(torch.stack, zip(*many, strict=True)):
        scaled = part.flatten()[:5000] * math.sqrt(5)
        assert_distribution(scaled, lambda v: np.clip((v + 1) / 2, 0, 1))
        assert float(scaled.abs().max()) <= 1
        with pytest.raises(AssertionError):  # a bound that is a third too small
            assert_distribution(scaled / 1.5, lambda v: np.clip((v + 1) / 2, 0, 1))


def test_a_piecewise_linear_function_is_linear_in_the_encoding():
    """Knots are quantiles of the different values; a column of two values has none."""
    x = np.stack([np.repeat(np.arange(9.0), 3), np.arange(27) % 2, np.geomspace(1, 99, 27)], 1)
    knots, heights = stacked.quantile_knots(x, 4), [5.0, 1, 7, 7, 0]
    np.testing.assert_allclose(knots[0], [0, 2, 4, 6, 8])
    assert np.isnan(knots[1]).all()
    encoded = stacked.Encoding(knots)(torch.tensor(x)).numpy()
    assert encoded.shape == (27, 3 + 2 * 4)
    np.testing.assert_allclose(5 + encoded[:, 3:7] @ np.diff(heights), np.interp(x[:, 0], knots[0], heights))
    np.testing.assert_allclose(encoded[-1, 7:], 1, rtol=1e-5)


def test_a_weight_of_two_is_two_copies():
    one = job("elliptic", "classes", rows=40)
    twice = replace(one, weight=np.full(40, 2.0))
    copies = replace(one, rows=np.repeat(np.arange(40), 2))
    networks = [network(trained.parameters) for trained in train("classes", [twice, copies, one])]
    assert distance(networks[0], networks[1]) < 1e-6
    assert distance(networks[0], networks[2]) > 1e-3


# -------------------------------------------------------------------------------- ends of training


def test_the_best_epoch_is_kept_and_a_refit_reaches_it():
    methods = ("erm", "elliptic", "smoothing")
    jobs = [job(m, "classes", epochs=40, rate=0.03, validation=HELD) for m in methods]
    trained = train("classes", jobs, patience=4)
    refits = [
        replace(one, validation=None, epochs=best.progress.best_epoch)
        for one, best in zip(jobs, trained, strict=True)
    ]
    table = jobs[0].table
    for best, again in zip(trained, train("classes", refits), strict=True):
        progress, curve = best.progress, best.progress.validation_losses
        outputs = network(best.parameters)(table.x[HELD]).detach()
        assert progress.best_epoch == 1 + int(np.argmin(curve))
        loss = nn.functional.cross_entropy(outputs, table.label[HELD])
        assert float(loss) == pytest.approx(min(curve), rel=1e-5)
        assert progress.epochs == len(curve) == len(progress.losses)
        assert progress.ended == ("patience" if progress.epochs < 40 else "length")
        if progress.ended == "patience":
            assert progress.epochs == progress.best_epoch + 4
        assert distance(network(best.parameters), network(again.parameters)) < 1e-4
    assert "patience" in [one.progress.ended for one in trained]


def test_a_network_that_diverges_leaves_the_others_alone():
    good, bad = job("elliptic", "real", epochs=4), job("erm", "real", epochs=4, rate=1e30)
    trained = train("real", [bad, good, replace(bad, validation=HELD)])
    assert [one.progress.ended for one in trained] == ["failed", "length", "failed"]
    assert [one.progress.epochs == 4 for one in trained] == [False, True, False]
    assert distance(network(trained[1].parameters), network(train("real", [good])[0].parameters)) < 1e-6


def test_progress_ends_at_one():
    shares = []
    train("real", [job("erm", "real", epochs=9), job("erm", "real")], callback=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_a_linear_model_and_a_single_row():
    (trained,) = train("real", [job("elliptic", "real", rows=1)], hidden=())
    assert trained.progress.ended == "length"
    assert len(trained.parameters) == 2
