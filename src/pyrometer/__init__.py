"""The public functions for training scripts and notebooks. Importing them is cheap: standard library only, no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pyrometer.notebook import Client

__version__ = "0.1.0"

__all__ = ["__version__", "connect", "init", "log", "span"]


def init(
    *,
    experiment: str | None = None,
    run: str | None = None,
    endpoint: str | None = None,
    step: int | None = None,
    flops_per_sample: float | None = None,
) -> None:
    """Observes this training process. Does nothing if no endpoint is configured.

    `step` is the number of the first step of this process. `flops_per_sample` is the number of floating-point
    operations per sample, forward and backward together. A later call changes only the arguments that it gets.
    """
    from pyrometer.train.run import boot

    boot.start(experiment=experiment, run=run, endpoint=endpoint, step=step, flops_per_sample=flops_per_sample)
    boot.become_rank()


def log(*, step: int | None = None, goals: Mapping[str, str] | None = None, **values: Any) -> None:
    """Logs metrics of this step: numbers, or tensors with one number. `tokens` and `samples` count as throughput.

    A tensor on a GPU is copied without waiting and read some steps later. `goals` says for which names lower ("min")
    or higher ("max") values are better, if the name does not imply it.
    """
    from pyrometer.train.run import boot

    rank = boot.rank()
    if rank is not None:
        rank.log(values, step, goals)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Names a part of a step. The name appears in the traces of steps."""
    from pyrometer.train.run import boot

    rank = boot.rank()
    if rank is None:
        yield
        return
    from time import perf_counter_ns

    began_ns = perf_counter_ns()
    try:
        yield
    finally:
        rank.recorder.name(name, began_ns, perf_counter_ns())


def connect(where: str | Path | None = None, *, token: str | None = None) -> Client:
    """Connects to a data folder or to the address of a server, to query it from Python (docs/notebook.md)."""
    try:
        from pyrometer.notebook import connect as connected
    except ImportError as error:
        raise ImportError(f"pyrometer.connect needs {error.name}: pip install 'pyrometer[notebook]'") from None
    return connected(where, token=token)
