"""Study: how uncertain are classifiers after elliptic training, mixup, noise, label smoothing, in ensembles?

Trains one small network in every way, on six data sets, and measures likelihood, calibration before and after
temperature scaling, corrupted rows, inputs from elsewhere, selective prediction and confidence far from
the data; then accuracy after half of the labels were shuffled. Needs ELLIPTICA_DATA and Fashion-MNIST
(Debian's package dataset-fashion-mnist). About half an hour on one core::

    python studies/uncertainty.py run        # what is not recorded yet, then the page
    python studies/uncertainty.py table      # the page from the records
"""

from __future__ import annotations

import argparse
import copy
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from elliptica import Elliptic, Green
from elliptica._utils.random import stream
from elliptica.baselines import ERM, NFM, InputNoise, LabelSmoothing, Mixup
from elliptica.core.inputs import EllipticWarning
from elliptica.estimators.base import network_seeds, pool
from elliptica.estimators.classifier import fit_temperature
from elliptica.lab.experiments.records import append_lines, read_lines
from elliptica.lab.models import mlp
from elliptica.report.scores import calibration_error, reduce_by
from uncertainty_data import PROBLEMS, Part, Problem, corruptions, half_shuffled, load
from uncertainty_page import RECORDS, write_page

HERE = Path(__file__).resolve().parent.parent / "results" / "uncertainty"
SEEDS = (0, 1, 2, 3, 4)
#: The slowest data set, whose parts are always the same, has fewer.
FEWER_SEEDS = {"waterbirds": SEEDS[:3]}
HIDDEN = (128, 128)
N_STEPS, BATCH, LEARNING_RATE = 1000, 64, 1e-3
#: Networks of an ensemble.
N_NETWORKS = 5
#: Steps between two looks at the validation rows, for early stopping.
LOOK = 25
#: How far test rows are moved away from the mean of the training rows.
FACTORS = (1, 3, 10, 100)
#: Data sets with half of the labels shuffled; all classes are kept there.
SHUFFLED = ("digits", "fashion_mnist")

Make = Callable[[nn.Module, int], nn.Module]


class Candidate(NamedTuple):
    """One strength of a method."""

    strength: str
    make: Make


def _erm(model: nn.Module, n_classes: int) -> nn.Module:
    return ERM(model, nn.CrossEntropyLoss(), num_classes=n_classes)


def _noise(sigma: float, smoothing: float = 0.0) -> Make:
    loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
    return lambda model, n: InputNoise(model, loss, sigma=sigma, num_classes=n)


def _smoothing(smoothing: float) -> Make:
    return lambda model, n: LabelSmoothing(model, nn.CrossEntropyLoss(), smoothing=smoothing, num_classes=n)


def _mixup(alpha: float) -> Make:
    return lambda model, n: Mixup(model, nn.CrossEntropyLoss(), alpha=alpha, num_classes=n)


class _NoisyMixup(NFM):
    """Mixup with noise of one level in all batches, as in the other methods."""

    def _draw_level(self, generator: torch.Generator | None) -> float:
        return 1.0


def _noisy_mixup(sigma: float) -> Make:
    given: dict[str, Any] = {"layers": (None,), "alpha": 1.0, "multiplicative": 0.0}
    return lambda model, n: _NoisyMixup(model, nn.CrossEntropyLoss(), additive=sigma, num_classes=n, **given)


def _elliptic(sigma: float | Green) -> Make:
    return lambda model, n: Elliptic(model, nn.CrossEntropyLoss(), num_classes=n, sigma=sigma)


def _paper(sigma: float) -> Make:
    return lambda model, n: Elliptic.paper(model, nn.CrossEntropyLoss(), num_classes=n, sigma=sigma)


SIGMAS, EPSILONS, ALPHAS = (0.1, 0.3, 1.0), (0.03, 0.1, 0.3), (0.1, 0.3, 1.0)
#: Methods, each with three strengths; validation rows choose.
METHODS: dict[str, list[Candidate]] = {
    "ERM": [Candidate("", _erm)],
    "noise": [Candidate(f"{s:g}", _noise(s)) for s in SIGMAS],
    "smoothing": [Candidate(f"{e:g}", _smoothing(e)) for e in EPSILONS],
    "noise + smoothing": [
        Candidate(f"{s:g}, {e:g}", _noise(s, e)) for s, e in zip(SIGMAS, EPSILONS, strict=True)
    ],
    "mixup": [Candidate(f"{a:g}", _mixup(a)) for a in ALPHAS],
    "elliptic": [Candidate(f"{s:g}", _elliptic(s)) for s in SIGMAS],
    "elliptic, label noise": [Candidate(f"{s:g}", _paper(s)) for s in SIGMAS],
}
#: Methods of which ensembles are made.
IN_ENSEMBLES = ("ERM", "elliptic")
#: Methods under shuffled labels.
UNDER_SHUFFLING: dict[str, list[Candidate]] = {
    **{name: METHODS[name] for name in ("ERM", "noise", "smoothing", "mixup")},
    "mixup + noise": [Candidate(f"{s:g}", _noisy_mixup(s)) for s in SIGMAS],
    "elliptic": METHODS["elliptic"],
    "green": [Candidate(f"{s:g}", _elliptic(Green(s))) for s in (0.3, 1.0, 3.0)],
}


class Look(NamedTuple):
    """What a network is after some steps."""

    step: int
    validation_nll: float
    accuracy: float  # on test rows: reported, never chosen by


class Trained(NamedTuple):
    """A network at the end, and its looks and the network at the best of them, if there were any."""

    model: nn.Module
    looks: list[Look]
    stopped: nn.Module


def train(problem: Problem, make: Make, seed: int, *, look: bool = False) -> Trained:
    """Train one network; the seed decides its first weights, the order of rows, and all draws.

    Two methods with the same seed begin with the same weights and see the same batches.
    """
    torch.manual_seed(seed)
    model = mlp(problem.train.x.shape[1], problem.n_classes, hidden=HIDDEN)
    stopped, looks = copy.deepcopy(model), list[Look]()
    objective = make(model, problem.n_classes).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, N_STEPS)
    order, draws = stream(seed, "order"), stream(seed, "draws")
    rows = torch.empty(0, dtype=torch.long)
    for step in range(1, N_STEPS + 1):
        while len(rows) < BATCH:
            rows = torch.cat([rows, torch.randperm(len(problem.train.y), generator=order)])
        batch, rows = rows[:BATCH], rows[BATCH:]
        optimizer.zero_grad()
        objective(problem.train.x[batch], problem.train.y[batch], generator=draws).backward()
        optimizer.step()
        schedule.step()
        if look and (step % LOOK == 0 or step == N_STEPS):
            looks.append(Look(step, _loss(model, problem.validation), _accuracy(model, problem.test)))
            if best_look(looks) is looks[-1]:
                stopped.load_state_dict(model.state_dict())
    return Trained(model, looks, stopped)


def best_look(looks: list[Look]) -> Look:
    """Choose by the validation loss; the first of equals."""
    return min(looks, key=lambda each: each.validation_nll)


@torch.no_grad()
def _loss(model: nn.Module, part: Part) -> float:
    return float(nn.functional.cross_entropy(model(part.x).double(), part.y))


@torch.no_grad()
def _accuracy(model: nn.Module, part: Part) -> float:
    return float((model(part.x).argmax(1) == part.y).double().mean())


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


#: Scores of corrupted rows that are kept.
KEPT = ("accuracy", "nll", "ece", "nll_t", "ece_t")


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
    for suffix, each in (("", logits), ("_t", logits / temperature)):
        p = each.softmax(1)
        found[f"nll{suffix}"] = float(nn.functional.cross_entropy(each, y))
        found[f"ece{suffix}"] = calibration_error(p, y)
        found[f"brier{suffix}"] = brier_score(p, y)
        found[f"confidence{suffix}"] = float(p.amax(1).mean())
    return found


def _kept(found: dict[str, float]) -> dict[str, float]:
    return {name: found[name] for name in KEPT}


def detection(inside: Answers, outside: Answers) -> dict[str, float]:
    """Area under the ROC curve for telling inputs from elsewhere, which should score lower."""
    from sklearn.metrics import roc_auc_score

    truth = torch.cat([torch.ones(len(inside.energy)), torch.zeros(len(outside.energy))])
    pairs = {
        "softmax": (inside.confidence, outside.confidence),
        "energy": (inside.energy, outside.energy),
    }
    return {name: float(roc_auc_score(truth, torch.cat(pair))) for name, pair in pairs.items()}


@torch.no_grad()
def disagreement(models: list[nn.Module], x: Tensor) -> float:
    """Mean mutual information of class and network: entropy of the mean less the mean entropy."""
    p = torch.stack([model(x).double().softmax(1) for model in models])

    def entropy(values: Tensor) -> Tensor:
        return -torch.special.xlogy(values, values).sum(-1)

    return float((entropy(p.mean(0)) - entropy(p).mean(0)).mean())


def measure(models: list[nn.Module], problem: Problem, seed: int) -> dict[str, Any]:
    """Measure one network or an ensemble; only its temperature is fitted, to the validation rows."""
    validation = ask(models, problem.validation.x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # all validation rows right: the temperature is 1
        temperature = fit_temperature(validation.logits.numpy(), problem.validation.y.numpy())
    test, y = ask(models, problem.test.x), problem.test.y
    wrong = test.logits.argmax(1) != y
    found: dict[str, Any] = {
        "temperature": temperature,
        "validation_nll": float(nn.functional.cross_entropy(validation.logits, problem.validation.y)),
        "test": scores(test.logits, y, temperature) | {"aurc": risk_coverage_area(test.confidence, wrong)},
        "corrupted": {
            name: _kept(scores(ask(models, x).logits, y, temperature))
            for name, x in corruptions(problem, seed).items()
        },
        "outside": {name: detection(test, ask(models, x)) for name, x in problem.outside.items()},
        "far": {str(t): float(ask(models, t * problem.test.x).confidence.mean()) for t in FACTORS},
    }
    if problem.test.group is not None:
        found["test"]["worst_group"] = min(reduce_by((~wrong).double(), problem.test.group).values())
    if len(models) > 1:
        found["disagreement"] = {str(t): disagreement(models, t * problem.test.x) for t in FACTORS}
    return found


def uncertainty(name: str, seed: int) -> list[dict[str, Any]]:
    """Train and measure all methods on one data set with one seed.

    Strengths that validation did not choose are recorded without corrupted and far rows.
    """
    problem = load(name, seed)
    records: list[dict[str, Any]] = []
    for method, candidates in METHODS.items():
        networks, found = list[nn.Module](), list[dict[str, Any]]()
        for candidate in candidates:
            began = time.process_time()
            trained = train(problem, candidate.make, seed, look=method == "ERM")
            seconds = time.process_time() - began
            networks.append(trained.model)
            about = {"method": method, "strength": candidate.strength, "seconds": seconds}
            found.append(about | measure([trained.model], problem, seed))
            if trained.looks:
                step = best_look(trained.looks).step
                about = {"method": "ERM, stopped early", "strength": str(step)}
                records.append(about | measure([trained.stopped], problem, seed))
        chosen = min(range(len(found)), key=lambda i: found[i]["validation_nll"])
        for i, each in enumerate(found):
            kept = each if i == chosen else {k: v for k, v in each.items() if k not in ("corrupted", "far")}
            records.append(kept | {"chosen": i == chosen})
        if method in IN_ENSEMBLES:
            others = network_seeds(seed, N_NETWORKS)[1:]
            more = [train(problem, candidates[chosen].make, other).model for other in others]
            about = {"method": f"{method}, ensemble", "strength": candidates[chosen].strength}
            records.append(about | measure([networks[chosen], *more], problem, seed))
    sizes = {part: len(getattr(problem, part).y) for part in ("train", "validation", "test")}
    about = {"data": name, "seed": seed, "rows": sizes, "n_classes": problem.n_classes}
    return [{**about, "chosen": True, **record} for record in records]


def shuffled(name: str, seed: int) -> list[dict[str, Any]]:
    """Train on half-shuffled labels; validation labels are half-shuffled, too, and test labels right."""
    problem = half_shuffled(load(name, seed, all_classes=True), seed)
    records = []
    for method, candidates in UNDER_SHUFFLING.items():
        for candidate in candidates:
            looks = train(problem, candidate.make, seed, look=True).looks
            records.append(
                {
                    "data": name,
                    "seed": seed,
                    "method": method,
                    "strength": candidate.strength,
                    "rows": {"train": len(problem.train.y), "validation": len(problem.validation.y)},
                    "last": looks[-1]._asdict(),
                    "stopped": best_look(looks)._asdict(),
                }
            )
    return records


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("A measure is not finite.")
        return float(f"{value:.4g}")
    return value


def cells() -> list[tuple[str, Callable[[str, int], list[dict[str, Any]]], str, int]]:
    """List what is to be recorded, seed by seed: whose labels, how it is made, data set and seed."""
    found: list[tuple[str, Callable[[str, int], list[dict[str, Any]]], str, int]] = []
    for seed in SEEDS:
        found += [
            ("right", uncertainty, name, seed) for name in PROBLEMS if seed in FEWER_SEEDS.get(name, SEEDS)
        ]
        found += [("shuffled", shuffled, name, seed) for name in SHUFFLED]
    return found


def run() -> None:
    """Record what is not recorded yet, data set by data set and seed by seed."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", EllipticWarning)  # strong label noise is what is studied
    done = {(r["labels"], r["data"], r["seed"]) for r in read_lines(HERE / RECORDS)}
    for labels, study, name, seed in cells():
        if (labels, name, seed) in done:
            continue
        began = time.process_time()
        records = [_rounded(record) for record in study(name, seed)]
        append_lines(HERE / RECORDS, [{"labels": labels, **record} for record in records])
        print(f"{labels} {name} seed {seed}: {time.process_time() - began:.1f} s", flush=True)


def main() -> None:
    """Run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("run", "table"))
    if parser.parse_args().what == "run":
        run()
    write_page(HERE)


if __name__ == "__main__":
    main()
