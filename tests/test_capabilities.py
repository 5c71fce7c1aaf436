"""Everything that must stay, called once through the public interface.

Names may be adapted when the interface changes by decision, but no capability may be dropped from this file.
"""

import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import elliptica
from elliptica import Elliptic, baselines, estimate_landscape, landscape
from elliptica.cli import app
from elliptica.core.formulations import DynkinSum, SourceTerm
from elliptica.estimators import EllipticClassifier, EllipticRegressor
from elliptica.lab.experiments.methods import METHODS
from elliptica.lab.experiments.records import Records
from processes import together

pytestmark = pytest.mark.filterwarnings("ignore")
MSE, CE, BCE = nn.MSELoss(), nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss()
NUMBERS = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
X, REAL, LABELS = NUMBERS[:, :3], NUMBERS[:, 3:], torch.arange(12) % 3
GROUPS = torch.arange(12) % 2
BALL = landscape.Ball(torch.zeros(4), 6.0)
WHOLE = {"sampling": "path", "n_times": 4, "n_bridges": 2, "sigma": 0.2}
TINY = {
    "trials": 1,
    "epochs": 3,
    "networks": 1,
    "hidden": (8,),
    "folds": 3,
    "jobs": 1,
    "methods": ["elliptic", "linear"],
}


def weighting(kind, **parameters):
    """Setting of a weighting with its own parameters."""
    return {"weighting": kind(**parameters)}


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def network(n_out=1, n_in=3):
    return nn.Sequential(nn.Linear(n_in, 6), nn.Tanh(), nn.Linear(6, n_out))


def train(objective, x=X, y=REAL, **given):
    """One step; every parameter of the network must receive a finite gradient."""
    loss = objective(x, y, **given)
    loss.backward()
    slopes = [p.grad for p in objective.parameters() if p.requires_grad]
    assert slopes
    assert all(slope is not None and slope.isfinite().all() for slope in slopes)
    return loss.item()


def command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


# ---- the method


def test_algorithm_1_in_one_line():
    objective = Elliptic(network(), MSE, sigma=0.1)
    train(objective)
    elliptica.elliptic_loss(network(), MSE, X, REAL, sigma=0.1).backward()
    torch.testing.assert_close(objective.eval()(X, REAL), MSE(objective.model(X), REAL))


def test_algorithm_1_in_three_steps():
    objective = Elliptic(network(), MSE, **WHOLE)
    paths = objective.sample(X, REAL, generator=stream())
    assert objective.loss_on(paths) == objective(X, REAL, generator=stream())
    assert elliptica.path_losses(objective.model, MSE, paths).shape == (12, 2, 4)
    assert elliptica.log_weights(objective.model, MSE, paths).shape == (12, 2)
    assert elliptica.sample_paths(X, REAL, target_space="real", **WHOLE).x.shape == (12, 2, 4, 3)


def test_algorithm_2():
    bridges = elliptica.sample_bridge(X, X.flip(0), n_times=4, n_bridges=2, sigma=0.1)
    assert torch.equal(bridges[:, 0, -1], X.flip(0))


def test_the_papers_settings():
    train(Elliptic.paper(network(3), CE, num_classes=3, sigma=0.1), y=LABELS)


def test_appendix_e_formulations():
    train(SourceTerm(network(), MSE, duration=0.5, sigma=0.1))
    train(DynkinSum(network(), MSE, sigma=0.1))


def test_quadratures_simplex_maps_and_intrinsic_dimension():
    train(Elliptic(network(), MSE, quadrature="uniform"))
    train(Elliptic(network(), MSE, **WHOLE, quadrature="left"))
    for simplex in ("abs", "euclidean"):
        train(Elliptic(network(3), CE, num_classes=3, sigma_y=0.1, simplex=simplex), y=LABELS)
    assert 1 < elliptica.intrinsic_dimension(torch.randn(200, 3)) < 6


def test_bridges_can_be_switched_off():
    objective = Elliptic(network(), MSE)
    objective.strength = None
    torch.testing.assert_close(objective(X, REAL), MSE(objective.model(X), REAL))


@pytest.mark.parametrize("name", ["gradient_norm", "gradient_softmax", "girsanov", "multiplicative"])
def test_weightings(name):
    train(Elliptic(network(), MSE, **WHOLE, weighting=name))
    kind = {"girsanov": elliptica.Girsanov, "multiplicative": elliptica.Multiplicative}.get(name)
    kind = kind or {"gradient_norm": elliptica.GradientNorm}.get(name, elliptica.GradientSoftmax)
    train(Elliptic(network(), MSE, **WHOLE, **weighting(kind, xi=0.5)))


class Drift(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        return self.layer(torch.cat([x, y], 1))


def test_drifts_of_both_ends_any_and_a_network():
    """A drift that is trained within the objective was taken out: it did nothing to the model."""
    train(Elliptic(network(), MSE, **WHOLE, **weighting(elliptica.Girsanov, drift="both")))
    train(Elliptic(network(), MSE, **WHOLE, **weighting(elliptica.Multiplicative, drift=lambda x, y: y - x)))
    train(Elliptic(network(), MSE, **WHOLE, **weighting(elliptica.Multiplicative, drift=Drift())))


@pytest.mark.parametrize("among", ["all", "same_class"])
@pytest.mark.parametrize("kind", ["Permutation", "InverseDistance", "Nearest"])
def test_partners_of_classes(kind, among):
    pairing = getattr(elliptica, kind)(among=among)
    train(Elliptic(network(3), CE, num_classes=3, pairing=pairing), y=LABELS)
    assert elliptica.sample_partners(X, LABELS, n_bridges=2, pairing=pairing).shape == (12, 2)
    for name in ("permutation", "inverse_distance", "nearest"):
        train(Elliptic(network(3), CE, num_classes=3, pairing=name), y=LABELS)


def test_noise_of_every_kind():
    """A number, one per feature, the PDE's law, the data's covariance alone or with the targets, any law."""
    joint = elliptica.Covariance(X, REAL)
    own = lambda start, end, targets, generator: 0.1 * (end - start).abs()  # noqa: E731
    kinds = (0.1, elliptica.auto_sigma(X), "green", elliptica.Covariance(X, rank=2), joint, own)
    for sigma in kinds:
        train(Elliptic(network(), MSE, sigma=sigma))
    by_class = elliptica.Covariance(X, LABELS, by_class=True)
    train(Elliptic(network(3), CE, num_classes=3, sigma=by_class), y=LABELS)


def test_both_meanings_of_the_time_range():
    train(Elliptic.paper(network(), MSE, sigma=1.0, horizon=0.01))
    train(Elliptic(network(), MSE, sampling="path", sigma=1.0, end_time=0.01))


def test_partners_by_label_given_and_elsewhere():
    train(Elliptic(network(), MSE, pairing=elliptica.LabelKernel(bandwidth=1.0)))
    train(Elliptic(network(), MSE), partners=torch.arange(12).roll(1))
    train(Elliptic(network(), MSE), end=(torch.randn(12, 3), torch.randn(12, 1)))
    assert torch.allclose(elliptica.partner_probabilities(X).sum(1), torch.ones(12))


def test_partners_among_the_whole_data_set():
    data = torch.randn(200, 3)
    for table in (elliptica.PartnerTable(data), elliptica.PartnerIndex.build(data, k=8)):
        partner = table.sample(torch.arange(12), generator=stream())
        train(
            Elliptic(network(), MSE),
            data[:12],
            REAL,
            end=(data[partner], data[partner].sum(-1, keepdim=True)),
        )


def test_partners_among_millions(tmp_path):
    data = torch.randn(3000, 4)
    elliptica.PartnerIndex.build(data, k=8, exact=False, cells=30, folder=tmp_path / "index")
    index = elliptica.PartnerIndex.load(tmp_path / "index")
    assert index.check(generator=stream()).recall > 0.8
    assert elliptica.PartnerIndex.of_features(network(), X, at="1", k=4).sample(torch.arange(5)).shape == (
        5,
        1,
    )
    from elliptica.partner_index import PairBatchSampler, split_pairs

    rows = next(iter(PairBatchSampler(index, batch_size=8)))
    x, y, end = split_pairs(data[rows], data[rows].sum(1, keepdim=True))
    train(Elliptic(network(n_in=4), MSE), x, y, end=end)


def test_classes_multilabel_soft_and_real_targets():
    train(Elliptic(network(3), CE, num_classes=3), y=LABELS, sample_weight=torch.rand(12))
    train(Elliptic(network(3), nn.CrossEntropyLoss(weight=torch.rand(3))), y=LABELS)
    train(Elliptic(network(3), CE), y=torch.rand(12, 3).softmax(1))
    train(Elliptic(network(4), BCE), y=(torch.rand(12, 4) > 0.5).float())
    train(Elliptic(network(2), MSE), y=torch.randn(12, 2))


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Embedding(5, 4)

    def forward(self, a, b):
        return (self.first(a) * self.second(b)).sum(1, keepdim=True)


def test_several_inputs_and_hidden_layers():
    inputs = {"a": X, "b": torch.arange(12) % 5}
    train(Elliptic(TwoInputs(), MSE, bridged=["a"]), inputs)
    train(Elliptic(TwoInputs(), MSE, at="second", bridged=["b"]), inputs)
    train(Elliptic(network(), MSE, at="1", **WHOLE, weighting="gradient_norm"))


def test_batch_norm_from_paths_or_clean_rows():
    for bn in ("paths", "clean"):
        train(Elliptic(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), MSE, bn=bn))


def test_a_generator_decides_everything():
    model = network()
    objectives = [Elliptic(model, MSE, pairing="inverse_distance"), baselines.Mixup(model, MSE)]
    objectives += [elliptica.HittingTimes(model, MSE, X, REAL), DynkinSum(model, MSE)]
    before = torch.get_rng_state()
    for objective in objectives:
        assert objective(X, REAL, generator=stream(1)) == objective(X, REAL, generator=stream(1))
    assert torch.equal(before, torch.get_rng_state())


def test_compile_and_autocast():
    objective = Elliptic(network(), MSE, sigma=0.1)
    compiled = torch.compile(objective, backend="aot_eager")
    torch.testing.assert_close(compiled(X, REAL, generator=stream()), objective(X, REAL, generator=stream()))
    with torch.autocast("cpu", torch.bfloat16):
        train(Elliptic(network(), MSE, **WHOLE, weighting="gradient_softmax"))


def test_bridgemix():
    mix = elliptica.BridgeMix(num_classes=3, sigma=0.1)
    x, y = mix(X, LABELS, generator=stream())
    assert (x.shape, y.shape) == ((12, 3), (12, 3))
    rows = list(zip(X, LABELS, strict=True))
    assert len(mix.collate_fn(seed=0)(rows)[0]) == 12


BASELINES = {
    "ERM": {}, "Mixup": {}, "ManifoldMixup": {"layers": [None, "0"]}, "MixupE": {}, "RegMixup": {},
    "NFM": {"layers": [None, "0"]}, "UMIX": {}, "LabelSmoothing": {}, "Focal": {}, "Tilted": {},
    "InputNoise": {"sigma": 0.1}, "DRO": {"alpha": 0.5}, "DORO": {"epsilon": 0.1, "alpha": 0.5},
    "GroupDRO": {"n_groups": 2}, "IRM": {}, "IBIRM": {"at": "1"}, "VREx": {}, "CORAL": {"at": "1"},
    "LISA": {}, "DomainMix": {}, "CMixup": {"bandwidth": 1.0}, "ADA": {}, "FOMA": {"rho": 0.5},
}  # fmt: skip


OF_GROUPS = ("GroupDRO", "IRM", "IBIRM", "VREx", "CORAL", "LISA", "DomainMix", "ADA")


@pytest.mark.parametrize("name", BASELINES)
def test_baselines(name):
    groups = {"group": GROUPS} if name in OF_GROUPS else {}
    if name in ("CMixup", "ADA", "FOMA"):
        train(getattr(baselines, name)(network(), MSE, **BASELINES[name]), **groups)
    else:
        train(getattr(baselines, name)(network(3), CE, num_classes=3, **BASELINES[name]), y=LABELS, **groups)


def test_baselines_that_are_functions():
    model = network(3)
    objective, optimizer = baselines.ERM(model, CE, num_classes=3), torch.optim.SGD(model.parameters(), 0.1)
    baselines.fish_step(model, optimizer, objective, baselines.split_by_group(X, LABELS, GROUPS))
    recorder = baselines.ErrorRecorder(12)
    recorder.update(torch.arange(12), model(X), LABELS)
    errors = recorder.errors
    assert len(baselines.upsampled_rows(errors, 3)) == 12 + 3 * int(errors.sum())
    assert len(baselines.smote_rows(X, torch.tensor([0] * 8 + [1] * 4), k_neighbors=2)[0]) == 16
    table = baselines.CorrectnessTable(12)
    table.update(torch.arange(12), model(X), LABELS)
    table.end_epoch()
    assert baselines.umix_weights(table, start=0, length=1).shape == (12,)
    assert baselines.anchor_clusters(X, REAL, 3).shape == (12,)


# ---- the landscape


def test_equations_of_the_landscape():
    """Eqs. (1)-(3), (5), (10), (11), (14)-(16): drift, absorption and source, in every kind of domain."""
    full = landscape.Operator(drift=0.1 * torch.ones(3), absorption=0.1, source=1.0)
    box, hull = landscape.Box.around(X), landscape.Polytope.hull(X)
    balls = landscape.DataDomain(X, outer=landscape.Ball.around(X, 1.5))
    field = landscape.LossField(network(), MSE).joint(2, feature_shape=(2,), target_shape=(1,))
    for domain in (landscape.Ball.around(X), box, hull):
        estimate = estimate_landscape(lambda z: z.sum(1), domain, X[:1] / 5, n_walks=50, generator=stream())
        assert estimate.value.isfinite().all()
        assert estimate.interval()[0] <= estimate.interval()[1]
    for solver in ("spheres", "euler"):
        how = {"operator": full, "solver": solver, "n_walks": 50, "generator": stream()}
        assert estimate_landscape(1.0, box, X[:1] / 5, **how).value.isfinite().all()
    at = estimate_landscape(0.0, balls, X[:2] / 5, n_walks=50, data_values=torch.rand(12), generator=stream())
    assert 0 <= float(at.value.min()) <= float(at.value.max()) <= 1
    assert field is not None


def test_hitting_times():
    train(elliptica.HittingTimes(network(3), CE, X, LABELS, num_classes=3, n_starts=8), None, None)


def test_propositions_and_lemmas_as_reports():
    field, draws = landscape.LossField(network(), MSE), {"generator": stream()}
    walks = {"n_walks": 20, **draws}
    inner = X[:2] / 5, REAL[:2] / 5
    sides = inner, (X[2:4] / 5, REAL[2:4] / 5)
    reports = [
        landscape.maximum_principle_report(field, (X, REAL), inner),  # Proposition 1
        landscape.subharmonicity_report(field, *inner, 0.1, **draws),
        landscape.shift_bound(field, *inner, (None, torch.full((3,), 0.1)), BALL, **walks),  # Proposition 2
        landscape.ordering_report(field, BALL, *sides, **walks),  # Proposition 3, Eqs. (8), (9)
        landscape.occupation_report(field, BALL, *inner, joint=True, **walks),  # Lemma 1
        landscape.hitting_report(landscape.DataDomain(X), X[:2] / 5, **walks),  # Lemma 2
        landscape.loss_map(field, landscape.Ball.around(X), *inner, **walks),
        landscape.neighbour_loss(field, X[:2] / 5, (X, REAL), k=2),
        landscape.weights_report(torch.randn(5, 4)),  # appendix C
        elliptica.check_maximum_principle(torch.rand(5), torch.rand(5)),
    ]
    assert all(str(report) for report in reports)


# ---- several processes, other trainers


def _wrapped(rank):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from elliptica.distributed import over_global_batch, rank_generator, shard

    losses = []
    for wrap in (DistributedDataParallel, fully_shard):
        torch.manual_seed(0)
        objective = over_global_batch(Elliptic(network(), MSE, weighting="gradient_softmax"))
        losses.append(train(wrap(objective), shard(X), shard(X[:, :1]), generator=rank_generator(0)))
    return losses


@pytest.mark.distributed
def test_ddp_and_fsdp2():
    first, second = together(_wrapped)
    assert len(first) == len(second) == 2


def test_checkpoints(tmp_path):
    from elliptica.distributed import load_checkpoint, save_checkpoint

    objective, noise = Elliptic(network(), MSE), stream()
    optimizer = torch.optim.Adam(objective.parameters())
    train(objective)
    save_checkpoint(tmp_path, objective, optimizer, step=7, generators={"noise": noise})
    assert load_checkpoint(tmp_path, objective, optimizer, generators={"noise": noise}).step == 7


def test_lightning():
    lightning = pytest.importorskip("lightning")
    from elliptica.integrations import BridgeMixCallback, EllipticLightningMixin

    class Lit(EllipticLightningMixin, lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network(3)
            self.use_elliptic(self.net, CE, num_classes=3, seed=0)

        def training_step(self, batch, batch_idx):
            return self.elliptic_loss(*batch)

    assert Lit().training_step((X, LABELS), 0).isfinite()
    assert BridgeMixCallback(elliptica.BridgeMix(num_classes=3), x=0, y=1, seed=0)


def test_transformers(tmp_path):
    hf = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from elliptica.integrations import EllipticTrainer

    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    model = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=9, **sizes))
    rows = [{"input_ids": [2, 5 + i % 2, 3], "label": i % 2} for i in range(4)]
    args = hf.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none", max_steps=2)
    assert EllipticTrainer(model, args, train_dataset=rows, elliptic={"sigma": 0.05}).train().global_step == 2


# ---- tables


def table_of(n=90):
    draws = np.random.default_rng(0)
    x = draws.normal(size=(n, 2))
    columns = {"a": x[:, 0], "b": [f"k{i % 3}" for i in range(n)], "day": np.arange(n) * 1.0}
    return pl.DataFrame({**columns, "site": [f"s{i % 6}" for i in range(n)], "y": x[:, 0] + 0.1 * x[:, 1]})


@pytest.mark.parametrize("estimator", [EllipticRegressor, EllipticClassifier])
def test_estimators(estimator, tmp_path):
    from sklearn.utils.estimator_checks import (
        check_estimators_nan_inf,
        check_fit2d_1sample,
        check_n_features_in,
    )

    from elliptica.estimators import load, save

    fitted = estimator(max_iter=2, hidden=(4,)).fit(X.numpy(), LABELS.numpy())
    for check in (check_estimators_nan_inf, check_fit2d_1sample, check_n_features_in):
        check(estimator.__name__, estimator(max_iter=2, hidden=(4,)))
    again = load(save(fitted, tmp_path / "model"))
    assert np.array_equal(again.predict(X.numpy()), fitted.predict(X.numpy()))


def test_preprocessor():
    from elliptica.estimators import TablePreprocessor

    assert len(TablePreprocessor().fit_transform(table_of())) == 90


@pytest.mark.parametrize("shift", ["random", "time", "split_by", "test", "extrapolate"])
def test_compare_under_five_shifts(shift):
    frame, columns = table_of(), {"time": "day", "split_by": "site", "extrapolate": True}
    how = {shift: columns[shift]} if shift in columns else {"test": frame[60:]} if shift == "test" else {}
    found = elliptica.tables.compare(frame[:60] if shift == "test" else frame, "y", **how, **TINY)
    assert found.complete
    assert found.best in found.methods  # one recommendation
    assert all(d.low <= d.mean <= d.high for d in found.verdict.differences)  # simultaneous intervals


def test_compare_predict_diagnose_and_report_as_commands(tmp_path):
    table_of().write_csv(tmp_path / "rows.csv")
    out, rows = tmp_path / "out", tmp_path / "rows.csv"
    sizes = [word for text in ("trials=1", "epochs=2", "folds=2", "jobs=1") for word in ("--set", text)]
    roles = ["--target", "y", "--group", "site", "--as", "day=id"]
    command("compare", rows, *roles, "--methods", "erm,elliptic", *sizes, "--out", out)
    model = next(
        file for file in out.rglob("*") if file.suffix in (".elliptica", ".skops", ".safetensors", ".zip")
    )
    command("predict", model, rows, "--out", tmp_path / "predicted.csv")
    assert len(pl.read_csv(tmp_path / "predicted.csv")) == 90
    assert command("diagnose", rows, "--model", model, "--target", "y")
    command("report", out, "--out", tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()
    if zipfile.is_zipfile(model):  # files without pickle
        assert not [name for name in zipfile.ZipFile(model).namelist() if name.endswith((".pkl", ".pickle"))]


def test_diagnose():
    x = torch.randn(300, 3, generator=stream())
    y = (x[:, 0] > 0).long()
    sure = nn.Linear(3, 2)
    with torch.no_grad():
        sure.weight.copy_(torch.tensor([[-3.0, 0, 0], [3.0, 0, 0]])), sure.bias.zero_()
    other = x[:100] + 5, y[:100]  # the rule does not hold there
    assert elliptica.diagnose(sure, CE, x[100:], y[100:], held_out=(x[:100], y[:100])).severity != "warning"
    assert elliptica.diagnose(sure, CE, x[100:], y[100:], held_out=other).severity == "warning"
    noisy = torch.where(torch.rand(300, generator=stream()) < 0.3, 1 - y, y)
    assert elliptica.diagnose(sure, CE, x, noisy).problems


# ---- the paper

MOONS = """
title = "Moons"
metric = "accuracy"
seeds = 2
search = { lr = { low = 1e-3, high = 1e-1, log = true } }
[methods.erm]
[methods.mine]
method = "capable_jitter"
[datasets.two_moons]
load = { n_boundary = 20, n_interior = 20 }
model = { name = "mlp", hidden = [4] }
training = { epochs = 2, batch_size = 20, lr = 1e-2 }
"""
PLUGIN = """
from torch import nn, randn
from elliptica.lab.experiments import register_method

@register_method("capable_jitter")
class Jitter(nn.Module):
    def __init__(self, model, loss_fn):
        super().__init__()
        self.model, self.loss_fn = model, loss_fn

    def forward(self, x, y, *, generator=None):
        return self.loss_fn(self.model(x + randn(x.shape, generator=generator)), y)
"""


@pytest.fixture
def own_table(tmp_path, monkeypatch):
    """A table of one's own with a method of one's own, in one file each."""
    (tmp_path / "moons.toml").write_text(MOONS)
    (tmp_path / "capable_plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield ["moons.toml", "--plugin", "capable_plugin.py", "--out", "runs"]
    METHODS.pop("capable_jitter", None)  # other tests list the methods that there are


def test_tables_plugins_records_and_resume(own_table):
    assert "mine" in command("run", *own_table, "--methods", "mine", "--seeds", 1)
    (record,) = Records(Path("runs/moons.jsonl.gz")).read()
    command("run", *own_table)  # only what is missing
    assert record in Records(Path("runs/moons.jsonl.gz")).read()
    assert "mine" in command("table", *own_table)
    command("tune", *own_table, "--methods", "erm", "--trials", 2)
    command("report", "runs", "--table", "moons.toml", "--plugin", "capable_plugin.py", "--out", "page.html")


@pytest.mark.slow
@pytest.mark.distributed
def test_ray(tmp_path):
    ray = pytest.importorskip("ray")
    (tmp_path / "moons.toml").write_text(MOONS.replace('[methods.mine]\nmethod = "capable_jitter"\n', ""))
    assert "erm" in command("run", tmp_path / "moons.toml", "--ray", "local", "--out", tmp_path / "runs")
    ray.shutdown()  # other tests in this process start clusters of their own


def test_presets_of_all_tables_of_the_paper():
    names = command("list")
    assert all(f"table{number}" in names for number in range(1, 12))
    assert "no2" in command("list", "table3")


@pytest.mark.slow
def test_figures_of_the_paper(tmp_path):
    command("demo", "--steps", 5, "--seeds", 1, "--out", tmp_path)
    assert list(tmp_path.iterdir())


def test_paper_map():
    page = (Path(__file__).parents[1] / "docs" / "paper-map.md").read_text()
    wanted = ["Algorithm 1", "Algorithm 2", *(f"Eq. ({n})" for n in range(1, 17)), "Proposition 4", "Lemma 2"]
    assert all(f"| {statement} |" in page for statement in wanted)
