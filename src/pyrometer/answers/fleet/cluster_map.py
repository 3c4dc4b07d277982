"""The cluster in one minute: every GPU with its state and its holder, and the pods that waited for GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import iso, time_range_json, workload_json
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model import events
from pyrometer.model.states import STATES
from pyrometer.model.units import MS_PER_DAY, MS_PER_MINUTE, SHARE_WHOLE
from pyrometer.store import StoreReader

MAX_WAITING = 500
WHOLE_PERMILLE = 1_000
MAX_MESSAGE_AGE_MS = MS_PER_DAY  # older messages of the scheduler do not explain why a pod waits now

# One row per slot, state and holder. The ledger has more where a price or the evidence changes within the minute.
_MINUTE = """
SELECT node_uid, slot_index, state, pod_uid, sum(ms)::BIGINT AS ms
FROM ledger_row WHERE minute_ms = $1 GROUP BY ALL ORDER BY node_uid, slot_index, ms DESC, state, pod_uid
"""

_NODES = """
SELECT node_uid, node, pool, gpu_model, cluster, instance_type
FROM node_name LEFT JOIN (
    SELECT node_uid, arg_max(instance_type, time_ms) AS instance_type FROM node GROUP BY node_uid
) USING (node_uid)
WHERE node_uid IN (SELECT unnest($1::VARCHAR[]))
"""

_HOLDERS = """
SELECT pod_uid, workload_uid, workload_kind, workload_namespace, workload_name, experiment, team, pod, namespace, "user"
FROM holder_name WHERE pod_uid IN (SELECT unnest($1::VARCHAR[]))
"""

# The newest record of each existing pod, even if it came later: it shows until when the pod waited.
# A job in a Kueue queue has pods that wait, and may wait again.
_WAITING = f"""
WITH newest AS (
    SELECT * FROM pod WHERE created_ms < $1 AND gpu_share > 0
    QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
),
stated AS (
    SELECT pod_uid, max_by(coalesce(message, reason), time_ms) AS reason FROM event
    WHERE kind = '{events.FAILED_SCHEDULING}' AND time_ms < $1 AND time_ms >= $2 GROUP BY pod_uid
),
waits AS (
    SELECT *, coalesce(scheduled_ms, started_ms, ended_ms) AS until_ms FROM newest
)
SELECT count(*) OVER (), holder.workload_uid, workload_kind, workload_namespace, workload_name, pod, pod_uid,
    holder.namespace, team, experiment, holder.queue, gpu_share, created_ms, stated.reason
FROM waits JOIN holder_name holder USING (pod_uid) LEFT JOIN stated USING (pod_uid)
WHERE until_ms >= $1 OR (until_ms IS NULL AND waits.phase = 'Pending')
ORDER BY created_ms, pod, pod_uid LIMIT {MAX_WAITING}
"""


# The answer for a time range without a minute in the ledger.
_EMPTY: dict[str, Any] = {
    "at": None,
    "at_ms": None,
    "states": [],
    "holders": [],
    "pools": [],
    "counts": {},
    "queue": [],
    "queue_total": 0,
}


class MinuteNotFoundError(LookupError):
    """The ledger has no data for that time. The text states what it covers."""


class _Part(NamedTuple):
    """A state of a slot in the minute, with its milliseconds."""

    node_uid: str
    slot_index: int
    state: str
    pod_uid: str | None
    ms: int


class _Cell(NamedTuple):
    """A slot with the largest part of its minute."""

    part: _Part
    share_permille: int


def cluster(store: StoreReader, window: TimeRange, *, zone: tzinfo, at_ms: int | None = None) -> dict[str, Any]:
    """Every GPU in a minute: the newest accounted minute of the time range, or the requested one."""
    newest_ms = store.newest_ms(["ledger_row"], window.to_ms - 1)
    if newest_ms is None or newest_ms < window.from_ms:
        if at_ms is None:
            return _EMPTY | time_range_json(window, zone)
        raise MinuteNotFoundError("The ledger has no data for this time range.")
    to_ms = newest_ms + MS_PER_MINUTE
    at_ms = newest_ms if at_ms is None else at_ms - at_ms % MS_PER_MINUTE
    if not window.from_ms <= at_ms < to_ms:
        raise MinuteNotFoundError(
            f"The ledger has no data for {iso(at_ms, zone)}. It covers {iso(window.from_ms, zone)} to "
            f"{iso(to_ms, zone)}."
        )
    open_names(store)
    store.expose(["ledger_row"], at_ms, at_ms + MS_PER_MINUTE)
    parts = [_Part(*row) for row in store.connection.execute(_MINUTE, [at_ms]).fetchall()]
    counts = Counter[str]()
    for part in parts:
        counts[part.state] += part.ms
    cells = _cells(parts)
    names = [state.name for state in STATES if state.name in counts]
    holders = _holders(store, cells)
    return {
        "at": iso(at_ms, zone),
        "at_ms": at_ms,
        "from": iso(window.from_ms, zone),
        "to": iso(to_ms, zone),
        "states": names,
        "holders": list(holders.values()),
        "pools": _pools(store, cells, names, {pod_uid: place for place, pod_uid in enumerate(holders)}),
        "counts": {name: counts[name] for name in names},
        **_queue(store, at_ms + MS_PER_MINUTE, zone),
    }


def _cells(parts: Sequence[_Part]) -> list[_Cell]:
    """The slots in order, each with the largest part of its minute and that part's share."""
    whole: Counter[tuple[str, int]] = Counter()
    largest: dict[tuple[str, int], _Part] = {}
    for part in parts:  # the largest of a slot comes first
        whole[part.node_uid, part.slot_index] += part.ms
        largest.setdefault((part.node_uid, part.slot_index), part)
    return [_Cell(part, round(WHOLE_PERMILLE * part.ms / whole[slot])) for slot, part in largest.items()]


def _holders(store: StoreReader, cells: Sequence[_Cell]) -> dict[str, dict[str, Any]]:
    """The holders of the cells, each once."""
    pods = list(dict.fromkeys(cell.part.pod_uid for cell in cells if cell.part.pod_uid is not None))
    rows = {row[0]: row[1:] for row in store.connection.execute(_HOLDERS, [pods]).fetchall()}
    found = {}
    for pod_uid in pods:
        *workload, experiment, team, pod, namespace, user = rows.get(pod_uid, (None,) * 9)
        found[pod_uid] = {
            "workload": workload_json(*workload),
            "experiment": experiment,
            "team": team,
            "pod": pod or pod_uid,
            "namespace": namespace,
            "user": user,
            "pod_uid": pod_uid,
        }
    return found


def _pools(
    store: StoreReader, cells: Sequence[_Cell], names: Sequence[str], holders: dict[str, int]
) -> list[dict[str, Any]]:
    """The nodes by pool, in natural order."""
    places = {name: place for place, name in enumerate(names)}
    of_node: dict[str, list[list[int | None]]] = {}
    for part, share_permille in cells:
        holder = None if part.pod_uid is None else holders[part.pod_uid]
        cell = [part.slot_index, places[part.state], holder, share_permille]
        of_node.setdefault(part.node_uid, []).append(cell)
    recorded = {row[0]: row[1:] for row in store.connection.execute(_NODES, [list(of_node)]).fetchall()}
    pools: dict[tuple[str | None, ...], list[dict[str, Any]]] = {}
    for node_uid, listed in of_node.items():
        node, pool, gpu_model, of_cluster, instance_type = recorded.get(node_uid, (node_uid, None, None, None, None))
        pools.setdefault((pool, gpu_model, of_cluster), []).append(
            {"node": node, "instance_type": instance_type, "cells": listed}
        )
    return [
        {"pool": pool, "gpu_model": gpu_model, "cluster": of_cluster, "nodes": sorted(nodes, key=_counted)}
        for (pool, gpu_model, of_cluster), nodes in sorted(pools.items(), key=lambda one: _natural(*one[0]))
    ]


def _counted(node: dict[str, Any]) -> tuple[Any, ...]:
    return _natural(node["node"])


def _natural(*names: str | None) -> tuple[Any, ...]:
    """A sort key that puts node-2 before node-10, and missing names last."""
    return tuple((name is None, [_part(part) for part in re.split(r"([0-9]+)", name or "")]) for name in names)


def _part(text: str) -> tuple[int, str]:
    """A sort key for numbers: by length first, which is their order."""
    digits = text.lstrip("0") if text[:1].isdecimal() else ""
    return len(digits), text


def _queue(store: StoreReader, at_ms: int, zone: tzinfo) -> dict[str, Any]:
    """The pods that waited for GPUs, longest first, with the last message of the scheduler."""
    store.expose(["event"], at_ms - MAX_MESSAGE_AGE_MS, at_ms)
    rows = store.connection.execute(_WAITING, [at_ms, at_ms - MAX_MESSAGE_AGE_MS]).fetchall()
    return {
        "queue": [
            {
                "workload": workload_json(*workload),
                "pod": pod,
                "pod_uid": pod_uid,
                "namespace": namespace,
                "team": team,
                "experiment": experiment,
                "queue": queue,
                "gpus": round(share / SHARE_WHOLE, 3),
                "waiting_since": iso(since_ms, zone),
                "waited_ms": at_ms - since_ms,
                "reason": reason,
            }
            for _, *workload, pod, pod_uid, namespace, team, experiment, queue, share, since_ms, reason in rows
        ],
        "queue_total": rows[0][0] if rows else 0,
    }
