"""Steps of which some are far longer: prints how long each took, in seconds, from the second one on."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import torch
from torch import nn

STEPS, SLOW_EVERY, USUAL_S, SLOW_S = 200, 33, 0.003, 0.12


def main() -> None:
    torch.set_num_threads(1)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ends = []
    for step in range(STEPS):
        time.sleep(SLOW_S if step % SLOW_EVERY == 7 else USUAL_S)
        model(torch.randn(16, 8)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(time.perf_counter())
    print(json.dumps([end - begin for begin, end in pairwise(ends)]))


if __name__ == "__main__":
    main()
