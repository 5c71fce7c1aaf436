"""Numbers that must not move when code is cut: exact where nothing is drawn, within errors where it is.

The records are in golden.json. No number depends on the order of random draws: exact ones come from given
partners and given points, drawn ones are means over many seeds and are compared within five standard errors
(or within the band that a test states). After a decision that changes values: python tests/test_golden.py
--write, and say why in the commit.
"""

import csv
import io
import json
import math
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import elliptica
from elliptica import Elliptic
from elliptica.core.bridge import time_weights
from elliptica.core.partners import kernel_weights, target_distances

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
    return objective.loss_on(paths.replace(x=points, y=targets, free_y=targets, s=s))


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
X, REAL, LABELS = waves(ROWS, 3), waves(ROWS, 1, phase=9), torch.arange(ROWS) % 3
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


def green_variance(generator):
    """Mean of V (n - 4) / r^2 over the bridges of one draw, from their midpoints; its expectation is one."""
    ends = waves(50, 8), waves(50, 8, phase=2)
    middle = elliptica.sample_bridge(*ends, n_times=3, sigma=elliptica.Green(), generator=generator)[:, 0, 1]
    variance = 4 * (middle - (ends[0] + ends[1]) / 2).square().mean(1)
    return (variance * (8 - 4) / (ends[1] - ends[0]).square().sum(1)).mean()


def drawn(n_draws=100):
    """Means over draws: every pairing, weighting and sampling."""
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
    return found


def estimators():
    """Scores of the two estimators: all rows, few epochs."""
    from sklearn.datasets import load_breast_cancer, load_diabetes

    from elliptica.estimators import EllipticClassifier, EllipticRegressor

    how = {"max_iter": 15, "hidden": (16,), "learning_rate": 1e-2, "random_state": 0}
    return {
        "diabetes": EllipticRegressor(**how).fit(*(xy := load_diabetes(return_X_y=True))).score(*xy),
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

    (folder / "moons.toml").write_text(MOONS)
    where = [str(folder / "moons.toml"), "--out", str(folder / "runs")]
    done = CliRunner().invoke(app, ["run", *where])
    assert done.exit_code == 0, done.output
    table = CliRunner().invoke(app, ["table", *where, "--format", "csv"]).output
    return {row["method"]: float(row["mean"]) for row in csv.DictReader(io.StringIO(table))}


# ---- tests: a failure names its section


def recorded(section):
    return json.loads(FILE.read_text())[section]


def differing(found, known, agree):
    """Entries that do not agree, or that only one side has."""
    names = found.keys() | known.keys()
    return {n: (found.get(n), known.get(n)) for n in names
            if n not in found or n not in known or not agree(found[n], known[n])}  # fmt: skip


@pytest.mark.parametrize("section", [objective, laws], ids=lambda f: f.__name__)
def test_exact(section):
    same = lambda a, b: np.allclose(a, b, rtol=1e-10, atol=1e-12)  # noqa: E731
    assert not differing(section(), recorded(section.__name__), same)


def test_drawn():
    near = lambda a, b: abs(a[0] - b[0]) <= 5 * math.hypot(a[1], b[1]) + 1e-10  # noqa: E731
    assert not differing(drawn(), recorded("drawn"), near)


#: Name: value at the boundary, domain, settings, and the solution.


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
            **{section.__name__: section() for section in (objective, laws)},
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
