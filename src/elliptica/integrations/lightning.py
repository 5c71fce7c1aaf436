"""Lightning: a mixin for your LightningModule, and a callback for modules that you do not want to change.

The mixin computes the objective in ``training_step``, which Lightning runs inside the forward pass of its
distributed wrappers. Only there are all weightings exact. The callback can only replace the batch.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, MutableMapping, MutableSequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from elliptica._utils.extras import missing_package
from elliptica.core.bridgemix import BridgeMix
from elliptica.core.elliptic import Elliptic
from elliptica.core.types import Inputs, LossFn
from elliptica.integrations.steps import StepNoise, refuse_auto_sigma

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except Exception as error:  # broken installations are common and look the same to the user
    raise missing_package("elliptica.integrations.lightning", "lightning", "lightning") from error

#: Key of the measured ``sigma="auto"`` in a checkpoint.
_KEY = "elliptica_auto_sigma"

if TYPE_CHECKING:

    class _Base(LightningModule):  # type: ignore[misc, unused-ignore]  # mypy does not read lightning
        pass
else:
    _Base = object  # a mixin: the user's class inherits from LightningModule


class EllipticLightningMixin(_Base):
    """Elliptic training for a LightningModule: put it first among the bases, and change two lines.

    The objective is not a submodule, so checkpoints keep their keys and load with or without this mixin.
    Noise depends only on the seed, the process, the epoch and the batch. Processes therefore draw different
    noise, and a resumed run draws the same noise as an uninterrupted one. The epoch is passed to a
    ``schedule``. Outside training, `elliptic_loss` is the ordinary loss.

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

    _elliptic: tuple[Elliptic, StepNoise, int] | None = None

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
        if clean_loss_every < 0:
            raise ValueError(f"clean_loss_every must be at least 0, but got {clean_loss_every}.")
        if not isinstance(self, LightningModule):
            raise TypeError(
                f"{type(self).__name__} is not a LightningModule. Write "
                "class Lit(EllipticLightningMixin, LightningModule), with lightning.pytorch's "
                "LightningModule."
            )
        objective = Elliptic(model, loss_fn, **settings)
        if not any(module is model for module in self.modules()):
            raise ValueError(
                f"The model passed to use_elliptic ({type(model).__name__}) is not a submodule of "
                f"{type(self).__name__}, so Lightning would neither move nor train it. Assign it first: "
                "self.net = net."
            )
        if seed is None:
            seed = int(os.environ.get("PL_GLOBAL_SEED", 0))
        # in a tuple, so that it is not registered: otherwise checkpoints would hold the model twice
        self._elliptic = objective, StepNoise(seed), clean_loss_every

    @property
    def objective(self) -> Elliptic:
        """The objective that `use_elliptic` created."""
        return self._chosen()[0]

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
        objective, noise, every = self._chosen()
        objective.training = self.training  # not .train(): parts of the model may be frozen on purpose
        objective.loss.to(y.device)  # moves class weights; Lightning moves the model
        if not self.training:
            return objective(x, y, **given)
        if _world_size(self) > 1:
            refuse_auto_sigma(objective.settings, "each process has another one")
        objective.set_epoch(self.current_epoch)
        batch_idx = _batch_index(self)
        if generator is None:
            generator = noise.generator(y.device, self.global_rank, self.current_epoch, batch_idx)
        if every and batch_idx % every == 0:
            self.log("train_clean_loss", self._clean_loss(objective, x, y, given.get("sample_weight")))
        return objective(x, y, generator=generator, **given)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the ``sigma="auto"`` that was measured on the first batch."""
        super().on_save_checkpoint(checkpoint)
        if self._elliptic is not None and self.objective.auto_sigma is not None:
            checkpoint[_KEY] = self.objective.auto_sigma

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the measured ``sigma="auto"``."""
        super().on_load_checkpoint(checkpoint)
        if self._elliptic is not None and checkpoint.get(_KEY) is not None:
            self.objective.auto_sigma = checkpoint[_KEY].to(self.device)

    def _chosen(self) -> tuple[Elliptic, StepNoise, int]:
        if self._elliptic is None:
            raise RuntimeError(
                "use_elliptic was not called. Call self.use_elliptic(model, loss_fn, ...) at the end of "
                "__init__."
            )
        return self._elliptic

    @torch.no_grad()
    def _clean_loss(self, objective: Elliptic, x: Inputs, y: Tensor, weight: Tensor | None) -> Tensor:
        """Compute the ordinary loss in eval mode, without side effects on batch norm or random state."""
        modes = [(module, module.training) for module in objective.modules()]
        try:
            objective.eval()
            return objective.clean_loss(x, y, sample_weight=weight)
        finally:
            for module, mode in modes:
                module.training = mode


class BridgeMixCallback(Callback):  # type: ignore[misc, unused-ignore]
    """Replace each training batch by points on bridges: ``Trainer(callbacks=[BridgeMixCallback(mix)])``.

    The module stays unchanged, but its loss must accept soft targets (`torch.nn.CrossEntropyLoss` does).
    Lightning passes the batch to a callback but does not take one back. So the batch must be a list
    ``[x, y]`` (as the default ``collate_fn`` returns) or a dict; Lightning's copy is changed, not yours.
    Tuples cannot be changed: use `EllipticLightningMixin`, or ``collate_fn=mix.collate_fn(seed=0)`` in the
    loader. Importance weighting, schedules and modes of batch norm also need the mixin.

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
        if not isinstance(mix, BridgeMix):
            raise TypeError(
                f"mix must be a BridgeMix, but got {type(mix).__name__}. For an objective that owns the "
                "model, use EllipticLightningMixin."
            )
        self.mix = mix
        self.keys = (x, y)
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Replace the batch by mixed inputs and soft targets."""
        x, y = places = self._places(batch)
        if not isinstance(batch[y], Tensor):
            raise TypeError(
                f"The targets in the batch must be a tensor, but are a {type(batch[y]).__name__}. "
                "BridgeMixCallback supports batches [x, y] and dicts of one loader."
            )
        seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if self.seed is None else self.seed
        step = trainer.global_rank, trainer.current_epoch, batch_idx
        generator = StepNoise(seed).generator(batch[y].device, *step)
        for place, mixed in zip(places, self.mix(batch[x], batch[y], generator=generator), strict=True):
            batch[place] = mixed

    def _places(self, batch: Any) -> tuple[Any, Any]:
        """Return the places of inputs and targets in a batch that can be changed."""
        if isinstance(batch, MutableSequence):
            if len(batch) != 2:
                raise ValueError(
                    f"BridgeMixCallback expects a batch [x, y], but this one has {len(batch)} parts. Use a "
                    "dict batch with x= and y= naming its keys, or EllipticLightningMixin."
                )
            return 0, 1
        if isinstance(batch, MutableMapping):
            absent = [key for key in self.keys if key not in batch]
            if absent:
                raise ValueError(
                    f"The batch has no key {absent[0]!r}, only {', '.join(map(repr, batch))}. Name the keys: "
                    'BridgeMixCallback(mix, x="...", y="...").'
                )
            return self.keys
        raise TypeError(
            f"BridgeMixCallback got a batch of type {type(batch).__name__}, which cannot be changed in "
            "place, and Lightning does not take a batch back from a callback. Return lists (as the default "
            "collate_fn does) or dicts from the loader, use collate_fn=mix.collate_fn(seed=0), or use "
            "EllipticLightningMixin."
        )


def _batch_index(module: LightningModule) -> int:
    """Return the number of the batch in its epoch; without a trainer, count calls instead."""
    try:
        return module.trainer.fit_loop.epoch_loop.batch_idx
    except (RuntimeError, AttributeError):
        return 0


def _world_size(module: LightningModule) -> int:
    try:
        return module.trainer.world_size
    except (RuntimeError, AttributeError):
        return 1
