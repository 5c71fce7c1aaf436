"""Study: how uncertain are classifiers after elliptic training, mixup, noise, label smoothing, in ensembles?

Needs ELLIPTICA_DATA and Fashion-MNIST (Debian's package dataset-fashion-mnist). Half an hour on one core::

    python studies/uncertainty.py run        # what is not recorded yet, then the page
    python studies/uncertainty.py table      # the page from the records
"""

from __future__ import annotations

import copy
import math
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any, NamedTuple

import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from common import Record, Study, Values, accuracy, descend, rounded, spread, table
from elliptica import Elliptic, Green
from elliptica._utils.random import stream
from elliptica._utils.statistics import fit_temperature
from elliptica.baselines import ERM, NFM, InputNoise, LabelSmoothing, Mixup
from elliptica.estimators.base import network_seeds, pool
from elliptica.lab import data as loaders
from elliptica.lab.data import Split
from elliptica.lab.experiments.metrics import calibration_error, reduce_by
from elliptica.lab.models import mlp

SEEDS = (0, 1, 2, 3, 4)
N_STEPS, BATCH, LEARNING_RATE = 1000, 64, 1e-3
#: Networks of an ensemble; steps between two looks at the validation rows, for early stopping.
N_NETWORKS, LOOK = 5, 25
#: Side of the images, other than digits, after averaging pixels.
SIDE = 14
#: In the order of the page.
DATA = ("digits", "breastmnist", "waterbirds", "retinamnist", "fashion_mnist", "pathmnist_subset")
#: Data sets of which two classes are left out, other ones for each seed; with half of the labels shuffled.
LEFT_OUT, SHUFFLED = ("digits", "fashion_mnist", "pathmnist_subset"), ("digits", "fashion_mnist")


class Problem(NamedTuple):
    """Three parts, features or images, and the test rows of classes that are left out."""

    train: Split
    validation: Split
    test: Split
    outside: Tensor | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return int(self.train.y.max()) + 1


def _rows(rows: Tensor | slice, *parts: Split) -> Split:
    """Some of the rows of parts that are put together."""
    return Split(*(torch.cat([getattr(part, name) for part in parts])[rows] for name in "xy"))


def _order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


def read(name: str, seed: int) -> Iterable[Split]:
    """Training, validation and test rows, as the page says."""
    if name == "digits":
        pixels, labels = map(torch.as_tensor, load_digits(return_X_y=True))
        part = Split(pixels.float().view(-1, 1, 8, 8) / 16, labels.long())
        rows = _order(part.n_rows, seed).tensor_split([part.n_rows // 2, 7 * part.n_rows // 10])
        return (_rows(r, part) for r in rows)
    own = {"fashion_mnist": loaders.load_fashion_mnist, "waterbirds": loaders.load_waterbirds_features}
    load_parts = own.get(name, partial(loaders.load_medmnist, name))
    data = load_parts(0 if name in ("breastmnist", "retinamnist") else seed)
    seen, test = (data.train, data.validation), data.test
    if name == "waterbirds":
        return *seen, test
    if name in LEFT_OUT:
        order = _order(test.n_rows, seed) if name == "pathmnist_subset" else torch.arange(test.n_rows)
        rows = slice(2500), slice(1250), order[:2500]
        return (_rows(r, part) for r, part in zip(rows, (*seen, test), strict=True))
    n = sum(part.n_rows for part in seen)
    held, rest = _order(n, seed).tensor_split([n // 5])
    return _rows(rest, *seen), _rows(held, *seen), test


def load(name: str, seed: int, *, all_classes: bool = False) -> Problem:
    """Load a data set, leave classes out, and scale it."""
    problem = Problem(*read(name, seed))
    if name in LEFT_OUT and not all_classes:
        problem = leave_out(problem, [(2 * seed + i) % problem.n_classes for i in range(2)])
    return scaled(problem)


def leave_out(problem: Problem, classes: list[int]) -> Problem:
    """Take classes out of all parts; keep their test rows apart."""
    kept = torch.tensor([c for c in range(problem.n_classes) if c not in classes])
    known = (_rows(torch.isin(part.y, kept), part) for part in problem[:3])
    numbered = (replace(part, y=torch.searchsorted(kept, part.y)) for part in known)
    return Problem(*numbered, problem.test.x[~torch.isin(problem.test.y, kept)])


def scaled(problem: Problem) -> Problem:
    """Average images to few pixels, centre on the training rows, divide by their root mean variance."""

    def shrink(x: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(x, min(x.shape[-1], SIDE)) if x.ndim == 4 else x

    x = shrink(problem.train.x)
    centre, unit = x.mean(0), x.var(0).mean().sqrt()
    parts = (replace(part, x=(shrink(part.x) - centre) / unit) for part in problem[:3])
    return Problem(*parts, None if problem.outside is None else (shrink(problem.outside) - centre) / unit)


class _NoisyMixup(NFM):
    """Mixup with noise of one level in all batches, as in the other methods."""

    def _draw_level(self, generator: torch.Generator | None) -> float:
        return 1.0


#: An objective and its settings.
Candidate = tuple[Callable[..., nn.Module], dict[str, Any]]
#: A network, the looks at it, if asked for, and the network at the best of them.
Trained = tuple[nn.Module, list[Record], nn.Module]
SIGMAS, EPSILONS, ALPHAS = (0.1, 0.3, 1.0), (0.03, 0.1, 0.3), (0.1, 0.3, 1.0)
_MIXED = {"layers": (None,), "alpha": 1.0, "multiplicative": 0.0}
#: Methods, each with three strengths, the strongest last; validation rows choose.
CANDIDATES: dict[str, dict[str, Candidate]] = {
    "ERM": {"": (ERM, {})},
    "noise": {f"{s:g}": (InputNoise, {"sigma": s}) for s in SIGMAS},
    "smoothing": {f"{e:g}": (LabelSmoothing, {"smoothing": e}) for e in EPSILONS},
    "noise + smoothing": {
        f"{s:g}, {e:g}": (InputNoise, {"sigma": s, "loss_fn": nn.CrossEntropyLoss(label_smoothing=e)})
        for s, e in zip(SIGMAS, EPSILONS, strict=True)
    },
    "mixup": {f"{a:g}": (Mixup, {"alpha": a}) for a in ALPHAS},
    "elliptic": {f"{s:g}": (Elliptic, {"sigma": s}) for s in SIGMAS},
    "elliptic, label noise": {f"{s:g}": (Elliptic.paper, {"sigma": s}) for s in SIGMAS},
}
#: Methods under shuffled labels.
UNDER_SHUFFLING: dict[str, dict[str, Candidate]] = {
    **{name: CANDIDATES[name] for name in ("ERM", "noise", "smoothing", "mixup")},
    "mixup + noise": {f"{s:g}": (_NoisyMixup, {"additive": s, **_MIXED}) for s in SIGMAS},
    "elliptic": CANDIDATES["elliptic"],
    "green": {f"{s:g}": (Elliptic, {"sigma": Green(s)}) for s in (0.3, 1.0, 3.0)},
}


def train(problem: Problem, candidate: Candidate, seed: int, look: bool = False) -> Trained:
    """Train one network; first weights and batches depend on the seed alone, and nothing on test labels."""
    torch.manual_seed(seed)
    x, y, n_classes = problem.train.x, problem.train.y, problem.n_classes
    model = mlp(x[0].numel(), n_classes, hidden=(128, 128), flatten=True)
    stopped, looks = copy.deepcopy(model), list[Record]()
    kind, settings = candidate
    settings = {"loss_fn": nn.CrossEntropyLoss(), "num_classes": n_classes, **settings}
    method = kind(model, **settings).train()

    def losses() -> Iterator[Tensor]:
        order, draws = stream(seed, "order"), stream(seed, "draws")
        passes = range(math.ceil(N_STEPS * BATCH / len(y)))
        rows = torch.cat([torch.randperm(len(y), generator=order) for _ in passes])
        for step, batch in enumerate(rows[: N_STEPS * BATCH].split(BATCH), 1):
            yield method(x[batch], y[batch], generator=draws)
            if look and step % LOOK == 0:
                right = accuracy(model, problem.test.x, problem.test.y)
                loss = _loss(ask([model], problem.validation.x)[0], problem.validation.y)
                looks.append({"step": step, "validation_nll": loss, "accuracy": right})
                if best_look(looks) is looks[-1]:
                    stopped.load_state_dict(model.state_dict())

    return descend(model, losses(), LEARNING_RATE, N_STEPS, fused=True), looks, stopped


#: The record of the least validation loss; the first of equals.
best_look = partial(min, key=itemgetter("validation_nll"))


def _loss(logits: Tensor, y: Tensor) -> float:
    return float(nn.functional.cross_entropy(logits, y))


@torch.no_grad()
def ask(models: list[nn.Module], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits of the averaged probabilities, and what tells outsiders: largest probability, mean energy."""
    outputs = torch.stack([model(x).double() for model in models])
    logits = pool(outputs, "classes")
    return logits, {"softmax": logits.softmax(1).amax(1), "energy": outputs.logsumexp(2).mean(0)}


def scores(logits: Tensor, y: Tensor, temperature: float) -> dict[str, float]:
    """Score logits, as they are and, by names that end in ``_t``, divided by the temperature."""
    values = {"accuracy": float((logits.argmax(1) == y).double().mean())}
    for suffix, divided in (("", logits), ("_t", logits / temperature)):
        values[f"nll{suffix}"] = _loss(divided, y)
        values[f"ece{suffix}"] = calibration_error(divided.softmax(1), y)
    return values


def measure(models: list[nn.Module], problem: Problem) -> Record:
    """Measure one network or an ensemble; only its temperature is fitted, to the validation rows."""
    (x, y), (validation, _) = (problem.test.x, problem.test.y), ask(models, problem.validation.x)
    temperature = fit_temperature(validation.numpy(), problem.validation.y.numpy())
    logits, inside = ask(models, x)
    test = scores(logits, y, temperature)
    if problem.test.group is not None:
        test["worst_group"] = min(reduce_by((logits.argmax(1) == y).double(), problem.test.group).values())
    record = {"temperature": temperature, "validation_nll": _loss(validation, problem.validation.y)}
    record |= {"test": test}
    if (
        problem.outside is not None
    ):  # area under the ROC curve for telling left-out classes, which score lower
        _, outside = ask(models, problem.outside)
        both = {name: torch.cat([values, outside[name]]) for name, values in inside.items()}
        known = torch.arange(len(x) + len(problem.outside)) < len(x)
        record["outside"] = {name: float(roc_auc_score(known, values)) for name, values in both.items()}
    return record


def uncertainty(name: str, seed: int) -> Iterator[Record]:
    """Train and measure all methods."""
    problem = load(name, seed)
    sizes = {part: getattr(problem, part).n_rows for part in ("train", "validation", "test")}
    about = {"rows": sizes, "n_classes": problem.n_classes, "chosen": True}

    def record(method: str, strength: str, *models: nn.Module) -> Record:
        return {**about, "method": method, "strength": strength, **measure(list(models), problem)}

    for method, candidates in CANDIDATES.items():
        trained = [train(problem, candidate, seed, method == "ERM") for candidate in candidates.values()]
        networks = [network for network, _, _ in trained]
        records = [record(method, *each) for each in zip(candidates, networks, strict=True)]
        if method == "ERM":
            _, looks, stopped = trained[0]
            yield record("ERM, stopped early", str(best_look(looks)["step"]), stopped)
        best = best_look(records)
        yield from ({**values, "chosen": values is best} for values in records)
        if method in ("ERM", "elliptic"):
            seeds = network_seeds(seed, N_NETWORKS)[1:]
            more = [train(problem, candidates[best["strength"]], other)[0] for other in seeds]
            yield record(f"{method}, ensemble", best["strength"], networks[records.index(best)], *more)


def half_shuffled(name: str, seed: int) -> Iterator[Record]:
    """Train on half-shuffled labels; validation labels are half-shuffled, too, and test labels right."""
    right, generator = load(name, seed, all_classes=True), torch.Generator().manual_seed(seed)
    noisy = (replace(part, y=loaders.shuffle_labels(part.y, generator=generator)) for part in right[:2])
    problem = Problem(*noisy, right.test)
    for method, candidates in UNDER_SHUFFLING.items():
        for strength, candidate in candidates.items():
            _, looks, _ = train(problem, candidate, seed, look=True)
            ends = {"last": looks[-1], "stopped": best_look(looks)}
            yield {"method": method, "strength": strength, **ends}


def run(records: list[Record]) -> Iterator[list[Record]]:
    """Record what is not recorded yet; the slowest data set, whose parts are always the same, has fewer."""
    warnings.simplefilter("ignore", UserWarning)  # strong label noise; all validation rows right, so T is 1
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
COMPARED = {f"test.{m}": m.upper().replace("_", ", ") for m in ("nll", "nll_t", "ece", "ece_t")}
COMPARED |= {"outside.softmax": "AUROC, left-out classes"}


def strengths(chosen: Sequence[str]) -> str:
    """Show how often each strength was chosen."""
    counts = sorted(Counter(chosen).items())
    return "; ".join(f"{name} ({n})" if len(counts) > 1 else name for name, n in counts)


def main_table(runs: Values, data: str) -> list[str]:
    """All methods on the test rows of a data set."""
    titles = {"test.accuracy": "accuracy", "test.worst_group": "worst group", **COMPARED}
    shown = [m for m in titles if "test" in m and not pd.isna(runs(data, "ERM", of=m)[0])]
    rows = []
    for method in METHODS:
        chosen = runs(data, method, of="strength")
        steps = f"step {min(map(int, chosen))} to {max(map(int, chosen))}" if "stopped" in method else ""
        units = ((m, ".3f", 1) if "nll" in m else (m, ".1f", 100) for m in shown)
        cells = (spread(runs(data, method, of=m), form, scale=scale) for m, form, scale in units)
        temperature = f"{statistics.geometric_mean(runs(data, method, of='temperature')):.2f}"
        rows.append([method, steps or strengths(chosen), *cells, temperature])
    sizes = " / ".join(f"{runs(data, 'ERM', of=f'rows.{part}')[0]:.0f}" for part in Problem._fields[:3])
    about = f"{runs(data, 'ERM', of='n_classes')[0]:.0f} classes, {sizes} rows (seed 0)"
    lines = table(["method", "strength", *(titles[m] for m in shown), "T"], rows)
    return [f"**{data}**: {about}, {len(chosen)} seeds", "", *lines, ""]


def outside_table(runs: Values) -> list[str]:
    """How well left-out classes are told, by the largest probability and by the energy."""

    def cell(data: str, method: str) -> str:
        means = (statistics.mean(runs(data, method, of=f"outside.{m}")) for m in ("softmax", "energy"))
        return " / ".join(f"{100 * mean:.1f}" for mean in means)

    return table(
        ["method", *LEFT_OUT], ([method, *(cell(d, method) for d in LEFT_OUT)] for method in METHODS)
    )


def counts_table(runs: Values) -> list[str]:
    """On how many data sets elliptic training has a better mean than each control."""

    def cell(measure: str, method: str, control: str) -> str:
        data = LEFT_OUT if "outside" in measure else DATA
        gaps = [statistics.mean(runs.gaps((name, method), (name, control), measure)) for name in data]
        return f"{sum(gap > 0 if 'outside' in measure else gap < 0 for gap in gaps)} of {len(data)}"

    pairs = product(ELLIPTIC, CONTROLS)
    rows = ([*pair, *(cell(measure, *pair) for measure in COMPARED)] for pair in pairs)
    return table(["method", "better than", *COMPARED.values()], rows, "ll")


def shuffled_table(records: list[Record]) -> list[str]:
    """Accuracy at the end and with early stopping, at the strength of the least loss on noisy validation."""
    frame, head, rows = pd.json_normalize(records), ["method"], []
    cells = frame.groupby(["data", "method", "seed"])
    best = {end: frame.loc[cells[f"{end}.validation_nll"].idxmin()] for end in ("last", "stopped")}
    for data in SHUFFLED:
        head += [f"{data}, last", "strength", f"{data}, stopped early", "strength", "step"]
    for method in UNDER_SHUFFLING:
        row = [method]
        for data, (end, chosen) in product(SHUFFLED, best.items()):
            part = chosen[(chosen["data"] == data) & (chosen["method"] == method)]
            row.append(spread(part[f"{end}.accuracy"].tolist(), ".1f", scale=100))
            row.append(strengths(part["strength"].tolist()))
            if end == "stopped":
                row.append(f"{part['stopped.step'].mean():.0f}")
        rows.append(row)
    return table(head, rows)


def blocks(records: list[Record]) -> dict[str, str]:
    """All blocks of the page."""
    right = [r for r in records if r["labels"] == "right" and r["chosen"]]
    runs = Values(right, "data", "method")
    lines = {
        "test": [line for data in DATA for line in main_table(runs, data)],
        "counts": counts_table(runs),
        "outside": outside_table(runs),
        "shuffled": shuffled_table([r for r in records if r["labels"] == "shuffled"]),
    }
    return {mark: "\n".join(text).strip() for mark, text in lines.items()}


STUDY = Study("uncertainty", blocks, ("labels", "data", "seed"))

if __name__ == "__main__":
    STUDY.main(__doc__, run)
