# pyrometer run --data runs -- torchrun --standalone --nproc-per-node 2 examples/accelerate/train.py
"""A loop of Accelerate on two processes; `accelerate launch` works, too. It does not use Pyrometer."""

import torch
from accelerate import Accelerator
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


def main() -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(Rings(512), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    for _ in range(EPOCHS):
        for point, ring in loader:
            loss = nn.functional.cross_entropy(model(point), ring)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            mean = accelerator.reduce(loss.detach(), "mean").item()
            accelerator.log({"train_loss": mean}, step=step)
            accelerator.print(f"step {step} loss {mean:.4f}")
    accelerator.save_state("checkpoints/accelerate")
    accelerator.end_training()


if __name__ == "__main__":
    main()
