"""What charts need from records: scores of parts, reliability, uncertainty, courses of training."""

from __future__ import annotations

from collections.abc import Sequence

from elliptica.lab.experiments.report_records import Kept
from elliptica.report.content import Number, Parts, natural_order, pooled


def parts_of(members: Sequence[Kept]) -> list[Parts]:
    """Scores of groups, where there are any, and of classes."""
    found = []
    for kind, entry in (("group", "by_group"), ("class", "by_class")):
        entries = [(k, k.content["metrics"]["test"].get(entry) or {}) for k in members]
        names = sorted({name for _, each in entries for name in each}, key=natural_order)
        same = kind == "group" and all(
            each == (k.content["metrics"]["test"].get("by_class") or {}) for k, each in entries
        )
        if not names or same:  # without groups, classes stand in their place in a record
            continue
        factor = 1 if members[0].run.metric == "rmse" else 100
        values: dict[str, dict[str, list[float]]] = {}
        for kept, each in entries:
            for name, value in each.items():
                values.setdefault(kept.run.row, {}).setdefault(name, []).append(factor * float(value))
        found.append(Parts(kind, names, values, sizes_of(members, kind)))
    return found


def sizes_of(members: Sequence[Kept], kind: str) -> dict[str, int] | None:
    """Training rows of each class or group; None if no record has them."""
    for kept in members:
        rows = kept.content.get("rows")
        sizes = (rows.get("train") or {}).get(kind) if isinstance(rows, dict) else None
        if isinstance(sizes, dict):
            return {str(name): int(n) for name, n in sizes.items()}
    return None


def reliability_of(members: Sequence[Kept]) -> dict[str, dict[str, list[Number | None]]]:
    """Bins of all seeds together, by row."""
    sums: dict[str, list[list[float]]] = {}
    for kept in members:
        bins = kept.content["metrics"]["test"].get("reliability")
        if not isinstance(bins, dict) or not {"rows", "confidence", "right"} <= set(bins):
            continue
        add = [[float(v) for v in bins[key]] for key in ("rows", "confidence", "right")]
        so_far = sums.setdefault(kept.run.row, [[0.0] * len(column) for column in add])
        for total, column in zip(so_far, add, strict=True):
            total[:] = [a + b for a, b in zip(total, column, strict=True)]
    return {row: pooled(*columns) for row, columns in sums.items()}


def uncertainty_of(members: Sequence[Kept]) -> Parts | None:
    """Mean uncertainty of each class, small classes first (paper: the appendix's figure of uncertainty)."""
    values: dict[str, dict[str, list[float]]] = {}
    for kept in members:
        for name, value in (kept.content["metrics"]["test"].get("uncertainty") or {}).items():
            values.setdefault(kept.run.row, {}).setdefault(str(name), []).append(float(value))
    if not values:
        return None
    names = sorted({name for each in values.values() for name in each}, key=natural_order)
    sizes = sizes_of(members, "class")
    if sizes:
        names.sort(key=lambda name: sizes.get(name, 0))
    return Parts("class", names, values, sizes)


def curves_of(members: Sequence[Kept]) -> dict[str, list[dict[str, list[Number]]]]:
    """Loss and validation score by epoch, one course for each seed; errors as they are, without a minus."""
    found: dict[str, list[dict[str, list[Number]]]] = {}
    for kept in members:
        curves = kept.content.get("curves")
        if isinstance(curves, dict) and curves.get("loss"):
            picked = {k: list(curves.get(k, [])) for k in ("loss", "validation")}
            if kept.run.metric != "accuracy":  # a record holds scores, of which larger ones are better
                picked["validation"] = [None if v is None else -v for v in picked["validation"]]
            found.setdefault(kept.run.row, []).append({**picked, "epoch": [kept.content.get("epoch", 0)]})
    return found
