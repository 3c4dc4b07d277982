"""What a training script or a notebook may import. Nothing here is heavy: standard library only, no I/O on import."""

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
    """Watches this training process, if an endpoint is configured; else it costs nothing and does nothing.

    `step` is the number of the first step that this process does, `flops_per_sample` what a sample costs, forward and
    backward together. Calling it again changes only what it is given.
    """
    from pyrometer.train import boot

    boot.start(experiment=experiment, run=run, endpoint=endpoint, step=step, flops_per_sample=flops_per_sample)
    boot.become_rank()


def log(*, step: int | None = None, goals: Mapping[str, str] | None = None, **values: Any) -> None:
    """Metrics of this step: numbers, or tensors with one number. `tokens` and `samples` count towards the throughput.

    A tensor on a GPU is copied without waiting for it and read some steps later. `goals` says for which names less
    ("min") or more ("max") is better, where the name does not tell.
    """
    from pyrometer.train import boot

    rank = boot.rank()
    if rank is not None:
        rank.log(values, step, goals)


@contextmanager
def span(name: str) -> Iterator[None]:
    """A piece of a step, by name: it is shown in the traces of steps."""
    from pyrometer.train import boot

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
    """Asks a data folder, or a server by its address: answers as Arrow tables and pandas frames (docs/notebook.md)."""
    try:
        from pyrometer.notebook import connect as connected
    except ImportError as error:
        raise ImportError(f"pyrometer.connect needs {error.name}: pip install 'pyrometer[notebook]'") from None
    return connected(where, token=token)
