"""Just train twice: upweight the errors of a first model (Liu et al., ICML 2021).

Train the first model plainly, with `ERM`, for a few epochs. Train the second from scratch, also with `ERM`,
on `upsampled_rows` or with `error_weights`. Without errors this is plain training.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica.core.inputs import call_model, check_batch, count_rows, named_inputs, rebuild_inputs
from elliptica.core.targets import encode_targets
from elliptica.core.types import Inputs


def find_errors(model: nn.Module, x: Inputs, y: Tensor, *, batch_size: int = 256) -> Bool[Tensor, " n"]:
    """Return which samples the model gets wrong in ``eval()`` mode; the mode is restored afterwards.

    The authors instead record the predictions made during training; see `ErrorRecorder`.

    Args:
        model: Any classifier, see `is_correct`.
        x: Inputs of the training set, on the model's device.
        y: Labels.
        batch_size: Samples per forward pass; it does not change the result.

    Example:
        >>> x = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
        >>> find_errors(nn.Identity(), x, torch.tensor([0, 0]))
        tensor([False,  True])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, but got {type(model).__name__}. The order is "
            "find_errors(model, x, y)."
        )
    checks.count("batch_size", batch_size)
    inputs = named_inputs(x)
    rows = count_rows(inputs)
    check_batch(inputs, [], y, rows, finite=True)
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    errors = []
    try:
        with torch.no_grad():
            for begin in range(0, rows, batch_size):
                part = slice(begin, begin + batch_size)
                output = call_model(
                    model, rebuild_inputs(x, {name: value[part] for name, value in inputs.items()})
                )
                errors.append(~is_correct(output, y[part]))
    finally:
        for module, training in before:
            module.training = training
    return torch.cat(errors)


class ErrorRecorder:
    """Record which samples are predicted wrongly *during* training: JTT's error set.

    As in the authors' code, predictions are those of the training passes, with weights that change from batch
    to batch, and with dropout. Record one epoch; the authors use epoch 60 for Waterbirds and epoch 1 for
    CelebA, counted from 0. A sample that occurs several times is an error if it was wrong once. One that
    never occurs is not an error.

    Args:
        n_rows: Size of the training set.

    Example:
        >>> recorder = ErrorRecorder(4)
        >>> output = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
        >>> recorder.update(torch.tensor([3, 0]), output, torch.tensor([0, 0]))
        >>> recorder.errors
        tensor([ True, False, False, False])
    """

    def __init__(self, n_rows: int) -> None:
        checks.count("n_rows", n_rows)
        self.n_right = torch.zeros(n_rows, dtype=torch.int32)
        self.n_seen = torch.zeros(n_rows, dtype=torch.int32)

    def update(self, index: Int[Tensor, " batch"], output: Tensor, y: Tensor) -> None:
        """Record a batch: rows ``index`` of the training set, the model's output, and their labels."""
        check_index(index, len(self.n_seen))
        right = is_correct(output, y).to(self.n_right)
        checks.same_rows("index", index, len(right), "output")
        index = index.to(self.n_seen.device)
        self.n_right.index_add_(0, index, right)
        self.n_seen.index_add_(0, index, torch.ones_like(right))

    @property
    def errors(self) -> Bool[Tensor, " n"]:
        """Samples that were wrong at least once."""
        if not bool(self.n_seen.any()):
            raise ValueError(
                "Nothing has been recorded yet. Call update(index, output, y) for each batch first."
            )
        return self.n_right < self.n_seen

    def reset(self) -> None:
        """Clear the record before another epoch."""
        self.n_right.zero_()
        self.n_seen.zero_()


def upsampled_rows(errors: Bool[Tensor, " n"], factor: int = 100) -> Int[Tensor, " rows"]:
    """Return the rows of JTT's second training set: every row, then ``factor`` copies of the errors.

    An error thus occurs ``factor + 1`` times, as in the authors' code. Use the result as
    ``torch.utils.data.Subset(data, rows)``, or as ``x[rows], y[rows]``.

    Args:
        errors: Whether each row is an error.
        factor: At least 0; the authors use 100 for Waterbirds, 50 for CelebA, and try 20, 50 and 100.

    Example:
        >>> upsampled_rows(torch.tensor([False, True, False]), factor=2)
        tensor([0, 1, 2, 1, 1])
    """
    _check_errors(errors)
    checks.count("factor", factor, 0)
    rows = torch.arange(len(errors), device=errors.device)
    return torch.cat([rows, rows[errors].repeat(factor)])


def error_weights(errors: Bool[Tensor, " n"], weight: float = 10.0) -> Float[Tensor, " n"]:
    """Return sample weights for JTT's second training: ``weight`` for errors, 1 for others, not normalised.

    This is the variant of SubpopBench (Yang et al., ICML 2023): nothing is repeated, and a step is larger
    where the batch holds errors. Pass ``weights[index]`` as ``sample_weight`` of `ERM`.

    Args:
        errors: Whether each row is an error.
        weight: At least 0; 1 is plain training.

    Example:
        >>> error_weights(torch.tensor([False, True]))
        tensor([ 1., 10.])
    """
    _check_errors(errors)
    checks.nonnegative("weight", weight)
    return torch.ones(errors.shape, device=errors.device).masked_fill(errors, weight)


def is_correct(output: Any, y: Tensor) -> Bool[Tensor, " batch"]:
    """Return whether each prediction is right: the largest logit of ``(batch, classes)``, or the sign of one.

    Labels are integers, or soft labels, of which the largest class counts.
    """
    if not isinstance(output, Tensor) or output.ndim not in (1, 2):
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"The model must return logits of shape (batch, classes) or (batch,), but returned {got}. Wrap "
            "it in a module that returns only the logits."
        )
    checks.tensor("the model's output", output)
    if not output.is_floating_point() or output[0:1].numel() == 0:
        raise TypeError(
            "The model must return logits, floating-point numbers, but returned dtype "
            f"{output.dtype} and shape {tuple(output.shape)}. Return scores, not labels."
        )
    checks.same_rows("y", y, len(output), "output")
    checks.finite("output", output)
    if y.is_complex():
        raise TypeError(f"y must hold labels, but has dtype {y.dtype}. Use y.real.")
    checks.finite("y", y)
    output, y = output.detach(), y.detach()
    if output.ndim == 1 or output.shape[1] == 1:
        if y.numel() != len(output):
            raise ValueError(
                f"One logit per sample needs one label per sample, but y has shape {tuple(y.shape)}. "
                "Use y.flatten()."
            )
        label = encode_targets(y.float().flatten(), "unit")
        return (output.flatten() > 0) == (label > 0.5).to(output.device)
    label = encode_targets(y, "simplex", num_classes=output.shape[1])
    if label.ndim != 2 or label.shape[1] != output.shape[1]:
        raise ValueError(
            f"y must hold labels of shape (batch,) or soft labels of shape {tuple(output.shape)}, but has "
            f"shape {tuple(y.shape)}. Pass y.squeeze(1) for labels of shape (batch, 1)."
        )
    return output.argmax(1) == label.argmax(1).to(output.device)


def _check_errors(errors: object) -> None:
    if isinstance(errors, Tensor):
        checks.tensor("errors", errors)
    if not isinstance(errors, Tensor) or errors.dtype != torch.bool or errors.ndim != 1:
        got = (
            f"{errors.dtype} of shape {tuple(errors.shape)}"
            if isinstance(errors, Tensor)
            else type(errors).__name__
        )
        raise TypeError(
            f"errors must be a boolean tensor of shape (n,), but got {got}. Use find_errors, or an "
            "ErrorRecorder."
        )


def check_index(index: object, n_rows: int) -> None:
    """Raise unless ``index`` holds numbers of rows of the training set."""
    is_integer = isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)
    if not isinstance(index, Tensor) or not is_integer or index.ndim != 1:
        got = (
            f"{index.dtype} of shape {tuple(index.shape)}"
            if isinstance(index, Tensor)
            else type(index).__name__
        )
        raise TypeError(
            f"index must be an integer tensor of shape (batch,), but got {got}. Pass the rows' numbers in "
            "the training set."
        )
    if len(index) and not 0 <= int(index.min()) <= int(index.max()) < n_rows:
        raise ValueError(
            f"index must lie in 0..{n_rows - 1}, the rows of the training set, but ranges from "
            f"{int(index.min())} to {int(index.max())}. "
            "Correct n_rows, or number the rows of the training set from 0."
        )
