"""Lightning: a mixin and two changed lines in a LightningModule; checkpoints keep their keys."""

import lightning as L
import torch
from torch import Tensor, nn

from elliptica.integrations import EllipticLightningMixin


class Lit(EllipticLightningMixin, L.LightningModule):
    """An ordinary module, but for the mixin and two lines."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3))
        self.use_elliptic(  # new
            self.net, nn.CrossEntropyLoss(), num_classes=3, sigma=0.05, seed=0, clean_loss_every=4
        )

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """On bridges."""
        x, y = batch
        loss = self.elliptic_loss(x, y)  # was: nn.functional.cross_entropy(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """On the data, as ever."""
        x, y = batch
        self.log("val_loss", nn.functional.cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """As ever."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main(epochs: int = 5) -> dict[str, float]:
    L.seed_everything(0, verbose=False)
    x = torch.randn(256, 20)
    data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loaders = [torch.utils.data.DataLoader(data, batch_size=32, shuffle=shuffle) for shuffle in (True, False)]
    trainer.fit(Lit(), *loaders)
    metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
    print(metrics)
    return metrics


if __name__ == "__main__":
    main()
