"""Steps of one length, each with a batch and a metric, saved now and then: `steady.py FOLDER STEPS LENGTH_S`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from nets import RANK, RANKS, Net, answer, loader
from torch import nn

import pyrometer

FOLDER, STEPS, LENGTH_S = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])


def main() -> None:
    pyrometer.init(experiment="steady")
    if RANKS > 1:
        torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    took, last = [], time.perf_counter()
    for step, (x, y) in enumerate(loader(size=4 * RANKS * STEPS)):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        pyrometer.log(step=step, number=step)
        if step % 50 == 0:
            torch.save(model.state_dict(), FOLDER / f"{RANK}-{step}.pt")
        now = time.perf_counter()
        took.append(now - last)
        time.sleep(LENGTH_S)
        last = time.perf_counter()
    answer(took)


if __name__ == "__main__":
    main()
