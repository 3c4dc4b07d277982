"""Containers that ended and do not run again yet: nothing runs, and the pod still holds its GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.model.records import Event
from tests.account.build.test_ledger_unwatched import states
from tests.support.clusters import MINUTE, at, samples


def happened(kind: str, minute: float) -> Event:
    return Event(at(minute), f"container_{kind}", cluster="test", pod_uid="p", reason="Error")


@pytest.mark.parametrize(
    ("events", "minutes"),
    [
        ([("restarted", 30), ("started", 34.5)], 4.5),
        ([("restarted", 30), ("started", 31), ("restarted", 40), ("started", 44)], 5),
        ([("restarted", 30), ("restarted", 40), ("started", 44)], 4),  # when it ran in between is not known
        ([("restarted", 110)], 10),  # it still waits
        ([("started", 10)], 0),
    ],
)
def test_a_restart_is_startup_until_ranks_run_again(
    tmp_path: Path, events: list[tuple[str, float]], minutes: float
) -> None:
    found = states(tmp_path, *(happened(kind, minute) for kind, minute in events))
    assert found["p", "startup"] == 2 * minutes
    assert found["p", "unobserved"] == 2 * (120 - minutes)


def test_a_restart_takes_precedence_over_samples(tmp_path: Path) -> None:
    busy = [s for slot in (0, 1) for s in samples("n0", slot, 0, 120, gpu_util_permille=950, sm_active_permille=800)]
    found = states(tmp_path, happened("restarted", 30), happened("started", 50), *busy)
    assert found["p", "startup"] == 2 * 20
    assert found["p", "active"] == 2 * 100
    assert sum(found.values()) == 4 * 120 * MINUTE / MINUTE
