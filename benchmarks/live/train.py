"""An ordinary training program: data parallel, with a loader, evaluations, checkpoints and a resume.

It knows nothing of Pyrometer and nothing of faults. Each rank writes how far it is into FOLDER/progress, as programs
write logs.

torchrun --nproc-per-node 4 train.py FOLDER [--steps 200] [--every 20] [--evaluate 50] …
"""

from __future__ import annotations

import argparse
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Rows(Dataset):
    """Points in separable classes."""

    def __init__(self, count: int, width: int, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        self.centers = torch.randn(10, width, generator=made)
        self.classes = torch.randint(10, (count,), generator=made)
        self.noise = torch.randn(256, width, generator=made)

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        label = self.classes[index]
        return self.centers[label] + 2 * self.noise[index % 256], label


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


def wanted() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batch-later", type=int, default=0, help="another batch size from half way on")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--evaluate", type=int, default=50, help="steps between evaluations")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def batches(rows: Rows, size: int, done: int, args: argparse.Namespace):
    """Endless batches, without those that were used before."""
    epoch = 0
    while True:
        sampler = DistributedSampler(rows, RANKS, RANK, seed=args.seed + done + epoch)
        yield from DataLoader(rows, batch_size=size, sampler=sampler, num_workers=args.workers, drop_last=True)
        epoch += 1


def evaluated(model: nn.Module, rows: Rows) -> float:
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in DataLoader(rows, batch_size=64)]
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    args = wanted()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    # by a file for each life: in the launcher's store gloo finds the addresses of ranks that died
    meet = args.folder / f"meet-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=RANK, world_size=RANKS)
    progress = (args.folder / "progress" / str(RANK)).open("a", buffering=1)
    progress.write(f"pid {os.getpid()} {time.time():.3f}\n")
    net = Net(args.width)
    model = DistributedDataParallel(torch.compile(net) if args.compile else net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    checkpoint, step = args.folder / "last.pt", 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        step = state["step"]
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    rows, held_out = Rows(200_000, args.width, args.seed), Rows(256, args.width, args.seed)
    drawn = batches(rows, args.batch, step, args)
    while step < args.steps:
        if args.batch_later and step == args.steps // 2:
            drawn = batches(rows, args.batch_later, step, args)
        for _ in range(args.accumulate):
            x, y = next(drawn)
            loss = nn.functional.cross_entropy(model(x), y) / args.accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        progress.write(f"step {step} {time.time():.3f}\n")
        if step % args.every == 0 and RANK == 0:
            state = {"step": step, "model": net.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, checkpoint.with_suffix(".new"))
            checkpoint.with_suffix(".new").replace(checkpoint)
        if step % args.evaluate == 0:
            evaluated(net, held_out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
