"""Methods by name: each trains, counts what it costs, and goes on after a kill as if nothing had been."""

import dataclasses

import pytest
import torch
from torch import nn

from elliptica import InverseDistance
from elliptica.lab.data.splits import Dataset, Split, scale_targets
from elliptica.lab.experiments import registry
from elliptica.lab.experiments.methods import ModuleObjective, elliptic_settings, environment
from elliptica.lab.experiments.plan import rows_per_sample
from elliptica.lab.experiments.run import Options, do_run
from elliptica.lab.training import Batch, TrainingSettings, fit
from experiment_cases import (
    CLASSIFIERS,
    REGRESSORS,
    load_groups,
    load_line,
    make_ready,
    network,
    numbers,
    run_of,
)


@pytest.fixture
def groups(monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "groups", load_groups)


class Killed(BaseException):
    pass


def killed_and_resumed(run, folder):
    """The record of a run that was killed after two epochs and did the others later."""

    def kill(end):
        if end.epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        do_run(run, Options(folder), kill)
    return do_run(run, Options(folder))


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_every_method_trains_and_counts_its_evaluations(groups, method, tmp_path):
    if method == "smote":
        pytest.importorskip("imblearn")
    run = run_of(method)
    epochs = []
    record = do_run(run, Options(tmp_path), epochs.append)
    assert epochs[-1].loss < epochs[0].loss or method in ("irm", "ib-irm")
    if method not in ("jtt", "umix", "smote", "domainmix", "last-layer"):  # which go over other rows
        assert record.cost.evaluations == 4 * 48 * rows_per_sample(run)


@pytest.fixture
def line(monkeypatch):
    monkeypatch.setitem(registry.DATASETS, "line", load_line)


REAL = {"dataset": "line", "metric": "rmse", "columns": ("average",), "select": "average"}


@pytest.mark.parametrize("method", REGRESSORS)
def test_methods_for_real_targets_train_and_resume(line, method, tmp_path):
    run = run_of(method, load={"name": "line"}, **REAL)
    epochs = []
    whole = do_run(run, Options(tmp_path / "whole"), epochs.append)
    assert epochs[-1].loss < epochs[0].loss
    assert whole.cost.evaluations == 4 * 48 * rows_per_sample(run)
    assert numbers(killed_and_resumed(run, tmp_path / "killed")) == numbers(whole)


@pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")
@pytest.mark.parametrize("method", [*CLASSIFIERS, "path"])
def test_matched_methods_cost_what_ordinary_training_does(groups, method, tmp_path):
    """No more than a batch above the budget, whatever a method does with rows, pairs and stages."""
    if method == "smote":
        pytest.importorskip("imblearn")
    settings = {"sampling": "path", "n_times": 5} if method == "path" else {}
    name = "elliptic" if method == "path" else method
    run = run_of(name, settings=settings, training={"epochs": 12}, match_evaluations=True)
    spent = do_run(run, Options(tmp_path)).cost.evaluations
    assert 12 * 48 <= spent < 12 * 48 + 16 * rows_per_sample(run)


def test_fish_without_a_way_to_go_stays_where_it_is(groups, tmp_path):
    """Also with label noise: it must not fall back to ordinary training."""
    load = {"name": "groups", "shuffled_per_batch": 0.5}
    run = run_of("fish", settings={"rate": 0.0}, load=load, model={"name": "mlp", "hidden": [8]})
    assert len(set(do_run(run, Options(tmp_path)).curves["validation"])) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("groupdro", {"step_size": 0.5}),
        ("irm", {"anneal_steps": 7}),
        ("v-rex", {"anneal_steps": 7}),
        ("ib-irm", {"anneal_steps": 7, "ib_anneal_steps": 3}),
        ("elliptic", {}),
        ("jtt", {}),
        ("umix", {}),
        ("fish", {}),
        ("lisa", {}),
    ],
)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_killed_run_remembers_what_its_objective_knew(groups, method, settings, noise, tmp_path):
    run = run_of(method, settings=settings, load={"name": "groups", "shuffled_per_batch": noise})
    whole = do_run(run, Options(tmp_path / "whole"))
    assert numbers(killed_and_resumed(run, tmp_path / "killed")) == numbers(whole)


def test_group_dro_forgets_without_its_state(groups, monkeypatch, tmp_path):
    """The test above can fail: without the objective's state the resumed run differs."""
    run = run_of("groupdro", settings={"step_size": 0.5})
    whole = do_run(run, Options(tmp_path / "whole"))
    monkeypatch.setattr(ModuleObjective, "load_state_tensors", lambda self, tensors: None)
    assert numbers(killed_and_resumed(run, tmp_path / "killed")) != numbers(whole)


def test_environments():
    def data(y, group, noisy=None, task="classification"):
        known = Split(x, y, group)
        return Dataset("d", Split(x, y if noisy is None else noisy, group), known, known, task=task)

    y, place, x = torch.arange(8) % 2, torch.arange(8) // 2 % 2, torch.zeros(8, 1)
    assert torch.equal(environment(data(y, 2 * y + place)), place)
    assert torch.equal(environment(data(y, 2 * y + place, noisy=1 - y)), place)  # labels may be noisy
    hospitals = torch.arange(8) // 2
    assert torch.equal(environment(data(y, hospitals)), hospitals)  # not class times something
    assert torch.equal(environment(data(x, place, task="regression")), place)
    with pytest.raises(ValueError, match="group"):
        environment(data(y, None))


def test_jtt_repeats_exactly_the_errors_of_its_first_stage():
    data = load_groups()
    ready = make_ready("jtt", {"first": 1.0, "factor": 3}, data, network(data))
    counts = torch.bincount(ready.rows, minlength=48)
    assert set(counts.tolist()) <= {1, 4}
    assert ready.evaluations == 2 * 48
    assert ready.details["errors"] == int((counts == 4).sum())
    again = make_ready("jtt", {"first": 1.0, "factor": 3}, data, network(data))
    assert torch.equal(ready.rows, again.rows)


def test_umix_weighs_rows_that_were_wrong():
    data = load_groups()
    ready = make_ready("umix", {"eta": 10.0, "start": 0.0, "length": 0.5}, data, network(data))
    assert ready.details["window"] == [0, 1]
    batch = Batch(data.train.x, data.train.y, None, torch.arange(48), torch.Generator())
    weights = ready.objective.more(batch)["sample_weight"]
    assert ready.details["weighted_share"] == float((weights > 1).double().mean()) > 0
    assert weights.min() >= 1
    assert weights.max() <= 11
    assert ready.objective(nn.Sequential(), batch).isfinite()


def test_bridges_to_oneself_mix_nothing():
    data = load_groups()
    model = network(data)
    objective = make_ready("elliptic", {"partners": "self", "sigma": 0.0}, data, model).objective
    batch = Batch(data.train.x, data.train.y, None, torch.arange(48), torch.Generator())
    ordinary = nn.functional.cross_entropy(model(data.train.x), data.train.y)
    assert torch.allclose(objective(model, batch), ordinary, atol=1e-6)


def test_smote_evens_out_the_classes():
    pytest.importorskip("imblearn")
    data = load_groups()
    ready = make_ready("smote", {}, data, network(data))
    assert torch.bincount(ready.data.train.y).tolist() == [30, 30]
    assert torch.equal(ready.data.test.x, data.test.x)


def test_dropout_acts_in_training_alone():
    data = load_groups()
    batch = Batch(data.train.x, data.train.y, None, torch.arange(48), torch.Generator())
    losses = {}
    for rate in (0.0, 0.5):
        model, plain = network(data), network(data)
        objective = make_ready("dropout", {"rate": rate}, data, model).objective
        losses[rate] = [float(objective(model, batch).detach()) for _ in range(2)]
        assert torch.equal(model.eval()(data.train.x), plain.eval()(data.train.x))
    ordinary = float(nn.functional.cross_entropy(plain(data.train.x), data.train.y).detach())
    assert losses[0.0] == pytest.approx([ordinary, ordinary])
    assert len({ordinary, *losses[0.5]}) == 3


def test_the_last_layer_is_retrained_on_one_half_of_the_validation_rows():
    """Another half chooses the epoch; what was learned in the first stage is where the second starts."""
    data = load_groups()
    model, fresh = network(data), network(data)
    ready = make_ready("last-layer", {}, data, model)
    parts = [ready.data.train, ready.data.validation]
    assert [part.n_rows for part in parts] == [24, 24]
    found, known = torch.cat([part.x for part in parts]), data.validation.x
    assert torch.equal(found.unique(dim=0), known.unique(dim=0))
    assert len(ready.rows) == 48
    assert ready.evaluations == 2 * 48
    assert not torch.equal(model[0].weight, fresh[0].weight)


def test_smoothing_can_be_matched_to_the_simplex_map():
    data = load_groups()
    strong, weak = (
        make_ready("label-smoothing", {"matched_to": {"sigma": sigma}}, data, network(data))
        for sigma in (0.5, 0.05)
    )
    assert strong.objective.module.smoothing > weak.objective.module.smoothing > 0


@pytest.mark.parametrize("partners", ["batch", "data"])
@pytest.mark.parametrize("name", ["c-mixup", "elliptic"])
def test_partners_come_from_where_they_are_asked_for(name, partners):
    """In a batch of one row there is nobody else: only partners from the data change the loss."""
    data = load_line()
    settings = {"partners": partners, **({"bandwidth": 100.0} if name == "c-mixup" else {"sigma": 0.0})}
    model = network(data)
    objective = make_ready(name, settings, data, model).objective
    losses = set()
    for seed in range(10):
        row = torch.arange(1)
        batch = Batch(data.train.x[:1], data.train.y[:1], None, row, torch.Generator().manual_seed(seed))
        losses.add(round(float(objective(model, batch).detach()), 5))
    assert (len(losses) > 1) == (partners == "data")


HIDDEN_KERNEL = {"partners": "data", "pairing": "label_kernel", "at": "1", "sampling": "path", "sigma": 0.0}


def test_hidden_lines_to_the_partners_of_c_mixup():
    """Without noise the objective is a mean over the ends and the middle of lines in the hidden layer."""
    data = load_line()
    model, rows, train = network(data), torch.arange(5, 21), data.train
    settings = {**HIDDEN_KERNEL, "bandwidth": 1.0, "n_times": 3, "n_bridges": 4}
    objective = make_ready("elliptic", settings, data, model).objective
    batch = Batch(train.x[rows], train.y[rows], None, rows, torch.Generator().manual_seed(3))
    same = dataclasses.replace(batch, generator=torch.Generator().manual_seed(3))
    ends = [part.unbind(1) for part in objective.more(same)["end"]]
    losses = []
    for share in (0.0, 0.5, 1.0):
        for end_x, end_y in zip(*ends, strict=True):
            hidden = torch.lerp(model[:2](batch.x), model[:2](end_x), share)
            losses.append((model[2:](hidden) - torch.lerp(batch.y, end_y, share)).square().mean())
    assert len(losses) == 12
    assert torch.allclose(objective(model, batch), torch.stack(losses).mean(), rtol=1e-5)


def test_a_narrow_kernel_gives_ordinary_training():
    """Every row is its own partner if no other has the same target."""
    data = load_line()
    model, rows = network(data), torch.arange(16)
    objective = make_ready("elliptic", {**HIDDEN_KERNEL, "bandwidth": 1e-4}, data, model).objective
    batch = Batch(data.train.x[rows], data.train.y[rows], None, rows, torch.Generator())
    ordinary = nn.functional.mse_loss(model(batch.x), batch.y)
    assert torch.allclose(objective(model, batch), ordinary, rtol=1e-5)


@pytest.mark.statistical
def test_kernel_partners_follow_c_mixup_s_law(generator):
    """Over the whole training set, oneself included, and each bridge with a partner of its own."""
    data = load_line()
    settings = {**HIDDEN_KERNEL, "bandwidth": 1.5, "n_bridges": 1000}
    objective = make_ready("elliptic", settings, data, network(data)).objective
    rows = torch.tensor([7])
    _, ends = objective.more(Batch(data.train.x[rows], data.train.y[rows], None, rows, generator))["end"]
    y = data.train.y[:, 0].double()
    law = torch.softmax(-((y - y[7]) ** 2) / (2 * 1.5**2), 0)
    expected = 1000 * law
    counts = (ends.flatten()[:, None] == data.train.y[:, 0]).sum(0)
    assert float(((counts - expected) ** 2 / expected).sum()) < 48 + 5 * (2 * 48) ** 0.5  # chi-square


@pytest.mark.parametrize("on", ["rows", "targets"])
def test_ada_moves_rows_of_a_cluster_only(on):
    """A batch of one cluster is moved, one row of each is not."""
    data = load_line()
    model = network(data)
    settings = {"n_clusters": 3, "alpha": 4.0, "cluster_on": on}
    objective = make_ready("ada", settings, data, model).objective
    every = Batch(data.train.x, data.train.y, None, torch.arange(48), torch.Generator())
    cluster = objective.more(every)["group"]
    alone = torch.stack([(cluster == k).nonzero()[0, 0] for k in cluster.unique()])
    together = (cluster == cluster.mode().values).nonzero()[:, 0]
    for rows, is_moved in ((alone, False), (together, True)):
        x, y = data.train.x[rows], data.train.y[rows]
        loss = objective(model, Batch(x, y, None, rows, torch.Generator().manual_seed(0)))
        ordinary = nn.functional.mse_loss(model(x), y)
        assert torch.allclose(loss, ordinary) != is_moved


@pytest.mark.parametrize("kind", ["nearest", "sampled", "random"])
def test_foma_composes_its_batches(kind):
    data = load_line()
    ready = make_ready("foma", {"rho": 0.9, "batches": kind}, data, network(data))
    spreads = []

    def objective(model, batch):
        spreads.append(float(batch.y.std()))
        return model(batch.x).sum()

    settings = TrainingSettings(20, 16, 1e-2)
    scored = {"name": "foma", "seed": 0, "arrange": ready.arrange}
    fit(network(data), objective, data, settings, lambda *_: 0.0, **scored)
    ratio = sum(spreads) / len(spreads) / float(data.train.y.std())
    low, high = {"nearest": (0.1, 0.7), "sampled": (0.5, 0.9), "random": (0.9, 1.1)}[kind]
    assert low < ratio < high
    if ready.arrange is not None:
        still = dataclasses.replace(settings, shuffle=False)
        with pytest.raises(ValueError, match="shuffle"):
            fit(network(data), objective, data, still, lambda *_: 0.0, **scored)


def test_rows_keep_their_order_if_they_are_not_shuffled():
    data = load_line()
    seen = []

    def objective(model, batch):
        seen.append(batch.index)
        return model(batch.x).sum()

    fit(
        network(data),
        objective,
        data,
        TrainingSettings(2, 16, 1e-2, shuffle=False),
        lambda *_: 0.0,
        name="s",
        seed=0,
    )
    assert torch.cat(seen).tolist() == 2 * list(range(48))
    with pytest.raises(ValueError, match="balance"):
        TrainingSettings(2, 16, 1e-2, shuffle=False, balance="class")


def test_scaled_targets_change_training_and_not_the_units(line, tmp_path):
    """A network that starts at zero in scaled units predicts the smallest training target."""
    plain, scaled = (
        registry.load_dataset({"name": "line", **more}, 0) for more in ({}, {"scaled_targets": True})
    )
    assert (float(scaled.train.y.min()), float(scaled.train.y.max())) == (0, 1)
    assert torch.allclose(scaled.units.restore(scaled.test.y), plain.test.y, atol=1e-6)
    load = {"name": "line", "scaled_targets": True}
    run = run_of("erm", training={"lr": 1e-12}, load=load, **REAL)
    average = do_run(run, Options(tmp_path)).metrics["test"].average
    model = registry.make_model(run.model, scaled, "line", 0).eval()
    with torch.no_grad():
        errors = scaled.units.restore(model(scaled.test.x)) - plain.test.y
    assert average == pytest.approx(float(errors.square().mean().sqrt()), rel=0.2)
    assert average > 0.2 * float(plain.test.y.std())  # not an error in units of the range
    with pytest.raises(ValueError, match="classes"):
        scale_targets(load_groups())


@pytest.mark.statistical
def test_balanced_draws_have_equal_groups(seed):
    data = load_groups()
    settings = TrainingSettings(1, 8, 1e-2, balance="class")
    weights = settings.row_weights(data.train)
    assert weights[data.train.y == 0].sum() == pytest.approx(1) == weights[data.train.y == 1].sum()
    seen = []

    def objective(model, batch):
        seen.append(batch.y)
        return model(batch.x).sum()

    settings = dataclasses.replace(settings, epochs=40)
    fit(network(data), objective, data, settings, lambda *_: 0.0, name="balance", seed=seed)
    drawn = torch.cat(seen).double()
    assert len(drawn) == 40 * 48
    assert abs(float(drawn.mean()) - 0.5) < 5 * 0.5 / len(drawn) ** 0.5  # 0.375 without balance
    with pytest.raises(ValueError, match="balance"):
        dataclasses.replace(settings, balance="group").row_weights(Split(data.train.x, data.train.y))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("name", "settings", "named"),
    [
        ("mixup", {"alpa": 1.0}, "alpa"),
        ("nfm", {}, "layers"),
        ("ada", {}, "n_clusters"),
        ("elliptic", {"partners": "data", "pairing": "label_kernel"}, "bandwidth"),
        ("elliptic", {"power": 2.0}, "power"),
        ("ada", {"n_clusters": 2, "cluster_on": "y"}, "cluster_on"),
        ("foma", {"rho": 0.9, "batches": "knn"}, "batches"),
        ("jtt", {"first": 0.0}, "first"),
        ("elliptic", {"partners": "dta"}, "partners"),
    ],
)
def test_wrong_settings(name, settings, named):
    data = load_groups()
    with pytest.raises((TypeError, ValueError, KeyError), match=named):
        make_ready(name, settings, data, network(data))


@pytest.mark.bad_input
@pytest.mark.parametrize("name", ["groupdro", "irm", "lisa", "fish"])
def test_methods_that_need_groups(name):
    data = load_groups()
    plain = Split(data.train.x, data.train.y)
    with pytest.raises(ValueError, match="group"):
        make_ready(name, {}, Dataset("plain", plain, plain, plain, task="classification"), network(data))


def test_flat_settings_make_the_objective_of_the_paper():
    flat = {"pairing": "inverse_distance", "power": 4, "weighting": "girsanov", "xi": 0.5, "drift": "both"}
    found = elliptic_settings({"sigma": 0.5, "sigma_y": 0.3, "horizon": 0.04, "end_time": 0.5, **flat})
    assert found["pairing"] == InverseDistance(power=4)
    assert (found["weighting"].xi, found["weighting"].slopes_of) == (0.5, "both")
    assert (found["sigma"], found["sigma_y"], found["end_time"]) == pytest.approx((0.1, 0.06, 0.5))
    assert elliptic_settings({"sigma": "green", "horizon": 0.01})["sigma_y"] == 0.0
    assert elliptic_settings({"weighting": "none", "xi": 3.0})["weighting"] is None
