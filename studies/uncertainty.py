"""Study: how uncertain are classifiers after elliptic training, mixup, noise, label smoothing, in ensembles?

Needs ELLIPTICA_DATA and Fashion-MNIST (Debian's package dataset-fashion-mnist). Half an hour on one core::

    python studies/uncertainty.py run        # what is not recorded yet, then the page
    python studies/uncertainty.py table      # the page from the records
"""

from __future__ import annotations

import copy
import itertools
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from common import Record, Study, Values, accuracy, descend, paired_p, rounded, spread, table
from elliptica import Elliptic, EllipticWarning, Green
from elliptica._utils.random import stream
from elliptica._utils.statistics import fit_temperature, holm
from elliptica.baselines import ERM, NFM, InputNoise, LabelSmoothing, Mixup
from elliptica.estimators.base import network_seeds, pool
from elliptica.lab.data import (
    Dataset,
    Split,
    load_fashion_mnist,
    load_medmnist,
    load_waterbirds_features,
    shuffle_labels,
)
from elliptica.lab.models import mlp
from elliptica.report.scores import calibration_error, reduce_by

SEEDS = (0, 1, 2, 3, 4)
N_STEPS, BATCH, LEARNING_RATE = 1000, 64, 1e-3
#: Networks of an ensemble; steps between two looks at the validation rows, for early stopping.
N_NETWORKS, LOOK = 5, 25
#: How far test rows are moved away from the mean of the training rows.
FACTORS = (1, 3, 10, 100)
#: Side of the images, other than digits, after averaging pixels; most rows of inputs from elsewhere.
SIDE, N_OUTSIDE = 14, 1000
#: Most rows of the parts of large data sets.
SIZES = (2500, 1250, 2500)
#: In the order of the page.
DATA = ("digits", "breastmnist", "waterbirds", "retinamnist", "fashion_mnist", "pathmnist_subset")
#: Data sets whose test images come from elsewhere.
ELSEWHERE = dict.fromkeys(("digits", "fashion_mnist"), "breastmnist") | {"breastmnist": "fashion_mnist"}
ELSEWHERE |= {"retinamnist": "pathmnist_subset", "pathmnist_subset": "retinamnist"}
#: Data sets of which two classes are left out, other ones for each seed; with half of the labels shuffled.
LEFT_OUT, SHUFFLED = ("digits", "fashion_mnist", "pathmnist_subset"), ("digits", "fashion_mnist")


class Problem(NamedTuple):
    """Three parts, features or images, and inputs that belong to no class."""

    train: Split
    validation: Split
    test: Split
    outside: dict[str, Tensor]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.train.y.max()) + 1


def _rows(part: Split, rows: Tensor | slice) -> Split:
    group = None if part.group is None else part.group[rows]
    return Split(part.x[rows], part.y[rows], group)


def _order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def _images(name: str, seed: int) -> Dataset:
    return load_fashion_mnist(seed) if name == "fashion_mnist" else load_medmnist(name, seed)


def read(name: str, seed: int) -> Iterable[Split]:
    """Training, validation and test rows, as the page says."""
    if name == "waterbirds":
        data = load_waterbirds_features(seed)
        return data.train, data.validation, data.test
    if name == "digits":
        pixels, labels = load_digits(return_X_y=True)
        part = Split(torch.as_tensor(pixels).float().view(-1, 1, 8, 8) / 16, torch.as_tensor(labels).long())
        rows = _order(part.n_rows, seed).tensor_split([part.n_rows // 2, 7 * part.n_rows // 10])
        return (_rows(part, r) for r in rows)
    is_large = name in LEFT_OUT
    data = _images(name, seed if is_large else 0)
    train, validation, test = data.train, data.validation, data.test
    if name == "pathmnist_subset":
        test = _rows(test, _order(test.n_rows, seed))
    if is_large:
        return (_rows(p, slice(n)) for p, n in zip((train, validation, test), SIZES, strict=True))
    both = Split(torch.cat([train.x, validation.x]), torch.cat([train.y, validation.y]))
    held, rest = _order(both.n_rows, seed).tensor_split([both.n_rows // 5])
    return _rows(both, rest), _rows(both, held), test


def load(name: str, seed: int, *, all_classes: bool = False) -> Problem:
    """Load a data set, leave classes out, scale it, and add inputs from elsewhere."""
    problem = Problem(*read(name, seed), {})
    if name in ELSEWHERE:
        other = _images(ELSEWHERE[name], 0).test.x[:N_OUTSIDE]
        problem.outside["another data set"] = (other + 1) / 2 if name == "digits" else other
    if name in LEFT_OUT and not all_classes:
        problem = leave_out(problem, [(2 * seed + i) % problem.n_classes for i in range(2)])
    problem = scaled(problem)
    x = problem.test.x  # every feature keeps its law, and they no longer belong together
    order = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).argsort(0)
    problem.outside["shuffled columns"] = x.gather(0, order)
    return problem


def leave_out(problem: Problem, classes: list[int]) -> Problem:
    """Take classes out of all parts; their test rows are inputs from elsewhere."""
    number = torch.full((problem.n_classes,), -1)
    kept = [c for c in range(problem.n_classes) if c not in classes]
    number[kept] = torch.arange(len(kept))
    unknown = {"left-out classes": problem.test.x[number[problem.test.y] < 0]}
    known = (_rows(replace(part, y=number[part.y]), number[part.y] >= 0) for part in problem[:3])
    return Problem(*known, unknown | problem.outside)


def scaled(problem: Problem) -> Problem:
    """Average images to few pixels, centre on the training rows, divide by their root mean variance."""

    def shrink(x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(x, min(side, SIDE)) if x.ndim == 4 else x

    side = problem.train.x.shape[-1]
    x = shrink(problem.train.x)
    centre, unit = x.mean(0), x.var(0).mean().sqrt()
    outside = {name: (shrink(values) - centre) / unit for name, values in problem.outside.items()}
    parts = (replace(part, x=(shrink(part.x) - centre) / unit) for part in problem[:3])
    return Problem(*parts, outside)


def corruptions(x: Tensor, seed: int) -> dict[str, Tensor]:
    """Corrupt inputs: noise of two deviations; a blur of images, or half of the features missing."""
    generator = torch.Generator().manual_seed(seed)
    noisy = {f"noise {s:g}": x + s * torch.randn(x.shape, generator=generator) for s in (0.5, 1.0)}
    if x.ndim == 2:
        return noisy | {"half missing": x * (torch.rand(x.shape, generator=generator) < 0.5)}  # the mean is 0
    return noisy | {"blur": nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)}


#: From a network, a loss and the number of classes to an objective.
Make = Callable[..., nn.Module]


def _noise_and_smoothing(model: nn.Module, loss: nn.Module, *, epsilon: float, **settings: Any) -> nn.Module:
    return InputNoise(model, nn.CrossEntropyLoss(label_smoothing=epsilon), **settings)


class _NoisyMixup(NFM):
    """Mixup with noise of one level in all batches, as in the other methods."""

    def _draw_level(self, generator: torch.Generator | None) -> float:
        return 1.0


def _each(make: Make, name: str, values: Sequence[float], **more: Any) -> dict[str, Make]:
    return {f"{value:g}": partial(make, **{name: value}, **more) for value in values}


SIGMAS, EPSILONS, ALPHAS = (0.1, 0.3, 1.0), (0.03, 0.1, 0.3), (0.1, 0.3, 1.0)
#: Methods, each with three strengths, the strongest last; validation rows choose.
CANDIDATES: dict[str, dict[str, Make]] = {
    "ERM": {"": ERM},
    "noise": _each(InputNoise, "sigma", SIGMAS),
    "smoothing": _each(LabelSmoothing, "smoothing", EPSILONS),
    "noise + smoothing": {
        f"{s:g}, {e:g}": partial(_noise_and_smoothing, sigma=s, epsilon=e)
        for s, e in zip(SIGMAS, EPSILONS, strict=True)
    },
    "mixup": _each(Mixup, "alpha", ALPHAS),
    "elliptic": _each(Elliptic, "sigma", SIGMAS),
    "elliptic, label noise": _each(Elliptic.paper, "sigma", SIGMAS),
}
#: Methods under shuffled labels.
UNDER_SHUFFLING: dict[str, dict[str, Make]] = {
    **{name: CANDIDATES[name] for name in ("ERM", "noise", "smoothing", "mixup")},
    "mixup + noise": _each(_NoisyMixup, "additive", SIGMAS, layers=(None,), alpha=1.0, multiplicative=0.0),
    "elliptic": CANDIDATES["elliptic"],
    "green": {f"{s:g}": partial(Elliptic, sigma=Green(s)) for s in (0.3, 1.0, 3.0)},
}


def train(
    problem: Problem, make: Make, seed: int, *, look: bool = False
) -> tuple[nn.Module, list[Record], nn.Module]:
    """Train one network; also the looks at it, and the network at the best of them, if there were any.

    The seed decides first weights, batches and all draws: methods of a seed share the former two. Looks
    report the accuracy on test rows; nothing is chosen by it.
    """
    torch.manual_seed(seed)
    x, y, n_classes = problem.train.x, problem.train.y, problem.n_classes
    model = mlp(x[0].numel(), n_classes, hidden=(128, 128), flatten=True)
    stopped, looks = copy.deepcopy(model), list[Record]()
    objective = make(model, nn.CrossEntropyLoss(), num_classes=n_classes).train()

    def losses() -> Iterator[Tensor]:
        order, draws = stream(seed, "order"), stream(seed, "draws")
        rows = torch.empty(0, dtype=torch.long)
        for step in range(1, N_STEPS + 1):
            while len(rows) < BATCH:
                rows = torch.cat([rows, torch.randperm(len(y), generator=order)])
            batch, rows = rows[:BATCH], rows[BATCH:]
            yield objective(x[batch], y[batch], generator=draws)
            if look and (step % LOOK == 0 or step == N_STEPS):
                right = accuracy(model, problem.test.x, problem.test.y)
                loss = _loss(model, problem.validation)
                looks.append({"step": step, "validation_nll": loss, "accuracy": right})
                if best_look(looks) is looks[-1]:
                    stopped.load_state_dict(model.state_dict())

    return descend(model, losses(), LEARNING_RATE, N_STEPS, fused=True), looks, stopped


def best_look(looks: list[Record]) -> Record:
    """Choose by the validation loss; the first of equals."""
    return min(looks, key=lambda look: look["validation_nll"])


@torch.no_grad()
def _loss(model: nn.Module, part: Split) -> float:
    return float(nn.functional.cross_entropy(model(part.x).double(), part.y))


@torch.no_grad()
def ask(models: list[nn.Module], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of the averaged probabilities, and what tells outsiders: largest probability, mean energy."""
    outputs = torch.stack([model(x).double() for model in models])
    logits = pool(outputs, "classes")
    return logits, {"softmax": logits.softmax(1).amax(1), "energy": outputs.logsumexp(2).mean(0)}


def risk_coverage_area(confidence: Tensor, wrong: Tensor) -> float:
    """Area under the risk-coverage curve: the error among the ``k`` surest rows, averaged over all ``k``.

    Rows of equal confidence are taken in a random order, and the area is its expectation.
    """
    _, place, sizes = (-confidence).unique(return_inverse=True, return_counts=True)
    errors = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, place, wrong.double())
    risks = (errors / sizes).repeat_interleave(sizes)  # of each row in turn, in expectation
    return float((risks.cumsum(0) / torch.arange(1, len(risks) + 1)).mean())


def scores(logits: Tensor, y: Tensor, temperature: float) -> dict[str, float]:
    """Score logits, as they are and, by names that end in ``_t``, divided by the temperature."""
    values: dict[str, float] = {"accuracy": float((logits.argmax(1) == y).double().mean())}
    for suffix, scaled_logits in (("", logits), ("_t", logits / temperature)):
        p = scaled_logits.softmax(1)
        values[f"nll{suffix}"] = float(nn.functional.cross_entropy(scaled_logits, y))
        values[f"ece{suffix}"] = calibration_error(p, y)
    return values


def detection(inside: dict[str, Tensor], outside: dict[str, Tensor]) -> dict[str, float]:
    """Area under the ROC curve for telling inputs from elsewhere, which should score lower."""
    pairs = {name: torch.cat([inside[name], outside[name]]) for name in inside}
    return {n: float(roc_auc_score(torch.arange(len(v)) < len(inside[n]), v)) for n, v in pairs.items()}


def measure(models: list[nn.Module], problem: Problem, seed: int) -> Record:
    """Measure one network or an ensemble; only its temperature is fitted, to the validation rows."""
    validation, _ = ask(models, problem.validation.x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # all validation rows right: the temperature is 1
        temperature = fit_temperature(validation.numpy(), problem.validation.y.numpy())
    (logits, sure), (x, y) = ask(models, problem.test.x), (problem.test.x, problem.test.y)
    wrong = logits.argmax(1) != y
    test = scores(logits, y, temperature) | {"aurc": risk_coverage_area(sure["softmax"], wrong)}
    if problem.test.group is not None:
        test["worst_group"] = min(reduce_by((~wrong).double(), problem.test.group).values())
    noisy = {name: ask(models, values)[0] for name, values in corruptions(x, seed).items()}
    return {
        "temperature": temperature,
        "validation_nll": float(nn.functional.cross_entropy(validation, problem.validation.y)),
        "test": test,
        "corrupted": {name: scores(values, y, temperature) for name, values in noisy.items()},
        "outside": {name: detection(sure, ask(models, z)[1]) for name, z in problem.outside.items()},
        "far": {str(t): float(ask(models, t * x)[1]["softmax"].mean()) for t in FACTORS},
    }


def uncertainty(name: str, seed: int) -> Iterator[Record]:
    """Train and measure all methods."""
    problem = load(name, seed)
    sizes = {part: getattr(problem, part).n_rows for part in ("train", "validation", "test")}
    about = {"rows": sizes, "n_classes": problem.n_classes, "chosen": True}

    def record(method: str, strength: str, *models: nn.Module) -> Record:
        return {**about, "method": method, "strength": strength, **measure(list(models), problem, seed)}

    for method, candidates in CANDIDATES.items():
        networks, records = list[nn.Module](), list[Record]()
        for strength, make in candidates.items():
            model, looks, stopped = train(problem, make, seed, look=method == "ERM")
            networks.append(model)
            records.append(record(method, strength, model))
            if looks:
                yield record("ERM, stopped early", str(best_look(looks)["step"]), stopped)
        chosen = min(range(len(records)), key=lambda i: records[i]["validation_nll"])
        yield from ({**values, "chosen": i == chosen} for i, values in enumerate(records))
        if method in ("ERM", "elliptic"):
            strength, make = list(candidates.items())[chosen]
            more = [train(problem, make, other)[0] for other in network_seeds(seed, N_NETWORKS)[1:]]
            yield record(f"{method}, ensemble", strength, networks[chosen], *more)


def half_shuffled(name: str, seed: int) -> Iterator[Record]:
    """Train on half-shuffled labels; validation labels are half-shuffled, too, and test labels right."""
    right, generator = load(name, seed, all_classes=True), torch.Generator().manual_seed(seed)
    parts = (right.train, right.validation)
    noisy = (replace(part, y=shuffle_labels(part.y, generator=generator)) for part in parts)
    problem = Problem(*noisy, right.test, {})
    for method, candidates in UNDER_SHUFFLING.items():
        for strength, make in candidates.items():
            _, looks, _ = train(problem, make, seed, look=True)
            ends = {"last": looks[-1], "stopped": best_look(looks)}
            yield {"method": method, "strength": strength, **ends}


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Record what is not recorded yet; the slowest data set, whose parts are always the same, has fewer."""
    warnings.simplefilter("ignore", EllipticWarning)  # strong label noise is what is studied
    cells = [("right", name, seed) for seed in SEEDS for name in DATA if name != "waterbirds" or seed < 3]
    cells += [("shuffled", name, seed) for seed in SEEDS for name in SHUFFLED]
    for labels, name, seed in STUDY.missing(records, cells):
        about = {"labels": labels, "data": name, "seed": seed}
        made = (uncertainty if labels == "right" else half_shuffled)(name, seed)
        yield [{**about, **rounded(record, 4)} for record in made]


ELLIPTIC = ("elliptic", "elliptic, label noise")
#: Single networks of which elliptic training would have to be better than each.
CONTROLS = ("ERM", "ERM, stopped early", "noise", "smoothing", "noise + smoothing", "mixup")
#: In the order of the page, controls first.
METHODS = (*CONTROLS[:2], "ERM, ensemble", *CONTROLS[2:], *ELLIPTIC, "elliptic, ensemble")
#: Measures that are compared, and their titles; all but the last are better when small.
COMPARED = {f"test.{m}": m.upper().replace("_", ", ") for m in ("nll", "nll_t", "ece", "ece_t", "aurc")}
COMPARED |= {"corrupted.nll": "NLL, corrupted", "outside.softmax": "AUROC, outside"}


def unit(measure: str) -> tuple[int, int]:
    """Factor and decimals: likelihoods as they are, others in per cent."""
    return (1, 3) if "nll" in measure else (100, 2 if "aurc" in measure else 1)


class Runs(Values):
    """The chosen records with right labels, by data set and method."""

    def __init__(self, records: Iterable[Record]) -> None:
        super().__init__([r for r in records if r["labels"] == "right" and r["chosen"]], "data", "method")
        for frame, part in itertools.product(self.rows.values(), ("corrupted", "outside")):
            for name in ("accuracy", "nll", "nll_t", "ece", "ece_t", "softmax", "energy"):  # mean over kinds
                frame[f"{part}.{name}"] = frame.filter(regex=rf"^{part}\..*\.{name}$").mean(axis=1)

    def grid(self, *measures: str, form: str, data: Sequence[str] = DATA) -> list[str]:
        """Tabulate means of measures, in per cent but for likelihoods, by method and data set."""

        def cell(name: str, method: str) -> str:
            return form.format(*(unit(m)[0] * statistics.mean(self(name, method, of=m)) for m in measures))

        return table(["method", *data], ([method, *(cell(d, method) for d in data)] for method in METHODS))


def strengths(chosen: Sequence[str]) -> str:
    """Show how often each strength was chosen."""
    counts = sorted(Counter(chosen).items())
    return "; ".join(f"{name} ({n})" if len(counts) > 1 else name for name, n in counts)


def main_table(runs: Runs, data: str) -> list[str]:
    """All methods on the test rows of a data set."""
    titles = {"test.accuracy": "accuracy", "test.worst_group": "worst group", **COMPARED}
    shown = [m for m in titles if "test" in m and not pd.isna(runs(data, "ERM", of=m)[0])]
    rows = []
    for method in METHODS:
        chosen = runs(data, method, of="strength")
        steps = f"step {min(map(int, chosen))} to {max(map(int, chosen))}" if "stopped" in method else ""
        units = ((m, *unit(m)) for m in shown)
        cells = (spread(runs(data, method, of=m), f".{n}f", scale=scale) for m, scale, n in units)
        temperature = f"{statistics.geometric_mean(runs(data, method, of='temperature')):.2f}"
        rows.append([method, steps or strengths(chosen), *cells, temperature])
    sizes = " / ".join(f"{runs(data, 'ERM', of=f'rows.{part}')[0]:.0f}" for part in Problem._fields[:3])
    about = f"{runs(data, 'ERM', of='n_classes')[0]:.0f} classes, {sizes} rows (seed 0)"
    lines = table(["method", "strength", *(titles[m] for m in shown), "T"], rows)
    return [f"**{data}**: {about}, {len(chosen)} seeds", "", *lines, ""]


def differences(runs: Runs) -> dict[tuple[str, ...], tuple[float, float, float]]:
    """Elliptic training less a control on the same seeds: mean, p of a paired t test, p after Holm's method.

    By method, measure, control and data set; all comparisons of the page are corrected together.
    """
    keys, gaps = list(itertools.product(ELLIPTIC, COMPARED, CONTROLS, DATA)), []
    for method, measure, control, data in keys:
        gaps.append(runs.gaps((data, method), (data, control), measure))
    p = [paired_p(gap) for gap in gaps]
    adjusted = holm(torch.tensor(p, dtype=torch.float64)).tolist()
    return dict(zip(keys, zip(map(statistics.mean, gaps), p, adjusted, strict=True), strict=True))


def paired_table(runs: Runs) -> list[str]:
    """Elliptic training less each control, for each measure."""
    found, rows = differences(runs), []
    for method, measure, control in itertools.product(ELLIPTIC, COMPARED, CONTROLS):
        row, (scale, n) = [found[method, measure, control, data] for data in DATA], unit(measure)
        cells = (f"{scale * mean:+.{n}f} (p = {p:.2g}){'*' * (q < 0.05)}" for mean, p, q in row)
        better = sum(mean > 0 if "outside" in measure else mean < 0 for mean, _, _ in row)
        rows.append([method, COMPARED[measure], control, *cells, f"{better} of {len(row)}"])
    return table(["method", "measure", "control", *DATA, "better in"], rows, "lll")


def shuffled_table(records: list[Record]) -> list[str]:
    """Accuracy at the end and with early stopping, at the strength of the least loss on noisy validation."""
    frame = pd.json_normalize([r for r in records if r["labels"] == "shuffled"])
    cells, head, rows = frame.groupby(["data", "method", "seed"]), ["method"], []
    best = {end: frame.loc[cells[f"{end}.validation_nll"].idxmin()] for end in ("last", "stopped")}
    for data in SHUFFLED:
        head += [f"{data}, last", "strength", f"{data}, stopped early", "strength", "step"]
    for method in UNDER_SHUFFLING:
        row = [method]
        for data in SHUFFLED:
            for end, chosen in best.items():
                part = chosen[(chosen["data"] == data) & (chosen["method"] == method)]
                row.append(spread(part[f"{end}.accuracy"].tolist(), ".1f", scale=100))
                row.append(strengths(part["strength"].tolist()))
            row.append(f"{statistics.mean(part['stopped.step'].tolist()):.0f}")
        rows.append(row)
    return table(head, rows)


def blocks(records: list[Record]) -> dict[str, str]:
    """All blocks of the page."""
    runs = Runs(records)
    outside = []
    for kind in ("left-out classes", "another data set", "shuffled columns"):
        data = LEFT_OUT if kind.startswith("left") else [d for d in DATA if d in ELSEWHERE or "shuf" in kind]
        names = (f"outside.{kind}.{score}" for score in ("softmax", "energy"))
        outside += [f"*{kind.capitalize()}*", "", *runs.grid(*names, form="{:.1f} / {:.1f}", data=data), ""]
    corrupted = [f"corrupted.{name}" for name in ("accuracy", "nll", "nll_t", "ece", "ece_t")]
    lines = {
        "test": [line for data in DATA for line in main_table(runs, data)],
        "corrupted": runs.grid(*corrupted, form="{:.1f} / {:.2f} ({:.2f}) / {:.1f} ({:.1f})"),
        "outside": outside,
        "far": runs.grid(*(f"far.{t}" for t in FACTORS), form=" / ".join(["{:.1f}"] * len(FACTORS))),
        "shuffled": shuffled_table(records),
        "paired": paired_table(runs),
    }
    return {mark: "\n".join(text).strip() for mark, text in lines.items()}


STUDY = Study("uncertainty", blocks, ("labels", "data", "seed"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
