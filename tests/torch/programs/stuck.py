"""One of the ranks gets stuck in its loader, in one way after the other; the others wait in the all-reduce.

    stuck.py FOLDER RANK SECONDS WAY…     asleep | in_c | stopped | and, on all ranks, evaluate | checkpoint

After the last way, with `sleep_on` as another one, the process continues without its loop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from nets import RANK, Net, Rows
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

WHO, LENGTH_S, WAYS = int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
EVERY = 40  # steps
STEP_S = 0.05


def fall_asleep() -> None:
    time.sleep(LENGTH_S)


def hold_the_interpreter() -> None:
    ctypes.PyDLL(None).usleep(int(LENGTH_S * 1e6))


def stop() -> None:
    subprocess.Popen(["sh", "-c", f"sleep {LENGTH_S}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


GET_STUCK = {"asleep": fall_asleep, "in_c": hold_the_interpreter, "stopped": stop}


class Sticky(Rows):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        way = index // EVERY - 1
        if index % EVERY == 0 and RANK == WHO and 0 <= way < len(WAYS) and WAYS[way] in GET_STUCK:
            GET_STUCK[WAYS[way]]()
        return super().__getitem__(index)


class Slow:
    def __reduce__(self) -> tuple:
        time.sleep(LENGTH_S)
        return (str, ("slow",))


def train() -> None:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(DataLoader(Sticky(EVERY * (len(WAYS) + 1)), batch_size=1)):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(STEP_S)
        if step % EVERY == 0 and 0 < step // EVERY <= len(WAYS):
            besides(model, WAYS[step // EVERY - 1])


def besides(model: nn.Module, way: str) -> None:
    if way == "evaluate":
        with torch.no_grad():
            model.module(torch.zeros(1, 8))
            time.sleep(LENGTH_S)
            model.module(torch.zeros(1, 8))
    elif way == "checkpoint":
        torch.save([Slow()], Path(sys.argv[1], f"{RANK}.pt"))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    if "sleep_on" in WAYS:
        time.sleep(LENGTH_S)
    dist.destroy_process_group()
