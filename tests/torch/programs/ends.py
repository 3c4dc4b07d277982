"""One process for each way to end: each is forked, trains, and ends. Writes down with which status each one ended.

ends.py FOLDER [WAY]     with a way: this process ends in it
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import torch
import torch._dynamo  # which the first step of an optimizer imports: once here, and not in every fork
from nets import Net
from torch import nn

FOLDER = Path(sys.argv[1])


def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(f"own hook: {kind.__name__}: {error} {trace is error.__traceback__}\n")


def hook_that_exits(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    hook(kind, error, trace)
    os._exit(9)


def hook_that_leaves(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    hook(kind, error, trace)
    sys.exit(0)


def fail() -> None:
    raise ValueError("planted\nin two lines")


def system_exit() -> None:
    raise SystemExit(3)


def message() -> None:
    sys.exit("no more data")


def whole_byte() -> None:
    sys.exit(256)


def negative() -> None:
    sys.exit(-1)


def success() -> None:
    sys.exit(0)


def at_once() -> None:
    os._exit(4)


def from_c() -> None:
    ctypes.CDLL(None).exit(8)


def hook_before() -> None:
    fail()


def hook_after() -> None:
    sys.excepthook = hook
    fail()


def hook_exits() -> None:
    sys.excepthook = hook_that_exits
    fail()


def hook_leaves() -> None:
    sys.excepthook = hook_that_leaves
    fail()


def chained() -> None:
    try:
        fail()
    except ValueError as error:
        raise RuntimeError("raised last") from error


def group() -> None:
    raise ExceptionGroup("of two", [ValueError("first"), ExceptionGroup("inner", [ValueError("second")])])


def syntax() -> None:
    compile("a b", "config.py", "exec")


def caught() -> None:
    try:
        fail()
    except ValueError:
        sys.exit(1)


def terminated() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    signal.raise_signal(signal.SIGTERM)


def interrupted() -> None:
    raise KeyboardInterrupt


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def atexit_fails() -> None:
    atexit.register(fail)


def thread_fails() -> None:
    thread = threading.Thread(target=fail, name="planted")
    thread.start()
    thread.join()


def fork_fails() -> None:
    """A fork of the rank ends in another way than the rank itself."""
    if os.fork() == 0:
        raise SystemExit(2)
    os.wait()


WAYS = (
    system_exit,
    message,
    whole_byte,
    negative,
    success,
    at_once,
    from_c,
    fail,
    hook_before,
    hook_after,
    hook_exits,
    hook_leaves,
    chained,
    group,
    syntax,
    caught,
    terminated,
    interrupted,
    killed,
    atexit_fails,
    thread_fails,
    fork_fails,
)


def train() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        nn.functional.cross_entropy(model(torch.randn(2, 8)), torch.zeros(2, dtype=torch.int64)).backward()
        optimizer.step()
        optimizer.zero_grad()


def fork_each() -> Callable[[], None]:
    """A process for each way. The first one waits for them all, and ends well."""
    statuses = {}
    gc.freeze()  # a fork that ends need not look through all of torch's objects
    for way in WAYS:
        child = os.fork()
        if child == 0:
            return way
        statuses[way.__name__] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (FOLDER / "statuses.json").write_text(json.dumps(statuses))
    sys.exit()


way = globals()[sys.argv[2]] if len(sys.argv) > 2 else fork_each()
os.environ["PYROMETER_RUN"] = way.__name__
os.dup2(os.open(FOLDER / f"{way.__name__}.err", os.O_WRONLY | os.O_CREAT), 2)
if way is hook_before:
    sys.excepthook = hook
train()
way()
