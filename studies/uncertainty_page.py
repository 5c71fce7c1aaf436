"""Page of the study of uncertainty: answers in sentences, protocol, tables; from the records alone."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from elliptica.lab.experiments.records import read_lines
from uncertainty_table import (
    ALPHA,
    COMPARED,
    CONTROLS,
    DATA,
    ELLIPTIC,
    METHODS,
    SHUFFLED,
    Difference,
    Record,
    Runs,
    Shuffling,
    by_data,
    corrupted_table,
    differences,
    disagreement_table,
    main_tables,
    outside_tables,
    paired_tables,
    read,
    strength_table,
)


def write_page(folder: Path) -> None:
    """Write README.md from the records in a folder."""
    (folder / "README.md").write_text(page(*read_records(folder)), encoding="utf-8")


def read_records(folder: Path) -> tuple[list[Record], list[Record]]:
    """Read the records of both parts: all labels right, and half of them shuffled."""
    parts: tuple[list[Record], list[Record]] = ([], [])
    for record in read_lines(folder / RECORDS):
        parts[record.pop("labels") == "shuffled"].append(record)
    return parts


#: File of the records.
RECORDS = "records.jsonl.gz"
#: The strongest candidate of each method.
STRONGEST = {
    "noise": "1",
    "smoothing": "0.3",
    "noise + smoothing": "1, 0.3",
    "mixup": "1",
    "elliptic": "1",
    "elliptic, label noise": "1",
}


def _share(found: Sequence[str], total: int) -> str:
    return f"{len(found)} of {total}" + (f" ({', '.join(found)})" if 0 < len(found) < total else "")


def _pair(runs: Runs, method: str) -> str:
    better = [len(runs.better(f"test.{name}", method, "ERM")) for name in ("nll", "ece")]
    return f"{method} {better[0]} and {better[1]}"


def ahead_of_all(runs: Runs, measure: str, method: str = "elliptic") -> list[str]:
    """Data sets where elliptic training has a better mean than every control."""
    return [data for data in runs.data if runs.best(data, measure, [*CONTROLS, method]) == method]


def answers(runs: Runs, found: Sequence[Difference], noisy: Shuffling) -> list[str]:
    """Answer in sentences, controls first; every number and list is computed."""
    n = len(runs.data)
    lines = [_temperature_answer(runs, n), _best_answer(runs), _overconfidence_answer(runs, n)]
    lines += [*_control_answers(runs, found, n), _label_noise_answer(runs, n), _outside_answer(runs, n)]
    return [*lines, _far_answer(runs), *_shuffled_answers(noisy), _strength_answer(runs)]


def _temperature_answer(runs: Runs, n: int) -> str:
    nll, ece = (runs.better(f"test.{m}_t", "ERM", "elliptic", f"test.{m}") for m in ("nll", "ece"))
    left = runs.better("test.nll_t", "elliptic", "ERM")
    return (
        "*Temperature scaling first.* One number, fitted to the validation rows after ordinary training, "
        "gives a "
        f"lower NLL than elliptic training without it on {_share(nll, n)} data sets, and a lower calibration "
        f"error "
        f"on {_share(ece, n)}. With a temperature for both, elliptic training has the lower NLL on "
        f"{_share(left, n)}."
    )


def _best_answer(runs: Runs) -> str:
    counts = {m: Counter(runs.best(data, m) for data in runs.data) for m in ("test.nll_t", "test.aurc")}
    shown = ["; ".join(f"{name} {k}" for name, k in count.most_common()) for count in counts.values()]
    return (
        f"*Lowest mean of all methods*, by number of data sets. NLL after the temperature: {shown[0]}. "
        f"Selective prediction (AURC): {shown[1]}."
    )


def _overconfidence_answer(runs: Runs, n: int) -> str:
    others = ("mixup", "smoothing", "noise + smoothing", "noise", "ERM, stopped early")
    own = [len(runs.better(f"test.{name}", "elliptic", "ERM")) for name in ("nll", "ece")]
    return (
        f"*Without post-processing*, elliptic training has a lower NLL than ERM on {own[0]} and a lower "
        f"calibration error "
        f"on {own[1]} of {n} data sets. So have the controls: {', '.join(_pair(runs, m) for m in others)}."
    )


def _control_answers(runs: Runs, found: Sequence[Difference], n: int) -> list[str]:
    lines = []
    n_tests = sum(each.p is not None for each in found)
    for method in ELLIPTIC:
        ahead = [f"{title} {_share(ahead_of_all(runs, m, method), n)}" for m, title in COMPARED.items()]
        own = [each for each in found if each.method == method]
        sure = [each for each in own if each.adjusted < ALPHA]
        wins = sum(each.is_better for each in sure)
        lines.append(
            f"*Is {method} better than every control* ({'; '.join(CONTROLS)})*?* By the mean, on so many of "
            f"{n} data sets: {'; '.join(ahead)}. Of {len(own)} paired comparisons "
            f"{sum(each.is_better for each in own)} favour it. "
            + (
                f"After Holm's correction over the {n_tests} tests of this page, {wins} of these are "
                f"significant in favour and {len(sure) - wins} against."
                if n_tests
                else "No data set has three seeds yet, so none of these is tested."
            )
        )
    return lines


def _strength_answer(runs: Runs) -> str:
    counts = {}
    for method, strongest in STRONGEST.items():
        chosen = [r["strength"] for r in runs.records if r["method"] == method and r["chosen"]]
        counts[method] = f"{method} {sum(s == strongest for s in chosen)} of {len(chosen)}"
    return (
        "*The grid is short.* Validation rows chose the strongest of the three candidates so often: "
        f"{', '.join(counts.values())}. Beyond it nothing was tried, for any method."
    )


def _label_noise_answer(runs: Runs, n: int) -> str:
    def mean(strength: str, method: str, measure: str) -> float:
        kept = [r for r in runs.records if (r["method"], r["strength"]) == (method, strength)]
        return statistics.mean(
            statistics.mean(read(r, measure) for r in kept if r["data"] == data) for data in runs.data
        )

    plain, noisy = "elliptic", "elliptic, label noise"
    shown = [
        f"{title} {100 * mean('1', plain, m):.1f} without and {100 * mean('1', noisy, m):.1f} with"
        for m, title in (
            ("test.ece", "calibration error"),
            ("outside.softmax", "AUROC of the largest probability"),
            ("outside.energy", "AUROC of the energy"),
        )
    ]
    ece = runs.better("test.ece", noisy, plain)
    nll = runs.better("test.nll", noisy, plain)
    return (
        "*The paper's label noise* is a strength to choose, as label smoothing is. Chosen on validation rows "
        "it has a lower NLL than "
        f"elliptic training without it on {_share(nll, n)} data sets and a lower calibration error on "
        f"{_share(ece, n)}. "
        f"Not chosen, at sigma = 1 (mean over data sets, in per cent): {'; '.join(shown)}."
    )


def _outside_answer(runs: Runs, n: int) -> str:
    found = []
    for score in ("softmax", "energy"):
        means = {
            method: statistics.mean(runs.mean(data, method, f"outside.{score}") for data in runs.data)
            for method in METHODS
        }
        ordered = sorted(means, key=lambda method: -means[method])
        shown = ", ".join(f"{method} {100 * means[method]:.1f}" for method in ordered)
        name = "largest probability" if score == "softmax" else "energy"
        found.append(f"by the {name}: {shown}")
    return f"*Inputs from elsewhere*, mean AUROC over {n} data sets, {'; '.join(found)}."


def _far_answer(runs: Runs) -> str:
    shown = [
        f"{method} {100 * statistics.mean(runs.mean(data, method, 'far.10') for data in runs.data):.1f} %"
        for method in (
            "ERM",
            "ERM, ensemble",
            "noise + smoothing",
            "mixup",
            "elliptic",
            "elliptic, label noise",
        )
    ]
    return (
        "*Far from the data*, test rows moved to ten times their distance from the mean, the mean confidence "
        "is "
        f"{', '.join(shown)}."
    )


def _shuffled_answers(noisy: Shuffling) -> list[str]:
    lines = []
    for data in noisy.data:
        last = {m: 100 * statistics.mean(noisy.accuracies(data, m, "last")) for m in SHUFFLED}
        low, high = noisy.range(data, "stopped")
        shown = ", ".join(f"{m} {last[m]:.1f}" for m in sorted(last, key=lambda m: -last[m]))
        lines.append(
            f"*Half of the labels shuffled, {data}: stop early first.* With early stopping on noisy "
            f"validation rows every "
            f"method has {100 * low:.1f} to {100 * high:.1f} % (ERM "
            f"{100 * statistics.mean(noisy.accuracies(data, 'ERM', 'stopped')):.1f}). "
            f"At the last step: {shown}."
        )
    return lines


PROTOCOL = """**The protocol.**

- *Data.* scikit-learn's digits (8 x 8 pixels; half, a fifth and three tenths of the rows, by the seed);
  BreastMNIST and RetinaMNIST (a fifth of the official training and validation images is held out by the
  seed, official test images); Waterbirds as frozen EfficientNet-Lite0 features (official parts; validation
  and test rows have other shares of the groups than training rows); Fashion-MNIST (2500 training images and
  1250 for validation by the seed, 2500 test images) and a tenth of PathMNIST (2500 training images; test
  images come from another clinical centre). Images other than digits are averaged to 14 x 14 pixels. From
  digits, Fashion-MNIST and PathMNIST two classes are left out of all parts, other ones for each seed.
  Inputs are centred on the training rows and divided by *one* number, so that their mean variance is 1.
- *Networks.* All methods: two hidden layers of 128 leaky ReLU units, 1000 steps of 64 rows, Adam at 0.001
  with cosine decay, no weight decay; same first weights and batches for all methods of a seed. The paper's
  settings (`Elliptic.paper`) evaluate five points of each path, so a step has five times as many rows
  there.
- *Strengths.* Three candidates for each method: sigma 0.1, 0.3, 1 of noise and elliptic training, epsilon
  0.03, 0.1, 0.3 of smoothing, alpha 0.1, 0.3, 1 of mixup, the three pairs in this order of noise +
  smoothing. For each seed the candidate of the least validation NLL, before any temperature; never by test
  rows. Ensembles: five networks with the strength of the single one, probabilities averaged. ERM stopped
  early: the best of 40 looks at the validation rows.
- *Measures.* NLL; ECE, 15 bins of equal width, in per cent; Brier score, summed over classes; AURC, the
  mean error (in per cent) of the surest rows over all coverages; "T": after division by the temperature
  that validation rows choose (`fit_temperature`, the same as scikit-learn's), for ensembles after
  averaging. If all validation rows are classified correctly, T is 1.
- *Corrupted test rows.* Gaussian noise of deviation 0.5 and 1, a blur by a 3 x 3 box (features: half of
  them set to the training mean). *Inputs from elsewhere*, AUROC against test rows: test rows of the
  left-out classes; BreastMNIST for digits and Fashion-MNIST, Fashion-MNIST for BreastMNIST, RetinaMNIST and
  PathMNIST for each other; test rows with every column shuffled by itself. Below 50, outsiders get more
  confidence than test rows.
- *Half-shuffled labels.* Labels of half of the training rows and half of the validation rows are dealt out
  anew; all classes are kept, test labels are right. Strength (and step, for early stopping) by the NLL of
  the noisy validation rows. mixup + noise is `NFM` on the inputs with alpha 1 and additive noise alone;
  green is `sigma=("green", scale)`, scale 0.3, 1, 3.
- *Comparisons.* Elliptic training less a control on the same seeds, paired t tests, Holm's correction over
  all of them together. Seeds share test rows (and, on Waterbirds, training rows), so p-values speak of
  training again on such rows, not of new data sets. With so few seeds few tests can survive.
"""


def _seeds(runs: Runs, noisy: Shuffling) -> str:
    done, shuffled = (
        ", ".join(f"{data} {len(each.seeds(data))}" for data in each.data) for each in (runs, noisy)
    )
    missing = [data for data in DATA if data not in runs.data]
    not_run = f" Not run yet: {', '.join(missing)}." if missing else ""
    return (
        f"**Seeds recorded so far.** {done}; with shuffled labels {shuffled}.{not_run} Rerun the command "
        "to resume, up to five (Waterbirds three). Tables show mean ± deviation over seeds; there are tests "
        "from three seeds on."
    )


def page(records: Sequence[Record], shuffled: Sequence[Record]) -> str:
    """Make the page: answers, protocol, tables."""
    runs, noisy = Runs(records), Shuffling(shuffled)
    found = differences(runs)
    lines = [
        "# How uncertain are classifiers after elliptic training?",
        "",
        "`python studies/uncertainty.py run` (about half an hour on one core); records in "
        "`records.jsonl.gz`. "
        "`python studies/uncertainty.py table` writes this page from the records alone.",
        "",
        "**In short.**",
        "",
        *(f"- {line}" for line in answers(runs, found, noisy)),
        "",
        _seeds(runs, noisy),
        "",
        PROTOCOL,
        "## Test rows",
        *main_tables(runs),
        "",
        "## Corrupted test rows",
        "",
        "Accuracy / NLL (after T) / ECE (after T), means over three corruptions. Training with noise has "
        "seen one of them.",
        "",
        *corrupted_table(runs),
        "",
        "## Inputs from elsewhere",
        "",
        "AUROC of the largest probability / of the energy.",
        *outside_tables(runs),
        "",
        "## Far from the data",
        "",
        "Mean confidence in per cent on test rows at 1 / 3 / 10 / 100 times their distance from the mean of "
        "the training rows.",
        "",
        *by_data(runs, [f"far.{t}" for t in (1, 3, 10, 100)]),
        "",
        "Disagreement of the five networks (mutual information, nats) at 1 / 3 / 10 times the distance.",
        "",
        *disagreement_table(runs),
        "",
        "## Elliptic training by strength",
        "",
        "All candidates, chosen or not: NLL / ECE / temperature / AUROC of the largest probability / of the "
        "energy (means over the kinds of outsiders).",
        "",
        *strength_table(runs),
        "",
        "## Half of the labels shuffled",
        "",
        "Accuracy on clean test rows.",
        "",
        *noisy.table(),
        "",
        "## Paired comparisons",
        "",
        f"Elliptic training less a control: mean over seeds, with p of a paired t test; * is below {ALPHA} "
        "after Holm's correction over all tests of the page. "
        "AUROC is the mean over kinds of outsiders, by the largest probability; larger is better there and "
        "nowhere else.",
        *paired_tables(runs, found),
        "",
    ]
    return "\n".join(lines)
