"""Hugging Face Trainer: texts of different lengths, bridged in their word embeddings."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from elliptica.integrations import EllipticTrainer


def made_texts(n: int, vocabulary: int = 40) -> list[dict[str, list[int] | int]]:
    """Texts of 3 to 8 made-up tokens, right-padded; the label says whether token 5 occurs."""
    numbers = torch.Generator().manual_seed(n)
    rows = []
    for _ in range(n):
        length = int(torch.randint(3, 9, (1,), generator=numbers))
        ids = torch.randint(4, vocabulary, (length,), generator=numbers)
        label = int(torch.rand(1, generator=numbers) < 0.5)
        ids[ids == 5] = 6
        ids[0] = 5 if label else ids[0]
        rows.append(
            {
                "input_ids": ids.tolist() + [0] * (8 - length),
                "attention_mask": [1] * length + [0] * (8 - length),
                "label": label,
            }
        )
    return rows


def main(folder: str, epochs: int = 3) -> EllipticTrainer:
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = BertForSequenceClassification(config)  # or .from_pretrained(...)
    args = TrainingArguments(
        folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        report_to="none",
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = EllipticTrainer(  # was: Trainer(
        model, args, train_dataset=made_texts(128), eval_dataset=made_texts(64), elliptic={"n_times": 5}
    )
    trainer.train()
    print(trainer.evaluate())  # the ordinary loss
    trainer.save_model(folder)  # the plain model
    return trainer


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
