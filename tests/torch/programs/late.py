"""One rank after the other is late, each in another phase, for a number of steps: `late.py FOLDER STEPS PHASE…`."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from nets import RANK, RANKS, Net, Rows, answer
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

NAP_S = 0.05
STEPS = int(sys.argv[2])
PHASES = sys.argv[3:]
now = ""  # the phase in which this rank is late


def nap(phase: str) -> None:
    if now == phase:
        time.sleep(NAP_S)


class Late(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nap("forward")
        hidden = torch.relu(self.first(x))
        hidden.register_hook(lambda _: nap("backward"))
        return self.last(torch.relu(self.middle(hidden)))


class LateRows(Rows):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index % 4 == 0:  # once in a batch
            nap("data")
        return super().__getitem__(index)


class Rubbish:
    """What takes long to collect."""

    def __del__(self) -> None:
        nap("garbage")


def throw_away() -> None:
    rubbish = Rubbish()
    rubbish.itself = rubbish
    del rubbish
    if now == "garbage":
        gc.collect()


def train(model: nn.Module, loader: DataLoader) -> None:
    global now
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader):
        number, first = divmod(step, STEPS)
        if not first and number < len(PHASES):
            now = PHASES[number] if number % RANKS == RANK else ""
        nap("copy")
        loss = nn.functional.cross_entropy(model(x), y)
        throw_away()
        loss.backward()
        nap("optimizer")
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    dist.init_process_group("gloo")
    loader = DataLoader(LateRows(4 * STEPS * len(PHASES)), batch_size=4)
    gc.disable()
    gc.freeze()  # what else is there takes longer than what is planted
    train(DistributedDataParallel(Late()), loader)
    answer(str(Path(__file__)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
