"""The data scientist's side: which runs there were, what they did, what they cost."""

from __future__ import annotations

import math
from datetime import tzinfo
from itertools import pairwise
from statistics import median
from typing import Any

from pyrometer.account import sql
from pyrometer.account.sums import Sum, Window, amounts, iso, open_names, rounded
from pyrometer.explain.throughput import nothing, outliers, phases, throughput
from pyrometer.explain.why import why
from pyrometer.model.settings import Settings
from pyrometer.model.units import usd_micro
from pyrometer.store import Store

# A pod's time belongs to the run that started last in it; before its first run, to that one. So a run's cost has its
# startup in it, and the runs of a notebook share its time.
_SHARES = """
CREATE OR REPLACE TEMP TABLE run_minute AS
WITH placed AS (
    SELECT run, attempt, pod_uid, node_uid, slot_index, started_ms AS at_ms,
        lag(started_ms) OVER (PARTITION BY pod_uid, node_uid, slot_index ORDER BY started_ms, attempt) IS NULL
            AS is_first,
        lead(started_ms) OVER (PARTITION BY pod_uid, node_uid, slot_index ORDER BY started_ms, attempt) AS next_ms
    FROM the_run WHERE slot_index IS NOT NULL
)
SELECT placed.run, ledger.minute_ms, ledger.state, sum(ms) AS ms, sum(ms * {price}) AS ms_price,
    coalesce(sum(ms) FILTER (WHERE {price} IS NULL), 0) AS unpriced_ms
FROM ledger_row ledger
JOIN placed
    ON placed.pod_uid = ledger.pod_uid AND placed.node_uid = ledger.node_uid AND placed.slot_index = ledger.slot_index
    AND (placed.is_first OR ledger.minute_ms >= at_ms // 60000 * 60000)
    AND coalesce(ledger.minute_ms < next_ms // 60000 * 60000, true)
WHERE ledger.minute_ms >= {from_ms} AND ledger.minute_ms < {to_ms}
GROUP BY ALL
"""


class NoSuchRunError(LookupError):
    """There is no run of that name."""


def runs(store: Store, window: Window, *, zone: tzinfo, price_usd_micro: int | None = None) -> dict[str, Any]:
    """The answer of `pyrometer runs`: every run with what it cost, newest first."""
    _prepare(store, window, price_usd_micro)
    rows = store.connection.execute(
        """
        SELECT the_run.run, any_value(coalesce(the_run.experiment, holder_name.experiment)),
            any_value(holder_name.team), any_value(holder_name.workload_uid), any_value(holder_name.workload_kind),
            any_value(holder_name.workload_namespace), any_value(holder_name.workload_name),
            count(DISTINCT the_run.attempt), max(the_run.ranks), min(the_run.started_ms),
            arg_max_null(the_run.ended_ms, weight), arg_max_null(the_run.outcome, weight)
        FROM (
            -- of the last attempt, the rank that failed says how it ended; else one that goes on
            SELECT *, 4 * attempt::INTEGER
                + CASE outcome WHEN 'failed' THEN 3 WHEN 'killed' THEN 1 WHEN 'succeeded' THEN 0 ELSE 2 END AS weight
            FROM the_run
        ) the_run
        LEFT JOIN holder_name USING (pod_uid)
        WHERE the_run.started_ms < $2 AND coalesce(the_run.ended_ms > $1, true)
        GROUP BY the_run.run ORDER BY min(the_run.started_ms) DESC, the_run.run
        """,
        list(window),
    ).fetchall()
    costs = _costs(store)
    steps = dict(
        store.connection.execute(
            "SELECT run, max(first_step + steps) FROM step_window WHERE steps > 0 GROUP BY run"
        ).fetchall()
    )
    rates = throughput(store)
    return {
        "rows": [
            {**_row(row, costs.get(row[0]), steps.get(row[0]), zone), **rates.get(row[0], nothing())} for row in rows
        ]
    }


def show(
    store: Store, run: str, window: Window, settings: Settings, *, zone: tzinfo, price_usd_micro: int | None = None
) -> dict[str, Any]:
    """The answer of `pyrometer show RUN`."""
    listed = [
        row for row in runs(store, window, zone=zone, price_usd_micro=price_usd_micro)["rows"] if row["run"] == run
    ]
    if not listed:
        raise NoSuchRunError(run)
    answer = {
        **listed[0],
        "windows": _windows(store, run, zone),
        "metrics": _metrics(store, run),
        "best": _best(store, run),
        "phases": phases(store, run),
        "outliers": outliers(store, run),
        "checkpoints": _checkpoints(store, run, window, zone),
        "lifecycle": _lifecycle(store, run, zone),
    }
    findings = why(store, window, settings, zone=zone, price_usd_micro=price_usd_micro)["findings"]
    uid = listed[0]["workload"]["uid"] if listed[0]["workload"] else None
    return {**answer, "findings": [f for f in findings if f["workload"] and f["workload"]["uid"] == uid]}


def _prepare(store: Store, window: Window, price_usd_micro: int | None) -> None:
    open_names(store)
    store.expose_all(["run", "restatement", "event", "metric"])
    store.expose(["ledger_row", "step_window"], *window)
    store.connection.execute(f"SET VARIABLE newest_ms = {window.to_ms}::BIGINT")
    sql.run(store.connection, sql.RUNS)
    price = "usd_micro_per_hour" if price_usd_micro is None else f"{int(price_usd_micro)}::BIGINT"
    store.connection.execute(_SHARES.format(from_ms=window.from_ms, to_ms=window.to_ms, price=price))


def _costs(store: Store) -> dict[str, tuple[Sum, int]]:
    rows = store.connection.execute(
        "SELECT run, sum(ms), coalesce(sum(ms_price), 0), sum(unpriced_ms), "
        "coalesce(sum(ms) FILTER (WHERE state = 'train'), 0) FROM run_minute GROUP BY run"
    ).fetchall()
    return {
        run: (Sum((run,), int(ms), int(price), int(unpriced)), int(train)) for run, ms, price, unpriced, train in rows
    }


def _row(row: tuple[Any, ...], cost: tuple[Sum, int] | None, steps: int | None, zone: tzinfo) -> dict[str, Any]:
    run, experiment, team, uid, kind, namespace, name, attempts, ranks, started_ms, ended_ms, outcome = row
    held, train = cost or (Sum((run,), 0, 0, 0), 0)
    money = amounts(held, rounded([held])[0])
    return {
        "run": run,
        "experiment": experiment,
        "team": team,
        "workload": {"uid": uid, "kind": kind, "namespace": namespace, "name": name} if uid else None,
        "attempts": attempts,
        "ranks": ranks,
        "steps": steps or 0,
        "started": iso(started_ms, zone),
        "ended": None if ended_ms is None else iso(ended_ms, zone),
        "outcome": outcome or "running",
        "gpu_ms": held.gpu_ms,
        "gpu_hours": money["gpu_hours"],
        "usd_micro": money["usd_micro"],
        "usd": money["usd"],
        "goodput": round(train / held.gpu_ms, 4) if held.gpu_ms else None,
    }


def _windows(store: Store, run: str, zone: tzinfo) -> list[dict[str, Any]]:
    found = store.connection.execute(
        "SELECT attempt, rank, time_ms, to_ms, first_step, steps, data_ms, copy_ms, forward_ms, backward_ms, comm_ms, "
        "optimizer_ms, checkpoint_ms, evaluate_ms, compile_ms, garbage_ms, step_p50_us, step_max_us, samples, tokens, "
        "flops, memory_peak_mib, memory_reserved_mib FROM step_window WHERE run = ? ORDER BY attempt, time_ms, rank",
        [run],
    )
    names = [column[0] for column in found.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return [{**row, "from": iso(row.pop("time_ms"), zone), "to": iso(row.pop("to_ms"), zone)} for row in rows]


def _metrics(store: Store, run: str) -> dict[str, list[list[Any]]]:
    """Each value beside what the run had cost by then. A value that is not finite is null."""
    rows = store.connection.execute(
        """
        WITH told AS MATERIALIZED (  -- first: DuckDB 2.0 stumbles over a view of hot rows in an ASOF join
            SELECT * FROM metric WHERE run = $1
        ),
        spent AS (
            SELECT minute_ms, sum(sum(ms)) OVER (ORDER BY minute_ms) AS gpu_ms,
                sum(sum(ms_price)) OVER (ORDER BY minute_ms) AS ms_price
            FROM run_minute WHERE run = $1 GROUP BY minute_ms
        )
        SELECT name, step, time_ms, value, spent.gpu_ms, spent.ms_price
        FROM told ASOF LEFT JOIN spent ON time_ms >= spent.minute_ms
        ORDER BY name, attempt, time_ms, step
        """,
        [run],
    ).fetchall()
    metrics: dict[str, list[list[Any]]] = {}
    for name, step, time_ms, value, gpu_ms, ms_price in rows:
        shown = value if math.isfinite(value) else None
        micro = None if ms_price is None else usd_micro(int(ms_price))
        metrics.setdefault(name, []).append([step, time_ms, shown, int(gpu_ms or 0), micro])
    return metrics


def _lifecycle(store: Store, run: str, zone: tzinfo) -> list[dict[str, Any]]:
    """What happened to a run: its attempts' beginnings and ends, and every event, with its words."""
    found = store.connection.execute(
        """
        SELECT min(started_ms) AS at_ms, attempt, 'started' AS what, NULL AS step, NULL AS rank, NULL AS duration_ms,
            NULL AS reason, NULL AS message
        FROM the_run WHERE run = $1 GROUP BY attempt
        UNION ALL BY NAME SELECT min(started_ms) AS at_ms, attempt, 'resumed' AS what, min(resumed_step) AS step
            FROM the_run WHERE run = $1 AND resumed_step IS NOT NULL GROUP BY attempt
        UNION ALL BY NAME SELECT max(first_step_ms) AS at_ms, attempt, 'first_step' AS what
            FROM the_run WHERE run = $1 AND first_step_ms IS NOT NULL GROUP BY attempt
        UNION ALL BY NAME SELECT max(ended_ms) AS at_ms, attempt, coalesce(any_value(outcome), 'ended') AS what
            FROM the_run WHERE run = $1 AND ended_ms IS NOT NULL GROUP BY attempt
        UNION ALL BY NAME SELECT time_ms AS at_ms, attempt, kind AS what, step, rank, duration_ms, reason, message
            FROM event WHERE run = $1
        ORDER BY at_ms, attempt, what, rank
        """,
        [run],
    )
    names = [column[0] for column in found.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return [{"at": iso(row.pop("at_ms"), zone), **row} for row in rows]


def _best(store: Store, run: str) -> dict[str, dict[str, Any]]:
    """For each metric that says what it aims at: its best value, when that was, and its last."""
    rows = store.connection.execute(
        """
        SELECT name, max(goal) AS goal, arg_max(step, time_ms), arg_max(value, time_ms),
            CASE WHEN max(goal) = 'max' THEN max(value) ELSE min(value) END,
            CASE WHEN max(goal) = 'max' THEN arg_max(step, value) ELSE arg_min(step, value) END
        FROM metric WHERE run = $1 AND isfinite(value) GROUP BY name HAVING max(goal) IS NOT NULL ORDER BY name
        """,
        [run],
    ).fetchall()
    return {
        name: {"goal": goal, "best": best, "best_step": best_step, "final": final, "final_step": final_step}
        for name, goal, final_step, final, best, best_step in rows
    }


def _checkpoints(store: Store, run: str, window: Window, zone: tzinfo) -> dict[str, Any]:
    """How many there are, how long they take, how far apart they are, and how much would be lost by now."""
    rows = store.connection.execute(
        """
        SELECT attempt, step, max(time_ms), max(duration_ms) FROM event
        WHERE run = $1 AND kind = 'checkpoint_saved' AND time_ms <= $2 GROUP BY attempt, step ORDER BY 3
        """,
        [run, window.to_ms],
    ).fetchall()
    ended = store.connection.execute(
        "SELECT max(ended_ms) FROM the_run WHERE run = $1 HAVING count(ended_ms) = count(*)", [run]
    ).fetchall()
    now_ms = ended[0][0] if ended else window.to_ms
    took = [row[3] for row in rows if row[3] is not None]
    between = [b[2] - a[2] for a, b in pairwise(rows) if a[0] == b[0]]
    return {
        "count": len(rows),
        "last": {"step": rows[-1][1], "attempt": rows[-1][0], "at": iso(rows[-1][2], zone)} if rows else None,
        "last_age_ms": max(0, now_ms - rows[-1][2]) if rows else None,
        "median_duration_ms": round(median(took)) if took else None,
        "median_interval_ms": round(median(between)) if between else None,
    }
