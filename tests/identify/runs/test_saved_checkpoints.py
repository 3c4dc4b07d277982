"""Saved checkpoints, and the step from which an attempt resumed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pyrometer.collect.otlp.messages import EventMessage, RankIdentity, RankStatus
from pyrometer.identify.runs.rank_locations import RunContext
from pyrometer.identify.runs.run_registry import RunRegistry
from pyrometer.model.records import Run

T0 = 1_790_000_000_000


def rank(launch: str = "l1", number: int = 0, **more: Any) -> RankIdentity:
    known = {"host": "h", "started_ms": T0, "device": "cuda", "gpu_uuid": f"GPU-{number}", "gpu_index": number}
    return RankIdentity(launch, number, **(known | more))


def the(kind: type, records: Iterable[Any]) -> list[Any]:
    return [record for record in records if type(record) is kind]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_resumed_step_is_that_of_the_loaded_checkpoint(order: tuple[int, ...]) -> None:
    """The last that an earlier attempt saved there, whichever rank reports first."""
    first, second = rank("a", run="r"), rank("b", run="r", started_ms=T0 + 500_000)
    reports = [
        (first, [EventMessage(T0 + 1_000, "checkpoint_saved", step=10, message="/last.pt")]),
        (first, [EventMessage(T0 + 2_000, "checkpoint_saved", step=20, message="/last.pt")]),
        (
            second,
            [
                EventMessage(T0 + 501_000, "restored", message="/last.pt"),
                EventMessage(T0 + 600_000, "checkpoint_saved", step=99, message="/last.pt"),
            ],
        ),
    ]
    runs, records = RunRegistry(), []
    runs.take([(first, [RankStatus(T0)])], RunContext())
    for number in order:
        records += the(Run, runs.take([reports[number]], RunContext()).records)
    assert max(run for run in records if run.attempt == 2).resumed_step == 20


def test_checkpoints_are_known_after_a_restart() -> None:
    known = RunContext(attempts=[("r", 1, "a")], checkpoints=[("r", 1, "/last.pt", T0, 20)])
    who = rank("b", run="r")
    (run,) = the(
        Run, RunRegistry().take([(who, [EventMessage(T0 + 9, "restored", message="/last.pt")])], known).records
    )
    assert (run.attempt, run.resumed_step) == (2, 20)
