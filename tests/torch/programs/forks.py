"""A rank with helpers: loaders of every kind, a child that trains, a child that does not. Says who has which threads.

forks.py FOLDER
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from pathlib import Path

import torch
from nets import Net, Rows
from torch import nn
from torch.utils.data import DataLoader

FOLDER = Path(sys.argv[1])


def note(name: str) -> None:
    """Leaves word of the threads of this process."""
    threads = sorted(thread.name for thread in threading.enumerate() if "pyrometer" in thread.name)
    (FOLDER / f"{name}-{os.getpid()}.json").write_text(json.dumps(threads))


class Noting(Rows):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if torch.utils.data.get_worker_info() is not None:
            torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)  # and is still not a rank
            note("worker")
        return super().__getitem__(index)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader) -> None:
    for x, y in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def help_out() -> None:
    note("helper")


def train_in_child(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    train(model, optimizer, DataLoader(Rows(24), batch_size=4))
    note("child")


def fail_in_child() -> None:
    model = Net()
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Rows(8), batch_size=4))
    raise ValueError("the child's own")


def main() -> None:
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, DataLoader(Rows(16), batch_size=4))
    for method in ("fork", "forkserver", "spawn"):
        loader = DataLoader(
            Noting(8), batch_size=4, num_workers=1, multiprocessing_context=method, persistent_workers=method == "fork"
        )
        for _ in range(2 if method == "fork" else 1):
            train(model, optimizer, loader)
    fork = multiprocessing.get_context("fork")
    for work, arguments in ((help_out, ()), (train_in_child, (model, optimizer)), (fail_in_child, ())):
        process = fork.Process(target=work, args=arguments)
        process.start()
        process.join()
    note("rank")


if __name__ == "__main__":
    main()
