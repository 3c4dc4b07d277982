"""Runs: what they did and what they cost."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import tzinfo
from itertools import pairwise
from statistics import median
from typing import Any

from pyrometer.account.query.answer_json import amounts, iso, workload_json
from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import rounded
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.rank_tables import WEIGHED
from pyrometer.account.relations.run_minutes import open_run_minutes
from pyrometer.account.relations.run_tables import open_runs
from pyrometer.answers.runs.controller_runs import progress_of_all
from pyrometer.answers.runs.metric_curves import curves
from pyrometer.answers.runs.run_cost import NOTHING, RunCost, costs, costs_of_minutes, metrics_of, states_of_minutes
from pyrometer.answers.runs.throughput import ONE_RUN, nothing, outliers, phases, throughput
from pyrometer.answers.why import why
from pyrometer.findings.run_failures import ERRORS, error_line, failure_json, first_failures
from pyrometer.model import events
from pyrometer.model.settings import Settings
from pyrometer.model.states import STATE
from pyrometer.store import StoreReader


class RunNotFoundError(LookupError):
    """There is no run of that name. `also` are other known names."""

    def __init__(self, run: str, also: Sequence[str] = ()) -> None:
        super().__init__(run)
        self.also = also


_ROWS = """
SELECT run, experiment, team, workload_uid, kind, namespace, name, attempts, ranks, started_ms, ended_ms, outcome,
    pipeline_run_id, pipeline_run, pipeline, pipeline_step, sweep, trial
FROM listed_run ORDER BY started_ms DESC, run
"""


def runs(store: StoreReader, window: TimeRange, *, zone: tzinfo, price_usd_micro: int | None = None) -> dict[str, Any]:
    """The answer of `pyrometer runs`: every run with what it cost, newest first."""
    open_runs(store, window)
    return {"rows": _listed(store, costs(store, window, price_usd_micro), window, zone)}


def controller_run(store: StoreReader, name: str) -> str | None:
    """The newest run with the name of a workload that only its controller reports."""
    open_names(store)
    store.expose_all(["metric"])
    found = store.connection.execute(
        "SELECT workload_uid FROM the_workload WHERE name = $1 AND workload_uid IN (SELECT run FROM metric) "
        "ORDER BY created_ms DESC NULLS LAST LIMIT 1",
        [name],
    ).fetchall()
    return found[0][0] if found else None


def run_names(store: StoreReader, window: TimeRange) -> list[str]:
    """The names of the runs of a time range."""
    store.expose_all(["run"])
    rows = store.connection.execute(
        "SELECT DISTINCT run FROM run WHERE started_ms < $2 AND coalesce(ended_ms > $1, true) ORDER BY run",
        list(window),
    ).fetchall()
    return [run for (run,) in rows]


def _listed(
    store: StoreReader, spent: dict[str, RunCost], window: TimeRange, zone: tzinfo, only: str | None = None
) -> list[dict[str, Any]]:
    """Every run, or one of them. Requires `listed_run`."""
    windows, values = ("step_window", []) if only is None else (ONE_RUN, [only])
    steps = dict(
        store.connection.execute(
            f"SELECT run, max(first_step + steps) FROM {windows} WHERE steps > 0 GROUP BY run", values
        ).fetchall()
    )
    rates, done = throughput(store, windows, values), progress_of_all(store, window.to_ms)
    tracked = _trackers(store)
    failed = {one.run: failure_json(one, zone) for one in first_failures(store, window, only) if one.is_last}
    return [
        {
            **_row(row, spent.get(row[0], NOTHING), steps.get(row[0]), zone),
            **rates.get(row[0], nothing()),
            "failure": failed.get(row[0]),
            "progress": done.get(row[0]) or done.get(row[3]),
            **_part_of(*row[12:]),
            "trackers": tracked.get(row[0], []),
        }
        for row in store.connection.execute(_ROWS).fetchall()
        if only in (None, row[0])
    ]


def _trackers(store: StoreReader) -> dict[str, list[dict[str, str]]]:
    """The tracker runs of each run."""
    kinds = {events.MLFLOW_RUN: "mlflow", events.WANDB_RUN: "wandb"}
    rows = store.connection.execute(
        "SELECT run, kind, reason, arg_max(message, time_ms) FROM event WHERE kind IN (SELECT unnest(?)) "
        "AND run IS NOT NULL AND reason IS NOT NULL GROUP BY ALL ORDER BY min(time_ms), reason",
        [list(kinds)],
    ).fetchall()
    found: dict[str, list[dict[str, str]]] = {}
    for run, kind, named, words in rows:
        found.setdefault(run, []).append({"tracker": kinds[kind], "id": named, "message": words or ""})
    return found


def show(
    store: StoreReader,
    run: str,
    window: TimeRange,
    settings: Settings,
    *,
    zone: tzinfo,
    price_usd_micro: int | None = None,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """The answer of `pyrometer show RUN`.

    The parts in `without` stay empty: windows are many, and findings are slow.
    """
    open_runs(store, window, only=run)
    open_run_minutes(store, window, price_usd_micro, [run])
    listed = _listed(store, costs_of_minutes(store), window, zone, run)
    if not listed:
        raise RunNotFoundError(run)
    answer = {
        **listed[0],
        "windows": [] if "windows" in without else _windows(store, run, zone),
        "metrics": metrics_of(store, run),
        "best": _best(store, run),
        "states": _states(store),
        "phases": phases(store, run),
        "outliers": outliers(store, run),
        "checkpoints": _checkpoints(store, run, window, zone),
        "lifecycle": _lifecycle(store, run, zone),
        "findings": [],
    }
    uid = listed[0]["workload"]["uid"] if listed[0]["workload"] else None
    if "findings" not in without:
        found = why(store, window, settings, zone=zone, price_usd_micro=price_usd_micro)["findings"]
        answer["findings"] = [f for f in found if f["workload"] and f["workload"]["uid"] == uid]
    return answer


def _states(store: StoreReader) -> list[dict[str, Any]]:
    """The time of the run by state, largest first. Requires `run_minute`."""
    groups = states_of_minutes(store)
    return [
        {"state": group.key[0], "family": STATE[group.key[0]].family, **amounts(group, micro)}
        for group, micro in zip(groups, rounded(groups), strict=True)
    ]


def _row(row: tuple[Any, ...], spent: RunCost, steps: int | None, zone: tzinfo) -> dict[str, Any]:
    run, experiment, team, uid, kind, namespace, name, attempts, ranks, started_ms, ended_ms, outcome = row[:12]
    money = amounts(spent.held, rounded([spent.held])[0])
    return {
        "run": run,
        "experiment": experiment,
        "team": team,
        "workload": workload_json(uid, kind, namespace, name),
        "attempts": attempts,
        "ranks": ranks,
        "steps": steps or 0,
        "started": iso(started_ms, zone),
        "ended": None if ended_ms is None else iso(ended_ms, zone),
        "outcome": outcome or "running",
        "gpu_ms": spent.held.gpu_ms,
        "gpu_hours": money["gpu_hours"],
        "usd_micro": money["usd_micro"],
        "usd": money["usd"],
        "goodput": spent.goodput,
    }


def _part_of(
    run_id: str | None, run: str | None, pipeline: str | None, step: str | None, sweep: str | None, trial: str | None
) -> dict[str, Any]:
    """The pipeline and the sweep of a run, or None."""
    return {
        "pipeline": {"id": run_id, "name": run, "pipeline": pipeline, "step": step} if run_id else None,
        "sweep": {"name": sweep, "trial": trial} if trial else None,
    }


def _windows(store: StoreReader, run: str, zone: tzinfo) -> list[dict[str, Any]]:
    found = store.connection.execute(
        "SELECT attempt, rank, time_ms, to_ms, first_step, steps, data_ms, copy_ms, forward_ms, backward_ms, comm_ms, "
        "optimizer_ms, checkpoint_ms, evaluate_ms, compile_ms, garbage_ms, step_p50_us, step_max_us, samples, tokens, "
        "flops, memory_peak_mib, memory_reserved_mib FROM step_window WHERE run = ? ORDER BY attempt, time_ms, rank",
        [run],
    )
    names = [column[0] for column in found.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return [{**row, "from": iso(row.pop("time_ms"), zone), "to": iso(row.pop("to_ms"), zone)} for row in rows]


def _lifecycle(store: StoreReader, run: str, zone: tzinfo) -> list[dict[str, Any]]:
    """The events of a run: starts and ends of its attempts, and every recorded event."""
    found = store.connection.execute(
        f"""
        SELECT min(started_ms) AS at_ms, attempt, 'started' AS what, NULL AS step, NULL AS rank, NULL AS duration_ms,
            NULL AS reason, NULL AS message
        FROM the_run WHERE run = $1 GROUP BY attempt
        UNION ALL BY NAME SELECT min(started_ms) AS at_ms, attempt, 'resumed' AS what, min(resumed_step) AS step
            FROM the_run WHERE run = $1 AND resumed_step IS NOT NULL GROUP BY attempt
        UNION ALL BY NAME SELECT max(first_step_ms) AS at_ms, attempt, 'first_step' AS what
            FROM the_run WHERE run = $1 AND first_step_ms IS NOT NULL GROUP BY attempt
        UNION ALL BY NAME SELECT max(ended_ms) AS at_ms, attempt, coalesce(arg_max(outcome, weight), 'ended') AS what,
            true AS ends
            FROM {WEIGHED} the_run WHERE run = $1 AND ended_ms IS NOT NULL GROUP BY attempt
        UNION ALL BY NAME SELECT time_ms AS at_ms, attempt, kind AS what, step, rank, duration_ms, reason, message
            FROM event WHERE run = $1 AND kind != $2
        ORDER BY at_ms, attempt, ends NULLS FIRST, what, rank
        """,
        [run, events.ALIVE],
    )
    names = [column[0] for column in found.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return [
        {
            "at": iso(row.pop("at_ms"), zone),
            **{name: value for name, value in row.items() if name != "ends"},
            "error": error_line(row["reason"], row["message"]) if row["what"] in ERRORS else None,
        }
        for row in rows
    ]


def _best(store: StoreReader, run: str) -> dict[str, dict[str, Any]]:
    """For each metric with a direction: its best value, when that was, and its last value."""
    rows = store.connection.execute(
        f"""
        SELECT name, max(goal) AS goal, arg_max(step, time_ms), arg_max(value, time_ms),
            CASE WHEN max(goal) = 'max' THEN max(value) ELSE min(value) END,
            CASE WHEN max(goal) = 'max' THEN arg_max(step, value) ELSE arg_min(step, value) END
        FROM {curves("run = $1")} WHERE isfinite(value) GROUP BY name HAVING max(goal) IS NOT NULL ORDER BY name
        """,
        [run],
    ).fetchall()
    return {
        name: {"goal": goal, "best": best, "best_step": best_step, "final": final, "final_step": final_step}
        for name, goal, final_step, final, best, best_step in rows
    }


def _checkpoints(store: StoreReader, run: str, window: TimeRange, zone: tzinfo) -> dict[str, Any]:
    """The number of checkpoints, their duration and interval, and the time since the last one."""
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
