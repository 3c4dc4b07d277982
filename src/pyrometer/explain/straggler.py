"""`straggler`: ranks that wait in every step for one slow rank. The slow one is the rank that waits least."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import EPISODE_GAP_MS, Night
from pyrometer.explain.words import duration

WORTH_NAMING = 0.05  # of the time of a workload's windows
PHASES = ("data", "copy", "forward", "backward", "garbage", "optimizer")


class _Slowest(NamedTuple):
    """The rank that the others wait for, and in which phase it loses its time."""

    run: str
    rank: int
    node_uid: str
    slot_index: int
    phase: str | None
    behind_ms: int  # a step


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload waited for one of its ranks."""
    suspects = night.owners("straggler_wait", WORTH_NAMING / 4)  # of a longer time than a minute
    if not suspects:
        return
    rows = night.ask(
        """
        WITH minute AS (
            SELECT owner_uid, minute_ms, sum(ms) FILTER (WHERE state = 'straggler_wait') AS waited, sum(ms) AS whole
            FROM night_ledger
            WHERE list_contains($3, owner_uid)
                AND state IN ('train', 'straggler_wait', 'comm_stall', 'data_stall', 'checkpoint', 'evaluate')
            GROUP BY owner_uid, minute_ms HAVING waited >= $1 * whole
        ),
        numbered AS (
            SELECT *, sum(begins) OVER (PARTITION BY owner_uid ORDER BY minute_ms) AS episode
            FROM (
                SELECT *, coalesce(minute_ms - lag(minute_ms) OVER (PARTITION BY owner_uid ORDER BY minute_ms)
                    > $2, true)::INTEGER AS begins
                FROM minute
            )
        )
        SELECT owner_uid, min(minute_ms), max(minute_ms) + 60000, sum(waited), sum(whole)
        FROM numbered GROUP BY owner_uid, episode ORDER BY 1, 2
        """,
        WORTH_NAMING,
        EPISODE_GAP_MS,
        suspects,
    )
    for owner, from_ms, to_ms, waited, whole in rows:
        slowest = _slowest(night, owner, from_ms, to_ms)
        if slowest is not None:
            yield _proposal(night, owner, from_ms, to_ms, int(waited) / int(whole), slowest)


def _proposal(night: Night, owner: str, from_ms: int, to_ms: int, share: float, slowest: _Slowest) -> Proposal:
    pods = night.ask(
        "SELECT DISTINCT pod_uid FROM night_ledger WHERE owner_uid = ? AND state = 'straggler_wait'", owner
    )
    node = night.node(slowest.node_uid)
    evidence = [
        f"the other ranks spent {round(100 * share)} % of their time waiting for it",
        f"its gradients were ready {slowest.behind_ms} ms a step after theirs",
    ]
    if slowest.phase:
        evidence.append(f"it loses that time in {slowest.phase}")
    return Proposal(
        cause="straggler",
        owner_uid=owner,
        from_ms=from_ms,
        to_ms=to_ms,
        states=("straggler_wait",),
        scope=tuple(Scope(pod, from_ms, to_ms) for (pod,) in pods),
        headline=(
            f"waited for rank {slowest.rank} on {node} for {duration(to_ms - from_ms)}, from {night.time(from_ms)} on"
        ),
        evidence=tuple(evidence),
        suggestion=f"Move rank {slowest.rank} off {node}; look at {_where(slowest.phase)} there.",
        culprit={"rank": slowest.rank, "node": node, "gpu": slowest.slot_index, "phase": slowest.phase},
        confidence=0.9,
    )


def _slowest(night: Night, owner: str, from_ms: int, to_ms: int) -> _Slowest | None:
    """The rank with the least exposed communication, and the phase in which it is furthest behind the median rank."""
    sums = ", ".join(f"sum({phase}_ms)" for phase in PHASES)
    rows = night.ask(
        f"SELECT run, rank, any_value(node_uid), any_value(slot_index), sum(comm_ms), sum(steps), {sums} "
        "FROM step_window JOIN holder_name USING (pod_uid) "
        "WHERE coalesce(workload_uid, pod_uid) = $1 AND steps > 0 AND time_ms < $3 AND to_ms > $2 "
        "GROUP BY run, rank ORDER BY sum(comm_ms) / sum(steps), rank",
        owner, from_ms, to_ms,
    )  # fmt: skip
    if len(rows) < 2:
        return None
    run, rank, node_uid, slot_index, comm, steps, *phases = rows[0]
    behind_ms = round(_median([row[4] / row[5] for row in rows[1:]]) - comm / steps)
    excess = {
        phase: mine / steps - _median([row[6 + i] / row[5] for row in rows[1:]])
        for i, (phase, mine) in enumerate(zip(PHASES, phases, strict=True))
    }
    worst = max(excess, key=lambda phase: excess[phase])
    return _Slowest(run, rank, node_uid, slot_index, worst if excess[worst] > behind_ms / 4 else None, behind_ms)


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _where(phase: str | None) -> str:
    return {
        "data": "the loader's disk, CPU and network",
        "copy": "the PCIe link and host memory",
        "garbage": "Python's garbage collection (freeze it, or collect at the same step on every rank)",
    }.get(phase or "", "clocks, power and temperature of the GPU, and what else runs")
