"""The ground truth of recordings for `pyrometer score`: cells of states, and the expected findings.

Each interval of waste of at least ten seconds is an expected finding. Steps of an attempt after the step from which a
later attempt resumed are `lost_work`. Only the waiting time of a `data_stall` counts; its steps trained. With GPU
telemetry alone, idle periods shorter than 15 minutes and restarts inside a pod look alike: both are `starved`.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyrometer.model.units import MS_PER_HOUR
from pyrometer_datasets.recording import Interval, RecordedStep, intervals_of, steps_of

LONG_MS = 10_000
STATES = {"hang_spin": "hang", "hang_idle": "hang", "small_batch": "train"}  # what the design calls them
FOUND = ("hang", "data_stall", "idle_held", "diverged", "lost_work")  # waste that one GPU can have
FOUND_BY_GPU = ("hang_spin",)  # with GPU telemetry alone the others look like work, or like a pause
Piece = tuple[str, int, int]  # a state, from, to


def recorded_truth(path: Path, *, with_steps: bool) -> dict[str, Any]:
    """The truth of a folder of recordings, in the form of `truth.json`."""
    findings: list[dict[str, Any]] = []
    cells: dict[tuple[str | None, int, str], int] = defaultdict(int)
    edges: list[int] = []
    for file in sorted(path.glob("*-truth.json")):
        name = file.name.removesuffix("-truth.json")
        intervals = intervals_of(path, name)
        edges += intervals[0].from_ms, intervals[-1].to_ms
        steps = steps_of(path, name)
        lost = _lost(intervals, steps)
        pieces = [piece for interval in intervals for piece in _pieces(interval, steps, lost)]
        if not with_steps:
            pieces = [
                (_seen_from_outside(state, from_ms, intervals), from_ms, to_ms) for state, from_ms, to_ms in pieces
            ]
        for state, from_ms, to_ms in pieces:
            for hour_ms in range(from_ms // MS_PER_HOUR * MS_PER_HOUR, to_ms, MS_PER_HOUR):
                part_ms = min(to_ms, hour_ms + MS_PER_HOUR) - max(from_ms, hour_ms)
                cells[None if state == "free" else f"recording-{name}", hour_ms, state] += part_ms
        planted = [(i.state, i.from_ms, i.to_ms) for i in intervals if STATES.get(i.state, i.state) in FOUND]
        planted += [("lost_work", lost[0], lost[1])] if lost else []
        findings += [_finding(name, one, with_steps) for one in planted if one[2] - one[1] >= LONG_MS]
    return {
        "origin": "recorded",
        "evidence": "full" if with_steps else "gpu",
        "window": {"from": _iso(_minute(min(edges))), "to": _iso(_minute(max(edges) + 59_999))},
        "findings": findings,
        "cells": [
            {"workload_uid": owner, "hour": _iso(hour_ms), "state": state, "gpu_ms": ms}
            for (owner, hour_ms, state), ms in cells.items()
        ],
    }


def _lost(intervals: list[Interval], steps: list[RecordedStep]) -> tuple[int, int] | None:
    """From the first to the last step that was done for nothing."""
    for interval in intervals:
        if interval.resumed_step is not None:
            before = [s for s in steps if s.to_ms <= interval.from_ms and s.step >= interval.resumed_step]
            return (before[0].from_ms, before[-1].to_ms) if before else None
    return None


def _pieces(interval: Interval, steps: list[RecordedStep], lost: tuple[int, int] | None) -> list[Piece]:
    """An interval as the ledger should have it."""
    state = STATES.get(interval.state, interval.state)
    from_ms, to_ms = interval.from_ms, interval.to_ms
    trained = interval.state in ("train", "small_batch", "data_stall")
    if lost and trained and from_ms >= lost[0] - 1 and to_ms <= lost[1] + 1:
        return [("lost_work", from_ms, to_ms)]
    if state == "data_stall":
        inside = [step for step in steps if step.from_ms >= from_ms and step.to_ms <= to_ms]
        waited_ms = round(1000 * sum(step.data_s for step in inside))
        return [(state, from_ms, from_ms + waited_ms), ("train", from_ms + waited_ms, to_ms)]
    return [(state, from_ms, to_ms)]


def _seen_from_outside(state: str, from_ms: int, intervals: list[Interval]) -> str:
    first_ms = next(interval.from_ms for interval in intervals if interval.state != "free")
    return "starved" if state == "idle_held" or (state == "startup" and from_ms > first_ms) else state


def _finding(name: str, piece: Piece, with_steps: bool) -> dict[str, Any]:
    state, from_ms, to_ms = piece
    cause, uid = STATES.get(state, state), f"recording-{name}"
    return {
        "cause": cause,
        "workload": {"uid": uid, "kind": "Recording", "namespace": "recording", "name": uid},
        "culprit": {"rank": 0} if cause == "hang" and with_steps else None,
        "from": _iso(from_ms),
        "to": _iso(to_ms),
        "detectable": with_steps or state in FOUND_BY_GPU,
    }


def _minute(time_ms: int) -> int:
    return time_ms // 60_000 * 60_000


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
