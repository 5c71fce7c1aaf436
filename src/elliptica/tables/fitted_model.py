"""A trained model with its data: checked once, and sampled if there are many rows."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import draw_permutation
from elliptica.core.inputs import LossFn
from elliptica.core.targets import TargetSpace, infer_target_space
from elliptica.tables.findings import RowsOf


class Rows(NamedTuple):
    """Rows of one kind, on the device of the model."""

    x: Tensor
    y: Tensor | None  # None for unlabelled rows
    groups: list[str] | None
    numbers: list[int]  # in the user's data


@dataclass(frozen=True, eq=False)
class FittedModel:
    """A trained model, its loss, and the rows at which it is judged.

    Attributes are named and explained as the arguments of `elliptica.diagnose` (``test`` are the held-out
    rows); row numbers are those of messages, by default counted from 0. ``scales_inputs`` says that the model
    scales its inputs itself, so that their units do not matter.
    """

    model: nn.Module
    loss_fn: LossFn
    x: Tensor
    y: Tensor
    _: KW_ONLY
    name: str = "the model"
    groups: Tensor | Sequence[Hashable] | None = None
    class_names: Sequence[Hashable] | None = None
    target_space: TargetSpace | None = None
    test: tuple[Tensor, Tensor] | None = None
    test_groups: Tensor | Sequence[Hashable] | None = None
    unlabelled: Tensor | None = None
    row_numbers: Sequence[int] | None = None
    test_row_numbers: Sequence[int] | None = None
    unlabelled_row_numbers: Sequence[int] | None = None
    feature_names: Sequence[str] = ()
    scales_inputs: bool = False
    batch_size: int = 1024

    @property
    def space(self) -> TargetSpace:
        """Space of the targets."""
        return infer_target_space(self.loss_fn, self.y) if self.target_space is None else self.target_space

    def class_name(self, label: int) -> str:
        """Return the name of a class, or its number if it has none."""
        names = () if self.class_names is None else self.class_names
        return str(names[label] if len(names) else label)

    def place(self, device: torch.device | str | None) -> tuple[nn.Module, torch.device]:
        """Return the model and its device; for another device it is copied, not moved."""
        home = next((p.device for p in self.model.parameters()), self.x.device)
        if device is None or torch.device(device) == home:
            return self.model, home
        return copy.deepcopy(self.model).to(device), torch.device(device)

    def rows(self, max_rows: int, place: torch.device, generator: torch.Generator) -> dict[RowsOf, Rows]:
        """Return rows by kind: checked, sampled by class and group if there are many, on the device."""
        given: dict[RowsOf, tuple[Any, ...]] = {"training": (self.x, self.y, self.groups, self.row_numbers)}
        if self.test is not None:
            given["held-out"] = (*self.test, self.test_groups, self.test_row_numbers)
        if self.unlabelled is not None:
            given["unlabelled"] = (self.unlabelled, None, None, self.unlabelled_row_numbers)
        rows: dict[RowsOf, Rows] = {}
        for kind, (x, y, groups, numbers) in given.items():
            checks.finite(f"x ({kind} rows)", x)
            if x.shape[1:] != self.x.shape[1:] or len(x) < 1 + (kind == "training"):
                raise ValueError(f"x ({kind} rows) has shape {tuple(x.shape)}; x has {tuple(self.x.shape)}.")
            for name, column in (("y", y), ("groups", groups)):
                if column is not None and len(column) != len(x):
                    raise ValueError(f"{name} ({kind} rows) has {len(column)} entries for {len(x)} rows.")
            is_label = y is not None and y.ndim == 1 and not y.is_floating_point()
            labels = y.tolist() if is_label else [""] * len(x)
            names = groups.tolist() if isinstance(groups, Tensor) else groups
            names = labels if names is None else [str(name) for name in names]
            kept = torch.arange(len(x))
            if len(x) > max_rows:
                kept = sample_by_part(list(zip(labels, names, strict=True)), max_rows, generator, floor=1)
            rows[kind] = Rows(
                x.detach()[kept.to(x.device)].to(place),
                None if y is None else y.detach()[kept.to(y.device)].to(place),
                None if groups is None else [names[i] for i in kept.tolist()],
                kept.tolist() if numbers is None else [numbers[i] for i in kept.tolist()],
            )
        return rows


def sample_by_part(
    parts: Sequence[Hashable], n: int, generator: torch.Generator, floor: int = 50
) -> Int[Tensor, " sample"]:
    """Draw about ``n`` rows in proportion, but at least ``floor`` of each part if it has them."""
    rows: dict[Hashable, list[int]] = {}
    for i, part in enumerate(parts):
        rows.setdefault(part, []).append(i)
    least = min(floor, n // len(rows) or 1)
    chosen = []
    for members in rows.values():
        count = min(len(members), max(round(n * len(members) / len(parts)), least))
        order = draw_permutation(len(members), device=generator.device, generator=generator)
        chosen += [members[i] for i in order[:count].tolist()]
    return torch.tensor(sorted(chosen))


class Predictor(nn.Module):
    """A fitted scikit-learn model as a module: log probabilities of classes, or a column of values.

    It has no gradient. Pass ``scales_inputs=True`` to `FittedModel` with it.

    Args:
        estimator: Estimator with ``predict_proba`` and ``classes_``, or with ``predict``.
    """

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator

    def forward(self, x: Float[Tensor, "rows features"]) -> Float[Tensor, "rows outputs"]:
        """Predict."""
        inputs = x.detach().cpu().double().numpy()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            if hasattr(self.estimator, "classes_"):
                outputs = np.log(np.clip(self.estimator.predict_proba(inputs), 1e-30, None))
            else:
                outputs = np.asarray(self.estimator.predict(inputs), float).reshape(len(inputs), -1)
        return torch.from_numpy(outputs).to(x)
