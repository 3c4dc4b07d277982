"""`data_stall`: GPUs that wait for the next batch, more than a well-fed run does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pyrometer.explain import node_load
from pyrometer.explain.findings import Proposal, Scope
from pyrometer.explain.night import Night
from pyrometer.explain.words import duration
from pyrometer.model.states import CLAIMS

WORTH_NAMING = 0.10  # of the time of a window
OF_ONE_NODE = 0.6  # of a workload's stall on one of several nodes: the node is the culprit


def detect(night: Night) -> Iterable[Proposal]:
    """One finding for each stretch in which a workload's windows waited for data."""
    rows = night.ask(
        """
        WITH stalled AS (
            SELECT coalesce(workload_uid, step_window.pod_uid) AS owner_uid, step_window.pod_uid, step_window.node_uid,
                greatest(time_ms, $2) AS from_ms, least(to_ms, $3) AS to_ms, data_ms, to_ms - time_ms AS length_ms
            FROM step_window JOIN holder_name USING (pod_uid)
            WHERE data_ms > 0 AND data_ms >= $1 * (to_ms - time_ms) AND steps > 0 AND to_ms > time_ms
                AND time_ms < $3 AND to_ms > $2
        ),
        numbered AS (
            SELECT *, sum(begins) OVER (PARTITION BY owner_uid ORDER BY from_ms, pod_uid) AS episode
            FROM (
                SELECT *, coalesce(from_ms - max(to_ms) OVER (PARTITION BY owner_uid ORDER BY from_ms, pod_uid
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > $4, true)::INTEGER AS begins
                FROM stalled
            )
        )
        SELECT owner_uid, episode, pod_uid, node_uid, min(from_ms), max(to_ms), sum(data_ms), sum(length_ms)
        FROM numbered GROUP BY owner_uid, episode, pod_uid, node_uid ORDER BY 1, 2, 3, 4
        """,
        WORTH_NAMING, *night.window, 5 * night.settings.hang_limit_ms,
    )  # fmt: skip
    episodes: dict[tuple[str, int], list[tuple[str, str, int, int, int, int]]] = defaultdict(list)
    for owner, episode, *pod in rows:
        episodes[owner, episode].append((pod[0], pod[1], pod[2], pod[3], int(pod[4]), int(pod[5])))
    nodes = dict(
        night.ask(
            "SELECT coalesce(workload_uid, pod_uid), coalesce(list(DISTINCT pod_node_uid) "
            "FILTER (pod_node_uid IS NOT NULL), []) FROM holder_name GROUP BY 1"
        )
    )
    for (owner, _), pods in episodes.items():
        yield _proposal(night, owner, pods, nodes[owner])


def _proposal(night: Night, owner: str, pods: list[tuple[str, str, int, int, int, int]], nodes: list[str]) -> Proposal:
    from_ms, to_ms = min(p[2] for p in pods), max(p[3] for p in pods)
    waited, whole = sum(p[4] for p in pods), sum(p[5] for p in pods)
    by_node: dict[str, int] = defaultdict(int)
    for _, node_uid, _, _, data_ms, _ in pods:
        by_node[node_uid] += data_ms
    worst = max(by_node, key=lambda node: by_node[node])
    culprit = {"node": night.node(worst)} if len(nodes) > 1 and by_node[worst] >= OF_ONE_NODE * waited else None
    evidence = [f"{round(100 * waited / whole)} % of the time of its steps went into waiting for the next batch"]
    if culprit:
        evidence.append(
            f"{round(100 * by_node[worst] / waited)} % of that on node {culprit['node']}, one of {len(nodes)}"
        )
        evidence += node_load.shortage(night, [worst], from_ms, to_ms, peers=[node for node in nodes if node != worst])
    else:
        evidence += node_load.shortage(night, sorted(by_node), from_ms, to_ms)
    return Proposal(
        cause="data_stall",
        owner_uid=owner,
        from_ms=from_ms,
        to_ms=to_ms,
        states=CLAIMS["data_stall"],
        scope=tuple(Scope(p[0], p[2], p[3]) for p in pods),
        headline=(
            f"waited for data for {duration((to_ms - from_ms) * waited // whole)} of {duration(to_ms - from_ms)}, "
            f"from {night.time(from_ms)} on"
        ),
        evidence=tuple(evidence),
        suggestion=(
            f"Look at the disk, CPU and network of {culprit['node']}." if culprit
            else "Give its loader more workers or faster storage; prefetch, or cache the data set on the node."
        ),
        culprit=culprit,
    )  # fmt: skip
