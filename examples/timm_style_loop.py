"""A loop in timm's style: BridgeMix in the place of Mixup, soft targets, off in the last epochs."""

import torch
from torch import Tensor, nn

from elliptica import BridgeMix


class SoftTargetCrossEntropy(nn.Module):
    """What timm calls by this name; `nn.CrossEntropyLoss` takes soft targets, too."""

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Mean over the batch."""
        return -(target * x.log_softmax(-1)).sum(-1).mean()


def main(epochs: int = 5, mixup_off_epoch: int = 4) -> nn.Module:
    torch.manual_seed(0)
    images = torch.randn(128, 3, 8, 8)
    labels = images[:, :, 0, 0].argmax(1)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, labels), batch_size=33, shuffle=True
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    mixup_fn = BridgeMix(num_classes=3, sigma=0.05)  # was: Mixup(mixup_alpha=0.2, num_classes=3)
    train_loss_fn = SoftTargetCrossEntropy()
    for epoch in range(epochs):
        if epoch >= mixup_off_epoch:
            mixup_fn, train_loss_fn = None, nn.CrossEntropyLoss()
        for x, y in loader:
            if mixup_fn is not None:
                x, y = mixup_fn(x, y)  # odd batches work, and x is not changed in place
            loss = train_loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss of the last batch {loss.item():.3f}")
    return model


if __name__ == "__main__":
    main()
