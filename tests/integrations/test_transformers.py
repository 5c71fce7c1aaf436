"""The Hugging Face trainer with tiny models: texts of different lengths, images, one process and two."""

import copy
import runpy
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

hf = pytest.importorskip("transformers", reason="Transformers is not installed (extra hf)")
pytest.importorskip("accelerate", reason="Accelerate is not installed (extra hf)")

from elliptica import Elliptic  # noqa: E402
from elliptica.integrations import EllipticTrainer, EllipticTrainerMixin  # noqa: E402
from elliptica.integrations.steps import StepNoise  # noqa: E402
from elliptica.integrations.transformers import Readout  # noqa: E402
from processes import once, pretend_torchrun  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.EllipticWarning")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STRAIGHT = {"sampling": "path", "n_times": 3, "sigma": 0.0, "sigma_y": 0.0}
ENDS = {**STRAIGHT, "n_times": 2}
PAD = 1


SMALL = {
    "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 32, "initializer_range": 0.5, "pad_token_id": PAD, "num_labels": 3,
}  # fmt: skip


def bert(**more):
    return _fixed(hf.BertForSequenceClassification(hf.BertConfig(**{**SMALL, **more})))


def roberta():
    return _fixed(hf.RobertaForSequenceClassification(hf.RobertaConfig(**SMALL)))


def gpt2():
    config = hf.GPT2Config(
        vocab_size=30, n_embd=8, n_layer=1, n_head=2, n_positions=32, pad_token_id=PAD, num_labels=3,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.5,
    )  # fmt: skip
    return _fixed(hf.GPT2ForSequenceClassification(config))


def vit(**more):
    small = {name: value for name, value in SMALL.items() if name not in ("vocab_size", "pad_token_id")}
    config = hf.ViTConfig(**{**small, "image_size": 4, "patch_size": 2, "num_channels": 1, **more})
    return _fixed(hf.ViTForImageClassification(config))


def _fixed(model):
    """The same weights in every process."""
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "LayerNorm" not in name and "ln_" not in name:
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=numbers))
    return model


def texts(n, length=8, labels=None):
    """Rows with 2 to 6 tokens, padded on the right."""
    numbers = torch.Generator().manual_seed(1)
    rows = []
    for i in range(n):
        count = 2 + int(torch.randint(5, (1,), generator=numbers))
        ids = torch.randint(3, 30, (count,), generator=numbers).tolist()
        label = int(torch.randint(3, (1,), generator=numbers))
        mask = [1] * count + [0] * (length - count)
        label = label if labels is None else labels[i]
        rows.append({"input_ids": ids + [PAD] * (length - count), "attention_mask": mask, "labels": label})
    return rows


def images(n, labels=None):
    numbers = torch.Generator().manual_seed(1)
    pixels = torch.randn(n, 1, 4, 4, generator=numbers)
    labels = torch.randint(3, (n,), generator=numbers) if labels is None else labels
    return [{"pixel_values": x, "labels": y} for x, y in zip(pixels, labels, strict=True)]


def batch(rows):
    return {name: torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in rows[0]}


def made(model, rows=None, kind=EllipticTrainer, folder=None, elliptic=None, loss_fn=None, **options):
    arguments = {
        "per_device_train_batch_size": 4, "num_train_epochs": 1, "report_to": "none", "use_cpu": True,
        "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no", "optim": "sgd",
        "learning_rate": 0.1, "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
        "dataloader_pin_memory": False, "train_sampling_strategy": "sequential", **options,
    }  # fmt: skip
    args = hf.TrainingArguments(str(folder or tempfile.gettempdir()), **arguments)
    more = {} if kind is hf.Trainer else {"elliptic": elliptic, "loss_fn": loss_fn}
    return kind(model, args, train_dataset=rows, eval_dataset=rows, **more)


def with_partners(trainer, make):
    """Replace the drawn partners."""
    forward = trainer.objective.forward
    trainer.objective.forward = lambda x, y, generator: forward(
        x, y, partners=make(len(y)), generator=generator
    )
    return trainer


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def training_loss(trainer, rows):
    trainer.model.train()
    return trainer.compute_loss(trainer.model, batch(rows))


CHECKPOINTED = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
WORDS = "net.bert.embeddings.word_embeddings"
EXACT = {
    **{name: {"weighting": name} for name in (None, "gradient_norm", "gradient_softmax", "girsanov")},
    "multiplicative": {"weighting": "multiplicative", "n_bridges": 2},
    **{name: {"pairing": name} for name in ("inverse_distance", "nearest")},
    "single points": {"sampling": "marginal", "n_bridges": 3},
    "checkpointing": {"weighting": "gradient_norm"},
}


@pytest.mark.parametrize("name", EXACT)
def test_training_equals_a_plain_loop(name):
    """Two epochs on texts, also if the layers above the embedding are checkpointed."""
    settings = {"sampling": "path", "n_times": 3, "sigma": 0.5, **EXACT[name]}
    rows, model = texts(8), bert(attn_implementation="eager")
    options = CHECKPOINTED if name == "checkpointing" else {}
    trainer = made(copy.deepcopy(model), rows, elliptic=settings, num_train_epochs=2, **options)
    trainer.train()
    objective = Elliptic(Readout(model), nn.CrossEntropyLoss(), num_classes=3, at=WORDS, **settings)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x = batch(rows[step % 2 * 4 :][:4])
        y = x.pop("labels")
        loss = objective(x, y, generator=StepNoise(trainer.args.seed).generator(y.device, 0, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(parameters(trainer.model), parameters(model), rtol=1e-5, atol=1e-7)


def test_between_the_ends_against_embeddings_mixed_by_hand():
    """Value and gradient; half-way, the mask is that of the start."""
    rows, model = texts(5), bert()
    partners = torch.tensor([1, 2, 3, 4, 0])
    trainer = with_partners(made(model, elliptic=STRAIGHT), lambda n: partners)
    loss = training_loss(trainer, rows)
    loss.backward()
    other = copy.deepcopy(model)
    other.zero_grad()
    x = batch(rows)
    words = other.get_input_embeddings()(x["input_ids"])
    one_hot = nn.functional.one_hot(x["labels"], 3).float()
    expected = []
    for s in (0.0, 0.5, 1.0):
        mask = x["attention_mask"] if s <= 0.5 else x["attention_mask"][partners]
        logits = other(inputs_embeds=(1 - s) * words + s * words[partners], attention_mask=mask).logits
        expected.append(nn.functional.cross_entropy(logits, (1 - s) * one_hot + s * one_hot[partners]))
    torch.stack(expected).mean().backward()
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_sigma_of_texts_has_the_scale_of_the_embeddings():
    trainer = made(bert())
    expected = 0.1 * trainer.model.get_input_embeddings().weight.std()
    assert trainer.objective.bridges.sigma == pytest.approx(expected.item())
    regression = made(bert(num_labels=1)).objective.bridges
    assert (regression.sigma > 0, regression.sigma_y) == (True, 0.0)
    assert made(bert(), elliptic={"sigma": 0.3, "sigma_y": 0.2}).objective.bridges.sigma_y == 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("make", "rows"), [(bert, texts(10)), (vit, images(10))])
@pytest.mark.parametrize(("size", "steps", "n"), [(2, 4, 8), (4, 3, 10)])
def test_accumulated_gradients_are_those_of_the_joined_batch(make, rows, size, steps, n):
    """Also when the last of the accumulated batches is smaller (4 + 4 + 2 rows)."""
    options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
    trainer = made(make(), rows[:n], elliptic={"sigma": 0.0, "sigma_y": 0.0}, **options)
    output = with_partners(trainer, torch.arange).train()  # each row is its own partner
    assert output.global_step == 1
    plain = made(make(), rows[:n], hf.Trainer, per_device_train_batch_size=n)
    loss = plain.train().training_loss
    torch.testing.assert_close(parameters(trainer.model), parameters(plain.model), rtol=1e-4, atol=1e-6)
    assert output.training_loss == pytest.approx(loss, rel=1e-5)


def _embedded(n):
    numbers = torch.Generator().manual_seed(1)
    return [{"inputs_embeds": torch.randn(3, 8, generator=numbers), "labels": i % 3} for i in range(n)]


KINDS = {
    **{f"labels, {make.__name__}": (make, texts(6)) for make in (bert, gpt2, roberta)},
    "images": (vit, images(6)),
    "images in a layer": (vit, images(6), {"at": "vit.embeddings"}),
    "vectors": (bert, _embedded(6), {"bridged": ("inputs_embeds",)}),
    "regression": (lambda: bert(num_labels=1), texts(6, labels=[0.5, 1, 2, -1, 0, 3.5])),
    "integer regression": (lambda: bert(num_labels=1), texts(6, labels=[0, 1, 2, 1, 0, 3])),
    "several targets": (
        lambda: vit(num_labels=2, problem_type="regression"),
        images(6, torch.linspace(-1, 1, 12).view(6, 2)),
    ),
    "multilabel": (
        lambda: vit(problem_type="multi_label_classification"),
        images(6, torch.tensor([[0.0, 1, 1], [1, 0, 0]]).repeat(3, 1)),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_data(kind):
    """At the ends the training loss is the ordinary one, whatever the lengths of the two texts."""
    make, rows, *more = KINDS[kind]
    settings, model = {k: v for part in more for k, v in part.items()}, make()
    ordinary = model.train()(**batch(rows)).loss
    torch.testing.assert_close(training_loss(made(model, elliptic={**ENDS, **settings}), rows), ordinary)
    trainer = made(make(), rows, elliptic=settings)
    expected = made(make(), rows, hf.Trainer).evaluate()["eval_loss"]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    trainer.train()
    assert not torch.equal(parameters(trainer.model), parameters(make()))


class Bare(nn.Module):
    """Neither a configuration nor the name of its input, and a tuple for an output."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, pixel_values):
        return (self.layer(pixel_values.flatten(1)),)


@pytest.mark.parametrize("make", [vit, Bare])
def test_soft_labels_with_a_loss_of_your_own(make):
    soft = torch.softmax(torch.randn(6, 3, generator=torch.Generator().manual_seed(3)), 1)
    rows, loss, model = images(6, soft), nn.CrossEntropyLoss(label_smoothing=0.1), make()
    expected = loss(model(pixel_values=batch(rows)["pixel_values"])[0], soft)
    trainer = made(model, rows, elliptic=ENDS, loss_fn=loss, label_names=["labels"])
    torch.testing.assert_close(training_loss(trainer, rows), expected)
    found = trainer.predict(rows)
    assert found.metrics["test_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert found.predictions.shape == (6, 3)


@pytest.mark.slow
def test_resumed_run_equals_the_uninterrupted_one_and_checkpoints_are_plain(tmp_path):
    """Dropout included: the trainer restores its random state, the noise of bridges follows the step."""
    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3, "folder": tmp_path}
    whole, resumed = (made(bert(hidden_dropout_prob=0.2), texts(8), **options) for _ in range(2))
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == whole.state.global_step == 4
    assert torch.equal(parameters(resumed.model), parameters(whole.model))
    assert torch.equal(
        parameters(hf.BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint-4")),
        parameters(whole.model),
    )


def test_own_subclass_with_model_init_in_bfloat16():
    class Mine(EllipticTrainerMixin, hf.Trainer):
        pass

    trainer = Mine(args=made(bert(), bf16=True).args, train_dataset=texts(4), model_init=lambda: bert())
    trainer.train()
    found = parameters(trainer.model)
    assert found.isfinite().all()
    assert found.dtype == torch.float32
    assert not torch.equal(found, parameters(bert()))


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("model", "rows", "settings", "error", "argument"),
    [
        (bert, None, {"label_smoothing_factor": 0.1}, ValueError, "label_smoothing"),
        (bert, None, {"torch_compile": True}, ValueError, "torch_compile"),
        (bert, texts(4, labels=[[0, 1]] * 4), {}, ValueError, "labels"),
        (vit, images(4, torch.full((4, 3), 1 / 3)), {}, ValueError, "problem_type"),
        (bert, texts(4, labels=[0, 1, -100, 2]), {}, ValueError, "-100"),
        (bert, texts(4), {"elliptic": {"bridged": ("attention_mask",)}}, TypeError, "x"),
        (bert, [{"inputs_embeds": [[0.1] * 8], "labels": 0}] * 2, {}, RuntimeError, "at="),
    ],
)
def test_what_would_be_silently_wrong_is_refused(model, rows, settings, error, argument):
    with pytest.raises(error, match=argument):
        training_loss(made(model(), **settings), rows)
    with pytest.raises(ValueError, match="loss_fn"):
        EllipticTrainer(bert(), made(bert()).args, compute_loss_func=lambda *_, **__: None)


@pytest.mark.slow
def test_example(tmp_path):
    trainer = runpy.run_path(str(EXAMPLES / "hf_trainer.py"))["main"](str(tmp_path), epochs=8)
    assert trainer.evaluate()["eval_loss"] < 0.4
    hf.BertForSequenceClassification.from_pretrained(tmp_path)


def both_processes(rank):
    pretend_torchrun(rank)
    found = {}
    for name, settings in {"straight": STRAIGHT, "noisy": {"sigma": 0.5}}.items():
        trainer = made(
            bert(), texts(8), elliptic=settings, per_device_train_batch_size=2, gradient_accumulation_steps=2
        )
        assert trainer.args.world_size == 2
        if name == "straight":
            with_partners(trainer, lambda n: torch.arange(n).roll(1))
        losses, compute = [], trainer.compute_loss
        trainer.compute_loss = lambda *a, c=compute, kept=losses, **k: kept.append(c(*a, **k)) or kept[-1]
        trainer.train()
        found[name] = [loss.item() for loss in losses], parameters(trainer.model)
    for weighting in ("gradient_norm", "gradient_softmax"):
        trainer = made(bert(), texts(8), elliptic={"weighting": weighting})
        try:
            trainer.train()
            found[weighting] = parameters(trainer.model)
        except ValueError as error:
            found[weighting] = error
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return once(tmp_path_factory, both_processes)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_equal_one_on_the_joined_batch(found):
    """Two batches of two rows on each of two processes are one batch of eight; noise differs."""
    trainer = made(bert(), texts(8), elliptic=STRAIGHT, per_device_train_batch_size=8)
    with_partners(trainer, lambda n: torch.arange(n).view(-1, 2).flip(1).flatten()).train()
    for one in found:
        torch.testing.assert_close(one["straight"][1], parameters(trainer.model), rtol=1e-4, atol=1e-6)
    first, second = (one["noisy"] for one in found)
    assert torch.equal(first[1], second[1])
    assert not set(first[0]) & set(second[0])
    # the trainer wraps the model, not the objective, so second derivatives are refused
    assert all(isinstance(one["gradient_norm"], ValueError) for one in found)
    assert torch.equal(*(one["gradient_softmax"] for one in found))
