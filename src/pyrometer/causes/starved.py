"""`starved`: GPUs run out of work again and again. Telemetry alone shows that they wait, but not for what.

Needs GPU telemetry. Node samples add which resource was short. With the SDK the reason is known and reported as its own
cause. Notebooks and servers wait for people and are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from pyrometer.causes import _node_load
from pyrometer.causes._node_load import NodeWait
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import counted, duration
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_MINUTE

MIN_SHARE = 0.05  # of what was observed of a workload...
DENSE = 0.20  # ...or this much of a stretch, however long the workload is observed,
RECURS = 3  # ...and this often: a single gap has another reason
MIN_DURATION_MS = 5 * MS_PER_MINUTE
# Gaps belong together if they follow each other within a few of their usual distances, within these limits.
DISTANCES = 4
MIN_DISTANCE_MS, MAX_DISTANCE_MS = 5 * MS_PER_MINUTE, 30 * MS_PER_MINUTE

_EPISODES = """
WITH minute AS (
    SELECT owner_uid, minute_ms, sum(ms) FILTER (WHERE state = 'starved') AS starved_ms, sum(ms) AS seen_ms,
        max(ms) FILTER (WHERE state = 'starved') AS most_ms
    FROM owner_ledger
    WHERE list_contains($1, owner_uid) AND state != 'unobserved'
    GROUP BY owner_uid, minute_ms
),
gap AS MATERIALIZED (
    SELECT *, minute_ms - lag(minute_ms) OVER (PARTITION BY owner_uid ORDER BY minute_ms) AS after_ms
    FROM minute WHERE starved_ms >= $2 * seen_ms
),
near AS (  -- minutes of one gap follow each other at once; the distance is from one gap to the next
    SELECT owner_uid, least(greatest($3 * coalesce(median(after_ms), $5), $4), $5) AS near_ms
    FROM gap WHERE after_ms > 60000 OR after_ms IS NULL GROUP BY owner_uid
),
numbered AS (
    SELECT *, sum(begins) OVER (PARTITION BY owner_uid ORDER BY minute_ms) AS episode
    FROM (SELECT gap.*, coalesce(after_ms > near_ms, true)::INTEGER AS begins FROM gap JOIN near USING (owner_uid))
),
episode AS MATERIALIZED (
    SELECT owner_uid, min(minute_ms) AS first_ms, max(minute_ms) AS last_ms,
        count_if(coalesce(after_ms > 60000, true)) AS gaps,
        min(minute_ms) + 60000 - arg_min(most_ms, minute_ms) AS from_ms,
        max(minute_ms) + CASE WHEN count(*) > 1 THEN arg_max(most_ms, minute_ms) ELSE 60000 END AS to_ms
    FROM numbered GROUP BY owner_uid, episode
)
SELECT owner_uid, from_ms, to_ms, sum(starved_ms), sum(seen_ms), gaps
FROM episode JOIN minute USING (owner_uid)
WHERE minute_ms BETWEEN first_ms AND last_ms AND to_ms - from_ms >= $6
GROUP BY owner_uid, from_ms, to_ms, gaps HAVING sum(starved_ms) >= $2 * sum(seen_ms) ORDER BY 1, 2
"""


class _Gaps(NamedTuple):
    """The gaps of one pod."""

    pod_uid: str
    gaps: int
    ms: int
    gpus: int


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which the GPUs of a workload ran out of work again and again."""
    reportable = evidence.worth("starved")
    seen = {
        owner: int(seen_ms)
        for owner, seen_ms in evidence.ask(
            """
            SELECT coalesce(workload_uid, pod_uid), sum(ms) FROM burn JOIN holder_name USING (pod_uid)
            WHERE state != 'unobserved' AND coalesce(workload_uid NOT IN (
                -- people think, and servers wait for requests: they are not kept from work
                SELECT workload_uid FROM workload WHERE kind = 'Notebook' OR serves), true)
            GROUP BY 1
            """
        )
        if owner in reportable
    }
    if not seen:
        return
    rows = evidence.ask(
        _EPISODES, sorted(seen), MIN_SHARE, DISTANCES, MIN_DISTANCE_MS, MAX_DISTANCE_MS, MIN_DURATION_MS
    )
    together: dict[str, int] = defaultdict(int)
    for owner, _, _, starved_ms, *_ in rows:
        together[owner] += int(starved_ms)
    worth = [
        (owner, from_ms, to_ms, starved_ms, seen_ms)
        for owner, from_ms, to_ms, starved_ms, seen_ms, times in rows
        if together[owner] >= MIN_SHARE * seen[owner] or (starved_ms >= DENSE * seen_ms and times >= RECURS)
    ]
    gaps = _gaps(evidence, worth)
    waits = [NodeWait(_nodes(evidence, gaps[owner, from_ms]), from_ms, to_ms) for owner, from_ms, to_ms, *_ in worth]
    for episode, shortage in zip(worth, _node_load.shortages(evidence, waits), strict=True):
        owner, from_ms, to_ms, starved_ms, seen_ms = episode
        share = int(starved_ms) / int(seen_ms)
        yield _proposal(evidence, owner, from_ms, to_ms, share, gaps[owner, from_ms], shortage)


def _nodes(evidence: Evidence, pods: list[_Gaps]) -> list[str]:
    """The nodes of these pods."""
    rows = evidence.ask(
        "SELECT DISTINCT pod_node_uid FROM holder_name WHERE list_contains($1, pod_uid) AND pod_node_uid IS NOT NULL "
        "ORDER BY 1",
        [pod.pod_uid for pod in pods],
    )
    return [node for (node,) in rows]


def _gaps(evidence: Evidence, episodes: list[tuple[Any, ...]]) -> dict[tuple[str, int], list[_Gaps]]:
    """The gaps of each pod in each episode."""
    found: dict[tuple[str, int], list[_Gaps]] = defaultdict(list)
    if episodes:
        owners, from_ms, to_ms, *_ = zip(*episodes, strict=True)
        rows = evidence.ask(
            """
            WITH episode AS (SELECT unnest($1) AS owner_uid, unnest($2) AS from_ms, unnest($3) AS to_ms)
            SELECT owner_uid, from_ms, pod_uid, count(*) FILTER (WHERE begins), sum(ms)::BIGINT,
                count(DISTINCT (node_uid, slot_index))
            FROM (
                SELECT owner_uid, from_ms, pod_uid, node_uid, slot_index, ms, coalesce(minute_ms - lag(minute_ms) OVER (
                    PARTITION BY from_ms, pod_uid, node_uid, slot_index ORDER BY minute_ms) > 60000, true) AS begins
                FROM owner_ledger JOIN episode USING (owner_uid)
                WHERE state = 'starved' AND minute_ms >= from_ms // 60000 * 60000 AND minute_ms < to_ms
            ) GROUP BY owner_uid, from_ms, pod_uid ORDER BY pod_uid
            """,
            list(owners),
            list(from_ms),
            list(to_ms),
        )
        for owner, begins_ms, *gaps in rows:
            found[owner, begins_ms].append(_Gaps(*gaps))
    return found


def _proposal(
    evidence: Evidence, owner: str, from_ms: int, to_ms: int, share: float, pods: list[_Gaps], shortage: list[str]
) -> Proposal:
    gaps, waited_ms, gpus = sum(p.gaps for p in pods), sum(p.ms for p in pods), sum(p.gpus for p in pods)
    each = max(1, round(gaps / gpus))
    return Proposal(
        cause="starved",
        owner_uid=owner,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["starved"],
        scope=tuple(Scope(pod.pod_uid, from_ms, to_ms) for pod in pods),
        headline=(
            f"left its GPUs without work for {round(100 * share)}% of {duration(to_ms - from_ms)}, "
            f"from {evidence.time(from_ms)}"
        ),
        evidence=(
            f"its GPUs were busy {round(100 * (1 - share))}% of the time",
            f"about {counted(each, 'gap')} of {duration(waited_ms // gaps)} on each of {counted(gpus, 'GPU')}",
            *shortage,
        ),
        suggestion=(
            "Check what it does between bursts of work: loading, saving, waiting for input. "
            "The SDK would report the reason."
        ),
        confidence=0.7,
        detectable_ms=from_ms + MIN_DURATION_MS,
    )
