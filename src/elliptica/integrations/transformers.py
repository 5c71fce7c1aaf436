"""Hugging Face `Trainer` with the elliptic objective: texts, images, classification and regression.

The objective needs the model before its forward pass, so it hooks into ``compute_loss``; a
``compute_loss_func`` would come too late. The trainer keeps the plain model, so its checkpoints load without
this library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from elliptica._utils.extras import missing_package
from elliptica._utils.random import compute_dtype
from elliptica.core.elliptic import Elliptic
from elliptica.core.hidden import find_layer
from elliptica.core.noise import AUTO_FACTOR
from elliptica.core.types import LossFn
from elliptica.core.weighting import VARIANTS
from elliptica.core.wrappers import refuse_wrapped
from elliptica.integrations.steps import StepNoise, refuse_auto_sigma

try:
    from transformers import Trainer
except Exception as error:  # broken installations are common and look the same to the user
    raise missing_package("elliptica.integrations.transformers", "hf", "transformers") from error

if TYPE_CHECKING:

    class _Base(Trainer):  # type: ignore[misc, unused-ignore]  # mypy does not read transformers
        pass
else:
    _Base = object  # a mixin: the user's class inherits from Trainer

#: Name of the layer of a `Readout` whose output is bridged.
POINT = "point"

#: Key of the token ids at the start of each bridge; all other inputs are those of the nearer end.
START = "start_ids"

_IDS = "input_ids"
_LOSSES: dict[str, type[nn.Module]] = {
    "regression": nn.MSELoss,
    "single_label_classification": nn.CrossEntropyLoss,
    "multi_label_classification": nn.BCEWithLogitsLoss,
}


class EllipticTrainerMixin(_Base):
    """Elliptic training for your own `Trainer`: ``class Mine(EllipticTrainerMixin, Trainer)``.

    For models with one label, or vector of labels, per row. Texts are bridged in their word embeddings;
    images and other floating inputs (``model.main_input_name``) are bridged directly. Masks and all other
    inputs come from the nearer end of each bridge. ``config.problem_type`` selects the model's own loss.
    Evaluation is unchanged unless you pass a loss. Noise depends only on ``args.seed``, the process and the
    step, so a resumed run draws the same noise as an uninterrupted one. With gradient accumulation, every row
    of the accumulated batch has the same weight.

    Args:
        *args: Arguments of the trainer, as are all others.
        elliptic: Settings of `elliptica.Elliptic`. ``bridged`` names the inputs to bridge, ``at`` the
            embedding layer of a text model (default: its ``get_input_embeddings()``), or a layer of an image
            model. For texts, ``sigma`` defaults to ``"auto"``: a tenth of the standard deviation of the
            embedding table, with linear labels.
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
        self._refuse_arguments()
        settings = dict(elliptic or {})
        self._at = settings.pop("at", None)
        main = getattr(self.model, "main_input_name", None)
        self._bridged = _names(settings.pop("bridged", None if main is None else (main,)))
        self._loss_fn = loss_fn
        layer = self._layer()
        if layer is not None and self.args.torch_compile:
            raise ValueError(
                "torch_compile=True would compile the model without the hook that bridges texts. Omit it."
            )
        if self._bridges_ids:
            assert layer is not None
            settings = _with_text_sigma(settings, layer)
        self._readout = Readout(self.model, layer)
        self._elliptic = Elliptic(
            self._readout,
            self._ordinary_loss() if loss_fn is None else loss_fn,
            **{"num_classes": self._num_labels, **settings},
            bridged=(START,) if self._bridges_ids else self._bridged,
            at=None if layer is None else POINT,
        )
        refuse_auto_sigma(self._elliptic.settings, "a checkpoint of the plain model has no place for it")
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
        if not model.training and self._loss_fn is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        x, y = self._split(inputs)
        if not model.training:
            assert self._loss_fn is not None
            outputs = model(**x)
            loss = self._loss_fn(logits_of(outputs), y).mean()
            if isinstance(outputs, tuple):
                outputs = (loss, *outputs)  # the trainer expects the logits after the loss
            return (loss, outputs) if return_outputs else loss
        if return_outputs:
            raise ValueError(
                "In training, the model runs on points of bridges, whose outputs belong to no sample, so "
                "return_outputs=True is not supported. Call model(**inputs) for the outputs of the batch."
            )
        return self._training_loss(model, x, y)

    def get_batch_samples(self, *args: Any, **more: Any) -> Any:
        """Return the next batches to accumulate, and count their rows."""
        batches, items = super().get_batch_samples(*args, **more)
        self._rows = sum(len(batch[self._label]) for batch in batches if self._label in batch)
        return batches, items

    def _training_loss(self, model: nn.Module, x: dict[str, Any], y: Tensor) -> Tensor:
        variant = VARIANTS.get(self._elliptic.settings.weighting)
        second_order = variant is not None and variant.second_order
        refuse_wrapped(model, second_order, self._elliptic.settings.chunk_size is not None)
        if self._bridges_ids:
            if _IDS not in x:
                raise ValueError(
                    f"The batch has no {_IDS!r}, only {', '.join(map(repr, x))}. Name the floating input "
                    "to "
                    'bridge, e.g. elliptic={"bridged": ("inputs_embeds",)}.'
                )
            x = {START: x[_IDS], **x}
        self._readout.attach(model, self._layer())
        self._elliptic.train()  # the trainer has just done the same with the model
        self._elliptic.loss.to(y.device)
        self._elliptic.set_epoch(int(self.state.epoch or 0))
        generator = self._noise.generator(y.device, self.args.process_index, self.state.global_step)
        loss: Tensor = self._elliptic(x, y, generator=generator)
        return loss * (len(y) / self._rows) if self.is_in_train and self._rows else loss

    @property
    def _bridges_ids(self) -> bool:
        return self._bridged == (_IDS,)

    @property
    def _label(self) -> str:
        return self.label_names[0] if len(self.label_names) == 1 else "labels"

    @property
    def _num_labels(self) -> int | None:
        return getattr(getattr(self.model, "config", None), "num_labels", None)

    def _layer(self) -> nn.Module | None:
        """Return the layer to bridge in, of the present model (``model_init`` creates new ones)."""
        if self._at is not None:
            layer = find_layer(self.model, self._at)
        elif self._bridges_ids:
            layer = self.model.get_input_embeddings()
        else:
            return None
        if self._bridges_ids and not isinstance(layer, nn.Embedding):
            raise ValueError(
                f"Token ids are bridged in their embedding layer, but "
                f"{'get_input_embeddings()' if self._at is None else f'at={self._at!r}'} is a "
                f"{type(layer).__name__}. Name the nn.Embedding of the token ids: elliptic={{'at': '...'}}."
            )
        return layer

    def _ordinary_loss(self) -> nn.Module:
        """Return the loss that the model itself uses with labels."""
        config = getattr(self.model, "config", None)
        if config is None or self._num_labels is None:
            raise ValueError(
                f"{type(self.model).__name__} has no config with num_labels, so its loss is unknown. Pass "
                "loss_fn=..., "
                'and elliptic={"num_classes": ...} for integer labels.'
            )
        default = "regression" if self._num_labels == 1 else "single_label_classification"
        return _LOSSES[config.problem_type or default]()

    def _split(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
        """Split a batch into inputs of the model, and targets in the shape of its logits."""
        x = {name: value for name, value in inputs.items() if value is not None}
        if self._label not in x:
            raise ValueError(
                f"The batch has no {self._label!r}, only {', '.join(map(repr, x))}, and bridges need labels. "
                f"Name your column {self._label!r}, or name it in "
                'TrainingArguments(label_names=["..."]): the trainer drops columns that it does not know.'
            )
        y: Tensor = x.pop(self._label)
        if self._loss_fn is None:
            y = _targets(y, self._elliptic.loss.loss_fn)
        if self._num_labels == 1 and y.ndim == 1 and y.is_floating_point():
            y = y.unsqueeze(1)
        return x, y

    def _refuse_arguments(self) -> None:
        """Raise for trainer arguments that would be ignored or would contradict the objective."""
        if not hasattr(Trainer, "loss_is_scaled_for_ga"):
            raise ImportError(
                "This release of transformers scales losses for gradient accumulation in its own way. "
                'Upgrade it: pip install -U "elliptica[hf]"'
            )
        if self.compute_loss_func is not None:
            raise ValueError(
                "compute_loss_func is called after the forward pass, which is too late for bridges. Pass the "
                "loss itself: loss_fn=..., called with logits and labels."
            )
        if self.args.label_smoothing_factor != 0:
            raise ValueError(
                f"label_smoothing_factor={self.args.label_smoothing_factor} would be ignored. Pass "
                f"loss_fn=nn.CrossEntropyLoss(label_smoothing={self.args.label_smoothing_factor})."
            )
        if self.args.neftune_noise_alpha is not None:
            raise ValueError(
                "neftune_noise_alpha adds noise to the embeddings, as bridges do. Choose one of the two."
            )
        if self.args.n_gpu > 1:
            raise ValueError(
                f"One process with {self.args.n_gpu} GPUs copies the model in every step, which breaks "
                "bridges. Start one process per GPU with torchrun or accelerate launch."
            )


class EllipticTrainer(EllipticTrainerMixin, Trainer):  # type: ignore[misc, unused-ignore]
    """`transformers.Trainer` with the elliptic objective; see `EllipticTrainerMixin`.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> config = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
        >>> rows = [{"input_ids": [2, 5, 3], "label": 0}, {"input_ids": [2, 6, 3], "label": 1}]
        >>> args = TrainingArguments(output_dir=".", use_cpu=True, report_to="none")
        >>> trainer = EllipticTrainer(BertForSequenceClassification(config), args, train_dataset=rows)
    """


def _names(bridged: Any) -> tuple[Any, ...]:
    if bridged is None:
        raise ValueError(
            "The model has no main_input_name, so the inputs to bridge are unknown. Name them: "
            'elliptic={"bridged": ("pixel_values",)}.'
        )
    if isinstance(bridged, str):
        raise TypeError(f"bridged must be a tuple of names, but got a string. Write ({bridged!r},).")
    if _IDS in bridged and len(bridged) > 1:
        raise ValueError(
            f"bridged={tuple(bridged)!r} mixes token ids, bridged in their embedding, with other inputs. "
            "Bridge only one of them; the others come from the nearer end."
        )
    return tuple(bridged)


def _with_text_sigma(settings: dict[str, Any], layer: nn.Module) -> dict[str, Any]:
    """Measure ``sigma="auto"`` in units of the embedding table, which has its own scale."""
    sigma = settings.setdefault("sigma", "auto")
    if not isinstance(sigma, str) or sigma != "auto":
        return settings
    weight = next(layer.parameters()).detach()
    return {"sigma_y": 0.0, **settings, "sigma": AUTO_FACTOR * float(weight.float().std())}


def _targets(labels: Tensor, loss: nn.Module) -> Tensor:
    """Convert labels to what the loss of the problem type expects."""
    if not isinstance(loss, nn.CrossEntropyLoss):
        return labels.float() if not labels.is_floating_point() else labels
    if labels.is_floating_point():
        raise ValueError(
            f"Labels of shape {tuple(labels.shape)} and dtype {labels.dtype} may be several labels per row "
            "or class "
            'probabilities. Set model.config.problem_type = "multi_label_classification", or pass '
            "loss_fn=nn.CrossEntropyLoss() for probabilities."
        )
    if labels.numel() != len(labels):
        raise ValueError(
            f"The elliptic objective needs one label per row, but labels have shape {tuple(labels.shape)}. "
            "Labels of single tokens cannot be bridged: two texts have different tokens in the same place."
        )
    return labels.reshape(-1)


class Readout(nn.Module):
    """Compute logits ``(rows, labels)`` from named inputs.

    Nothing lies between two token ids, so texts are bridged in the output of the embedding layer. The model
    itself is called with the ids, the mask and all other inputs of the *nearer* end of each bridge, because
    models derive positions and the last token from the ids. Only the vectors are replaced by those of the
    bridge. At either end this is the model's ordinary forward pass, whatever the lengths of the two texts.

    Args:
        net: The model, possibly wrapped.
        layer: Layer whose output is bridged; None bridges the inputs themselves.
    """

    def __init__(self, net: nn.Module, layer: nn.Module | None) -> None:
        super().__init__()
        self.point = nn.Identity()
        self.attach(net, layer)

    def attach(self, net: nn.Module, layer: nn.Module | None) -> None:
        """Replace the model, because trainers wrap it late."""
        self.net = net
        self._layer = (layer,)  # in a tuple, because the model already owns it

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the logits of every row, in at least single precision."""
        start = inputs.pop(START, None)
        (layer,) = self._layer
        if layer is None:
            return logits_of(self.net(**inputs))
        handle = layer.register_forward_hook(self._exchange(start))
        try:
            return logits_of(self.net(**inputs))
        finally:
            handle.remove()

    def _exchange(self, start: Tensor | None) -> Callable[[nn.Module, Any, Any], Any]:
        ran = False

        def hook(layer: nn.Module, _args: Any, output: Any) -> Any:
            nonlocal ran
            if ran:
                raise RuntimeError(
                    "The embedding layer ran twice in one forward pass (an encoder-decoder model?), so "
                    'bridging there is ambiguous. Name a layer that runs once: elliptic={"at": "..."}.'
                )
            ran = True
            return self.point(output if start is None else layer.forward(start))

        return hook


def logits_of(outputs: Any) -> Tensor:
    """Extract logits from the output of a model: an object, a tuple that starts with them, or a tensor."""
    if isinstance(outputs, dict):  # transformers' output objects are dicts
        if "logits" not in outputs:
            raise ValueError(
                f"The model returned no logits, only {', '.join(map(repr, outputs))}. Use a model for "
                "classification or regression."
            )
        outputs = outputs["logits"]
    elif isinstance(outputs, tuple):
        outputs = outputs[0]
    return outputs.to(compute_dtype(outputs.dtype))
