"""A plain PyTorch loop: one line builds the objective, one line changes."""

import torch
from torch import nn

from elliptica import Elliptic


def main(epochs: int = 5) -> nn.Module:
    torch.manual_seed(0)
    x = torch.randn(256, 20)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, x[:, :3].argmax(1)), batch_size=32, shuffle=True
    )
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
    objective = Elliptic(model, nn.CrossEntropyLoss(), num_classes=3, sigma=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    for epoch in range(epochs):
        objective.train()
        for inputs, labels in loader:
            loss = objective(inputs, labels)  # was: criterion(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        objective.eval()  # the ordinary loss
        with torch.no_grad():
            print(f"epoch {epoch}: loss {objective(x, x[:, :3].argmax(1)):.3f}")
    return model  # plain: torch.save(model.state_dict(), ...)


if __name__ == "__main__":
    main()
