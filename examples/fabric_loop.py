"""Lightning Fabric: set up the objective in the place of the model, save the model it owns."""

import tempfile
from pathlib import Path

import lightning as L
import torch
from torch import nn

from elliptica import Elliptic


def main(path: Path, epochs: int = 5) -> nn.Module:
    torch.manual_seed(0)
    x = torch.randn(256, 20)
    data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))

    fabric = L.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    fabric.launch()
    elliptic = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, sigma=0.05)
    optimizer = torch.optim.Adam(elliptic.parameters(), lr=1e-2)
    objective, optimizer = fabric.setup(elliptic, optimizer)
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))
    noise = torch.Generator(fabric.device).manual_seed(fabric.global_rank)  # one per process
    for epoch in range(epochs):
        elliptic.strength = 1.0 if epoch < epochs - 1 else None  # the last epoch on the data themselves
        for inputs, labels in loader:
            loss = objective(inputs, labels, generator=noise)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
        fabric.print(f"epoch {epoch}: loss of the last batch {loss.item():.3f}")

    fabric.save(path, objective.model.state_dict())  # keys of the plain model
    return model


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder) / "model.pt")
