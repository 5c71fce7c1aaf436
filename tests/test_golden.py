"""Numbers that must not move when code is cut: exact where nothing is drawn, within errors where it is.

The records are in golden.json. No number depends on the order of random draws: exact ones come from given
partners and given points, drawn ones are means over many seeds and are compared within five standard errors
(or within the band that a test states). After a decision that changes values: python tests/test_golden.py
--write, and say why in the commit.
"""

import json
import math
import statistics
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import elliptica
from elliptica import Elliptic, baselines, landscape
from elliptica.baselines import regression
from elliptica.baselines.groups import find_groups
from elliptica.core.bridge import time_weights
from elliptica.core.partners import kernel_weights, target_distances
from reference import with_points

FILE = Path(__file__).with_name("golden.json")
WEIGHTINGS = ("none", "gradient_norm", "gradient_softmax", "multiplicative", "girsanov")
OF_PATHS = ("multiplicative", "girsanov")
PAIRINGS = ("permutation", "inverse_distance", "label_kernel", "nearest")
MSE, CE, BCE = nn.MSELoss(), nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss()

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")


# ---- the interface that may change its names: only these helpers know it


def paired(name):
    """The setting of a pairing."""
    return {"pairing": elliptica.LabelKernel(bandwidth=0.7) if name == "label_kernel" else name}


def weighted(name, **more):
    """The setting of a weighting."""
    kinds = {
        "gradient_norm": elliptica.GradientNorm,
        "gradient_softmax": elliptica.GradientSoftmax,
        "girsanov": elliptica.Girsanov,
        "multiplicative": elliptica.Multiplicative,
    }
    return {"weighting": None if name == "none" else kinds[name](xi=0.5, **more)}


def probabilities(name, x, y):
    """Probability of each partner of the first row."""
    if name == "inverse_distance":
        return elliptica.partner_probabilities(x)[0]
    weights = kernel_weights(target_distances(y, y).fill_diagonal_(math.inf), 0.7)
    return (weights / weights.sum(1, keepdim=True))[0]


def at_given_points(objective, x, y, s, points, targets):
    """The objective at points ``(batch, bridge, time, feature)`` that no generator drew."""
    paths = objective.sample(x, y, partners=PARTNERS, generator=stream(0))
    return objective.loss_on(with_points(paths, x=points, y=targets, free_y=targets, s=s))


# ---- inputs: closed forms, so that no generator of any version is involved


def waves(*shape, phase=0.0, dtype=torch.float64):
    """Numbers in [-1, 1] that look irregular."""
    return torch.sin(phase + 1.7 * torch.arange(math.prod(shape), dtype=dtype) ** 1.3).view(shape)


def network(n_out=1, n_in=3):
    model = nn.Sequential(nn.Linear(n_in, 5), nn.Tanh(), nn.Linear(5, n_out)).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(waves(*parameter.shape, phase=number))
    return model


def stream(seed):
    return torch.Generator().manual_seed(seed)


ROWS = 8
X, REAL, LABELS, GROUPS = waves(ROWS, 3), waves(ROWS, 1, phase=9), torch.arange(ROWS) % 3, torch.arange(8) % 2
FAR = 1.5 * (torch.arange(ROWS) // 4)[:, None].double()  # two clusters, so that partners matter
MANY = (waves(ROWS, 4, phase=5) > 0).double()
PARTNERS = torch.tensor([[3, 3], [0, 0], [5, 5], [7, 7], [1, 1], [6, 6], [2, 2], [4, 4]])


def value_and_slope(loss, model):
    """The value and the norm of the gradient with respect to the network."""
    slopes = torch.autograd.grad(loss, [p for p in model.parameters()], allow_unused=True)
    return [loss.item(), math.sqrt(sum(float(g.square().sum()) for g in slopes if g is not None))]


def evaluate(loss_fn, y, x=X, n_out=1, partners=PARTNERS, given=None, **settings):
    model = network(n_out)
    settings = {"sampling": "path", "n_times": 6, "n_bridges": 2, "sigma": 0.0, "sigma_y": 0.0, **settings}
    objective = Elliptic(model, loss_fn, **settings)
    return value_and_slope(objective(x, y, partners=partners, **(given or {})), model)


def mean_over_draws(compute, n_draws):
    """Mean and standard error over seeds."""
    values = torch.tensor([compute(stream(seed)).item() for seed in range(n_draws)], dtype=torch.float64)
    return [values.mean().item(), values.std().item() / math.sqrt(n_draws)]


# ---- sections: each returns {name: number or list of numbers}


def objective():
    """The objective where nothing is drawn: straight bridges to given partners, and given points."""
    found = {f"straight {name}": evaluate(MSE, REAL, **weighted(name)) for name in WEIGHTINGS}
    found["nearest"] = evaluate(MSE, REAL, partners=None, **paired("nearest"))
    found["left"] = evaluate(MSE, REAL, quadrature="left")
    found["left gradient_softmax"] = evaluate(MSE, REAL, quadrature="left", **weighted("gradient_softmax"))
    found["sample_weight"] = evaluate(MSE, REAL, given={"sample_weight": 1 + waves(ROWS) / 2})
    found["classes"] = evaluate(CE, LABELS, n_out=3, num_classes=3)
    class_weight = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 3.0]).double())
    found["class weights"] = evaluate(class_weight, LABELS, n_out=3, num_classes=3)
    found["multilabel"] = evaluate(BCE, MANY, n_out=4)
    found["hidden layer"] = evaluate(MSE, REAL, at="1")
    found["end"] = evaluate(MSE, REAL, partners=None, given={"end": (X.flip(0), REAL.flip(0))}, n_bridges=1)
    for sampling, times in (("path", 6), ("marginal", 1)):
        s = torch.linspace(0, 1, 6).double() if times == 6 else torch.tensor([0.3]).double()
        s = s.expand(ROWS, 2, times)
        chord = [torch.lerp(z[:, None, None], z[PARTNERS][:, :, None], s[..., None]) for z in (X, REAL)]
        noise = 0.4 * (s * (1 - s)).sqrt()[..., None]
        points = chord[0] + noise * waves(ROWS, 2, times, 3, phase=3)
        targets = chord[1] + noise * waves(ROWS, 2, times, 1, phase=4)
        kinds = [(name, {}) for name in WEIGHTINGS if sampling == "path" or name not in OF_PATHS]
        if sampling == "path":
            own = {"drift": lambda x, y: 0.3 * x + y}
            kinds += [("girsanov", {"drift": "both"}), ("multiplicative", own)]
        for name, more in kinds:
            model = network()
            how = {"sampling": sampling, "n_times": 6, "n_bridges": 2, "sigma": 0.4, **weighted(name, **more)}
            loss = at_given_points(Elliptic(model, MSE, **how), X, REAL, s, points, targets)
            label = {"drift": " with drift"}.get(next(iter(more), ""), "")
            found[f"given {sampling} {name}{label}"] = value_and_slope(loss, model)
    return found


def laws():
    """Probabilities of partners, weights, and maps, in closed form."""
    return {
        "partners by inverse distance": probabilities("inverse_distance", X, REAL).tolist(),
        "partners by label": probabilities("label_kernel", X, REAL).tolist(),
        "nearest": elliptica.sample_partners(X, **paired("nearest"), n_bridges=2).flatten().tolist(),
        "auto_sigma": elliptica.auto_sigma(X).tolist(),
        "simplex abs": elliptica.project_to_simplex(waves(4)).tolist(),
        "simplex euclidean": elliptica.project_to_simplex(waves(4), "euclidean").tolist(),
        "time weights": time_weights(5, "left", X).flatten().tolist(),
    }


def objectives_without_draws():
    """Baselines that draw nothing."""
    groups, of_classes = {"group": GROUPS}, {"num_classes": 3}
    cases = {
        "erm": (baselines.ERM, of_classes, {}),
        "dro cvar": (baselines.DRO, {"alpha": 0.5, **of_classes}, {}),
        "dro chi2": (baselines.DRO, {"divergence": "chi2", "rho": 0.3, **of_classes}, {}),
        "doro": (baselines.DORO, {"epsilon": 0.2, "alpha": 0.5, **of_classes}, {}),
        "focal": (baselines.Focal, of_classes, {}),
        "tilted": (baselines.Tilted, of_classes, {}),
        "smoothing": (baselines.LabelSmoothing, of_classes, {}),
        "groupdro": (baselines.GroupDRO, {"n_groups": 2, "step_size": 0.5, **of_classes}, groups),
        "irm": (baselines.IRM, {"penalty": 2.0, "anneal_steps": 0, **of_classes}, groups),
        "vrex": (baselines.VREx, {"penalty": 2.0, "anneal_steps": 0, **of_classes}, groups),
        "coral": (baselines.CORAL, {"at": "1", **of_classes}, groups),
        "ib-irm": (baselines.IBIRM, {"at": "1", "penalty": 2.0, "anneal_steps": 0, "ib_penalty": 2.0,
                                     "ib_anneal_steps": 0, **of_classes}, groups),
    }  # fmt: skip
    found = {}
    for name, (kind, settings, given) in cases.items():
        model = network(3)
        found[name] = value_and_slope(kind(model, CE, **settings)(X, LABELS, **given), model)
    losses = waves(ROWS).abs()
    found["cvar weights"] = baselines.cvar_weights(losses, 0.3).tolist()
    found["chi2 weights"] = baselines.chi2_weights(losses, 0.3).tolist()
    found["anchor"] = regression.move_rows(X, find_groups(GROUPS, ROWS), 1.5)[0].tolist()
    found["foma"] = regression.scale_directions([X, REAL], 0.5, 0.7, "small")[0][0].tolist()
    found["balanced"] = baselines.group_balanced_weights(LABELS).tolist()
    return found


def drawn_baselines(n_draws):
    """Baselines that draw, as means over draws."""
    groups, of_classes = {"group": GROUPS}, {"num_classes": 3}
    cases = {
        "mixup": (baselines.Mixup, of_classes, {}),
        "manifold-mixup": (baselines.ManifoldMixup, {"layers": [None, "0"], **of_classes}, {}),
        "mixupe": (baselines.MixupE, of_classes, {}),
        "nfm": (baselines.NFM, {"layers": [None, "0"], **of_classes}, {}),
        "regmixup": (baselines.RegMixup, of_classes, {}),
        "umix": (baselines.UMIX, of_classes, {"sample_weight": 1 + waves(ROWS) / 2}),
        "input-noise": (baselines.InputNoise, {"sigma": 0.3, **of_classes}, {}),
        "lisa": (baselines.LISA, of_classes, groups),
        "domainmix": (baselines.DomainMix, of_classes, groups),
        "c-mixup": (baselines.CMixup, {"bandwidth": 0.5}, {}),
        "foma": (baselines.FOMA, {"rho": 0.7}, {}),
        "ada": (baselines.ADA, {}, groups),
    }
    found = {}
    for name, (kind, settings, given) in cases.items():
        y, loss, n_out = (LABELS, CE, 3) if "num_classes" in settings else (REAL + FAR, MSE, 1)
        module = kind(network(n_out), loss, **settings)
        found[name] = mean_over_draws(
            lambda g, m=module, y=y, given=given: m(X + FAR, y, generator=g, **given), 3 * n_draws
        )
    return found


def green_variance(generator):
    """Mean of V (n - 4) / r^2 over the bridges of one draw, from their midpoints; its expectation is one."""
    ends = waves(50, 8), waves(50, 8, phase=2)
    middle = elliptica.sample_bridge(*ends, n_times=3, sigma=elliptica.Green(), generator=generator)[:, 0, 1]
    variance = 4 * (middle - (ends[0] + ends[1]) / 2).square().mean(1)
    return (variance * (8 - 4) / (ends[1] - ends[0]).square().sum(1)).mean()


def drawn(n_draws=100):
    """Means over draws: every pairing, weighting and sampling, then the baselines."""
    found = {}
    for pairing in PAIRINGS:
        for sampling in ("marginal", "path"):
            for name in WEIGHTINGS if sampling == "path" else ("none", "gradient_norm", "gradient_softmax"):
                how = {"sampling": sampling, "n_times": 6, "n_bridges": 8, "sigma": 1.0, "sigma_y": 0.3}
                o = Elliptic(network(), MSE, **how, **paired(pairing), **weighted(name))
                found[f"{pairing} {sampling} {name}"] = mean_over_draws(
                    lambda g, o=o: o(X + FAR, REAL + FAR, generator=g), n_draws
                )
    for name, sigma in (
        ("green", elliptica.Green()),
        ("per feature", torch.tensor([0.1, 0.4, 0.9]).double()),
    ):
        o = Elliptic(network(), MSE, sigma=sigma, n_bridges=8)
        found[f"sigma {name}"] = mean_over_draws(lambda g, o=o: o(X, REAL, generator=g), n_draws)
    found["Green's variance"] = mean_over_draws(green_variance, n_draws)
    return {**found, **drawn_baselines(n_draws)}


def estimators():
    """Scores of the two estimators: all rows, few epochs."""
    from sklearn.datasets import load_breast_cancer, load_diabetes

    from elliptica.estimators import EllipticClassifier, EllipticRegressor

    how = {"max_iter": 15, "hidden": (16,), "learning_rate": 1e-2, "random_state": 0}
    return {
        "diabetes": EllipticRegressor(method="elliptic", **how)
        .fit(*(xy := load_diabetes(return_X_y=True)))
        .score(*xy),
        "breast cancer": EllipticClassifier(**how)
        .fit(*(xy := load_breast_cancer(return_X_y=True)))
        .score(*xy),
    }


def comparison():
    """A very small comparison on a line: winner, and errors."""
    import polars as pl

    from elliptica.tables import compare

    draws = np.random.default_rng(0)
    x = draws.normal(size=(120, 2))
    frame = pl.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] + 0.3 * draws.normal(size=120)})
    sizes = {"trials": 3, "epochs": 150, "networks": 1, "hidden": (8,), "folds": 3, "jobs": 1}
    return compare(frame, "y", methods=["erm", "elliptic", "linear"], **sizes)


MOONS = """
title = "Moons"
metric = "accuracy"
seeds = 2
[methods.erm]
[methods.elliptic]
sigma = 0.1
[datasets.two_moons]
load = { n_boundary = 200, n_interior = 200 }
model = { name = "mlp", hidden = [16] }
training = { epochs = 40, batch_size = 20, lr = 3e-2 }
"""


def lab(folder):
    """Mean accuracy of both rows of a tiny table, from its records."""
    from elliptica.cli import app
    from elliptica.lab.experiments.records import Records

    (folder / "moons.toml").write_text(MOONS)
    where = [str(folder / "moons.toml"), "--out", str(folder / "runs")]
    done = CliRunner().invoke(app, ["run", *where])
    assert done.exit_code == 0, done.output
    rates = {"erm": [], "elliptic": []}
    for record in Records(folder / "runs" / "moons.jsonl.gz").read():
        rates[record.run.row].append(100 * record.metrics["test"].average)
    return {row: statistics.mean(values) for row, values in rates.items()}


# ---- tests: a failure names its section


def recorded(section):
    return json.loads(FILE.read_text())[section]


def differing(found, known, agree):
    """Entries that do not agree, or that only one side has."""
    names = found.keys() | known.keys()
    return {n: (found.get(n), known.get(n)) for n in names
            if n not in found or n not in known or not agree(found[n], known[n])}  # fmt: skip


@pytest.mark.parametrize("section", [objective, laws, objectives_without_draws], ids=lambda f: f.__name__)
def test_exact(section):
    same = lambda a, b: np.allclose(a, b, rtol=1e-10, atol=1e-12)  # noqa: E731
    assert not differing(section(), recorded(section.__name__), same)


def test_drawn():
    near = lambda a, b: abs(a[0] - b[0]) <= 5 * math.hypot(a[1], b[1]) + 1e-10  # noqa: E731
    assert not differing(drawn(), recorded("drawn"), near)


def harmonic(z):
    return z[:, 0].exp() * z[:, 1].cos()


DISK = landscape.Ball(torch.zeros(2).double(), 1.0)
SQUARE = landscape.Box(-torch.ones(2).double(), torch.ones(2).double())
AT = torch.tensor([[0.5, 0.3], [-0.2, 0.1]]).double()
#: Name: value at the boundary, domain, settings, and the solution.
PROBLEMS = {
    "harmonic in a ball": (harmonic, DISK, {}, harmonic(AT)),
    "harmonic in a ball by walks": (harmonic, DISK, {"solver": "spheres"}, harmonic(AT)),
    "harmonic in a ball by steps": (harmonic, DISK, {"solver": "euler", "dt": 4e-3}, harmonic(AT)),
    "harmonic in a box": (harmonic, SQUARE, {}, harmonic(AT)),
    "absorption on a line": (1.0, landscape.Ball(torch.zeros(1).double(), 1.0),
                             {"operator": landscape.Operator(absorption=0.5)}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", PROBLEMS)
def test_landscape(name):
    """|value - exact| within four standard errors and the stated bias."""
    value, domain, settings, truth = PROBLEMS[name]
    at = AT
    if truth is None:  # u''/2 = c u with u(+-1) = 1
        at = AT[:, :1]
        truth = torch.cosh(at[:, 0]) / math.cosh(1)
    found = landscape.estimate_landscape(value, domain, at, n_walks=2000, generator=stream(0), **settings)
    assert ((found.value - truth).abs() <= 4 * found.stderr + found.bias + 1e-9).all(), (found, truth)
    assert float(found.stderr.max()) < 0.05


def test_exit_times():
    """E tau = (R^2 - r^2) / d for Brownian motion in a ball."""
    found = landscape.estimate_landscape(0.0, DISK, AT, solver="spheres", n_walks=4000, generator=stream(0))
    truth = (1 - AT.square().sum(1)) / 2
    assert ((found.exit_time - truth).abs() <= 4 * found.exit_time_stderr + 1e-2).all()


def test_hitting_times():
    """A harmonic loss has the same mean at the ends of walks as at their starts."""
    z = waves(20, 2)
    loss = lambda output, target: (output * target).flatten()  # noqa: E731
    times = elliptica.HittingTimes(nn.Identity(), loss, z[:, :1], z[:, 1:], target_space="real", n_walks=4000)
    at = torch.tensor([[0.1]]).double(), torch.tensor([[0.2]]).double()
    ends = times.sample(*at, generator=stream(0))
    values = (ends.x * ends.y).flatten()
    assert abs(float(values.mean()) - 0.02) <= 4 * float(values.std()) / math.sqrt(len(values))


def test_reports():
    """Statistics of linear regression, where they are known: the Laplacian is 2 (|w|^2 + 1)."""
    from elliptica import landscape as diagnostics

    model = nn.Linear(3, 1).double()
    with torch.no_grad():
        model.weight.copy_(waves(1, 3)), model.bias.zero_()
    field = landscape.LossField(model, MSE)
    truth = 2 * (float(model.weight.detach().square().sum()) + 1)
    report = diagnostics.subharmonicity_report(field, X, REAL, 0.1, 2000, joint=True, generator=stream(0))
    assert (report.laplacian - truth).abs().max() <= 4.5 * float(report.laplacian_stderr.max()) + 1e-9
    assert report.passed
    ball, sides = (
        landscape.Ball(torch.zeros(4).double(), 5.0),
        [(r * X[:2], r * REAL[:2]) for r in (0.3, 2.0)],
    )
    ordering = diagnostics.ordering_report(field, ball, *sides, n_directions=2000, n_walks=500,
                                           generator=stream(0))  # fmt: skip
    assert (ordering.least, ordering.largest) == pytest.approx((truth / 2, truth / 2), rel=0.2)
    assert ordering.rare.exit_time == pytest.approx((25 - float((0.3 * X[:2]).square().sum(1).mean()
                                                    + (0.3 * REAL[:2]).square().mean())) / 4)  # fmt: skip
    assert elliptica.check_maximum_principle(torch.tensor([0.0, 2.0]), torch.tensor([0.5, 1.9])).holds
    assert not elliptica.check_maximum_principle(torch.tensor([0.0, 2.0]), torch.tensor([0.5, 2.1])).holds


def test_estimators():
    assert estimators() == pytest.approx(recorded("estimators"), rel=0.05)


def test_compare():
    """The winner, and errors within a tenth."""
    found, known = comparison(), recorded("compare")
    assert found.complete
    assert found.best == known["best"]
    assert all((found.verdict.headline, found.verdict.text, found.verdict.sentences))
    changes = {(d.method, d.measure) for d in found.verdict.differences}
    assert {("elliptic", "rmse"), ("linear", "rmse")} <= changes
    assert all(d.low <= d.mean <= d.high for d in found.verdict.differences)
    assert {m: s["rmse"] for m, s in found.scores.items()} == pytest.approx(known["rmse"], rel=0.1)


def test_lab(tmp_path):
    assert lab(tmp_path) == pytest.approx(recorded("lab"), rel=0.05)


def write():
    """Record all sections anew."""
    import tempfile

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    compared = comparison()
    with tempfile.TemporaryDirectory() as folder:
        sections = {
            **{section.__name__: section() for section in (objective, laws, objectives_without_draws)},
            "drawn": drawn(800),
            "estimators": estimators(),
            "compare": {"best": compared.best, "rmse": {m: s["rmse"] for m, s in compared.scores.items()}},
            "lab": lab(Path(folder)),
        }
    lines = (f' "{name}": {{\n' + ",\n".join(f"  {json.dumps(n)}: {json.dumps(v)}" for n, v in part.items())
             for name, part in sections.items())  # fmt: skip
    FILE.write_text("{\n" + "\n },\n".join(lines) + "\n }\n}\n")


if __name__ == "__main__" and "--write" in sys.argv:
    write()
