"""Judge methods on paired seeds, and never claim more than the intervals show."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from elliptica._utils.statistics import bonferroni, corrected_interval
from elliptica._utils.text import count
from elliptica.report.content import DASH, TIMES, BySeed, Difference, Measure, Result, Study, Verdict

#: With fewer common seeds, there is no verdict.
MIN_SEEDS = 3
#: From this many seeds on, differences of one sign are unlikely by chance (2 * 0.5**6 < 5 %).
SIGN_SEEDS = 6
CONFIDENCE = 0.95


def judge_rows(
    values: Mapping[str, BySeed],
    measures: Sequence[Measure],
    methods: Sequence[str],
    reference: str,
    *,
    champion: str | None = None,
    cost: Mapping[str, BySeed] | None = None,
    test_share: float = 0.0,
) -> Verdict:
    """Compare every method with the reference on the seeds that both have.

    Intervals are Student's for paired differences. They are widened for the number of comparisons
    (Bonferroni), so that all hold jointly with 95 % confidence. The verdict never contradicts them: a
    champion whose interval contains zero is not named.

    Args:
        values: Values by measure, method and seed.
        measures: Measures to judge; the first one decides.
        methods: Methods in order.
        reference: Usually ordinary training.
        champion: Method that is shown to be better than every other one on the first measure, if any (the
            rule of bold cells).
        cost: Cost by unit, for sentences about cost.
        test_share: See `elliptica.report.content.Study`.

    Example:
        >>> measure = Measure("average", "RMSE", higher_is_better=False, decimals=2)
        >>> erm, new = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 1.0, 1: 1.0, 2: 1.0}
        >>> verdict = judge_rows({"average": {"erm": erm, "new": new}}, [measure], ["erm", "new"], "erm")
        >>> verdict.headline
        'No method is shown to be better than erm in RMSE.'
    """
    first = measures[0]
    by_method = values[first.name]
    others = [m for m in methods if m != reference and by_method.get(m)]
    if not by_method.get(reference) or not others:
        alone = next((m for m in methods if by_method.get(m)), None)
        if alone is None:
            return Verdict(f"No verdict: {first.label} is not recorded for any run.")
        return Verdict(f"Only {alone} has runs, so there is nothing to compare it with.", best=None)
    n_comparisons = len(others) * len(measures)
    differences = paired_differences(values, measures, others, reference, test_share)
    mine = [d for d in differences if d.measure == first.name]
    most = max((d.n_seeds for d in mine), default=0)
    if most < MIN_SEEDS:
        text = f"No verdict: {most} seed{'s' if most != 1 else ''} in common with {reference} "
        text += f"{'are' if most != 1 else 'is'} too few to compare methods; at least {MIN_SEEDS} are needed."
        return Verdict(text, best=None)
    ranked = find_winners(differences, [first])
    winners = [d for method in ranked for d in mine if d.method == method]
    in_bold = champion
    if not _agrees(champion, reference, mine):
        champion = None
    best = champion if champion is not None else winners[0].method if winners else reference
    named = next((d for d in mine if d.method == best), None)
    means = {m: statistics.fmean(by_method[m].values()) for m in [reference, *others]}
    common = set(by_method[best]) & set(
        by_method[reference]
    )  # so that the means differ by the difference shown
    means |= {m: statistics.fmean(by_method[m][s] for s in common) for m in (best, reference)}
    sentences = [
        *_others(winners, champion, best, first),
        *([_only_bold(in_bold)] if in_bold is not None and champion is None else []),
        *_worse(mine, first, reference),
        *_elsewhere(differences, measures[1:], reference),
        *_reach(mine, winners, first, most),
        *_price(cost or {}, best, reference),
        *_basis(mine, n_comparisons, test_share),
    ]
    facts = _facts(means, best, named, mine, champion, first, reference, cost or {})
    return Verdict(
        _headline(means, best, named, champion, first, reference),
        sentences,
        facts,
        differences,
        best,
        ranked,
        bonferroni(CONFIDENCE, n_comparisons),
    )


def paired_differences(
    values: Mapping[str, BySeed],
    measures: Sequence[Measure],
    methods: Sequence[str],
    reference: str,
    test_share: float = 0.0,
) -> list[Difference]:
    """Subtract the reference from every method on the seeds that both have, measure by measure.

    Intervals are Student's for paired differences. They are widened for the number of comparisons
    (Bonferroni), so that all hold jointly with 95 % confidence. A difference is better or worse if its
    interval excludes zero. It stays open with fewer than `MIN_SEEDS` seeds, and if all gaps are equal up to
    rounding, which is too coarse to judge.
    """
    confidence = bonferroni(CONFIDENCE, len(methods) * len(measures))
    return [
        each
        for measure in measures
        for method in methods
        if (each := _difference(values[measure.name], (method, reference), measure, confidence, test_share))
    ]


def find_winners(differences: Sequence[Difference], deciding: Sequence[Measure]) -> list[str]:
    """Return the methods that are better in one of the deciding measures and worse in none.

    The best one in the first of these measures comes first.
    """
    by_method: dict[str, dict[str, Difference]] = {}
    names = [measure.name for measure in deciding]
    for each in differences:
        if each.measure in names:
            by_method.setdefault(each.method, {})[each.measure] = each
    results = {method: {d.result for d in mine.values()} for method, mine in by_method.items()}
    winners = [
        method for method in by_method if "better" in results[method] and "worse" not in results[method]
    ]
    return sorted(winners, key=lambda method: -_gain(by_method[method][names[0]], deciding[0]))


def _agrees(champion: str | None, reference: str, mine: Sequence[Difference]) -> bool:
    """Return whether the intervals confirm the rule of bold cells, which is another family of tests."""
    if champion == reference:
        return all(d.result == "worse" for d in mine)
    return any(d.method == champion and d.result == "better" for d in mine)


def _difference(
    values: BySeed, pair: tuple[str, str], measure: Measure, confidence: float, test_share: float
) -> Difference | None:
    ours, theirs = (values.get(method, {}) for method in pair)
    seeds = sorted(set(ours) & set(theirs))
    if not seeds:
        return None
    interval = corrected_interval([float(ours[s] - theirs[s]) for s in seeds], test_share, confidence)
    size = max(abs(values[s]) for values in (ours, theirs) for s in seeds)
    result: Result = "open"
    is_coarse = interval.half_width <= 1e-9 * size
    if len(seeds) >= MIN_SEEDS and not is_coarse and not interval.low <= 0 <= interval.high:
        result = "better" if (interval.mean > 0) == measure.higher_is_better else "worse"
    return Difference(pair[0], measure.name, interval.mean, interval.low, interval.high, len(seeds), result)


def _gain(difference: Difference, measure: Measure) -> float:
    return difference.mean if measure.higher_is_better else -difference.mean


def _interval(d: Difference, measure: Measure) -> str:
    low, high = (measure.show(v, sign=True, unit=False) for v in (d.low, d.high))
    return f"{measure.show(d.mean, sign=True)}, interval {low} to {high}"


def _headline(
    means: Mapping[str, float],
    best: str,
    named: Difference | None,
    champion: str | None,
    measure: Measure,
    reference: str,
) -> str:
    if champion == reference:
        return f"{reference} has the best {measure.label}, and is better than every other method."
    if named is None:
        return f"No method is shown to be better than {reference} in {measure.label}."
    ours, theirs = (measure.show(means[m]) for m in (best, reference))
    if champion is not None:
        return f"{best} has the best {measure.label}: {ours} against {theirs} for {reference}."
    return f"{best} is better than {reference} in {measure.label}: {ours} against {theirs}."


def _others(winners: Sequence[Difference], champion: str | None, best: str, measure: Measure) -> list[str]:
    if champion is not None:
        return [f"{best} is better than every other method (paired t tests, Holm's correction, p < 0.05)."]
    if not winners:
        return []
    rest = [f"{d.method} ({_interval(d, measure)})" for d in winners if d.method != best]
    text = f"{best}: {_interval(winners[0], measure)}."
    if rest:
        text += f" Also better: {'; '.join(rest)}. Which of them is best is not shown."
    return [text]


def _only_bold(method: str) -> str:
    return (
        f"{method} is bold in the table (better than every other row in paired tests), but intervals widened "
        "for all comparisons do not confirm it."
    )


def _worse(mine: Sequence[Difference], measure: Measure, reference: str) -> list[str]:
    bad = sorted((d for d in mine if d.result == "worse"), key=lambda d: _gain(d, measure))
    if not bad:
        return []
    shown = "; ".join(f"{d.method} ({measure.show(d.mean, sign=True)})" for d in bad)
    return [f"Worse than {reference}: {shown}."]


def _elsewhere(differences: Sequence[Difference], measures: Sequence[Measure], reference: str) -> list[str]:
    """Describe the other measures in which a difference is shown."""
    sentences = []
    for measure in measures:
        mine = [d for d in differences if d.measure == measure.name]
        parts = [
            f"{result} {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
            for result in ("better", "worse")
            if (names := [d.method for d in mine if d.result == result])
        ]
        said = " and ".join(parts) if parts else "no difference is shown"
        sentences.append(f"In {measure.label}, against {reference}: {said}.")
    return sentences


def _reach(
    mine: Sequence[Difference], winners: Sequence[Difference], measure: Measure, n_seeds: int
) -> list[str]:
    """Describe what open intervals leave possible; only useful if no method is better."""
    open_ = [d for d in mine if d.result == "open" and d.n_seeds >= MIN_SEEDS]
    if winners or not open_:
        return []
    far = max(abs(end) for d in open_ for end in (d.low, d.high))
    size = f"{measure.show(far, unit=False)} points" if measure.percent else measure.show(far)
    return [f"Differences of up to {size} are possible with {n_seeds} seeds."]


def cost_ratio(cost: BySeed, method: str, reference: str) -> float | None:
    """Return the mean cost of a method relative to the reference, on the seeds of both; None if unknown."""
    ours, theirs = cost.get(method, {}), cost.get(reference, {})
    common = set(ours) & set(theirs)
    if not common or sum(theirs[s] for s in common) <= 0:
        return None
    return sum(ours[s] for s in common) / sum(theirs[s] for s in common)


def _price(cost: Mapping[str, BySeed], best: str, reference: str) -> list[str]:
    if best == reference:
        return []
    words = {"evaluations": "rows through the network", "seconds": "seconds"}
    parts = [
        f"as many {words[unit]}" if abs(ratio - 1) < 0.005 else f"{ratio:.2g} times the {words[unit]}"
        for unit in words
        if (ratio := cost_ratio(cost.get(unit, {}), best, reference)) is not None
    ]
    return [f"{best} took {' and '.join(parts)}, compared with {reference}."] if parts else []


def _basis(mine: Sequence[Difference], n_comparisons: int, test_share: float) -> list[str]:
    shared = "corrected for training rows that seeds share, and " if test_share else ""
    widened = f"widened for {count(n_comparisons, 'comparison')}, so that all hold jointly with 95 %"
    said = [f"Paired over {_seeds(mine)}; intervals are {shared}{widened}."]
    if min(d.n_seeds for d in mine) < SIGN_SEEDS:
        said.append(f"Fewer than {SIGN_SEEDS} seeds: the intervals rely on normally distributed differences.")
    return said


def _seeds(mine: Sequence[Difference]) -> str:
    counts = sorted({d.n_seeds for d in mine})
    return f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"


def _facts(
    means: Mapping[str, float],
    best: str,
    named: Difference | None,
    mine: Sequence[Difference],
    champion: str | None,
    measure: Measure,
    reference: str,
    cost: Mapping[str, BySeed],
) -> list[tuple[str, str, str]]:
    top = (max if measure.higher_is_better else min)(means, key=lambda m: means[m])
    if named is None:
        sure = "best of all, shown" if champion == reference else "nothing better is shown"
        how = ("How much better", DASH, f"best mean: {top}, {measure.show(means[top])}")
    else:
        low, high = (measure.show(v, sign=True, unit=False) for v in (named.low, named.high))
        sure = "better than all others" if champion is not None else f"better than {reference}"
        how = ("How much better", measure.show(named.mean, sign=True), f"interval {low} to {high}")
    ratio = cost_ratio(cost.get("evaluations", {}), best, reference)
    seconds = cost_ratio(cost.get("seconds", {}), best, reference)
    better = sum(d.result == "better" for d in mine)
    return [
        ("Which method", best, f"{measure.label} {measure.show(means[best])}"),
        how,
        ("How sure", sure, f"{better} of {len(means) - 1} shown better than {reference}; {_seeds(mine)}"),
        price_fact(best, reference, ratio, seconds),
    ]


def price_fact(best: str, reference: str, ratio: float | None, seconds: float | None) -> tuple[str, str, str]:
    """Return a fact about the cost of the named method."""
    if best == reference:
        return "At what cost", DASH, f"{reference} is the reference"
    remark = f"rows of {reference}" + ("" if seconds is None else f"; seconds {seconds:.2g}\u00a0{TIMES}")
    return "At what cost", DASH if ratio is None else f"{ratio:.2g}\u00a0{TIMES}", remark


def headline(studies: list[Study]) -> str:
    """Summarise the verdicts of all studies."""
    if len(studies) == 1:
        return studies[0].verdict.headline
    judged = [s for s in studies if s.verdict.best is not None]
    better = [s for s in judged if s.verdict.best != s.reference]
    if better:
        ours = sum(_is_ours(s, "better") for s in better)
        text = f"In {len(better)} of {len(judged)} tables a method is shown to be better than the reference. "
        text += f"In {ours or 'none'} of them elliptic training is better than another method."
    else:
        text = f"In none of {count(len(judged), 'table')} is a method shown to be better than the reference."
    worse = sum(_is_ours(s, "worse") for s in judged)
    if worse:
        text += f" In {worse}, elliptic training is shown to be worse than the reference."
    silent = len(studies) - len(judged)
    return text + (
        f" {silent} more {'have' if silent > 1 else 'has'} too few runs for a verdict." if silent else ""
    )


def _is_ours(study: Study, result: str) -> bool:
    """Return whether elliptic training is shown to be better or worse than another method as reference."""
    first = study.measures[0].name
    methods = {d.method for d in study.verdict.differences if d.measure == first and d.result == result}
    return study.reference not in study.own and any(method in study.own for method in methods)
