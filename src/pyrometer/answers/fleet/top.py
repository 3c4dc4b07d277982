"""The holders of GPUs at the end of a time range (by default now): their state, cost per hour and progress."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import amounts, iso, time_range_json
from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import Sum, price_of, rounded
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.rank_tables import open_ranks
from pyrometer.answers.runs.metric_curves import ReportedMetric, chosen, curves
from pyrometer.identify.kubernetes.translated_events import PROGRESS, REMAINING
from pyrometer.model.states import STATE
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE, SHARE_WHOLE, usd
from pyrometer.store import StoreReader

MAX_ROWS = 200
RECENT_MS = 5 * MS_PER_MINUTE  # the interval that determines the state: a single minute may be one checkpoint
SLICES = 20

_CURVES = curves("run IN (FROM top_run UNION ALL FROM top_shown) AND time_ms >= $1 AND time_ms < $2")

# The GPU time of each holder. The newest minute has the current holders and the current cost per hour.
_HELD = """
CREATE OR REPLACE TEMP TABLE top_held AS
SELECT coalesce(holder_name.workload_uid, pod_uid) AS owner_uid, pod_uid, state, {price} AS price, sum(ms) AS ms,
    coalesce(sum(ms) FILTER (WHERE minute_ms >= {to_ms} - {recent_ms}), 0) AS recent_ms,
    coalesce(sum(ms) FILTER (WHERE minute_ms >= {to_ms} - 60000), 0) AS newest_ms
FROM ledger_row LEFT JOIN holder_name USING (pod_uid)
WHERE minute_ms >= {from_ms} AND minute_ms < {to_ms} GROUP BY ALL
"""

_OWNERS = """
WITH owned AS (
    SELECT owner_uid, any_value(pod_uid) AS pod_uid, sum(ms) AS gpu_ms, coalesce(sum(ms * price), 0) AS ms_price,
        coalesce(sum(ms) FILTER (WHERE price IS NULL), 0) AS unpriced_ms, sum(newest_ms) AS newest_ms,
        sum(newest_ms * price) AS newest_ms_price, coalesce(sum(ms) FILTER (WHERE state = 'train'), 0) AS train_ms,
        arg_max(pod_uid, newest_ms) AS any_pod
    FROM top_held WHERE pod_uid IS NOT NULL GROUP BY owner_uid HAVING sum(newest_ms) > 0
)
SELECT owner_uid, workload_uid, coalesce(workload_kind, 'Pod'), coalesce(workload_namespace, namespace),
    coalesce(workload_name, pod, owner_uid), experiment, team, "user", gpu_ms, ms_price, unpriced_ms, newest_ms,
    newest_ms_price, train_ms
FROM owned LEFT JOIN holder_name ON holder_name.pod_uid = owned.any_pod
ORDER BY newest_ms_price DESC NULLS LAST, newest_ms DESC, owner_uid
"""

_STATES = """
SELECT owner_uid, state, sum(recent_ms) AS ms FROM top_held
WHERE recent_ms > 0 AND pod_uid IS NOT NULL GROUP BY ALL ORDER BY owner_uid, ms DESC, state
"""

_SPARKS = """
SELECT coalesce(holder_name.workload_uid, pod_uid), (minute_ms - {from_ms}) // {slice_ms}, sum(ms),
    coalesce(sum(ms) FILTER (WHERE state IN ({useful})), 0)
FROM ledger_row JOIN holder_name USING (pod_uid)
WHERE minute_ms >= {from_ms} AND minute_ms < {to_ms}
    AND coalesce(holder_name.workload_uid, pod_uid) IN (FROM top_shown) GROUP BY ALL
"""

_SINCE = """
SELECT owner_uid, min(coalesce(started_ms, scheduled_ms, created_ms)) FROM (
    SELECT * FROM pod WHERE time_ms < $1 QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
) JOIN (SELECT DISTINCT owner_uid, pod_uid FROM top_held WHERE newest_ms > 0) USING (pod_uid)
WHERE owner_uid IN (FROM top_shown) GROUP BY owner_uid
"""

# The run that started last in the current pods of an owner.
_RUNS = """
SELECT owner_uid, arg_max(run, (started_ms, run)) FROM the_run
JOIN (SELECT DISTINCT owner_uid, pod_uid FROM top_held WHERE newest_ms > 0) USING (pod_uid)
WHERE owner_uid IN (FROM top_shown) AND coalesce(ended_ms > $1, true) GROUP BY owner_uid
"""

_WAITING = """
SELECT count(*), coalesce(sum(gpu_share), 0), min(created_ms) FROM (
    SELECT * FROM pod WHERE time_ms < $1 QUALIFY row_number() OVER (PARTITION BY pod_uid ORDER BY time_ms DESC) = 1
) WHERE phase = 'Pending' AND scheduled_ms IS NULL AND ended_ms IS NULL AND gpu_share > 0
"""


class _Owner(NamedTuple):
    uid: str
    workload_uid: str | None
    kind: str
    namespace: str | None
    name: str
    experiment: str | None
    team: str | None
    user: str | None
    gpu_ms: int
    ms_price: int
    unpriced_ms: int
    newest_ms: int
    newest_ms_price: int | None
    train_ms: int


def top(
    store: StoreReader, window: TimeRange, *, zone: tzinfo, price_usd_micro: int | None = None, limit: int = MAX_ROWS
) -> dict[str, Any]:
    """The answer of `pyrometer top`: the holders of GPUs at the end of the time range, by cost per hour."""
    window = TimeRange(max(window.from_ms, 0), max(window.to_ms, 0))
    _open(store, window, price_usd_micro)
    ask = store.connection.execute
    owners = [_Owner(*row) for row in ask(_OWNERS).fetchall()]
    shown = owners[:limit]
    ask("CREATE OR REPLACE TEMP TABLE top_shown AS SELECT unnest(?::VARCHAR[])", [[owner.uid for owner in shown]])
    states: dict[str, dict[str, int]] = defaultdict(dict)
    for uid, state, ms in ask(_STATES).fetchall():
        states[uid][state] = int(ms)
    sparks, since = _sparks(store, window), dict(ask(_SINCE, [window.to_ms]).fetchall())
    runs = dict(ask(_RUNS, [window.to_ms]).fetchall())
    stated = _LastReports(store, window, runs)
    groups = [Sum((o.uid,), int(o.gpu_ms), int(o.ms_price), int(o.unpriced_ms)) for o in owners]
    rows = [
        {
            "workload": {"uid": o.uid, "kind": o.kind, "namespace": o.namespace, "name": o.name},
            "experiment": o.experiment,
            "team": o.team,
            "user": o.user,
            "run": runs.get(o.uid),
            "gpus": round(int(o.newest_ms) / MS_PER_MINUTE, 2),
            **_states(states[o.uid]),
            **_rate("usd", o.newest_ms_price),
            **amounts(group, micro),
            "running_ms": max(0, window.to_ms - since[o.uid]) if since.get(o.uid) is not None else None,
            "progress": stated.progress(o.uid, runs.get(o.uid)),
            "metric": stated.metric(runs.get(o.uid, o.uid)),
            "goodput": round(int(o.train_ms) / group.gpu_ms, 4) if o.uid in runs else None,
            "spark": sparks[o.uid],
        }
        for o, group, micro in zip(shown, groups, rounded(groups), strict=False)
    ]
    return {
        "at": iso(window.to_ms, zone),
        "origin": store.meta("origin"),
        "window": time_range_json(window, zone),
        "usd_of": "window",
        "rate": _whole_rate(store),
        "rows": rows,
        "others": len(owners) - len(shown),
        "queue": _queue(store, window),
    }


def _open(store: StoreReader, window: TimeRange, price_usd_micro: int | None) -> None:
    open_names(store)
    store.expose(["ledger_row", "step_window", "metric"], *window)
    open_ranks(store, window.to_ms)
    price, (from_ms, to_ms) = price_of(price_usd_micro), window
    store.connection.execute(_HELD.format(price=price, from_ms=from_ms, to_ms=to_ms, recent_ms=RECENT_MS))


def _states(ms: dict[str, int]) -> dict[str, Any]:
    """The main state of the last minutes, and the share of each state."""
    whole = sum(ms.values())
    return {
        "state": max(ms, key=lambda state: ms[state], default=None),
        "states": {state: round(part / whole, 4) for state, part in ms.items()} if whole else {},
    }


def _rate(name: str, newest_ms_price: int | None) -> dict[str, Any]:
    """The cost of a minute as a rate per hour."""
    micro = None if newest_ms_price is None else round(int(newest_ms_price) / MS_PER_MINUTE)
    return {f"{name}_micro_per_hour": micro, f"{name}_per_hour": None if micro is None else usd(micro)}


def _whole_rate(store: StoreReader) -> dict[str, Any]:
    """The whole cluster: its cost per hour and its waste per hour, over the last minutes."""
    rows = store.connection.execute(
        "SELECT state, sum(newest_ms), sum(newest_ms * price), coalesce(sum(recent_ms * price), 0) "
        "FROM top_held GROUP BY state"
    ).fetchall()
    gpus = {state: int(newest_ms) / MS_PER_MINUTE for state, newest_ms, *_ in rows}
    priced = [int(price) for _, _, price, _ in rows if price is not None]
    recent = {state: int(price) for state, _, _, price in rows}
    wasted = sum(price for state, price in recent.items() if STATE[state].family == "waste")
    now = sum(priced) if priced else None
    share = wasted / sum(recent.values()) if sum(recent.values()) else 0.0
    free = sum(count for state, count in gpus.items() if STATE[state].family == "platform")
    return {
        **_rate("usd", now),
        **_rate("wasted_usd", None if now is None else round(now * share)),
        "gpus": round(sum(gpus.values()), 2),
        "held_gpus": round(sum(gpus.values()) - free, 2),
        "free_gpus": round(gpus.get("free", 0.0), 2),
        "unhealthy_gpus": round(gpus.get("unhealthy", 0.0), 2),
    }


def _sparks(store: StoreReader, window: TimeRange) -> dict[str, list[float | None]]:
    """The useful share of each shown holder, by slice; None while it held nothing."""
    slice_ms = max(MS_PER_MINUTE, -(-(window.to_ms - window.from_ms) // SLICES))
    useful = ", ".join(f"'{state.name}'" for state in STATE.values() if state.family == "useful")
    sparks: dict[str, list[float | None]] = defaultdict(
        lambda: [None] * max(1, -(-(window.to_ms - window.from_ms) // slice_ms))
    )
    query = _SPARKS.format(from_ms=window.from_ms, to_ms=window.to_ms, slice_ms=slice_ms, useful=useful)
    for uid, place, held_ms, useful_ms in store.connection.execute(query).fetchall():
        sparks[uid][place] = round(int(useful_ms) / int(held_ms), 3)
    return sparks


def _queue(store: StoreReader, window: TimeRange) -> dict[str, Any]:
    """The pods that wait for GPUs at the end of the time range."""
    rows: Sequence[tuple[Any, ...]] = store.connection.execute(_WAITING, [window.to_ms]).fetchall()
    pods, share, since_ms = rows[0]
    return {
        "pods": pods,
        "gpus": round(int(share) / SHARE_WHOLE, 3),
        "longest_ms": None if since_ms is None else max(0, window.to_ms - since_ms),
    }


class _LastReports:
    """The reports of runs and controllers in the time range: steps, metrics, progress."""

    def __init__(self, store: StoreReader, window: TimeRange, runs: dict[str, str]) -> None:
        self._to_ms = window.to_ms
        ask = store.connection.execute
        ask("CREATE OR REPLACE TEMP TABLE top_run AS SELECT unnest(?::VARCHAR[]) AS run", [list(runs.values())])
        self._steps = dict(
            ask(
                "SELECT run, max(first_step + steps) FROM step_window SEMI JOIN top_run USING (run) "
                "WHERE steps > 0 AND to_ms <= $1 GROUP BY run",
                [window.to_ms],
            ).fetchall()
        )
        self._reported: dict[str, list[ReportedMetric]] = defaultdict(list)
        self._newest: dict[tuple[str, str], tuple[float, int]] = {}
        self._first: dict[tuple[str, str], tuple[float, int]] = {}
        rows = ask(
            "SELECT run, name, max(goal), count(*), arg_max(value, (time_ms, -rank)), max(time_ms), "
            f"arg_min(value, (time_ms, rank)), min(time_ms) FROM {_CURVES} WHERE isfinite(value) GROUP BY run, name",
            list(window),
        ).fetchall()
        for run, name, goal, values, newest, newest_ms, first, first_ms in rows:
            self._reported[run].append(ReportedMetric(name, goal, 1, values))
            self._newest[run, name] = (newest, newest_ms)
            self._first[run, name] = (first, first_ms)

    def metric(self, run: str) -> dict[str, Any] | None:
        """The newest value of the most informative metric of a run or a workload."""
        aim = chosen(self._reported.get(run, []))
        return {"name": aim.name, "value": self._newest[run, aim.name][0]} if aim else None

    def progress(self, owner_uid: str, run: str | None) -> dict[str, Any] | None:
        """The progress.

        Only a controller (Kubeflow Trainer) reports the total: without it there is no share and no estimated end.
        """
        step = self._steps.get(run) if run else None
        reported = self._newest.get((owner_uid, PROGRESS))
        if reported is None and step is None:
            return None
        share = None if reported is None else min(max(reported[0] / 100, 0.0), 1.0)
        return {
            "step": step,
            "total_steps": None,
            "share": share,
            "eta_ms": None if reported is None else self._eta_ms(owner_uid, reported),
            "source": "steps" if reported is None else "trainjob",
        }

    def _eta_ms(self, owner_uid: str, reported: tuple[float, int]) -> int | None:
        """The remaining time as reported by the controller, or extrapolated from the time range."""
        remaining = self._newest.get((owner_uid, REMAINING))
        if remaining is not None:
            return max(0, round(remaining[0] * 1000) - (self._to_ms - remaining[1]))
        first = self._first[owner_uid, PROGRESS]
        gained, took_ms = reported[0] - first[0], reported[1] - first[1]
        if gained <= 0 or took_ms <= 0:
            return None
        left_ms = (100 - reported[0]) / gained * took_ms - (self._to_ms - reported[1])
        return max(0, round(left_ms)) if left_ms < 1000 * 24 * MS_PER_HOUR else None
