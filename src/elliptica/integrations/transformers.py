"""Hugging Face `Trainer` with the elliptic objective: texts, images, classification and regression.

The objective needs the model before its forward pass, so it hooks into ``compute_loss``; a
``compute_loss_func`` would come too late. The trainer keeps the plain model, so its checkpoints load without
this library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from elliptica._utils.extras import missing_package
from elliptica._utils.random import compute_dtype
from elliptica.core.elliptic import Elliptic
from elliptica.core.inputs import LossFn
from elliptica.core.layers import Split
from elliptica.integrations.steps import StepNoise

try:
    from transformers import Trainer
except Exception as error:  # broken installations are common and look the same to the user
    raise missing_package("elliptica.integrations.transformers", "hf", "transformers") from error

if TYPE_CHECKING:

    class _Base(Trainer):  # type: ignore[misc, unused-ignore]  # mypy does not read transformers
        pass
else:
    _Base = object  # a mixin: the user's class inherits from Trainer

_CLASSES = "single_label_classification"
_LOSSES: dict[str, type[nn.Module]] = {
    "regression": nn.MSELoss,
    _CLASSES: nn.CrossEntropyLoss,
    "multi_label_classification": nn.BCEWithLogitsLoss,
}


class EllipticTrainerMixin(_Base):
    """Elliptic training for your own `Trainer`: ``class Mine(EllipticTrainerMixin, Trainer)``.

    For models with one label, or vector of labels, per row. Texts are bridged in their word embeddings;
    images and other floating inputs (``model.main_input_name``) are bridged directly. Masks, token ids and
    all other inputs come from the nearer end of each bridge, so that at both ends the model sees exactly the
    data. ``config.problem_type`` selects the model's own loss. Evaluation is unchanged unless you pass a
    loss. Noise depends only on ``args.seed``, the process and the step, so a resumed run draws the same noise
    as an uninterrupted one. With gradient accumulation, every row of the accumulated batch has the same
    weight. Set ``trainer.objective.strength`` in a callback to change the noise during training.

    Args:
        *args: Arguments of the trainer, as are all others.
        elliptic: Settings of `elliptica.Elliptic`. ``bridged`` names the inputs to bridge, ``at`` a layer to
            bridge in instead (default for texts: ``get_input_embeddings()``). In an embedding, ``sigma``
            defaults to a tenth of the standard deviation of its table, and ``sigma_y`` to zero.
        loss_fn: Your own loss of logits and labels for training and evaluation, e.g.
            ``nn.CrossEntropyLoss(label_smoothing=0.1)``; it must also accept soft labels.

    Example:
        >>> class EllipticTrainer(EllipticTrainerMixin, Trainer):
        ...     "EllipticTrainer(model=..., args=..., train_dataset=..., elliptic={'sigma': 0.05})"
    """

    #: `compute_loss` divides by the rows of the whole accumulated batch.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        *args: Any,
        elliptic: Mapping[str, Any] | None = None,
        loss_fn: LossFn | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        settings = dict(elliptic or {})
        main = getattr(self.model, "main_input_name", None)
        bridged = settings.pop("bridged", None if main is None else (main,))
        self._at = settings.pop("at", None)
        self._bridges_ids = tuple(bridged or ()) == ("input_ids",)  # nothing lies between two token ids
        layer = self._layer()
        self._refuse_ignored(layer is not None)
        if isinstance(layer, nn.Embedding):
            # the units of a table have nothing to do with those of real targets
            settings = {"sigma": 0.1 * float(layer.weight.detach().float().std()), "sigma_y": 0.0, **settings}
        self._own_loss = loss_fn
        if self._problem == _CLASSES:
            settings.setdefault(
                "num_classes", getattr(getattr(self.model, "config", None), "num_labels", None)
            )
        self._readout = Readout(self.model)
        loss_fn = loss_fn or _LOSSES[self._problem]()
        self.objective = Elliptic(self._readout, loss_fn, bridged=bridged, **settings)
        self._noise = StepNoise(self.args.seed)
        self._rows: int | None = None

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the objective in training, the ordinary loss in evaluation; see `transformers.Trainer`."""
        if model.training:
            return self._training_loss(model, *self._split(inputs))
        if self._own_loss is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        x, y = self._split(inputs)
        outputs = model(**x)
        loss = self._own_loss(logits_of(outputs), y).mean()
        if isinstance(outputs, tuple):
            outputs = (loss, *outputs)  # the trainer expects the logits after the loss
        return (loss, outputs) if return_outputs else loss

    def get_batch_samples(self, *args: Any, **more: Any) -> Any:
        """Return the next batches to accumulate, and count their rows."""
        batches, items = super().get_batch_samples(*args, **more)
        self._rows = sum(len(batch[self._label]) for batch in batches)
        return batches, items

    def _training_loss(self, model: nn.Module, x: dict[str, Any], y: Tensor) -> Tensor:
        objective, layer = self.objective, self._layer()
        self._readout.net = model  # trainers wrap the model late
        if layer is not None:  # which changes the name of its layers
            name = next(name for name, module in self._readout.named_modules() if module is layer)
            objective.split = Split(self._readout, name)
        objective.training = True
        objective.loss.to(y.device)
        generator = self._noise.generator(y.device, self.args.process_index, self.state.global_step)
        loss: Tensor = objective(x, y, generator=generator)
        return loss * (len(y) / self._rows) if self.is_in_train and self._rows else loss

    @property
    def _label(self) -> str:
        return self.label_names[0] if len(self.label_names) == 1 else "labels"

    @property
    def _problem(self) -> str:
        """The kind of labels, as the model itself sees it."""
        config = getattr(self.model, "config", None)
        kind = getattr(config, "problem_type", None)
        return kind or ("regression" if getattr(config, "num_labels", None) == 1 else _CLASSES)

    def _layer(self) -> nn.Module | None:
        """Return the layer to bridge in, of the present model (``model_init`` creates new ones)."""
        by_default = self.model.get_input_embeddings() if self._bridges_ids else None
        return by_default if self._at is None else self.model.get_submodule(self._at)

    def _split(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
        """Split a batch into inputs of the model, and targets in the shape of its logits."""
        x = {name: value for name, value in inputs.items() if value is not None}
        y: Tensor = x.pop(self._label)
        if self._problem == _CLASSES:
            return x, _class_labels(y) if self._own_loss is None else y
        y = y if y.is_floating_point() else y.float()
        return x, y.unsqueeze(1) if y.ndim == 1 else y

    def _refuse_ignored(self, in_layer: bool) -> None:
        """Raise for trainer arguments that would silently be ignored."""
        if self.compute_loss_func is not None:
            raise ValueError("compute_loss_func comes after the forward pass. Pass loss_fn= instead.")
        if self.args.label_smoothing_factor != 0:
            raise ValueError(
                "label_smoothing_factor would be ignored: loss_fn=nn.CrossEntropyLoss(label_smoothing=...)."
            )
        if in_layer and self.args.torch_compile:
            raise ValueError("torch_compile would compile the model without the bridges in a hidden layer.")


class EllipticTrainer(EllipticTrainerMixin, Trainer):  # type: ignore[misc, unused-ignore]
    """`transformers.Trainer` with the elliptic objective; see `EllipticTrainerMixin`.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> config = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
        >>> rows = [{"input_ids": [2, 5, 3], "label": 0}, {"input_ids": [2, 6, 3], "label": 1}]
        >>> args = TrainingArguments(output_dir=".", use_cpu=True, report_to="none")
        >>> trainer = EllipticTrainer(BertForSequenceClassification(config), args, train_dataset=rows)
    """


def _class_labels(labels: Tensor) -> Tensor:
    """Return one class per row; other labels would be bridged as something that they are not."""
    if labels.is_floating_point() or labels.numel() != len(labels):
        raise ValueError(
            f"labels must be one class per row, but are {labels.dtype} of shape {tuple(labels.shape)}. Set "
            'config.problem_type="multi_label_classification" or "regression", or pass loss_fn= for class '
            "probabilities."
        )
    return labels.reshape(-1)


class Readout(nn.Module):
    """Compute logits ``(rows, labels)`` from named inputs with a model, possibly wrapped."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the logits of every row, in at least single precision."""
        return logits_of(self.net(**inputs))


def logits_of(outputs: Any) -> Tensor:
    """Extract logits from the output of a model: an object, a tuple that starts with them, or a tensor."""
    if isinstance(outputs, dict):  # transformers' output objects are dicts
        outputs = outputs["logits"]
    elif isinstance(outputs, tuple):
        outputs = outputs[0]
    return outputs.to(compute_dtype(outputs.dtype))
