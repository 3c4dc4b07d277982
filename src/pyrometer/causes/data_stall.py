"""`data_stall`: GPUs wait for the next batch.

Needs the SDK, which measures what a step waits for. Node samples add which resource was short. A late batch now and
then and the cold start of a data loader are not findings.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from pyrometer.causes import _node_load
from pyrometer.causes._node_load import NodeWait
from pyrometer.findings.evidence import Evidence
from pyrometer.findings.proposals import Proposal, Scope
from pyrometer.model.human import duration
from pyrometer.model.states import CLAIMS
from pyrometer.model.units import MS_PER_MINUTE

MIN_SHARE = 0.10  # of the time of a window
MIN_WINDOWS = 2  # of a rank, consecutive or nearly so; a single one is a new epoch
WARM_UP = 0.1  # of the attempt: earlier stalls are the cold start of a data loader...
WARM_UP_MS = 10 * MS_PER_MINUTE  # ...within this
FIRST_WINDOW_MS = 15_000  # after the first step
WAITED_FOR = 0.05  # of the time of a run: its ranks wait for one rank
MIN_SHARE_OF_ONE_NODE = 0.6  # of a workload's stall on one of several nodes: the node is the culprit


_STALLS = """
WITH stalled AS (
    SELECT coalesce(workload_uid, holder_name.pod_uid) AS owner_uid, pod_uid, step_window.node_uid,
        run, attempt, rank, greatest(time_ms, $2) AS from_ms, least(to_ms, $3) AS to_ms, data_ms,
        to_ms - time_ms AS length_ms
    FROM step_window JOIN holder_name USING (pod_uid)
    WHERE list_contains($5, coalesce(workload_uid, holder_name.pod_uid)) AND data_ms > 0
        AND steps > 0 AND to_ms > time_ms
        -- also without its slowest step: one late batch is not a stall
        AND data_ms - coalesce((step_max_us - step_p50_us) // 1000, 0) >= $1 * (to_ms - time_ms)
        AND time_ms < $3 AND to_ms > $2
),
numbered AS MATERIALIZED (
    SELECT *, sum(begins) OVER (PARTITION BY owner_uid ORDER BY from_ms, pod_uid) AS episode
    FROM (
        SELECT *, coalesce(from_ms - max(to_ms) OVER (PARTITION BY owner_uid ORDER BY from_ms, pod_uid
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > $4, true)::INTEGER AS begins
        FROM stalled
    )
),
warm AS (
    SELECT run, attempt, ranks, first_ms, first_ms + least($7 * (ended_ms - first_ms), $8) AS warm_ms FROM (
        SELECT run, attempt, min(first_step_ms) AS first_ms,
            CASE WHEN bool_and(ended_ms IS NOT NULL) THEN max(ended_ms) END AS ended_ms,
            max(ranks) AS ranks
        FROM the_run GROUP BY run, attempt
    )
),
lasting AS (
    SELECT owner_uid, episode FROM (
        SELECT owner_uid, episode, run, attempt, rank, count(*) AS windows, min(from_ms) AS from_ms,
            max(to_ms) AS to_ms
        FROM numbered GROUP BY owner_uid, episode, run, attempt, rank
    ) LEFT JOIN warm USING (run, attempt)
    GROUP BY owner_uid, episode HAVING max(windows) >= $6
        -- what began with the attempt may be a cold loader, for a while
        AND bool_or(coalesce(to_ms > warm_ms OR from_ms > first_ms + $10, true))
        -- one rank that all others wait for is a straggler, whose phase says that it waits for data
        AND (count(DISTINCT rank) > 1 OR max(ranks) = 1 OR NOT list_contains($9, owner_uid))
)
SELECT owner_uid, episode, pod_uid, node_uid, min(from_ms), max(to_ms), sum(data_ms)::BIGINT,
    sum(length_ms)::BIGINT, min(to_ms)
FROM numbered SEMI JOIN lasting USING (owner_uid, episode)
GROUP BY owner_uid, episode, pod_uid, node_uid ORDER BY 1, 2, 3, 4
"""


class _Pod(NamedTuple):
    """A pod that waited for data, with the interval of its windows."""

    pod_uid: str
    node_uid: str
    from_ms: int
    to_ms: int
    waited_ms: int
    whole_ms: int
    first_to_ms: int  # the end of the first of these windows


def detect(evidence: Evidence) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload's windows waited for data."""
    owners = sorted(evidence.worth("data_stall"))
    if not owners:
        return
    rows = evidence.ask(
        _STALLS,
        MIN_SHARE,
        *evidence.window,
        5 * evidence.settings.hang_limit_ms,
        owners,
        MIN_WINDOWS,
        WARM_UP,
        WARM_UP_MS,
        sorted(evidence.owners("straggler_wait", WAITED_FOR)),
        FIRST_WINDOW_MS,
    )
    episodes: dict[tuple[str, int], list[_Pod]] = defaultdict(list)
    for owner, episode, *pod in rows:
        episodes[owner, episode].append(_Pod(*pod))
    nodes = dict(
        evidence.ask(
            "SELECT coalesce(workload_uid, pod_uid), coalesce(list(DISTINCT pod_node_uid) "
            "FILTER (pod_node_uid IS NOT NULL), []) FROM holder_name GROUP BY 1"
        )
    )
    waits = [_wait(pods, nodes[owner]) for (owner, _), pods in episodes.items()]
    shortages = _node_load.shortages(evidence, waits)
    for ((owner, _), pods), wait, shortage in zip(episodes.items(), waits, shortages, strict=True):
        yield _proposal(evidence, owner, pods, len(nodes[owner]), wait, shortage)


def _wait(pods: list[_Pod], nodes: list[str]) -> NodeWait:
    """Where a workload waited: on one node, which is compared with its other nodes, or on all nodes."""
    from_ms, to_ms = min(pod.from_ms for pod in pods), max(pod.to_ms for pod in pods)
    by_node: dict[str, int] = defaultdict(int)
    for pod in pods:
        by_node[pod.node_uid] += pod.waited_ms
    worst = max(by_node, key=lambda node: by_node[node])
    if len(nodes) > 1 and by_node[worst] >= MIN_SHARE_OF_ONE_NODE * sum(by_node.values()):
        return NodeWait([worst], from_ms, to_ms, peers=[node for node in nodes if node != worst])
    return NodeWait(sorted(by_node), from_ms, to_ms)


def _proposal(
    evidence: Evidence, owner: str, pods: list[_Pod], nodes: int, wait: NodeWait, shortage: list[str]
) -> Proposal:
    waited, whole = sum(pod.waited_ms for pod in pods), sum(pod.whole_ms for pod in pods)
    reasons = [f"{round(100 * waited / whole)}% of its step time was spent waiting for the next batch"]
    culprit = None
    if wait.peers:
        (worst,) = wait.node_uids
        culprit = {"node": evidence.node(worst)}
        there = sum(pod.waited_ms for pod in pods if pod.node_uid == worst)
        reasons.append(f"{round(100 * there / waited)}% of that on node {culprit['node']}, one of {nodes}")
    length_ms = wait.to_ms - wait.from_ms
    return Proposal(
        cause="data_stall",
        owner_uid=owner,
        from_ms=wait.from_ms,
        to_ms=wait.to_ms,
        states=CLAIMS["data_stall"],
        scope=tuple(Scope(pod.pod_uid, pod.from_ms, pod.to_ms) for pod in pods),
        headline=(
            f"waited for data for {duration(length_ms * waited // whole)} of {duration(length_ms)}, "
            f"from {evidence.time(wait.from_ms)}"
        ),
        evidence=(*reasons, *shortage),
        suggestion=(
            f"Check the disk, CPU and network of {culprit['node']}."
            if culprit
            else "Give its data loader more workers or faster storage, prefetch, or cache the dataset on the node."
        ),
        culprit=culprit,
        detectable_ms=min(pod.first_to_ms for pod in pods),
    )
