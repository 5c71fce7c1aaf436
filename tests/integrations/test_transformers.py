"""The Hugging Face trainer with tiny models: texts of different lengths, images, one process and two."""

import copy
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="Transformers is not installed (extra hf)")
pytest.importorskip("accelerate", reason="Accelerate is not installed (extra hf)")

from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    RobertaConfig,
    RobertaForSequenceClassification,
    Trainer,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)

from elliptica import Elliptic, switch_off
from elliptica.integrations import EllipticTrainer, EllipticTrainerMixin
from elliptica.integrations.steps import StepNoise

pytestmark = pytest.mark.filterwarnings("ignore::elliptica.core.types.EllipticWarning")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STRAIGHT = {"sampling": "path", "n_times": 3, "sigma": 0.0, "sigma_y": 0.0}
ENDS = {**STRAIGHT, "n_times": 2}
PAD = 1


@pytest.fixture(scope="module", autouse=True)
def little_garbage():
    """The trainer collects garbage after every run; what was there before need not be searched."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def bert(dropout=0.0, **more):
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
        pad_token_id=PAD,
        initializer_range=0.5,
        **{"num_labels": 3, **more},
    )
    return _fixed(BertForSequenceClassification(config))


def gpt2():
    config = GPT2Config(
        vocab_size=30, n_embd=8, n_layer=1, n_head=2, n_positions=32, pad_token_id=PAD, num_labels=3,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.5,
    )  # fmt: skip
    return _fixed(GPT2ForSequenceClassification(config))


def roberta():
    config = RobertaConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=PAD, num_labels=3,
        max_position_embeddings=32, initializer_range=0.5,
    )  # fmt: skip
    return _fixed(RobertaForSequenceClassification(config))


def vit(**more):
    config = ViTConfig(
        image_size=4, patch_size=2, num_channels=1, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        **{"num_labels": 3, **more},
    )  # fmt: skip
    return _fixed(ViTForImageClassification(config))


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
        rows.append(
            {
                "input_ids": ids + [PAD] * (length - count),
                "attention_mask": [1] * count + [0] * (length - count),
                "labels": label if labels is None else labels[i],
            }
        )
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
        "per_device_train_batch_size": 4,
        "num_train_epochs": 1,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "dataloader_pin_memory": False,
        **options,
    }
    args = TrainingArguments(str(folder or tempfile.gettempdir()), **arguments)
    more = {} if kind is Trainer else {"elliptic": elliptic, "loss_fn": loss_fn}
    return kind(model, args, train_dataset=rows, eval_dataset=rows, **more)


def with_partners(trainer, make):
    """Replace the drawn partners."""
    forward = trainer._elliptic.forward
    trainer._elliptic.forward = lambda x, y, generator: forward(
        x, y, partners=make(len(y)), generator=generator
    )
    return trainer


def parameters(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def training_loss(trainer, rows):
    trainer.model.train()
    return trainer.compute_loss(trainer.model, batch(rows))


@pytest.mark.parametrize("make", [bert, gpt2, roberta])
def test_both_ends_of_a_bridge_are_the_data(make):
    """With the ends alone the objective is the ordinary loss, whatever the lengths of the two texts."""
    rows, model = texts(6), make()
    ordinary = model.train()(**batch(rows)).loss
    torch.testing.assert_close(training_loss(made(model, elliptic=ENDS), rows), ordinary)


class Logits(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, **inputs):
        return self.net(**inputs).logits


def test_bridging_without_the_ids_of_the_nearer_end_would_not_be_the_data():
    """GPT-2 reads the last token off its ids, which with ``at=`` alone are the start's at both ends."""
    rows, model = texts(6), gpt2().train()
    x = batch(rows)
    y = x.pop("labels")
    settings = {"num_classes": 3, "bridged": ("input_ids",), "at": "net.transformer.wte", "sigma_y": 0.0}
    naive = Elliptic(Logits(model), nn.CrossEntropyLoss(), sigma=0.0, n_times=2, **settings)
    trainer = made(model, elliptic={"sigma": 0.0, "sigma_y": 0.0, "n_times": 2})
    shift = torch.arange(6).roll(1)
    with_partners(trainer, lambda n: shift)
    model.train()
    for seed in range(3):  # each row is at one of its ends, drawn
        trainer._noise = StepNoise(seed)
        noise = StepNoise(seed).generator(y.device, 0, 0)
        far = naive.sample(x, y, partners=shift, generator=noise).s.flatten() == 1
        rows_seen = torch.where(far, shift, torch.arange(6))
        expected = model(**{name: value[rows_seen] for name, value in batch(rows).items()}).loss
        torch.testing.assert_close(training_loss(trainer, rows), expected)
        noise = StepNoise(seed).generator(y.device, 0, 0)
        assert not torch.isclose(naive(x, y, partners=shift, generator=noise), expected)


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


@pytest.mark.parametrize("make", [bert, gpt2, roberta])
def test_padding_is_harmless(make):
    """More of it changes nothing; straight lines, because noise of another shape is other noise."""
    rows, longer = texts(6), texts(6, length=12)
    settings = {"sigma": 0.0, "sigma_y": 0.0}
    one = training_loss(made(make(), elliptic=settings), rows)
    torch.testing.assert_close(training_loss(made(make(), elliptic=settings), longer), one)


def test_vectors_of_padding_with_noise_are_not_seen():
    """Tokens that are masked at both ends can be anything."""
    rows = texts(6)
    other = copy.deepcopy(rows)
    for row in other:
        row["input_ids"][6:] = [7, 9]
    trainers = [made(bert(), elliptic={"sigma": 0.5}) for _ in range(2)]
    one, two = (training_loss(t, r) for t, r in zip(trainers, (rows, other), strict=True))
    torch.testing.assert_close(one, two)
    other[0]["input_ids"][0] = 9  # a token that is seen
    assert not torch.isclose(training_loss(made(bert(), elliptic={"sigma": 0.5}), other), one)


def test_sigma_of_texts_has_the_scale_of_the_embeddings():
    trainer = made(bert())
    expected = 0.1 * trainer.model.get_input_embeddings().weight.std()
    assert trainer._elliptic.settings.sigma == pytest.approx(expected.item())
    assert trainer._elliptic.settings.sigma_y == 0.0
    assert made(bert(), elliptic={"sigma": 0.3, "sigma_y": 0.2})._elliptic.settings.sigma_y == 0.2


@pytest.mark.parametrize(
    ("make", "rows"),
    [(bert, texts(10)), (vit, images(10))],
)
@pytest.mark.parametrize(("size", "steps", "n"), [(2, 4, 8), (4, 3, 10)])
def test_accumulated_gradients_are_those_of_the_joined_batch(make, rows, size, steps, n):
    """Also when the last of the accumulated batches is smaller (4 + 4 + 2 rows)."""
    results = []
    for batch_size, accumulated in ((size, steps), (n, 1)):
        trainer = made(
            make(),
            rows[:n],
            elliptic={"sigma": 0.0, "sigma_y": 0.0},
            per_device_train_batch_size=batch_size,
            gradient_accumulation_steps=accumulated,
        )
        with_partners(trainer, torch.arange)
        output = trainer.train()
        assert output.global_step == 1
        results.append((parameters(trainer.model), output.training_loss))
    (split, split_loss), (joined, joined_loss) = results
    torch.testing.assert_close(split, joined, rtol=1e-4, atol=1e-6)
    assert split_loss == pytest.approx(joined_loss, rel=1e-5)
    plain = made(make(), rows[:n], Trainer, per_device_train_batch_size=n)
    plain.train()
    torch.testing.assert_close(parameters(plain.model), joined, rtol=1e-4, atol=1e-6)


def test_accumulation_test_rejects_a_loss_scaled_otherwise():
    class Wrong(EllipticTrainer):
        loss_is_scaled_for_ga = False

    results = []
    for size, accumulated in ((2, 4), (8, 1)):
        trainer = made(
            bert(), texts(8), Wrong, elliptic={"sigma": 0.0, "sigma_y": 0.0},
            per_device_train_batch_size=size, gradient_accumulation_steps=accumulated,
        )  # fmt: skip
        with_partners(trainer, torch.arange).train()
        results.append(parameters(trainer.model))
    assert not torch.allclose(*results, rtol=1e-3, atol=1e-4)


KINDS = {
    "labels": (bert, texts(6)),
    "images": (vit, images(6)),
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
def test_kinds_of_targets(kind):
    """At the ends the training loss, and always the evaluation, are those of the plain trainer."""
    make, rows = KINDS[kind]
    model = make()
    ordinary = model.train()(**batch(rows)).loss
    torch.testing.assert_close(training_loss(made(model, elliptic=ENDS), rows), ordinary)
    trainer = made(make(), rows)
    expected = made(make(), rows, Trainer).evaluate()["eval_loss"]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)
    trainer.train()
    assert torch.isfinite(parameters(trainer.model)).all()
    assert not torch.equal(parameters(trainer.model), parameters(make()))


def test_soft_labels_with_a_loss_of_your_own():
    soft = torch.softmax(torch.randn(6, 3, generator=torch.Generator().manual_seed(3)), 1)
    rows, loss = images(6, soft), nn.CrossEntropyLoss(label_smoothing=0.1)
    model = vit()
    expected = loss(model.train()(pixel_values=batch(rows)["pixel_values"]).logits, soft)
    trainer = made(model, rows, elliptic=ENDS, loss_fn=loss)
    torch.testing.assert_close(training_loss(trainer, rows), expected)
    found = trainer.predict(rows)
    assert found.metrics["test_loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert found.predictions.shape == (6, 3)


def test_images_can_be_bridged_in_a_layer():
    settings = {"at": "vit.embeddings", "sigma": 0.1}
    trainer = made(vit(), images(6), elliptic=settings)
    trainer.train()
    ends = made(vit(), elliptic={**ENDS, "at": "vit.embeddings"})
    torch.testing.assert_close(training_loss(ends, images(6)), vit().train()(**batch(images(6))).loss)


def test_embeddings_of_your_own_can_be_bridged():
    rows = [{"inputs_embeds": torch.randn(3, 8), "labels": i % 3} for i in range(6)]
    trainer = made(bert(), rows, elliptic={"bridged": ("inputs_embeds",), **ENDS})
    torch.testing.assert_close(training_loss(trainer, rows), bert().train()(**batch(rows)).loss)


def test_checkpoints_are_of_the_plain_model(tmp_path):
    from safetensors.torch import load_file

    trainer = made(bert(), texts(8), folder=tmp_path, save_strategy="epoch")
    trainer.train()
    folder = tmp_path / "checkpoint-2"
    assert set(load_file(folder / "model.safetensors")) == set(bert().state_dict())
    loaded = BertForSequenceClassification.from_pretrained(folder)
    assert torch.equal(parameters(loaded), parameters(trainer.model))


def test_resumed_run_equals_the_uninterrupted_one(tmp_path):
    """Dropout included: the trainer restores its random state, the noise of bridges follows the step."""
    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    settings = {"sigma": 0.5}
    whole = made(bert(dropout=0.2), texts(8), folder=tmp_path, elliptic=settings, **options)
    whole.train()
    resumed = made(bert(dropout=0.2), texts(8), folder=tmp_path, elliptic=settings, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == whole.state.global_step == 4
    assert torch.equal(parameters(resumed.model), parameters(whole.model))
    other = made(bert(dropout=0.2), texts(8), elliptic=settings, num_train_epochs=2, seed=1)
    other.train()
    assert not torch.equal(parameters(other.model), parameters(whole.model))


def test_schedule_follows_the_epoch():
    off = made(bert(), texts(8), elliptic={"schedule": switch_off(after=0)}, num_train_epochs=2)
    plain = made(bert(), texts(8), Trainer, num_train_epochs=2)
    off.train(), plain.train()
    torch.testing.assert_close(parameters(off.model), parameters(plain.model), rtol=1e-4, atol=1e-6)
    seen = []
    late = made(bert(), texts(8), elliptic={"schedule": lambda epoch: seen.append(epoch) or 1.0})
    late.args.num_train_epochs = 3
    late.train()
    assert sorted(set(seen)) == [0, 1, 2]
    assert seen == sorted(seen)


@pytest.mark.parametrize(("make", "rows"), [(bert, texts(8)), (vit, images(8))])
def test_bf16(make, rows):
    trainer = made(make(), rows, bf16=True)
    trainer.train()
    assert torch.isfinite(parameters(trainer.model)).all()
    assert parameters(trainer.model).dtype == torch.float32


def test_own_subclass_and_model_init():
    class Mine(EllipticTrainerMixin, Trainer):
        pass

    args = made(bert(), texts(4)).args
    trainer = Mine(args=args, train_dataset=texts(4), model_init=lambda: bert())
    trainer.train()
    assert not torch.equal(parameters(trainer.model), parameters(bert()))


def test_second_order_weighting_in_the_embeddings():
    trainer = made(bert(), texts(4), elliptic={"weighting": "gradient_norm", "xi": 0.1})
    trainer.train()
    assert torch.isfinite(parameters(trainer.model)).all()


@pytest.mark.parametrize(
    ("model", "settings", "error", "message"),
    [
        (bert, {"elliptic": {"at": "bert.embedings.word_embeddings"}}, ValueError, "Did you mean"),
        (bert, {"elliptic": {"at": "bert.encoder.layer.0"}}, ValueError, "is a BertLayer"),
        (bert, {"elliptic": {"bridged": "input_ids"}}, TypeError, "must be a tuple"),
        (bert, {"elliptic": {"bridged": ("input_ids", "token_type_ids")}}, ValueError, "mixes token ids"),
        (bert, {"elliptic": {"sigmas": 1}}, TypeError, "sigmas"),
        (bert, {"label_smoothing_factor": 0.1}, ValueError, r"CrossEntropyLoss\(label_smoothing=0.1\)"),
        (bert, {"neftune_noise_alpha": 5.0}, ValueError, "Choose one of the two"),
        (bert, {"torch_compile": True}, ValueError, "without the hook"),
        (vit, {"elliptic": {"sigma": "auto"}}, ValueError, "sigma=elliptica.auto_sigma"),
    ],
)
def test_settings_that_cannot_work(model, settings, error, message):
    with pytest.raises(error, match=message):
        made(model(), **settings)


def test_loss_function_of_the_trainer_is_refused():
    args = made(bert()).args
    with pytest.raises(ValueError, match="too late for bridges"):
        EllipticTrainer(bert(), args, compute_loss_func=lambda *_, **__: None)


class Bare(nn.Module):
    """Neither a configuration nor the name of its input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 3)

    def forward(self, x):
        return (self.layer(x),)


def test_models_that_say_nothing_of_themselves():
    with pytest.raises(ValueError, match="has no main_input_name"):
        made(Bare())
    with pytest.raises(ValueError, match="has no config with num_labels"):
        made(Bare(), elliptic={"bridged": ("x",)})
    rows = [{"x": torch.randn(2), "labels": i % 3} for i in range(4)]
    settings = {"bridged": ("x",), "num_classes": 3}
    loss = nn.CrossEntropyLoss()
    trainer = made(Bare(), rows, elliptic=settings, loss_fn=loss, label_names=["labels"])
    trainer.train()
    assert trainer.predict(rows).predictions.shape == (4, 3)


@pytest.mark.parametrize(
    ("model", "rows", "settings", "error", "message"),
    [
        (bert, [{"input_ids": [5, 6]}] * 2, {}, ValueError, "The batch has no 'labels'"),
        (bert, [{"inputs_embeds": [[0.1] * 8], "labels": 0}] * 2, {}, ValueError, "has no 'input_ids'"),
        (vit, texts(4), {}, ValueError, "must name inputs of x"),
        (bert, texts(4), {"bridged": ("attention_mask",)}, TypeError, "must be floating point"),
        (bert, texts(4, labels=[[0, 1]] * 4), {}, ValueError, "one label per row"),
        (vit, images(4, torch.full((4, 3), 1 / 3)), {}, ValueError, "problem_type"),
        (bert, texts(4, labels=[0, 1, -100, 2]), {}, ValueError, "from -100 to 2"),
    ],
)
def test_batches_that_cannot_be_bridged(model, rows, settings, error, message):
    with pytest.raises(error, match=message):
        training_loss(made(model(), elliptic=settings), rows)


def test_outputs_in_training_are_refused():
    trainer = made(bert())
    trainer.model.train()
    with pytest.raises(ValueError, match="belong to no sample"):
        trainer.compute_loss(trainer.model, batch(texts(4)), return_outputs=True)


@pytest.mark.slow
def test_example(tmp_path):
    trainer = runpy.run_path(str(EXAMPLES / "hf_trainer.py"))["main"](str(tmp_path), epochs=8)
    assert trainer.evaluate()["eval_loss"] < 0.4
    BertForSequenceClassification.from_pretrained(tmp_path)


# Two processes, forked from a fresh process in which no gradient has been computed yet.


class Recording(EllipticTrainer):
    def compute_loss(self, *args, **more):
        loss = super().compute_loss(*args, **more)
        self.losses = [*getattr(self, "losses", []), loss.item()]
        return loss


def _process(rank, folder, port):
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
        MASTER_ADDR="127.0.0.1", MASTER_PORT=port,
    )  # fmt: skip
    torch.set_num_threads(1)
    rows = texts(8)
    for name, settings in {"straight": STRAIGHT, "noisy": {"sigma": 0.5}}.items():
        trainer = made(
            bert(), rows, Recording, folder, settings, per_device_train_batch_size=2, ddp_backend="gloo",
            gradient_accumulation_steps=2, train_sampling_strategy="sequential",
        )  # fmt: skip
        if name == "straight":
            with_partners(trainer, lambda n: torch.arange(n).roll(1))
        trainer.train()
        report = {"losses": trainer.losses, "parameters": parameters(trainer.model).tolist()}
        Path(folder, f"{name}{rank}.json").write_text(json.dumps(report))
    second_order = made(
        bert(), rows, folder=folder, elliptic={"weighting": "gradient_norm"}, ddp_backend="gloo"
    )
    try:
        second_order.train()
    except ValueError as error:
        Path(folder, f"refused{rank}.txt").write_text(str(error))


@pytest.fixture(scope="module")
def two_processes():
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
        result = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, folder],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        yield Path(folder)


@pytest.mark.slow
def test_two_processes_equal_one_on_the_joined_batch(two_processes):
    """Two batches of two rows on each of two processes are one batch of eight rows."""
    trainer = made(
        bert(),
        texts(8),
        elliptic=STRAIGHT,
        per_device_train_batch_size=8,
        train_sampling_strategy="sequential",
    )
    with_partners(trainer, lambda n: torch.arange(n).view(-1, 2).flip(1).flatten())
    trainer.train()
    for rank in (0, 1):
        found = json.loads((two_processes / f"straight{rank}.json").read_text())
        torch.testing.assert_close(
            torch.tensor(found["parameters"]), parameters(trainer.model), rtol=1e-4, atol=1e-6
        )


@pytest.mark.slow
def test_two_processes_draw_different_noise_and_stay_together(two_processes):
    first, second = (json.loads((two_processes / f"noisy{rank}.json").read_text()) for rank in (0, 1))
    assert first["parameters"] == second["parameters"]
    assert not set(first["losses"]) & set(second["losses"])


@pytest.mark.slow
def test_two_processes_refuse_second_derivatives(two_processes):
    """The trainer wraps the model, not the objective."""
    for rank in (0, 1):
        assert "Wrap the objective instead" in (two_processes / f"refused{rank}.txt").read_text()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torch.multiprocessing.start_processes(_process, (sys.argv[1], port), nprocs=2, start_method="fork")
