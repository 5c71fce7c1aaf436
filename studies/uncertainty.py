"""Study: how uncertain are classifiers after elliptic training, mixup, noise, label smoothing, in ensembles?

Trains one small network in every way, on six data sets, and measures likelihood, calibration before and after
temperature scaling, corrupted rows, inputs from elsewhere, selective prediction and confidence far from
the data; then accuracy after half of the labels were shuffled. Needs ELLIPTICA_DATA and Fashion-MNIST
(Debian's package dataset-fashion-mnist). About half an hour on one core::

    python studies/uncertainty.py run        # what is not recorded yet, then the page
    python studies/uncertainty.py table      # the page from the records
"""

from __future__ import annotations

import copy
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from common import Record, Study, accuracy, descend, paired_p, rounded, spread, table
from elliptica import Elliptic, EllipticWarning, Green
from elliptica._utils.random import stream
from elliptica._utils.statistics import fit_temperature, holm
from elliptica.baselines import ERM, NFM, InputNoise, LabelSmoothing, Mixup
from elliptica.estimators.base import network_seeds, pool
from elliptica.lab.data import load_fashion_mnist, load_medmnist, load_waterbirds_features, shuffle_labels
from elliptica.lab.models import mlp
from elliptica.report.scores import calibration_error, reduce_by

SEEDS = (0, 1, 2, 3, 4)
#: The slowest data set, whose parts are always the same, has fewer.
FEWER_SEEDS = {"waterbirds": SEEDS[:3]}
N_STEPS, BATCH, LEARNING_RATE = 1000, 64, 1e-3
#: Networks of an ensemble; steps between two looks at the validation rows, for early stopping.
N_NETWORKS, LOOK = 5, 25
#: How far test rows are moved away from the mean of the training rows.
FACTORS = (1, 3, 10, 100)
#: Side of the images, other than digits, after averaging pixels; most rows of inputs from elsewhere.
SIDE, N_OUTSIDE = 14, 1000
#: Most rows of the parts of large data sets, of which two classes of ten or so are left out.
N_TRAIN, N_VALIDATION, N_TEST = 2500, 1250, 2500


class Part(NamedTuple):
    """Inputs ``(rows, features)`` and classes; the group of each row where there is one."""

    x: Tensor
    y: Tensor
    group: Tensor | None = None

    def at(self, rows: Tensor) -> Part:
        """Take some of the rows."""
        return Part(self.x[rows], self.y[rows], None if self.group is None else self.group[rows])


@dataclass(frozen=True)
class Problem:
    """Three parts, inputs that belong to no class, and channels, height and width of images."""

    train: Part
    validation: Part
    test: Part
    outside: dict[str, Tensor] = field(default_factory=dict)
    shape: tuple[int, int, int] | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.train.y.max()) + 1


def digits(seed: int) -> Problem:
    """Half, a fifth and three tenths of scikit-learn's digits; BreastMNIST in 8 x 8 pixels from elsewhere."""
    pixels, labels = load_digits(return_X_y=True)
    images, y = torch.as_tensor(pixels).float() / 16, torch.as_tensor(labels).long()
    rows = _order(len(y), seed).tensor_split([len(y) // 2, 7 * len(y) // 10])
    outside = {"another data set": (_images("breastmnist", 8) + 1) / 2}
    return Problem(*(Part(images[r], y[r]) for r in rows), outside, (1, 8, 8))


def fashion(seed: int) -> Problem:
    """Rows of Fashion-MNIST; BreastMNIST from elsewhere."""
    data = load_fashion_mnist(seed, validation_share=0.1)
    sizes = ((data.train, N_TRAIN), (data.validation, N_VALIDATION), (data.test, N_TEST))
    parts = (Part(_flat(split.x[:n]), split.y[:n]) for split, n in sizes)
    return Problem(*parts, {"another data set": _images("breastmnist")}, (1, SIDE, SIDE))


def path(seed: int) -> Problem:
    """Rows of PathMNIST, test rows from another clinical centre; RetinaMNIST from elsewhere."""
    data = load_medmnist("pathmnist_subset", seed)
    order = _order(len(data.test.y), seed)[:N_TEST]
    train = Part(_flat(data.train.x[:N_TRAIN]), data.train.y[:N_TRAIN])
    validation = Part(_flat(data.validation.x), data.validation.y)
    test = Part(_flat(data.test.x[order]), data.test.y[order])
    return Problem(train, validation, test, {"another data set": _images("retinamnist")}, (3, SIDE, SIDE))


def medical(name: str, seed: int) -> Problem:
    """A MedMNIST, a fifth of training and validation held out; Fashion-MNIST or PathMNIST from elsewhere."""
    data = load_medmnist(name, 0)
    x, y = torch.cat([data.train.x, data.validation.x]), torch.cat([data.train.y, data.validation.y])
    held_out, rest = _order(len(y), seed).tensor_split([len(y) // 5])
    parts = [Part(_flat(x[rows]), y[rows]) for rows in (rest, held_out)]
    is_grey = name == "breastmnist"
    other = _flat(load_fashion_mnist(seed).test.x[:N_OUTSIDE]) if is_grey else _images("pathmnist_subset")
    test = Part(_flat(data.test.x), data.test.y)
    return Problem(*parts, test, {"another data set": other}, (x.shape[1], SIDE, SIDE))


def waterbirds(seed: int) -> Problem:
    """Waterbirds as frozen features, in their official parts; only training depends on the seed."""
    data = load_waterbirds_features(seed)
    return Problem(*(Part(part.x, part.y, part.group) for part in (data.train, data.validation, data.test)))


#: Data sets: how to load them, and how many classes are left out of training in each seed.
PROBLEMS: dict[str, tuple[Callable[[int], Problem], int]] = {
    "digits": (digits, 2),
    "breastmnist": (lambda seed: medical("breastmnist", seed), 0),
    "waterbirds": (waterbirds, 0),
    "retinamnist": (lambda seed: medical("retinamnist", seed), 0),
    "fashion_mnist": (fashion, 2),
    "pathmnist_subset": (path, 2),
}
#: Data sets with half of the labels shuffled; all classes are kept there.
SHUFFLED_DATA = ("digits", "fashion_mnist")


def load(name: str, seed: int, *, all_classes: bool = False) -> Problem:
    """Load a data set, leave classes out, scale it, and add shuffled columns as inputs from elsewhere."""
    make, n_left_out = PROBLEMS[name]
    problem = make(seed)
    if n_left_out and not all_classes:
        n = problem.n_classes
        problem = leave_out(problem, [(n_left_out * seed + i) % n for i in range(n_left_out)])
    problem = scaled(problem)
    outside = problem.outside | {"shuffled columns": shuffled_columns(problem.test.x, seed)}
    return replace(problem, outside=outside)


def leave_out(problem: Problem, classes: list[int]) -> Problem:
    """Take classes out of all parts; their test rows are inputs from elsewhere."""
    number = torch.full((problem.n_classes,), -1)
    kept = [c for c in range(problem.n_classes) if c not in classes]
    number[kept] = torch.arange(len(kept))
    parts = (problem.train, problem.validation, problem.test)
    unknown = {"left-out classes": problem.test.x[number[problem.test.y] < 0]}
    known = (part._replace(y=number[part.y]).at(number[part.y] >= 0) for part in parts)
    return Problem(*known, unknown | problem.outside, problem.shape)


def scaled(problem: Problem) -> Problem:
    """Centre each input on the training rows and divide all by one number, their root mean variance."""
    centre, unit = problem.train.x.mean(0), problem.train.x.var(0).mean().sqrt()
    parts = (problem.train, problem.validation, problem.test)
    outside = {name: (values - centre) / unit for name, values in problem.outside.items()}
    return Problem(*(part._replace(x=(part.x - centre) / unit) for part in parts), outside, problem.shape)


def corruptions(problem: Problem, seed: int) -> dict[str, Tensor]:
    """Corrupt the test inputs: noise of two deviations; a blur of images, or half of the features missing."""
    generator, x = torch.Generator().manual_seed(seed), problem.test.x
    found = {f"noise {s:g}": x + s * torch.randn(x.shape, generator=generator) for s in (0.5, 1.0)}
    if problem.shape is None:
        return {
            **found,
            "half missing": x * (torch.rand(x.shape, generator=generator) < 0.5),
        }  # the mean is 0
    images = x.unflatten(1, problem.shape)
    return {**found, "blur": nn.functional.avg_pool2d(images, 3, 1, 1, count_include_pad=False).flatten(1)}


def shuffled_columns(x: Tensor, seed: int) -> Tensor:
    """Shuffle each column by itself: every feature keeps its law, and they no longer belong together."""
    return x.gather(0, torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)).argsort(0))


def half_shuffled(problem: Problem, seed: int) -> Problem:
    """Shuffle the labels of half of the training and of the validation rows."""
    generator = torch.Generator().manual_seed(seed)
    parts = (problem.train, problem.validation)
    train, validation = (p._replace(y=shuffle_labels(p.y, generator=generator).y) for p in parts)
    return replace(problem, train=train, validation=validation)


def _images(name: str, side: int = SIDE) -> Tensor:
    return _flat(load_medmnist(name).test.x[:N_OUTSIDE], side)


def _flat(images: Tensor, side: int = SIDE) -> Tensor:
    return nn.functional.adaptive_avg_pool2d(images, side).flatten(1)


def _order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


#: From a network and the number of classes to an objective.
Make = Callable[[nn.Module, int], nn.Module]


def _with(kind: Callable[..., nn.Module], *, epsilon: float = 0.0, **settings: Any) -> Make:
    loss = nn.CrossEntropyLoss(label_smoothing=epsilon)
    return lambda model, n_classes: kind(model, loss, num_classes=n_classes, **settings)


class _NoisyMixup(NFM):
    """Mixup with noise of one level in all batches, as in the other methods."""

    def _draw_level(self, generator: torch.Generator | None) -> float:
        return 1.0


SIGMAS, EPSILONS, ALPHAS = (0.1, 0.3, 1.0), (0.03, 0.1, 0.3), (0.1, 0.3, 1.0)
_MIXED: dict[str, Any] = {"layers": (None,), "alpha": 1.0, "multiplicative": 0.0}
#: Methods, each with three strengths, the strongest last; validation rows choose.
CANDIDATES: dict[str, dict[str, Make]] = {
    "ERM": {"": _with(ERM)},
    "noise": {f"{s:g}": _with(InputNoise, sigma=s) for s in SIGMAS},
    "smoothing": {f"{e:g}": _with(LabelSmoothing, smoothing=e) for e in EPSILONS},
    "noise + smoothing": {
        f"{s:g}, {e:g}": _with(InputNoise, sigma=s, epsilon=e) for s, e in zip(SIGMAS, EPSILONS, strict=True)
    },
    "mixup": {f"{a:g}": _with(Mixup, alpha=a) for a in ALPHAS},
    "elliptic": {f"{s:g}": _with(Elliptic, sigma=s) for s in SIGMAS},
    "elliptic, label noise": {f"{s:g}": _with(Elliptic.paper, sigma=s) for s in SIGMAS},
}
#: Methods under shuffled labels.
UNDER_SHUFFLING: dict[str, dict[str, Make]] = {
    **{name: CANDIDATES[name] for name in ("ERM", "noise", "smoothing", "mixup")},
    "mixup + noise": {f"{s:g}": _with(_NoisyMixup, additive=s, **_MIXED) for s in SIGMAS},
    "elliptic": CANDIDATES["elliptic"],
    "green": {f"{s:g}": _with(Elliptic, sigma=Green(s)) for s in (0.3, 1.0, 3.0)},
}


class Look(NamedTuple):
    """What a network is after some steps; accuracy on test rows is reported, never chosen by."""

    step: int
    validation_nll: float
    accuracy: float


def train(
    problem: Problem, make: Make, seed: int, *, look: bool = False
) -> tuple[nn.Module, list[Look], nn.Module]:
    """Train one network; also the looks at it, and the network at the best of them, if there were any.

    The seed decides first weights, batches and all draws: methods of a seed share the former two.
    """
    torch.manual_seed(seed)
    model = mlp(problem.train.x.shape[1], problem.n_classes, hidden=(128, 128))
    stopped, looks = copy.deepcopy(model), list[Look]()
    objective, (x, y, _) = make(model, problem.n_classes).train(), problem.train

    def losses() -> Iterator[Tensor]:
        order, draws = stream(seed, "order"), stream(seed, "draws")
        rows = torch.empty(0, dtype=torch.long)
        for step in range(1, N_STEPS + 1):
            while len(rows) < BATCH:
                rows = torch.cat([rows, torch.randperm(len(y), generator=order)])
            batch, rows = rows[:BATCH], rows[BATCH:]
            yield objective(x[batch], y[batch], generator=draws)
            if look and (step % LOOK == 0 or step == N_STEPS):
                looks.append(Look(step, _loss(model, problem.validation), accuracy(model, *problem.test[:2])))
                if best_look(looks) is looks[-1]:
                    stopped.load_state_dict(model.state_dict())

    return descend(model, losses(), LEARNING_RATE, N_STEPS, fused=True), looks, stopped


def best_look(looks: list[Look]) -> Look:
    """Choose by the validation loss; the first of equals."""
    return min(looks, key=lambda look: look.validation_nll)


@torch.no_grad()
def _loss(model: nn.Module, part: Part) -> float:
    return float(nn.functional.cross_entropy(model(part.x).double(), part.y))


class Answers(NamedTuple):
    """What networks answer to some inputs: pooled logits, and the energy that detects outsiders."""

    logits: Tensor
    energy: Tensor

    @property
    def confidence(self) -> Tensor:
        """The largest probability."""
        return self.logits.softmax(1).amax(1)


@torch.no_grad()
def ask(models: list[nn.Module], x: Tensor) -> Answers:
    """Average probabilities over networks; the energy is the mean of ``logsumexp`` of their logits."""
    outputs = torch.stack([model(x).double() for model in models])
    return Answers(pool(outputs, "classes"), outputs.logsumexp(2).mean(0))


def brier_score(p: Tensor, y: Tensor) -> float:
    """Mean squared distance of the probabilities from the true class, between 0 and 2."""
    chosen = p.gather(1, y[:, None])[:, 0]
    return float((p.square().sum(1) - 2 * chosen + 1).mean())


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
    found: dict[str, float] = {"accuracy": float((logits.argmax(1) == y).double().mean())}
    for suffix, scaled_logits in (("", logits), ("_t", logits / temperature)):
        p = scaled_logits.softmax(1)
        found[f"nll{suffix}"] = float(nn.functional.cross_entropy(scaled_logits, y))
        found[f"ece{suffix}"] = calibration_error(p, y)
        found[f"brier{suffix}"] = brier_score(p, y)
        found[f"confidence{suffix}"] = float(p.amax(1).mean())
    return found


def detection(inside: Answers, outside: Answers) -> dict[str, float]:
    """Area under the ROC curve for telling inputs from elsewhere, which should score lower."""
    truth = torch.cat([torch.ones(len(inside.energy)), torch.zeros(len(outside.energy))])
    pairs = {"softmax": (inside.confidence, outside.confidence), "energy": (inside.energy, outside.energy)}
    return {name: float(roc_auc_score(truth, torch.cat(pair))) for name, pair in pairs.items()}


def measure(models: list[nn.Module], problem: Problem, seed: int) -> Record:
    """Measure one network or an ensemble; only its temperature is fitted, to the validation rows."""
    validation = ask(models, problem.validation.x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # all validation rows right: the temperature is 1
        temperature = fit_temperature(validation.logits.numpy(), problem.validation.y.numpy())
    test, y = ask(models, problem.test.x), problem.test.y
    wrong = test.logits.argmax(1) != y
    corrupted = {
        name: scores(ask(models, x).logits, y, temperature) for name, x in corruptions(problem, seed).items()
    }
    kept = ("accuracy", "nll", "ece", "nll_t", "ece_t")
    found: Record = {
        "temperature": temperature,
        "validation_nll": float(nn.functional.cross_entropy(validation.logits, problem.validation.y)),
        "test": scores(test.logits, y, temperature) | {"aurc": risk_coverage_area(test.confidence, wrong)},
        "corrupted": {name: {key: each[key] for key in kept} for name, each in corrupted.items()},
        "outside": {name: detection(test, ask(models, x)) for name, x in problem.outside.items()},
        "far": {str(t): float(ask(models, t * problem.test.x).confidence.mean()) for t in FACTORS},
    }
    if problem.test.group is not None:
        found["test"]["worst_group"] = min(reduce_by((~wrong).double(), problem.test.group).values())
    return found


def uncertainty(name: str, seed: int) -> Iterator[Record]:
    """Train and measure all methods; strengths that were not chosen have no corrupted and far rows."""
    problem = load(name, seed)
    sizes = {part: len(getattr(problem, part).y) for part in ("train", "validation", "test")}
    about = {"data": name, "seed": seed, "rows": sizes, "n_classes": problem.n_classes, "chosen": True}

    def record(method: str, strength: str, *models: nn.Module) -> Record:
        return {**about, "method": method, "strength": strength, **measure(list(models), problem, seed)}

    for method, candidates in CANDIDATES.items():
        networks, found = list[nn.Module](), list[Record]()
        for strength, make in candidates.items():
            model, looks, stopped = train(problem, make, seed, look=method == "ERM")
            networks.append(model)
            found.append(record(method, strength, model))
            if looks:
                yield record("ERM, stopped early", str(best_look(looks).step), stopped)
        chosen = min(range(len(found)), key=lambda i: found[i]["validation_nll"])
        for i, each in enumerate(found):
            kept = {k: v for k, v in each.items() if i == chosen or k not in ("corrupted", "far")}
            yield kept | {"chosen": i == chosen}
        if method in ("ERM", "elliptic"):
            strength, make = list(candidates.items())[chosen]
            more = [train(problem, make, other)[0] for other in network_seeds(seed, N_NETWORKS)[1:]]
            yield record(f"{method}, ensemble", strength, networks[chosen], *more)


def shuffled(name: str, seed: int) -> Iterator[Record]:
    """Train on half-shuffled labels; validation labels are half-shuffled, too, and test labels right."""
    problem = half_shuffled(load(name, seed, all_classes=True), seed)
    rows = {"train": len(problem.train.y), "validation": len(problem.validation.y)}
    for method, candidates in UNDER_SHUFFLING.items():
        for strength, make in candidates.items():
            _, looks, _ = train(problem, make, seed, look=True)
            about = {"data": name, "seed": seed, "method": method, "strength": strength, "rows": rows}
            yield about | {"last": looks[-1]._asdict(), "stopped": best_look(looks)._asdict()}


def cells() -> Iterator[tuple[str, str, int]]:
    """What is to be recorded, seed by seed: whose labels, data set and seed."""
    for seed in SEEDS:
        yield from (("right", name, seed) for name in PROBLEMS if seed in FEWER_SEEDS.get(name, SEEDS))
        yield from (("shuffled", name, seed) for name in SHUFFLED_DATA)


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Record what is not recorded yet."""
    warnings.simplefilter("ignore", EllipticWarning)  # strong label noise is what is studied
    done = {(r["labels"], r["data"], r["seed"]) for r in records}
    for labels, name, seed in cells():
        if (labels, name, seed) not in done:
            made = (uncertainty if labels == "right" else shuffled)(name, seed)
            yield [{"labels": labels, **rounded(record, 4)} for record in made]


#: Data sets and methods in the order of the page, controls first.
DATA = ("digits", "breastmnist", "waterbirds", "retinamnist", "fashion_mnist", "pathmnist_subset")
ENSEMBLES = ("ERM, ensemble", "elliptic, ensemble")
ELLIPTIC = ("elliptic", "elliptic, label noise")
#: Single networks of which elliptic training would have to be better than each.
CONTROLS = ("ERM", "ERM, stopped early", "noise", "smoothing", "noise + smoothing", "mixup")
METHODS = (*CONTROLS[:2], ENSEMBLES[0], *CONTROLS[2:], *ELLIPTIC, ENSEMBLES[1])
#: Measures that are compared; all but the last are better when small.
COMPARED = {
    **{"test.nll": "NLL", "test.nll_t": "NLL, T", "test.ece": "ECE", "test.ece_t": "ECE, T"},
    **{"test.aurc": "AURC", "corrupted.nll": "NLL, corrupted", "outside.softmax": "AUROC, outside"},
}
LARGE = {"test.accuracy", "test.worst_group", "outside.softmax", "outside.energy"}
ALPHA = 0.05


class Runs:
    """Records with right labels, found by data set, method and seed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.chosen = {(r["data"], r["method"], r["seed"]): r for r in records if r["chosen"]}
        self.seeds = {d: sorted({r["seed"] for r in records if r["data"] == d}) for d in DATA}
        self.data = [name for name in DATA if self.seeds[name]]

    def of(self, data: str, method: str) -> list[Record]:
        """The record of each seed, at the strength that its validation rows chose."""
        return [self.chosen[data, method, seed] for seed in self.seeds[data]]

    def values(self, data: str, method: str, measure: str) -> list[float]:
        """One value for each seed."""
        return [read(record, measure) for record in self.of(data, method)]

    def mean(self, data: str, method: str, measure: str) -> float:
        """Mean over seeds."""
        return statistics.mean(self.values(data, method, measure))


def read(record: Record, measure: str) -> float:
    """Read a measure, as ``test.nll``; of corruptions and outsiders the mean over their kinds."""
    part, name = measure.split(".", 1)
    if part in ("corrupted", "outside"):
        return statistics.mean(each[name] for each in record[part].values())
    return float(record[part][name])


@dataclass
class Difference:
    """Elliptic training less a control on the same seeds; ``p`` of a paired t test from three seeds on."""

    method: str
    measure: str
    data: str
    control: str
    mean: float
    p: float | None
    adjusted: float = 1.0

    @property
    def is_better(self) -> bool:
        """Whether the mean is in favour of elliptic training."""
        return self.mean > 0 if self.measure in LARGE else self.mean < 0

    def __str__(self) -> str:
        scale, decimals = (1, 3) if "nll" in self.measure else (100, 2 if "aurc" in self.measure else 1)
        shown = f"{scale * self.mean:+.{decimals}f}"
        return shown if self.p is None else f"{shown} (p = {self.p:.2g}){'*' * (self.adjusted < ALPHA)}"


def differences(runs: Runs) -> list[Difference]:
    """All comparisons of the page, corrected together by Holm's method."""
    found = []
    for method in ELLIPTIC:
        for measure in COMPARED:
            for data in runs.data:
                for control in CONTROLS:
                    pair = (runs.values(data, name, measure) for name in (method, control))
                    gaps = [a - b for a, b in zip(*pair, strict=True)]
                    p = paired_p(gaps) if len(gaps) >= 3 else None
                    found.append(Difference(method, measure, data, control, statistics.mean(gaps), p))
    tested = [each for each in found if each.p is not None]
    corrected = holm(torch.tensor([each.p for each in tested], dtype=torch.float64)).tolist()
    for each, p in zip(tested, corrected, strict=True):
        each.adjusted = p
    return found


class Shuffling:
    """Records under shuffled labels."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.seeds = {d: sorted({r["seed"] for r in records if r["data"] == d}) for d in DATA}
        self.data = [name for name in DATA if self.seeds[name]]

    def chosen(self, data: str, method: str, when: str) -> list[Record]:
        """For each seed the strength of the least loss on noisy validation rows, ``last`` or ``stopped``."""
        found = [r for r in self.records if (r["data"], r["method"]) == (data, method)]
        by_seed = ([r for r in found if r["seed"] == seed] for seed in self.seeds[data])
        return [min(rows, key=lambda r: r[when]["validation_nll"]) for rows in by_seed]

    def accuracies(self, data: str, method: str, when: str) -> list[float]:
        """Accuracy on clean test rows, in per cent, for each seed."""
        return [100 * r[when]["accuracy"] for r in self.chosen(data, method, when)]

    def table(self) -> list[str]:
        """Accuracy at the end and with early stopping, with the strengths that were chosen."""
        heads = (("{}, last", "strength", "{}, stopped early", "strength", "step") for _ in self.data)
        head = [name.format(data) for data, names in zip(self.data, heads, strict=True) for name in names]
        rows = []
        for method in UNDER_SHUFFLING:
            row = [method]
            for data in self.data:
                for when in ("last", "stopped"):
                    counts = Counter(r["strength"] for r in self.chosen(data, method, when))
                    row.append(spread(self.accuracies(data, method, when), ".1f"))
                    row.append("; ".join(f"{s} ({n})" for s, n in sorted(counts.items()) if s))
                steps = [r["stopped"]["step"] for r in self.chosen(data, method, "stopped")]
                row.append(f"{statistics.mean(steps):.0f}")
            rows.append(row)
        return table(["method", *head], rows)


def percent(value: float) -> str:
    """Show a share."""
    return f"{100 * value:.1f}"


def grid(
    runs: Runs, show: Callable[[str, str], str], methods: Sequence[str] = METHODS, **more: Any
) -> list[str]:
    """Tabulate methods by data sets."""
    data = more.get("data", runs.data)
    rows = ([method, *(show(name, method) for name in data)] for method in methods)
    return table([more.get("head", "method"), *data], rows)


def strengths(runs: Runs, data: str, method: str) -> str:
    """Show how often each strength was chosen."""
    counts = Counter(r["strength"] for r in runs.of(data, method))
    if method == "ERM, stopped early":
        return f"step {min(map(int, counts))} to {max(map(int, counts))}"
    return "; ".join(f"{name} ({n})" if len(counts) > 1 else name for name, n in sorted(counts.items()))


def main_table(runs: Runs, data: str) -> list[str]:
    """All methods on the test rows of a data set."""
    first = runs.chosen[data, "ERM", 0]
    about = f"{first['n_classes']} classes, {' / '.join(str(n) for n in first['rows'].values())} rows"
    shares = ["accuracy", *(["worst_group"] if "worst_group" in first["test"] else [])]
    head = ["method", "strength", *(name.replace("_", " ") for name in shares)]
    head += ["NLL", "NLL, T", "ECE", "ECE, T", "Brier", "Brier, T", "T", "AURC"]
    rows = []
    for method in METHODS:

        def show(name: str, scale: int = 1, form: str = ".3f", method: str = method) -> str:
            return spread(runs.values(data, method, f"test.{name}"), form, scale=scale)

        row = [method, strengths(runs, data, method), *(show(name, 100, ".1f") for name in shares)]
        row += [show("nll"), show("nll_t"), show("ece", 100, ".1f"), show("ece_t", 100, ".1f")]
        row += [f"{runs.mean(data, method, f'test.{name}'):.3f}" for name in ("brier", "brier_t")]
        row.append(f"{statistics.geometric_mean(r['temperature'] for r in runs.of(data, method)):.2f}")
        rows.append([*row, show("aurc", 100, ".2f")])
    title = f"**{data}**: {about} (seed 0), {len(runs.seeds[data])} seeds"
    return [title, "", *table(head, rows), ""]


def corrupted_cell(runs: Runs, data: str, method: str) -> str:
    """Accuracy, NLL before and after the temperature, ECE before and after: means over the corruptions."""
    names = ("accuracy", "nll", "nll_t", "ece", "ece_t")
    right, nll, nll_t, ece, ece_t = (runs.mean(data, method, f"corrupted.{name}") for name in names)
    return f"{percent(right)} / {nll:.2f} ({nll_t:.2f}) / {percent(ece)} ({percent(ece_t)})"


def outside_table(runs: Runs, kind: str) -> list[str]:
    """AUROC of the largest probability and of the energy for a kind of outsiders."""

    def show(data: str, method: str) -> str:
        found = [record["outside"][kind] for record in runs.of(data, method)]
        return " / ".join(percent(statistics.mean(f[s] for f in found)) for s in ("softmax", "energy"))

    having = [data for data in runs.data if kind in runs.chosen[data, "ERM", 0]["outside"]]
    return [f"*{kind.capitalize()}*", "", *grid(runs, show, data=having), ""]


def paired_tables(runs: Runs, found: Sequence[Difference]) -> list[str]:
    """Elliptic training less each control, for each measure."""
    lines = []
    for method in ELLIPTIC:
        lines += [f"*{method.capitalize()}*, less each control", ""]
        for measure, title in COMPARED.items():
            rows = []
            for control in CONTROLS:
                wanted = (method, measure, control)
                row = [each for each in found if (each.method, each.measure, each.control) == wanted]
                rows.append([control, *map(str, row), f"{sum(e.is_better for e in row)} of {len(row)}"])
            lines += [*table([title, *runs.data, "better in"], rows), ""]
    return lines


def blocks(records: list[Record]) -> dict[str, str]:
    """All blocks of the page."""
    runs = Runs([r for r in records if r["labels"] == "right"])
    noisy = Shuffling([r for r in records if r["labels"] == "shuffled"])
    found = differences(runs)

    def far(data: str, method: str) -> str:
        return " / ".join(percent(runs.mean(data, method, f"far.{t}")) for t in FACTORS)

    kinds = ("left-out classes", "another data set", "shuffled columns")
    lines = {
        "test": [line for data in runs.data for line in main_table(runs, data)],
        "corrupted": grid(runs, lambda *cell: corrupted_cell(runs, *cell)),
        "outside": [line for kind in kinds for line in outside_table(runs, kind)],
        "far": grid(runs, far),
        "shuffled": noisy.table(),
        "paired": paired_tables(runs, found),
    }
    return {mark: "\n".join(text).strip() for mark, text in lines.items()}


STUDY = Study("uncertainty", blocks, ("labels", "data", "seed"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
