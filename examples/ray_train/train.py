# pyrometer run --data runs -- python examples/ray_train/train.py
"""Ray Train with two workers. It does not use Pyrometer: the processes that Ray starts inherit `pyrometer run`.

On an existing Ray cluster, add one line: runtime_env={"env_vars": {"PYROMETER_ENDPOINT": "https://…"}}.
"""

import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
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


def train() -> None:
    torch.manual_seed(0)
    model = prepare_model(nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 3)))
    loader = prepare_data_loader(DataLoader(Rings(512), batch_size=BATCH, shuffle=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        for point, ring in loader:
            loss = nn.functional.cross_entropy(model(point), ring)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.module.state_dict(), Path(folder) / "model.pt")
            saved = ray.train.Checkpoint.from_directory(folder) if epoch == EPOCHS - 1 else None
            ray.train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=saved)
        if ray.train.get_context().get_world_rank() == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    ray.init(num_cpus=3, include_dashboard=False)
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="rings", storage_path=str(Path("checkpoints").absolute())),
    )
    print(trainer.fit().metrics)
