# pyrometer run --data runs -- python examples/lightning/train.py
"""Lightning's Trainer with two processes, which it starts itself. It does not use Pyrometer."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCH = 3, 16


class Rings(Dataset):
    """Points on three rings. The model learns the ring of a point. Row 7 is always the same point."""

    def __init__(self, rows: int) -> None:
        noise = torch.Generator().manual_seed(0)
        self.ring = torch.randint(0, 3, (rows,), generator=noise)
        angle = torch.rand(rows, generator=noise) * 6.283
        radius = self.ring + 1 + torch.randn(rows, generator=noise) * 0.1
        self.point = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)

    def __len__(self) -> int:
        return len(self.ring)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.point[row], self.ring[row]


class Classifier(lightning.LightningModule):
    """Predicts the ring of a point."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 3))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        point, ring = batch
        loss = nn.functional.cross_entropy(self.layers(point), ring)
        self.log("train_loss", loss)
        if self.global_rank == 0:
            print(f"step {self.global_step + 1} loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        point, ring = batch
        self.log("val_loss", nn.functional.cross_entropy(self.layers(point), ring), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


if __name__ == "__main__":
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        devices=2,
        strategy="ddp",
        log_every_n_steps=1,
        default_root_dir="checkpoints/lightning",
        accelerator="gpu" if torch.cuda.device_count() > 1 else "cpu",
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Classifier(), DataLoader(Rings(512), batch_size=BATCH, shuffle=True), DataLoader(Rings(64), batch_size=BATCH)
    )
