"""Runs a training program with a fault in it that the program knows nothing of.

torchrun … plant.py FAULT,rank=2,from=60,s=0.2 PROGRAM ARGUMENTS…

`from` is the optimizer step at which the fault begins, `rank` the affected rank (default: all ranks), `s` a duration in
seconds. When it begins, FOLDER/planted gets a line with the time; FOLDER is the program's first argument.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

RANK = int(os.environ.get("RANK", "0"))
LIFE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
fault, *options_text = sys.argv[1].split(",")
options = dict(one.split("=") for one in options_text)
MINE = options.get("rank") in (None, str(RANK))
FROM, TO = int(options.get("from", 0)), int(options.get("to", 2**62))
NAP_S = float(options.get("s", 0))
folder = Path(sys.argv[3])
spec = importlib.util.spec_from_file_location("program", sys.argv[2])
program = importlib.util.module_from_spec(spec)
spec.loader.exec_module(program)
steps = 0


def here() -> bool:
    return MINE and LIFE == 0 and FROM <= steps < TO


def noted() -> None:
    with (folder / "planted").open("a") as file:
        file.write(f"{fault} {RANK} {steps} {time.time():.3f}\n")


def nap(*_: Any) -> None:
    if here():
        time.sleep(NAP_S)


def count(optimizer: Optimizer, *_: Any) -> None:
    global steps
    steps += 1
    if MINE and LIFE == 0 and steps in (FROM, TO):
        noted()
        AT_ONCE.get(fault, lambda: None)()


def around(owner: Any, name: str, act: Callable[..., Any]) -> None:
    """Puts something around each call of a function of a class or module."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: act(functools.partial(original, **kwargs), *args))


def later(original: Callable[..., Any], *args: Any) -> Any:
    nap()
    return original(*args)


class Rubbish:
    def __del__(self) -> None:
        time.sleep(NAP_S)


def throw_away(original: Callable[..., Any], *args: Any) -> Any:
    """Leaves something in a circle, which takes long to collect."""
    if here():
        circle: list[Any] = [Rubbish()]
        circle.append(circle)
        del circle
        gc.collect()
    return original(*args)


def poison() -> None:
    """All data that is loaded from now on is NaN."""

    def poisoned(original: Callable[..., Any], *args: Any) -> Any:
        x, y = original(*args)
        return x * float("nan"), y

    around(program.Rows, "__getitem__", poisoned)


def run_out_of_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def hold_the_interpreter() -> None:
    import ctypes

    ctypes.PyDLL(None).sleep(int(NAP_S))  # PyDLL keeps the interpreter's lock


AT_ONCE: dict[str, Callable[[], None]] = {
    "nan": poison,
    "sleep": lambda: time.sleep(NAP_S),
    "in_c": hold_the_interpreter,
    "out_of_memory": run_out_of_memory,
    "exit": lambda: os._exit(3),
}


def plant() -> None:
    """What has to be there before the program begins."""
    register_optimizer_step_post_hook(count)
    if fault == "slow_loader":
        around(program.Rows, "__getitem__", later)
    elif fault == "slow_forward":
        around(program.Net, "forward", later)
    elif fault == "slow_backward":
        nn.modules.module.register_module_full_backward_hook(
            lambda module, *_: nap() if isinstance(module, nn.GELU) else None
        )
    elif fault == "slow_save":
        around(torch, "save", later)
    elif fault == "garbage":
        around(torch.optim.AdamW, "zero_grad", throw_away)
    elif fault == "crash" and MINE:
        raise ValueError("there is no such data set")


def main() -> None:
    plant()
    sys.argv = sys.argv[2:]
    program.main()
    if fault == "sleep_on" and MINE:
        noted()
        time.sleep(NAP_S)


if __name__ == "__main__":
    main()
