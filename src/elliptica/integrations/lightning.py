"""Lightning: a mixin for your LightningModule, and a callback for modules that you do not want to change.

The mixin computes the objective in ``training_step``, which Lightning runs inside the forward pass of its
distributed wrappers. Only there are all weightings exact. The callback can only replace the batch.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from elliptica._utils.extras import missing_package
from elliptica.core.bridgemix import BridgeMix
from elliptica.core.elliptic import Elliptic
from elliptica.core.inputs import Inputs, LossFn
from elliptica.core.layers import evaluation_mode
from elliptica.integrations.steps import StepNoise

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except Exception as error:  # broken installations are common and look the same to the user
    raise missing_package("elliptica.integrations.lightning", "lightning", "lightning") from error

if TYPE_CHECKING:

    class _Base(LightningModule):  # type: ignore[misc, unused-ignore]  # mypy does not read lightning
        pass
else:
    _Base = object  # a mixin: the user's class inherits from LightningModule


class EllipticLightningMixin(_Base):
    """Elliptic training for a LightningModule: put it first among the bases, and change two lines.

    The objective is not a submodule, so checkpoints keep their keys and load with or without this mixin.
    Noise depends only on the seed, the process, the epoch and the batch. Processes therefore draw different
    noise, and a resumed run draws the same noise as an uninterrupted one. Outside training, `elliptic_loss`
    is the ordinary loss. Set ``self.objective.strength`` in a hook such as ``on_train_epoch_start`` to change
    the noise during training.

    Example:
        >>> import lightning as L
        >>> class Lit(EllipticLightningMixin, L.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(4, 3)
        ...         self.use_elliptic(self.net, nn.CrossEntropyLoss(), num_classes=3, sigma=0.05)  # new
        ...
        ...     def training_step(self, batch, batch_idx):
        ...         x, y = batch
        ...         return self.elliptic_loss(x, y)  # was: cross_entropy(self.net(x), y)
        >>> batch = torch.randn(8, 4), torch.randint(3, (8,))
        >>> Lit().training_step(batch, 0).shape
        torch.Size([])
    """

    _elliptic: tuple[Elliptic, StepNoise, int]

    def use_elliptic(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        seed: int | None = None,
        clean_loss_every: int = 0,
        **settings: Any,
    ) -> None:
        """Set the objective; call it at the end of ``__init__``.

        Args:
            model: The network, a submodule of this module (or the module itself, if it has a ``forward``).
            loss_fn: Your ordinary loss.
            seed: Seed of the noise; None uses the seed of ``seed_everything``, or 0 without it.
            clean_loss_every: Log ``train_clean_loss``, the ordinary loss of the batch in eval mode, after
                every so many batches. Each time costs a forward pass. 0 means never.
            **settings: Settings of `elliptica.Elliptic`.
        """
        if not any(module is model for module in self.modules()):
            raise ValueError(
                "model must be a submodule, or Lightning would neither move nor train it. Assign it first: "
                "self.net = model."
            )
        # in a tuple, so that it is not registered: otherwise checkpoints would hold the model twice
        self._elliptic = Elliptic(model, loss_fn, **settings), StepNoise(_seed(seed)), clean_loss_every

    @property
    def objective(self) -> Elliptic:
        """The objective that `use_elliptic` created."""
        return self._elliptic[0]

    def elliptic_loss(
        self, x: Inputs, y: Tensor, *, generator: torch.Generator | None = None, **given: Any
    ) -> Tensor:
        """Compute the loss of a batch: the objective in training, the ordinary loss otherwise.

        Args:
            x: Inputs, as for `elliptica.Elliptic`.
            y: Targets.
            generator: Source of randomness; None derives it from the seed, the process and the batch.
            **given: Further arguments of the objective: ``sample_weight``, ``partners``, ``end``, ``paths``.
        """
        objective, noise, every = self._elliptic
        objective.training = self.training  # not .train(): parts of the model may be frozen on purpose
        objective.loss.to(y.device)  # moves class weights; Lightning moves the model
        if self.training:
            batch_idx = _batch_index(self)
            if generator is None:
                generator = noise.generator(y.device, self.global_rank, self.current_epoch, batch_idx)
            if every and batch_idx % every == 0:
                with torch.no_grad(), evaluation_mode(objective):  # no trace in batch norm or dropout
                    clean = objective.clean_loss(x, y, sample_weight=given.get("sample_weight"))
                self.log("train_clean_loss", clean)
        loss: Tensor = objective(x, y, generator=generator, **given)
        return loss


class BridgeMixCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Replace each training batch by points on bridges: ``Trainer(callbacks=[BridgeMixCallback(mix)])``.

    The module stays unchanged, but its loss must accept soft targets (`torch.nn.CrossEntropyLoss` does).
    Lightning passes the batch to a callback but does not take one back. So the batch must be a list
    ``[x, y]`` (as the default ``collate_fn`` returns) or a dict; Lightning's copy is changed, not yours.
    Tuples cannot be changed: use `EllipticLightningMixin`, or ``collate_fn=mix.collate_fn(seed=0)`` in the
    loader. Importance weighting and modes of batch norm also need the mixin.

    Args:
        mix: The transform. With ``sampling="path"`` it returns more rows than the batch had.
        x: Key of the inputs in dict batches.
        y: Key of the targets in dict batches.
        seed: Seed of the noise; None uses the seed of ``seed_everything``, or 0 without it.

    Example:
        >>> callback = BridgeMixCallback(BridgeMix(num_classes=3), x="image", y="label", seed=0)
    """

    def __init__(
        self, mix: BridgeMix, *, x: Hashable = "x", y: Hashable = "y", seed: int | None = None
    ) -> None:
        self.mix = mix
        self.keys = (x, y)
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Replace the batch by mixed inputs and soft targets."""
        x, y = self.keys if isinstance(batch, dict) else (0, 1)
        if isinstance(batch, list) and len(batch) != 2:
            raise ValueError(f"batch must be [x, y], but has {len(batch)} parts, which would not be mixed.")
        step = trainer.global_rank, trainer.current_epoch, batch_idx
        generator = StepNoise(_seed(self.seed)).generator(batch[y].device, *step)
        batch[x], batch[y] = self.mix(batch[x], batch[y], generator=generator)


def _seed(seed: int | None) -> int:
    """Return the seed, or that of ``seed_everything``."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else seed


def _batch_index(module: LightningModule) -> int:
    """Return the number of the batch in its epoch; without a trainer, `StepNoise` counts calls instead."""
    try:
        return module.trainer.fit_loop.epoch_loop.batch_idx
    except (RuntimeError, AttributeError):
        return 0
