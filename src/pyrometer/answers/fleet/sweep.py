"""A sweep (Katib Experiment): its cost, its best trial, the cost of the others, and dollars against the objective."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import tzinfo
from statistics import median
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import iso, time_range_json, workload_json
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.tradeoffs import pareto
from pyrometer.answers.fleet.part_costs import NOTHING, held_by, spent, together
from pyrometer.model.units import usd
from pyrometer.store import StoreReader

GOING_ON = ("created", "running")


class SweepNotFoundError(LookupError):
    """There is no sweep of that name. `recorded` are the existing ones."""

    def __init__(self, name: str, recorded: Sequence[str]) -> None:
        super().__init__(name)
        self.recorded = list(recorded)


class _Trial(NamedTuple):
    uid: str
    name: str
    state: str
    parameters_json: str | None
    value: float | None
    metrics_json: str | None
    started_ms: int | None
    ended_ms: int | None


_SWEEPS = """
SELECT sweep_uid, shown, namespace, cluster, state, metric, goal, target, algorithm, best_trial, started_ms, ended_ms
FROM the_sweep WHERE $1 IN (sweep_uid, shown, name) ORDER BY started_ms DESC NULLS LAST, sweep_uid
"""

_TRIALS = """
SELECT trial_uid, name, state, parameters_json, value, metrics_json, started_ms, ended_ms
FROM the_trial WHERE sweep_uid = $1 ORDER BY started_ms NULLS LAST, name
"""


def show_sweep(
    store: StoreReader, name: str, window: TimeRange, *, zone: tzinfo, price_usd_micro: int | None = None
) -> dict[str, Any]:
    """The answer of `pyrometer show` about a sweep, by name; the newest of that name."""
    open_names(store)
    ask = store.connection.execute
    found = ask(_SWEEPS, [name]).fetchall()
    if not found:
        raise SweepNotFoundError(name, [row[0] for row in ask("SELECT shown FROM the_sweep").fetchall()])
    uid, shown, namespace, cluster, state, metric, goal, target, algorithm, best, started_ms, ended_ms = found[0]
    trials = [_Trial(*row) for row in ask(_TRIALS, [uid]).fetchall()]
    held = held_by(store, window, ("trial_uid", "team"), "sweep_uid = $1", uid, price_usd_micro)
    parts = {trial.uid: together([part for key, part in held.items() if key[0] == trial.uid]) for trial in trials}
    jobs = dict(
        ask(
            "SELECT trial_uid, any_value([workload_uid, workload_kind, workload_namespace, workload_name]) "
            "FROM holder_name WHERE sweep_uid = $1 GROUP BY trial_uid",
            [uid],
        ).fetchall()
    )
    best = best or _best(trials, goal)
    rows = [
        _row(trial, best, jobs.get(trial.uid), zone) | cost
        for trial, cost in zip(trials, spent([parts[trial.uid] for trial in trials]), strict=True)
    ]
    _judge(rows, goal)
    rows.sort(key=lambda row: (not row["best"], -(row["usd_micro"] or 0), -row["gpu_ms"], row["trial"]))
    (total,) = spent([together(list(held.values())) if held else NOTHING])
    return {
        "run": None,
        "pipeline": None,
        "sweep": {
            "uid": uid,
            "name": shown,
            "namespace": namespace,
            "cluster": cluster,
            "state": state,
            "metric": metric,
            "goal": goal,
            "target": target,
            "algorithm": algorithm,
            "best_trial": best,
            "started": None if started_ms is None else iso(started_ms, zone),
            "ended": None if ended_ms is None else iso(ended_ms, zone),
            "teams": sorted({key[1] for key in held if key[1]}),
            "window": time_range_json(window, zone),
            "total": total,
            **_summed(rows),
            "trials": rows,
        },
        "findings": [],
    }


def _best(trials: Sequence[_Trial], goal: str | None) -> str | None:
    """The best trial, if Katib does not report it."""
    judged = [trial for trial in trials if trial.value is not None]
    if goal is None or not judged:
        return None
    sign = -1 if goal == "max" else 1
    return min(judged, key=lambda trial: (sign * (trial.value or 0.0), trial.name)).name


def _row(trial: _Trial, best: str | None, job: list[str | None] | None, zone: tzinfo) -> dict[str, Any]:
    return {
        "trial": trial.name,
        "uid": trial.uid,
        "state": trial.state,
        "best": trial.name == best,
        "parameters": json.loads(trial.parameters_json or "{}"),
        "value": trial.value,
        "metrics": json.loads(trial.metrics_json or "{}"),
        "started": None if trial.started_ms is None else iso(trial.started_ms, zone),
        "ended": None if trial.ended_ms is None else iso(trial.ended_ms, zone),
        "workload": workload_json(*job) if job else None,
    }


def _judge(rows: Sequence[dict[str, Any]], goal: str | None) -> None:
    """Which trials are on the Pareto front of value and cost."""
    judged = [row for row in rows if row["value"] is not None and goal is not None]
    cost = "usd_micro" if all(row["usd_micro"] is not None for row in judged) else "gpu_ms"
    kept = pareto([(row[cost], row["value"] * (-1 if goal == "max" else 1)) for row in judged])
    front = {row["uid"] for row, stays in zip(judged, kept, strict=True) if stays}
    for row in rows:
        row["pareto"] = row["uid"] in front


def _summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cost of the best trial, of the others and of running ones, and what early stopping saved: for each stopped
    trial, how much less it cost than the median of the completed ones."""
    winner = [row for row in rows if row["best"]]
    losers = [row for row in rows if not row["best"] and row["state"] not in GOING_ON]
    going_on = [row for row in rows if not row["best"] and row["state"] in GOING_ON]
    stopped = [row for row in rows if row["state"] == "early_stopped"]
    whole = [row["usd_micro"] for row in rows if row["state"] == "succeeded" and row["usd_micro"] is not None]
    reported: dict[str, Any] = {"early_stopped": len(stopped)}
    for name, group in (("best", winner), ("losers", losers), ("going_on", going_on), ("early_stopped", stopped)):
        micro = None if any(row["usd_micro"] is None for row in group) else sum(row["usd_micro"] for row in group)
        reported |= {f"{name}_usd_micro": micro, f"{name}_usd": None if micro is None else usd(micro)}
    saved = None
    if stopped and whole and reported["early_stopped_usd_micro"] is not None:
        usual = round(median(whole))
        saved = sum(max(0, usual - row["usd_micro"]) for row in stopped)
    return reported | {
        "early_stopped_saved_usd_micro": saved,
        "early_stopped_saved_usd": None if saved is None else usd(saved),
    }
