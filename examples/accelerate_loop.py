"""Accelerate: prepare the objective in the place of the model, save the model it owns."""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from elliptica import Elliptic


def main(folder: str, epochs: int = 5) -> nn.Module:
    torch.manual_seed(0)
    x = torch.randn(256, 20)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, x[:, :3].argmax(1)), batch_size=32, shuffle=True
    )
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, sigma=0.05)
    optimizer = torch.optim.Adam(objective.parameters(), lr=1e-2)
    objective, optimizer, loader = accelerator.prepare(objective, optimizer, loader)
    noise = torch.Generator(accelerator.device).manual_seed(accelerator.process_index)  # one per process
    for epoch in range(epochs):
        for inputs, labels in loader:
            loss = objective(inputs, labels, generator=noise)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss of the last batch {loss.item():.3f}")

    plain = accelerator.unwrap_model(objective).model
    accelerator.save_model(plain, folder)  # model.safetensors, keys of the plain model
    return plain


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
        print("saved", *(path.name for path in Path(folder).iterdir()))
