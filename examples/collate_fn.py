"""Bridges in the workers of a loader: the same batches for the same seed, on any number of workers."""

import torch
from torch import Tensor, nn

from elliptica import BridgeMix


def main(epochs: int = 2, num_workers: int = 2) -> list[Tensor]:
    torch.manual_seed(0)
    x = torch.randn(64, 20)
    data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
    model = nn.Linear(20, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    collate = BridgeMix(num_classes=3, sigma=0.05).collate_fn(seed=0)
    loader = torch.utils.data.DataLoader(
        data, batch_size=16, collate_fn=collate, num_workers=num_workers, persistent_workers=num_workers > 0
    )
    seen = []
    for epoch in range(epochs):
        collate.set_epoch(epoch)  # new noise for the same samples
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(inputs)
        print(f"epoch {epoch}: loss of the last batch {loss.item():.3f}")
    return seen


if __name__ == "__main__":
    main()
