"""`hardware_failure`: a GPU or a node broke. Claims the time out of service and what the affected workload lost.

Needs Kubernetes, for nodes that are not ready, missing, or short of GPUs. GPU telemetry adds which GPU it was, its XID,
and kernels that spin because of it. The SDK adds hangs of any kind and lost steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_MINUTE
from pyrometer.model.xids import HARDWARE_XIDS, PROGRAM_XIDS

TOGETHER_MS = (
    5 * MS_PER_MINUTE
)  # failures of one node within this time are one failure; a node is reported missing late
FOLLOWS_MS = 10 * MS_PER_MINUTE  # a hang or the end of an attempt this soon after a failure is its consequence
COMES_UP_MS = 15 * MS_PER_MINUTE  # how long a node that was never healthy may still be coming up


class _Part(NamedTuple):
    """A slot or a node that one source reported out of service."""

    node_uid: str
    from_ms: int
    to_ms: int
    slots: tuple[int, ...]  # empty: not known which, or the whole node
    what: str  # as a clause, for the evidence
    xid: int | None = None
    whole: bool = False  # the node as such, not one of its devices
    gone: bool = False  # the node no longer exists
    by_node: bool = False  # reported by the record of the node: the ledger does not know which slots
    needs_ms: int = 0  # until it was clear that it was broken


class _Failure(NamedTuple):
    """The failures of one node that belong together."""

    node_uid: str
    from_ms: int
    to_ms: int
    parts: tuple[_Part, ...]
    slots: tuple[int, ...]  # empty: the whole node
    only_code: bool = False  # only an XID was seen: it ends with its consequences


class _Impact(NamedTuple):
    """The effect on the workload that held the GPU."""

    state: str
    from_ms: int
    to_ms: int
    pods: tuple[str, ...]


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each failure of a GPU or a node."""
    parts = [*(_broken_slots(evidence) if evidence.has("slot") else ()), *_broken_nodes(evidence)]
    failures = [*_together(evidence, parts), *(_only_codes(evidence, parts) if evidence.has("gpu_sample") else ())]
    if not failures:
        return
    evidence.store.expose_all(["allocation"])
    for failure in failures:
        holder = _holder(evidence, failure)
        if failure.parts[0].gone and (holder is None or _was_reclaimed(evidence, failure)):
            continue  # a node that leaves without pods, or is reclaimed, is not broken
        hits = [] if holder is None else [*_hangs(evidence, failure, holder), *_lost(evidence, failure, holder)]
        if hits or not failure.only_code:
            yield _proposal(evidence, failure, holder, hits)


def _broken_slots(evidence: Evidence) -> list[_Part]:
    """GPUs that were reported unhealthy, until they were reported healthy again."""
    rows = evidence.ask(
        """
        WITH seen AS (
            SELECT node_uid, slot_index, time_ms, healthy, reason, lead(time_ms, 1, $2) OVER in_time AS until_ms,
                sum(healthy::INTEGER) OVER (in_time ROWS UNBOUNDED PRECEDING) AS well_before
            FROM slot SEMI JOIN (SELECT node_uid, slot_index FROM slot WHERE NOT healthy) broken
                USING (node_uid, slot_index)
            WHERE time_ms < $2
            WINDOW in_time AS (PARTITION BY node_uid, slot_index ORDER BY time_ms)
        )
        SELECT node_uid, slot_index, min(time_ms), max(until_ms), arg_min(reason, time_ms)
        FROM seen WHERE NOT healthy
        GROUP BY node_uid, slot_index, well_before HAVING max(until_ms) > $1 ORDER BY 3, 1, 2
        """,
        *evidence.window,
    )
    parts = []
    for node_uid, slot, from_ms, to_ms, reason in rows:
        code = re.search(r"xid\D*(\d+)", reason or "", re.IGNORECASE)
        xid = int(code[1]) if code else None
        if xid not in PROGRAM_XIDS:
            what = _words(xid) if xid else f"it was reported: {reason}" if reason else "it was reported unhealthy"
            parts.append(_Part(node_uid, from_ms, to_ms, (slot,), what, xid))
    return parts


def _broken_nodes(evidence: Evidence) -> list[_Part]:
    """Nodes that were not ready, missing, or short of GPUs without having been cordoned before."""
    rows = evidence.ask(
        """
        WITH seen AS (
            SELECT node_uid, time_ms, ready, present, schedulable, gpu_count, purchase,
                max(gpu_count) OVER (PARTITION BY node_uid ORDER BY time_ms ROWS UNBOUNDED PRECEDING) AS capacity,
                ready AND present AND gpu_count >= capacity AS well
            FROM node SEMI JOIN (
                SELECT node_uid FROM node
                GROUP BY node_uid HAVING NOT bool_and(ready AND present) OR min(gpu_count) < max(gpu_count)
            ) suspect USING (node_uid)
            WHERE time_ms < $2
        ),
        island AS (
            SELECT *, lead(time_ms, 1, $2) OVER in_time AS until_ms,
                sum(well::INTEGER) OVER (in_time ROWS UNBOUNDED PRECEDING) AS well_before,
                lag(schedulable) OVER in_time AS was_schedulable
            FROM seen WINDOW in_time AS (PARTITION BY node_uid ORDER BY time_ms)
        )
        SELECT node_uid, min(time_ms), max(until_ms), well_before > 0, arg_min(ready, time_ms),
            arg_min(present, time_ms), arg_min(gpu_count, time_ms), max(capacity), arg_min(purchase, time_ms)
        FROM island WHERE NOT well
        GROUP BY node_uid, well_before
        HAVING max(until_ms) > $1 AND coalesce(arg_min(was_schedulable, time_ms), true) ORDER BY 2, 1
        """,
        *evidence.window,
    )
    parts = []
    for node_uid, from_ms, to_ms, was_well, ready, present, devices, capacity, purchase in rows:
        if not was_well and to_ms - from_ms < COMES_UP_MS:
            continue
        slots: tuple[int, ...] = ()
        if not present:
            if purchase == "spot":
                continue
            what = "the node disappeared while it was in use"
        elif not ready:
            what = "the node was not ready"
        else:
            slots = _silent(evidence, node_uid, from_ms, capacity - devices)
            what = f"the node reported {devices} of {counted(capacity, 'GPU')}"
        whole = not (ready and present) or devices == 0
        needs_ms = 0 if was_well else COMES_UP_MS
        parts.append(_Part(node_uid, from_ms, to_ms, slots, what, None, whole, not present, True, needs_ms))
    return parts


def _silent(evidence: Evidence, node_uid: str, from_ms: int, missing: int) -> tuple[int, ...]:
    """The GPUs of a node whose telemetry ended then, if their number equals the number of missing GPUs."""
    rows = evidence.ask(
        "SELECT slot_index FROM gpu_sample WHERE node_uid = $1 AND time_ms BETWEEN $2 - $3 AND $2 + 2 * $3 "
        "GROUP BY slot_index HAVING min(time_ms) < $2 AND max(time_ms) < $2 + $3 ORDER BY 1",
        node_uid,
        from_ms,
        TOGETHER_MS,
    )
    return tuple(slot for (slot,) in rows) if len(rows) == missing else ()


def _only_codes(evidence: Evidence, reported: Sequence[_Part]) -> list[_Failure]:
    """Hardware XIDs that only telemetry showed. An XID stays in the telemetry, so only its first time counts."""
    rows = evidence.ask(
        """
        WITH suspect AS MATERIALIZED (
            SELECT DISTINCT node_uid, slot_index FROM gpu_sample WHERE list_contains($3, xid)
        )
        SELECT node_uid, slot_index, xid, min(time_ms) AS at_ms
        FROM (
            SELECT *, min(time_ms) OVER (PARTITION BY node_uid, slot_index) AS first_ms
            FROM gpu_sample SEMI JOIN suspect USING (node_uid, slot_index)
        )
        WHERE list_contains($3, xid)
        -- the time of a code that the first sample has is not known
        GROUP BY ALL HAVING at_ms >= $1 AND at_ms < $2 AND at_ms > min(first_ms) ORDER BY 4, 1, 2
        """,
        *evidence.window,
        list(HARDWARE_XIDS),
    )
    codes = [
        _Part(node_uid, at_ms, at_ms, (slot,), _words(xid), xid)
        for node_uid, slot, xid, at_ms in rows
        if not any(part.node_uid == node_uid and part.from_ms - TOGETHER_MS <= at_ms <= part.to_ms for part in reported)
    ]
    return [failure._replace(only_code=True) for failure in _together(evidence, codes)]


def _together(evidence: Evidence, parts: Sequence[_Part]) -> list[_Failure]:
    """GPUs of one node that fail together are one failure. So are a GPU and its node while either is out of service."""
    groups: list[list[_Part]] = []
    for part in sorted(parts, key=lambda p: (p.node_uid, p.from_ms, p.by_node, p.slots)):
        last = groups[-1] if groups and groups[-1][0].node_uid == part.node_uid else []
        still_out = any(part.from_ms <= other.to_ms + TOGETHER_MS for other in last)
        related = any(
            part.from_ms - other.from_ms <= TOGETHER_MS or part.by_node or other.by_node or part.slots == other.slots
            for other in last
        )
        if still_out and related:
            last.append(part)
        else:
            groups.append([part])
    return [_failure(evidence, group) for group in groups]


def _failure(evidence: Evidence, parts: Sequence[_Part]) -> _Failure:
    first = parts[0]
    slots = {slot for part in parts for slot in part.slots}
    devices = evidence.ask("SELECT max(gpu_count) FROM node WHERE node_uid = ?", first.node_uid)[0][0]
    if first.whole or len(slots) == devices:
        slots = set()
    from_ms, to_ms = first.from_ms, max(part.to_ms for part in parts)
    return _Failure(first.node_uid, from_ms, to_ms, tuple(parts), tuple(sorted(slots)))


def _holder(evidence: Evidence, failure: _Failure) -> str | None:
    """The owner that held the GPU when it failed, or shortly before: the workload, or a pod without one."""
    rows = evidence.ask(
        """
        WITH held AS (
            SELECT pod_uid, from_ms, to_ms, share FROM allocation
            WHERE node_uid = $1 AND (len($2) = 0 OR list_contains($2, slot_index)) AND from_ms <= $3
            QUALIFY row_number() OVER (
                PARTITION BY pod_uid, slot_index, instance, from_ms ORDER BY time_ms DESC) = 1
        ),
        ended AS (
            SELECT pod_uid, phase, ended_ms FROM pod
            QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
        )
        SELECT coalesce(workload_uid, pod_uid)
        FROM held JOIN holder_name USING (pod_uid) LEFT JOIN ended USING (pod_uid)
        WHERE coalesce(least(to_ms, ended_ms) > $3, true)
            OR (least(to_ms, ended_ms) > $3 - $4 AND phase IS DISTINCT FROM 'Succeeded')
        GROUP BY 1 ORDER BY max(coalesce(least(to_ms, ended_ms) > $3, true)) DESC, sum(share) DESC, 1 LIMIT 1
        """,
        failure.node_uid,
        list(failure.slots),
        failure.from_ms,
        TOGETHER_MS,
    )
    return rows[0][0] if rows else None


def _was_reclaimed(evidence: Evidence, failure: _Failure) -> bool:
    """Whether pods of the node were evicted at that time."""
    rows = evidence.ask(
        "SELECT 1 FROM event LEFT JOIN holder_name USING (pod_uid) WHERE event.kind = 'preempted' "
        "AND $1 IN (event.node_uid, pod_node_uid) AND event.time_ms BETWEEN $2 - $3 AND $2 + $3 LIMIT 1",
        failure.node_uid,
        failure.from_ms,
        FOLLOWS_MS,
    )
    return bool(rows)


def _hangs(evidence: Evidence, failure: _Failure, owner: str) -> list[_Impact]:
    """The hang of the workload that begins with the failure."""
    return [
        _Impact("hang", episode.from_ms, episode.to_ms, episode.pods)
        for episode in evidence.episodes("hang")
        if episode.owner_uid == owner and _follows(failure, episode.from_ms)
    ]


def _lost(evidence: Evidence, failure: _Failure, owner: str) -> list[_Impact]:
    """The steps of the attempt that the failure ended."""
    rows = evidence.ask(
        "SELECT min(from_ms), max(to_ms), list_sort(list(DISTINCT pod_uid)) "
        "FROM restated_before JOIN holder_name USING (pod_uid) "
        "WHERE coalesce(workload_uid, pod_uid) = $1 AND state = 'lost_work' AND to_ms > from_ms "
        "GROUP BY run, attempt ORDER BY 1",
        owner,
    )
    return [
        _Impact("lost_work", from_ms, to_ms, tuple(pods)) for from_ms, to_ms, pods in rows if _follows(failure, to_ms)
    ]


def _follows(failure: _Failure, at_ms: int) -> bool:
    return failure.from_ms - TOGETHER_MS <= at_ms <= failure.from_ms + FOLLOWS_MS


def _proposal(evidence: Evidence, failure: _Failure, owner: str | None, hits: Sequence[_Impact]) -> Proposal:
    ends = [hit.to_ms for hit in hits if failure.only_code]
    from_ms = max(failure.from_ms, evidence.window.from_ms)
    to_ms = min(max([failure.to_ms, *ends]), evidence.window.to_ms)
    node = evidence.node(failure.node_uid)
    culprit: dict[str, Any] = {"node": node}
    if len(failure.slots) == 1:
        culprit["gpu"] = failure.slots[0]
    elif failure.slots:
        culprit["gpus"] = list(failure.slots)
    return Proposal(
        cause="hardware_failure",
        owner_uid=owner,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["hardware_failure"],
        scope=(
            *_out_of_service(evidence, failure),
            *(Scope(p, hit.from_ms, hit.to_ms) for hit in hits for p in hit.pods),
        ),
        headline=_headline(evidence, failure, node, owner),
        evidence=tuple(_evidence(evidence, failure, hits, to_ms)),
        suggestion=_suggestion(failure, node),
        culprit=culprit,
        confidence=0.85 if failure.only_code or failure.parts[0].whole else 0.95,
        detectable_ms=_detectable_ms(evidence, failure, hits),
    )


def _detectable_ms(evidence: Evidence, failure: _Failure, hits: Sequence[_Impact]) -> int | None:
    """A reported failure is detectable at once, an XID alone only by the hang that follows it."""
    if not failure.only_code:
        return min(part.from_ms + part.needs_ms for part in failure.parts)
    hangs = [hit.from_ms + evidence.settings.hang_limit_ms for hit in hits if hit.state == "hang"]
    return min(hangs, default=None)


def _out_of_service(evidence: Evidence, failure: _Failure) -> Iterable[Scope]:
    """The lost time of the platform: of the GPU, or of the node while it was out of service or cordoned."""
    for part in failure.parts:
        for slot in part.slots or (None,):
            yield Scope(None, part.from_ms, part.to_ms, failure.node_uid, None if part.by_node else slot)
    cordoned = evidence.ask(
        "SELECT time_ms FROM (SELECT time_ms, schedulable, lag(schedulable, 1, true) OVER (ORDER BY time_ms) AS was "
        "FROM node WHERE node_uid = $1) WHERE was AND NOT schedulable AND time_ms >= $2 AND time_ms < $3 ORDER BY 1",
        failure.node_uid,
        failure.from_ms,
        failure.to_ms,
    )
    if cordoned:
        yield Scope(None, cordoned[0][0], failure.to_ms, failure.node_uid)


def _headline(evidence: Evidence, failure: _Failure, node: str | None, owner: str | None) -> str:
    code = next((f" (XID {part.xid})" for part in failure.parts if part.xid), "")
    at = evidence.time(failure.from_ms)
    if failure.slots:
        which = f"GPU {failure.slots[0]}" if len(failure.slots) == 1 else counted(len(failure.slots), "GPU")
        return f"{node} lost {which} at {at}{code}" if owner is None else f"lost {which} of {node} at {at}{code}"
    if any(part.whole for part in failure.parts) or code:
        return f"{node} failed at {at}{code}" if owner is None else f"lost {node} at {at}{code}"
    return f"{node} lost GPUs at {at}" if owner is None else f"lost GPUs of {node} at {at}"


def _evidence(evidence: Evidence, failure: _Failure, hits: Sequence[_Impact], to_ms: int) -> Iterable[str]:
    yield from dict.fromkeys(part.what for part in failure.parts[:3])
    if not failure.only_code:
        lasted = duration(to_ms - max(failure.from_ms, evidence.window.from_ms))
        if to_ms == evidence.window.to_ms:
            yield f"it was still out of service after {lasted}"
        else:
            yield f"it was back in service after {lasted}"
    for hit in hits:
        lasted = duration(hit.to_ms - hit.from_ms)
        yield f"the workload hung for {lasted}" if hit.state == "hang" else f"{lasted} of its steps were lost"


def _suggestion(failure: _Failure, node: str | None) -> str:
    if not failure.slots:
        return f"Check the power, the kernel log and the kubelet of {node}, and keep it cordoned until it is healthy."
    which = f"GPU {failure.slots[0]}" if len(failure.slots) == 1 else f"GPUs {listed([str(s) for s in failure.slots])}"
    off_the_bus = any(part.xid == 79 for part in failure.parts)
    reset = "power-cycle it" if off_the_bus else f"reset {which}"
    return f"Drain {node} and {reset}. Replace {which} if it happens again."


def _words(xid: int) -> str:
    return f"XID {xid}: {HARDWARE_XIDS[xid]}" if xid in HARDWARE_XIDS else f"XID {xid}"
