"""The models that the programs train, and how they report their results."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Net(nn.Module):
    """Two layers, and one that is used only now and then."""

    def __init__(self, width: int = 32, *, sometimes: bool = False) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 2)
        self.sometimes = nn.Linear(8, 2) if sometimes else None
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.middle(torch.relu(self.first(x))))
        out = self.last(hidden)
        if self.sometimes is not None:
            self.calls += 1
            out = out + self.sometimes(x) if self.calls % 3 else out
        return out


class Rows(Dataset):
    """Rows that depend on their number only."""

    def __init__(self, size: int = 96) -> None:
        made = torch.Generator().manual_seed(3)
        self.x, self.y = torch.randn(size, 8, generator=made), torch.randint(0, 2, (size,), generator=made)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def loader(size: int = 96, batch_size: int = 4, dataset: Dataset | None = None, **more) -> DataLoader:
    """This rank's part of the rows."""
    dataset = dataset or Rows(size)
    sampler = DistributedSampler(dataset, RANKS, RANK, seed=5)
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, **more)


def digest(model: nn.Module) -> str:
    """The weights, to the last bit."""
    from torch.distributed.tensor import DTensor

    made = hashlib.sha256()
    for parameter in model.parameters():
        held = parameter.detach()
        made.update((held.to_local() if isinstance(held, DTensor) else held).numpy().tobytes())
    return made.hexdigest()


def answer(found: object) -> None:
    """What this rank has to say, in the folder that the first argument names."""
    Path(sys.argv[1], f"{RANK}.json").write_text(json.dumps(found))
