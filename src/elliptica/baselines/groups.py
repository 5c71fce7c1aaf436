"""Objectives that know the group of each training row: risks of groups, Group DRO, DomainMix and LISA.

Only groups in the batch count. All rows go through the model in one pass, so batch norm sees the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from elliptica._utils import checks
from elliptica._utils.random import compute_dtype, draw_gamma, draw_permutation, draw_uniform
from elliptica.baselines.erm import ERM, Batch, between
from elliptica.baselines.mixup import draw_share
from elliptica.core.inputs import Inputs, LossFn, call_model, named_inputs, rebuild_inputs
from elliptica.core.partners import draw_from


@dataclass(frozen=True)
class Groups:
    """The groups that occur in a batch."""

    labels: Tensor  # their numbers, ascending
    index: Tensor  # position among ``labels`` of each row's group
    counts: Tensor  # number of rows of each

    def sum(self, values: Tensor) -> Tensor:
        """Sum ``values`` (rows first) over each group; half precision is summed in float32."""
        values = values.to(compute_dtype(values.dtype))
        return values.new_zeros(len(self.labels), *values.shape[1:]).index_add(0, self.index, values)

    def mean(self, values: Tensor) -> Tensor:
        """Average ``values`` over each group; 0 for a group without rows (an empty half)."""
        return self.sum(values) / _column(self.counts.clamp_min(1), values)

    def deviations(self, values: Tensor) -> Tensor:
        """Subtract the mean of its group from each row of ``values``."""
        return values - self.mean(values)[self.index]

    def variance(self, values: Tensor) -> Tensor:
        """Return the unbiased variance within each group; 0 for a group of one row."""
        return self.sum(self.deviations(values).square()) / _column((self.counts - 1).clamp_min(1), values)

    def halves(self) -> Groups:
        """Split every group in two, taking rows alternately; the second half of a single row is empty."""
        order = self.index.argsort(stable=True)
        first = self.counts.cumsum(0) - self.counts
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device) - first[self.index[order]]
        counts = torch.stack([(self.counts + 1) // 2, self.counts // 2], 1).flatten()
        return Groups(self.labels.repeat_interleave(2), 2 * self.index + rank % 2, counts)


def find_groups(group: Tensor | None, rows: int) -> Groups:
    """Return the groups that occur among ``rows`` rows; raise unless each row has an integer from 0."""
    if group is None or group.is_floating_point() or group.shape != (rows,) or int(group.min()) < 0:
        raise ValueError(f"group must hold an integer from 0 for each row, shape ({rows},).")
    return Groups(*group.long().unique(return_inverse=True, return_counts=True))


@dataclass(frozen=True)
class GroupBatch(Batch):
    """The checked arguments of a training call with groups."""

    groups: Groups  # groups of the rows


class GroupObjective(ERM):
    """Base class of objectives with groups, ``objective(x, y, group)``."""

    def forward(  # type: ignore[override]  # with groups, and without ends
        self,
        x: Inputs,
        y: Tensor,
        group: Int[Tensor, " batch"] | None = None,
        *,
        sample_weight: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the loss of a batch, a scalar; in ``eval()`` mode the ordinary loss.

        Args:
            x: Inputs, as of `ERM`.
            y: Targets.
            group: Number of each row's group, from 0; not needed in ``eval()`` mode. A batch need not contain
                every group.
            sample_weight: Weight of each sample. The risk of a group is its mean of weight times loss.
            generator: Source of randomness of methods that draw.
        """
        if not self.training:
            return self.clean_loss(x, y, sample_weight=sample_weight)
        self._check(x, y, sample_weight)
        groups = find_groups(None if group is None else group.to(y.device), len(y))
        return self._group_loss(GroupBatch(x, y, sample_weight, None, generator, groups))

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        """Return the training loss of a checked batch."""
        raise NotImplementedError

    def _risks(self, losses: Tensor, target: Tensor, weight: Tensor | None, groups: Groups) -> Tensor:
        """Return the mean loss of each group, as `ERM` computes it on its rows alone."""
        total = losses if weight is None else losses * weight
        if not self.loss.weights_classes:
            return groups.mean(total)
        size = groups.sum(self.loss.class_weight(target))
        return groups.sum(total) / torch.where(size > 0, size, 1.0)

    def _risks_at(self, output: Any, batch: GroupBatch) -> Tensor:
        """Return the risks of groups from the model's output."""
        target = self._encode(batch.y, output)
        return self._risks(self.loss(output, target), target, batch.weight, batch.groups)


class GroupDRO(GroupObjective):
    """Weigh group losses by ``q``, which grows where the loss is large (Sagawa et al., ICLR 2020).

    With the mean loss ``L_g`` of group ``g`` in the batch, first ``q_g <- q_g * exp(step_size * L_g)``,
    divided by the sum, then the loss is ``sum_g q_g * L_g``. ``q`` starts uniform and has no gradient. A
    group that is not in the batch keeps its ``q`` up to that division, and adds no loss (Algorithm 1, as in
    the authors' code). ``step_size=0`` is the mean of group means. ``q`` changes with each call in training
    mode, and is saved with the objective.

    The authors draw batches in which groups are balanced, see `group_balanced_weights`.

    Args:
        n_groups: Number of groups; they are numbered from 0.
        step_size: Step size of ``q``; the authors use 0.01.
        group_sizes: Training rows of each group. A group without rows gets ``q = 0`` and must not occur.
    """

    q: Tensor
    _exists: Tensor

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        n_groups: int,
        *,
        step_size: float = 0.01,
        group_sizes: Int[Tensor, " groups"] | Sequence[int] | None = None,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        self.n_groups = n_groups
        self.step_size = between("step_size", step_size)
        sizes = torch.ones(n_groups) if group_sizes is None else torch.as_tensor(group_sizes).float()
        if sizes.shape != (n_groups,) or not bool(sizes.sum() > 0):
            raise ValueError(f"group_sizes must hold the training rows of {n_groups} groups; see bincount.")
        exists = sizes > 0
        self.register_buffer("q", exists / exists.sum())
        self.register_buffer("_exists", exists, persistent=False)

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        labels = batch.groups.labels
        if not bool(self._exists[labels].all()):
            raise ValueError("group has rows of a group that is empty according to group_sizes.")
        risks = self._risks_at(call_model(self.model, batch.x), batch)
        self._update(labels, risks.detach())
        return (self.q[labels] * risks).sum()

    @torch.no_grad()
    def _update(self, labels: Tensor, risks: Tensor) -> None:
        """Move ``q`` towards groups of large loss, by logarithms, so that no exponential overflows."""
        gain = self.step_size * risks.to(self.q.dtype)
        updated = self.q.log().index_add(0, labels, gain).softmax(0)
        # an infinite loss, as under automatic mixed precision, must not make q NaN forever
        self.q.copy_(torch.where(updated.isfinite().all(), updated, self.q))


def group_balanced_weights(group: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Return weights ``n / n_g`` of rows, with which a sampler draws each group equally often.

    They are for ``torch.utils.data.WeightedRandomSampler(weights, len(weights))``, which draws with
    replacement.

    Example:
        >>> group_balanced_weights(torch.tensor([0, 0, 0, 1])).tolist()
        [1.3333333333333333, 1.3333333333333333, 1.3333333333333333, 4.0]
    """
    groups = find_groups(group, len(group))
    return (len(group) / groups.counts.double())[groups.index]


class DomainMix(GroupObjective):
    """Mix each sample with one of another group (Xu et al., AAAI 2020, as in DomainBed).

    The groups of the batch are put in a random cyclic order. Each is mixed with the next, row by row in the
    order of the batch, and the longer of the two is cut to the length of the shorter. Every pair has
    one share from Beta(alpha, alpha) and the loss ``mean(share * loss(y) + (1 - share) * loss(y_partner))``
    at the mixed points; the result is the mean over pairs. With one group in the batch nothing is mixed.
    Draws, in this order: the order of groups, then two gamma variables for each pair.

    The authors adapt to a known target domain; without one, this is DomainBed's "Mixup".

    Args:
        alpha: 0.2 in DomainBed; 0 means no mixing.
    """

    mixes_inputs = True

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, alpha: float = 0.2, num_classes: int | None = None
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        self.alpha = between("alpha", alpha)

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        x, y, weight, generator = batch.x, batch.y, batch.weight, batch.generator
        near, far, pairs = pair_groups(batch.groups, generator)
        shares = [draw_share(self.alpha, generator) for _ in pairs.labels]
        share = torch.tensor(shares, device=y.device)[pairs.index]
        mixed = {name: mix_rows(v[near], v[far], share) for name, v in named_inputs(x).items()}
        output = call_model(self.model, rebuild_inputs(x, mixed))
        target = self._encode(y, output)
        losses = mix_rows(self.loss(output, target[near]), self.loss(output, target[far]), share)
        between_targets = mix_rows(target[near], target[far], share)
        mixed_weight = None if weight is None else mix_rows(weight[near], weight[far], share)
        return self._risks(losses, between_targets, mixed_weight, pairs).mean()


def pair_groups(groups: Groups, generator: torch.Generator | None) -> tuple[Tensor, Tensor, Groups]:
    """Return rows of each group and of the next in a random cyclic order, and the pair of each."""
    n = len(groups.labels)
    device = groups.index.device
    order = draw_permutation(n, device=device, generator=generator).tolist()
    rows = [(groups.index == number).nonzero().flatten() for number in order]
    near, far = [], []
    for number, own in enumerate(rows):
        other = rows[(number + 1) % n]
        length = min(len(own), len(other))
        near.append(own[:length])
        far.append(other[:length])
    counts = torch.tensor([len(part) for part in near], device=device)
    labels = torch.arange(n, device=device)
    return torch.cat(near), torch.cat(far), Groups(labels, labels.repeat_interleave(counts), counts)


class LISA(GroupObjective):
    """Mix within a label across domains, or within a domain across labels (Yao et al., ICML 2022).

    ``group`` is the domain, or the spurious attribute, *without* the label. With probability ``selection``
    every sample of the batch is mixed with one of the same label and another group, otherwise with one of
    the same group and another label. Partners are uniform among those of the batch; a sample without one is
    not mixed. Each sample has its own share from Beta(alpha, alpha), and the loss is ``share * loss(y) +
    (1 - share) * loss(y_partner)``, for cross-entropy that of the mixed label. Targets that are not integers
    count as one label where they are equal. Draws, in this order: the choice, the partners, two gamma
    variables per row, places of boxes.

    ``mix="cutmix"`` replaces a box of the image by the partner's instead of mixing pixels. The box
    covers ``1 - share`` of the area before it is clipped at the border, and the share becomes the remaining
    part of the image. The authors use ``alpha=0.2`` with it for CelebA, and 2 for Camelyon17. They draw
    batches from two groups at a time, with equally many rows of each; see `group_balanced_weights`.

    Args:
        selection: Probability, for a batch, of mixing within a label; the authors' ``p_sel``.
        alpha: 2 in the authors' settings; 0 means no mixing.
        mix: ``"input"``, or ``"cutmix"`` for images ``(batch, channel, height, width)``.
    """

    mixes_inputs = True

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        selection: float = 0.5,
        alpha: float = 2.0,
        mix: Literal["input", "cutmix"] = "input",
        num_classes: int | None = None,
    ) -> None:
        super().__init__(model, loss_fn, num_classes=num_classes)
        checks.choice("mix", mix, ("input", "cutmix"))
        self.selection = between("selection", selection, 0, 1)
        self.alpha = between("alpha", alpha)
        self.mix = mix

    def _group_loss(self, batch: GroupBatch) -> Tensor:
        x, y, weight, generator = batch.x, batch.y, batch.weight, batch.generator
        chosen = draw_uniform((1,), device=y.device, generator=generator)
        allowed = eligible(y, batch.groups.index, within_label=bool(chosen < self.selection))
        partners, is_alone = draw_partners(allowed, generator)
        share = draw_shares(self.alpha, len(y), y.device, generator).masked_fill(is_alone, 1.0)
        if self.mix == "cutmix":
            x, share = cutmix(x, partners, share, generator)
        else:
            mixed = {name: mix_rows(v, v[partners], share) for name, v in named_inputs(x).items()}
            x = rebuild_inputs(x, mixed)
        output = call_model(self.model, x)
        target = self._encode(y, output)
        losses = mix_rows(self.loss(output, target), self.loss(output, target[partners]), share)
        mixed_weight = None if weight is None else mix_rows(weight, weight[partners], share)
        return self._mean(losses, mix_rows(target, target[partners], share), mixed_weight)


def eligible(y: Tensor, group: Tensor, *, within_label: bool) -> Tensor:
    """Return which partners (columns) each row may be mixed with."""
    label = y.reshape(len(y), -1).unique(dim=0, return_inverse=True)[1]
    same_label, same_group = (v[:, None] == v[None] for v in (label, group))
    return same_label & ~same_group if within_label else same_group & ~same_label


def draw_partners(allowed: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draw a uniform allowed partner of each row (itself if there is none); also return which have none."""
    is_alone = ~allowed.any(1)
    counts = (allowed | torch.diag(is_alone)).float().cumsum(1)
    return draw_from(counts, 1, generator).squeeze(1), is_alone


def draw_shares(alpha: float, n: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    """Draw ``n`` shares from Beta(alpha, alpha), from two gammas; for alpha 0 return 1, no draw."""
    if alpha == 0:
        return torch.ones(n, device=device)
    first, second = draw_gamma(alpha, 2 * n, device=device, generator=generator).view(2, n)
    coin = draw_uniform((n,), device=device, generator=generator) < 0.5
    # both underflow for small alpha, where the law is a coin flip
    return torch.where(first == second, coin.to(first.dtype), first / (first + second))


def cutmix(
    x: Inputs, partners: Tensor, share: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Return images with a box from their partner, and the part of the area that is their own.

    Sides of the box are ``sqrt(1 - share)`` of those of the image, rounded down to an even number of
    pixels; its centre is uniform over the image (Yun et al., ICCV 2019).
    """
    if not isinstance(x, Tensor) or x.ndim != 4:
        raise ValueError('x must hold images (batch, channel, height, width) for mix="cutmix".')
    side = (1 - share).sqrt()
    places = draw_uniform((2, len(x)), device=x.device, generator=generator)
    inside = []
    for extent, place in zip(x.shape[2:], places, strict=True):
        centre, half = (extent * place).long(), (extent * side).long() // 2
        pixel = torch.arange(extent, device=x.device) - centre[:, None]
        inside.append((pixel >= -half[:, None]) & (pixel < half[:, None]))
    box = inside[0][:, :, None] & inside[1][:, None]  # (batch, height, width)
    return torch.where(box[:, None], x[partners], x), 1 - box.float().mean((1, 2))


def mix_rows(near: Tensor, far: Tensor, share: Tensor) -> Tensor:
    """Interpolate between ``near`` (share 1) and ``far`` (share 0), with a share for each row."""
    part = _column(share, near).to(compute_dtype(near.dtype))
    return (part * near + (1 - part) * far).to(near.dtype)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape one number per row to as many axes as ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))
