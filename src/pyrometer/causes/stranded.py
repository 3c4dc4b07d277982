"""`stranded`: GPUs were free while pods waited, and enough for at least one of them.

Needs Kubernetes. Its events contain the reason why the scheduler did not place the pods. Other evidence adds nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from pyrometer.findings.episodes import EPISODE_GAP_MS
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration, listed
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_MINUTE, SHARE_WHOLE

ORDINARY_MS = 5 * MS_PER_MINUTE  # the time that a scheduler, an autoscaler and a gang may take

# Why the scheduler did not place a pod, by words of its messages, most specific first.
_REASONS = (
    ("quota", ("quota", "borrowing", "cohort")),
    ("taint", ("taint",)),
    ("selector", ("affinity", "selector")),
    ("gang", ("gang", "podgroup", "pod group", "minmember", "minimum member", "coscheduling")),
)


class _Pod(NamedTuple):
    """A pod that waited."""

    pod_uid: str
    share: int
    from_ms: int
    to_ms: int
    gang: bool
    queue: str | None

    @property
    def gpus(self) -> int:
        """The number of whole GPUs that it needs."""
        return -(-self.share // SHARE_WHOLE)


class _Held(NamedTuple):
    """A minute, or part of one, in which an owner waited while enough GPUs were free."""

    from_ms: int
    to_ms: int
    first: int  # index in the free slots of that minute; earlier ones belong to others
    gpus: int
    free: int

    @property
    def minute_ms(self) -> int:
        """The minute that it is in."""
        return self.from_ms - self.from_ms % MS_PER_MINUTE


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload waited for GPUs that were free."""
    waiting = _waiting(evidence)
    if not waiting:
        return
    stretches = [
        (owner, stretch)
        for owner, held in _held(evidence, waiting).items()
        for stretch in _stretches(held)
        if evidence.is_reportable("free", sum(one.gpus * (one.to_ms - one.from_ms) for one in stretch))
    ]
    if not stretches:
        return
    slots = _slots(evidence, [stretch for _, stretch in stretches])
    most_on_a_node = _most_on_a_node(evidence)
    for number, (owner, stretch) in enumerate(stretches):
        minutes = range(stretch[0].minute_ms, stretch[-1].to_ms, MS_PER_MINUTE)
        most = max(most_on_a_node.get(minute_ms, 0) for minute_ms in minutes)
        yield _proposal(evidence, owner, waiting[owner], stretch, slots[number], most)


def _waiting(evidence: Evidence) -> dict[str, list[_Pod]]:
    """The pods that waited longer than usual, by owner, longest wait first."""
    rows = evidence.ask(
        """
        WITH newest AS (
            SELECT * FROM pod WHERE time_ms < $2
            QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
        ),
        gang AS (
            SELECT workload_uid, gang_pods FROM workload
            QUALIFY row_number() OVER (PARTITION BY workload_uid ORDER BY time_ms DESC) = 1
        )
        SELECT coalesce(holder_name.workload_uid, pod_uid), pod_uid, gpu_share, greatest(created_ms, $1),
            least(coalesce(scheduled_ms, started_ms, ended_ms, $2), $2), coalesce(gang_pods > 1, false),
            holder_name.queue
        FROM newest JOIN holder_name USING (pod_uid) LEFT JOIN gang ON gang.workload_uid = newest.workload_uid
        WHERE gpu_share > 0 AND created_ms < $2 AND coalesce(scheduled_ms, started_ms, ended_ms, $2) > $1
            AND coalesce(scheduled_ms, started_ms, ended_ms, $2) - created_ms >= $3
            AND (phase = 'Pending' OR coalesce(scheduled_ms, started_ms, ended_ms) IS NOT NULL)
        ORDER BY created_ms, pod_uid
        """,
        *evidence.window,
        ORDINARY_MS,
    )
    owners: dict[str, list[_Pod]] = defaultdict(list)
    for owner, *pod in rows:
        owners[owner].append(_Pod(*pod))
    return owners


def _held(evidence: Evidence, waiting: dict[str, list[_Pod]]) -> dict[str, list[_Held]]:
    """When each owner waited while enough GPUs were free, by minute. The longest-waiting owner comes first."""
    free = _free(evidence, min(pod.from_ms for pods in waiting.values() for pod in pods))
    held: dict[str, list[_Held]] = defaultdict(list)
    for minute_ms, counts in free.items():
        used = 0
        for owner, pods in waiting.items():
            now = [pod for pod in pods if pod.from_ms < minute_ms + MS_PER_MINUTE and pod.to_ms > minute_ms]
            if not now:
                continue
            from_ms = max(minute_ms, min(pod.from_ms for pod in now))
            to_ms = min(minute_ms + MS_PER_MINUTE, max(pod.to_ms for pod in now))
            slots = sum(count for ms, count in counts if ms >= to_ms - from_ms)
            gpus = _fitting(now, slots - used)
            if gpus:
                held[owner].append(_Held(from_ms, to_ms, used, gpus, slots))
                used += gpus
    return held


def _free(evidence: Evidence, from_ms: int) -> dict[int, list[tuple[int, int]]]:
    """For each minute, how many slots were free for how long."""
    free: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for minute_ms, ms, count in evidence.ask(
        "SELECT minute_ms, ms, count(*) FROM ledger_row WHERE state = 'free' AND minute_ms >= $1 AND minute_ms < $2 "
        "GROUP BY minute_ms, ms ORDER BY minute_ms",
        max(from_ms - from_ms % MS_PER_MINUTE, evidence.window.from_ms),
        evidence.window.to_ms,
    ):
        free[minute_ms].append((ms, count))
    return free


def _fitting(pods: Sequence[_Pod], free: int) -> int:
    """How many of the requested whole GPUs could have been assigned: all or none of a gang."""
    needed = 0
    share = 0
    for pod in pods:
        if pod.gang or needed + pod.gpus <= free:
            needed += pod.gpus
            share += pod.share
    return share // SHARE_WHOLE if needed <= free else 0


def _stretches(held: Sequence[_Held]) -> Iterable[list[_Held]]:
    """Merge adjacent stretches; usual delays are dropped."""
    stretches: list[list[_Held]] = []
    for one in held:
        if stretches and one.from_ms - stretches[-1][-1].to_ms <= EPISODE_GAP_MS:
            stretches[-1].append(one)
        else:
            stretches.append([one])
    return [stretch for stretch in stretches if sum(one.to_ms - one.from_ms for one in stretch) >= ORDINARY_MS]


def _slots(evidence: Evidence, stretches: Sequence[Sequence[_Held]]) -> dict[int, list[Scope]]:
    """Which free slots each stretch claims: the ones with the most time, none twice."""
    rows = [
        (n, one.minute_ms, one.first, one.gpus, one.from_ms, one.to_ms) for n, s in enumerate(stretches) for one in s
    ]
    names = ("stretch", "minute_ms", "first", "gpus", "from_ms", "to_ms")
    columns = [pa.array(column, pa.int64()) for column in zip(*rows, strict=True)]
    connection = evidence.store.connection
    connection.register("stranded_rows", pa.Table.from_arrays(columns, names=list(names)))
    try:
        chosen = evidence.ask(
            """
            WITH most AS (SELECT minute_ms, max(first + gpus) AS slots FROM stranded_rows GROUP BY minute_ms),
            ranked AS MATERIALIZED (
                SELECT minute_ms, node_uid, slot_index, slots,
                    count(*) OVER (PARTITION BY minute_ms, node_uid) AS on_node,
                    row_number() OVER (PARTITION BY minute_ms ORDER BY ms DESC, node_uid, slot_index) AS place
                FROM ledger_row JOIN most USING (minute_ms) WHERE state = 'free'
            ),
            single AS MATERIALIZED (
                SELECT stretch, node_uid, slot_index, from_ms, to_ms,
                    count(*) OVER (PARTITION BY stretch, minute_ms, node_uid) = on_node AS all_of_node
                FROM ranked JOIN stranded_rows want USING (minute_ms)
                WHERE place <= slots AND place > first AND place <= first + gpus
            ),
            used AS MATERIALIZED (  -- all that is free on a node is one claim
                SELECT DISTINCT stretch, node_uid, CASE WHEN NOT all_of_node THEN slot_index END AS slot_index,
                    from_ms, to_ms
                FROM single
            ),
            numbered AS (
                SELECT *, sum(begins) OVER (PARTITION BY stretch, node_uid, slot_index ORDER BY from_ms) AS island
                FROM (
                    SELECT *, coalesce(from_ms > lag(to_ms) OVER (PARTITION BY stretch, node_uid, slot_index
                        ORDER BY from_ms), true)::INTEGER AS begins
                    FROM used
                )
            )
            SELECT stretch, node_uid, slot_index, min(from_ms), max(to_ms)
            FROM numbered GROUP BY stretch, node_uid, slot_index, island ORDER BY ALL
            """
        )
    finally:
        connection.unregister("stranded_rows")
    scopes: dict[int, list[Scope]] = defaultdict(list)
    for stretch, node_uid, slot_index, from_ms, to_ms in chosen:
        scopes[stretch].append(Scope(None, from_ms, to_ms, node_uid, slot_index))
    return scopes


def _proposal(
    evidence: Evidence, owner: str, pods: Sequence[_Pod], held: Sequence[_Held], scope: list[Scope], most_on_a_node: int
) -> Proposal:
    from_ms, to_ms = held[0].from_ms, held[-1].to_ms
    pods = [pod for pod in pods if pod.from_ms < to_ms and pod.to_ms > from_ms]
    requested = sum(pod.gpus for pod in pods)
    largest = max(pod.gpus for pod in pods)
    message = _message(evidence, pods, from_ms, to_ms)
    reason = _reason(message, fragmented=most_on_a_node < largest, gang=pods[0].gang and len(pods) > 1)
    waited = max(pod.to_ms - pod.from_ms for pod in pods)
    reasons = [
        f"{counted(len(pods), 'pod')} waited up to {duration(waited)} for {counted(requested, 'GPU')}",
        f"at least {counted(min(one.free for one in held), 'GPU')} were free at the time",
    ]
    if most_on_a_node < largest:
        reasons.append(f"no node had more than {most_on_a_node} free, and a pod needs {largest}")
    if message:
        reasons.append(f"the scheduler reported: {message}")
    queues = sorted({pod.queue for pod in pods if pod.queue})
    return Proposal(
        cause="stranded",
        owner_uid=owner,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["stranded"],
        scope=tuple(scope),
        headline=(
            f"waited for {counted(requested, 'GPU')} for {duration(to_ms - from_ms)} while enough were free, "
            f"from {evidence.time(from_ms)}"
        ),
        evidence=tuple(reasons),
        suggestion=_suggestion(reason, queues),
        culprit={"queue": queues[0]} if len(queues) == 1 else None,
        confidence=0.9 if reason else 0.7,
        detectable_ms=from_ms + ORDINARY_MS,
    )


def _message(evidence: Evidence, pods: Sequence[_Pod], from_ms: int, to_ms: int) -> str | None:
    """The last message of the scheduler about these pods."""
    rows = evidence.ask(
        "SELECT max_by(message, time_ms) FROM event WHERE kind = 'failed_scheduling' AND message IS NOT NULL "
        "AND list_contains($1, pod_uid) AND time_ms >= $2 - $4 AND time_ms < $3",
        [pod.pod_uid for pod in pods],
        from_ms,
        to_ms,
        ORDINARY_MS,
    )
    return rows[0][0].strip().rstrip(".") if rows[0][0] else None


def _most_on_a_node(evidence: Evidence) -> dict[int, int]:
    """The maximum number of slots that were free on one node at once, by minute."""
    return dict(
        evidence.ask(
            "SELECT minute_ms, max(slots) FROM (SELECT minute_ms, count(*) AS slots FROM ledger_row "
            "WHERE state = 'free' AND ms = 60000 AND minute_ms >= $1 AND minute_ms < $2 GROUP BY node_uid, minute_ms) "
            "GROUP BY minute_ms",
            *evidence.window,
        )
    )


def _reason(message: str | None, *, fragmented: bool, gang: bool) -> str | None:
    stated = (message or "").lower()
    for reason, words in _REASONS:
        if any(word in stated for word in words):
            return reason
    if fragmented:
        return "fragmentation"
    return "gang" if gang else None


def _suggestion(reason: str | None, queues: Sequence[str]) -> str:
    queue = f"queue {listed(queues)}" if queues else "its queue"
    return {
        "quota": f"Raise the quota of {queue}, or let it borrow unused quota.",
        "taint": "Let its pods tolerate the taint of the free nodes, or remove the taint.",
        "selector": "Relax the node selector or affinity of its pods: the free nodes do not match it.",
        "gang": "Let smaller jobs use the GPUs while a gang waits (backfill), or start it with fewer GPUs.",
        "fragmentation": "Pack small pods onto few nodes (bin packing), or request fewer GPUs per pod.",
    }.get(reason or "", f"Check the scheduler's messages about its pods and the limits of {queue}.")
