"""Two ranks that save every ten steps and resume from there; rank 1 ends in some way in all of its lives but the last.

mortal.py FOLDER WAY…     kill | raise | own_hook | out_of_memory | exit | leave | system_exit | term
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from nets import RANK, RANKS, Net, loader
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLDER, WAYS = Path(sys.argv[1]), sys.argv[2:]
CHECKPOINT = FOLDER / "last.pt"
LAST, DEADLY, EVERY = 40, 27, 10
LIFE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def run_out_of_patience() -> None:
    raise ValueError("no more patience")


def run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def run_out_with_a_hook() -> None:
    sys.excepthook = lambda kind, error, trace: sys.stderr.write(f"{kind.__name__}: {error}\n")
    run_out_of_patience()


def leave_by_exception() -> None:
    raise SystemExit(3)


DIE = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "term": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "raise": run_out_of_patience,
    "out_of_memory": run_out_of_memory,
    "exit": lambda: os._exit(3),
    "leave": lambda: sys.exit(3),
    "system_exit": leave_by_exception,
    "own_hook": run_out_with_a_hook,
}


def main() -> None:
    # by a file for each life: in the agent's store gloo finds addresses of those that died
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/meet-{LIFE}", rank=RANK, world_size=RANKS)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        step = state["step"]
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state_dict=state["optimizer"])
    for x, y in loader(size=8 * (LAST - step)):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        time.sleep(0.1)
        if step % EVERY == 0 and RANK == 0:
            state = {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, CHECKPOINT)
        if step == DEADLY and RANK == 1 and len(WAYS) > LIFE:
            DIE[WAYS[LIFE]]()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
