# pyrometer run --data runs -- torchrun --standalone --nproc-per-node 2 examples/ddp/train.py
"""Plain PyTorch with DistributedDataParallel, on two processes. It does not use Pyrometer."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

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


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Rings(512)
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for point, ring in loader:
            loss = nn.functional.cross_entropy(model(point), ring)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.4f}")

    if dist.get_rank() == 0:
        Path("checkpoints").mkdir(exist_ok=True)
        torch.save({"model": model.module.state_dict(), "step": step}, "checkpoints/ddp.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
