# pyrometer run --data runs -- torchrun --standalone --nproc-per-node 2 examples/fsdp2/train.py
"""PyTorch's FSDP2 (`fully_shard`) on two processes, with a sharded checkpoint. It does not use Pyrometer."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3)).to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    data = Rings(512)
    sampler = DistributedSampler(data, seed=0)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for point, ring in loader:
            loss = nn.functional.cross_entropy(model(point.to(device)), ring.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.4f}")

    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state, "step": step}, checkpoint_id="checkpoints/fsdp2")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
