"""The answer of `pyrometer worth`: every experiment with its cost and its best run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import amounts, iso, time_range_json, total
from pyrometer.account.query.sums import added, rounded
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.experiment_runs import (
    ExperimentRun,
    choose_goal,
    goal_json,
    main_team,
    open_experiment_runs,
    put_goals,
    reported_metrics,
)
from pyrometer.answers.experiments.tradeoffs import improving
from pyrometer.answers.runs.metric_curves import LOGGED, MetricGoal
from pyrometer.answers.runs.run_cost import NOTHING, RunCost, costs
from pyrometer.store import StoreReader

MAX_TREND_VALUES = 24


def experiments(
    store: StoreReader,
    window: TimeRange,
    *,
    zone: tzinfo,
    metric: str | None = None,
    price_usd_micro: int | None = None,
) -> dict[str, Any]:
    """The answer of `pyrometer worth`: every experiment, most expensive first. Runs without one are together."""
    grouped: dict[str | None, list[ExperimentRun]] = defaultdict(list)
    for run in open_experiment_runs(store, window):
        grouped[run.experiment].append(run)
    spent = costs(store, window, price_usd_micro)
    reported = reported_metrics(store, window)
    aims = {name: choose_goal(reported.get(name, []), metric) for name in grouped}
    best = _bests(
        store, window, [(run.run, aim) for name, runs in grouped.items() if (aim := aims[name]) for run in runs]
    )
    wholes = [_added(name, [spent.get(run.run, NOTHING) for run in runs]) for name, runs in grouped.items()]
    newest = {name: _newest(runs, best) for name, runs in grouped.items()}
    trends = _trends(store, window, [(run, aim) for name, run in newest.items() if run and (aim := aims[name])])
    money = rounded([whole.held for whole in wholes])
    rows = []
    for (name, runs), whole, micro in zip(grouped.items(), wholes, money, strict=True):
        aim, last = aims[name], newest[name]
        trend = trends.get(last or "", [])
        rows.append(
            {
                "experiment": name,
                "team": main_team((run.team, spent.get(run.run, NOTHING).held.gpu_ms) for run in runs),
                "teams": sorted({run.team for run in runs if run.team is not None}),
                "runs": len(runs),
                "running": sum(run.outcome == "running" for run in runs),
                **amounts(whole.held, micro),
                "goodput": whole.goodput,
                **goal_json(aim),
                **_best_run([best[run.run] for run in runs if run.run in best], aim),
                "final": best[last].final if last else None,
                "trend": trend,
                "improving": improving(trend, aim),
                "started": iso(min(run.started_ms for run in runs), zone),
                "last_seen": iso(max(_seen_ms(run, best.get(run.run)) for run in runs), zone),
            }
        )
    rows.sort(key=lambda row: (-(row["usd_micro"] or 0), -row["gpu_ms"], row["experiment"] or ""))
    return {"window": time_range_json(window, zone), "rows": rows, "total": total(whole.held for whole in wholes)}


class _Best(NamedTuple):
    run: str
    best: float
    final: float
    until_ms: int


# No window functions over all values: there may be millions of them.
_BESTS = f"""
WITH of_rank AS (
    SELECT run, rank, min(value * sign) * any_value(sign) AS best, arg_max(value, (time_ms, attempt, step)) AS final,
        max(time_ms) AS until_ms
    FROM {LOGGED} metric JOIN aim USING (run, name)
    WHERE isfinite(value) AND time_ms >= $1 AND time_ms < $2 GROUP BY run, rank
)
SELECT run, arg_min(best, rank), arg_min(final, rank), max(until_ms) FROM of_rank GROUP BY run
"""

_TRENDS = f"""
WITH aimed AS MATERIALIZED (
    SELECT metric.* FROM {LOGGED} metric JOIN aim USING (run, name)
    WHERE isfinite(value) AND time_ms >= $1 AND time_ms < $2
),
ranged AS (SELECT run, min(rank) AS rank, min(time_ms) AS from_ms, max(time_ms) AS to_ms FROM aimed GROUP BY run)
SELECT run, {MAX_TREND_VALUES} * (time_ms - from_ms) // (to_ms - from_ms + 1) AS part,
    arg_max(value, (time_ms, attempt, step))
FROM aimed JOIN ranged USING (run, rank) GROUP BY run, part ORDER BY run, part
"""


def _bests(store: StoreReader, window: TimeRange, aims: Iterable[tuple[str, MetricGoal]]) -> dict[str, _Best]:
    put_goals(store, aims)
    return {row[0]: _Best(*row) for row in store.connection.execute(_BESTS, list(window)).fetchall()}


def _best_run(bests: Sequence[_Best], aim: MetricGoal | None) -> dict[str, Any]:
    if aim is None or aim.goal is None or not bests:
        return {"best": None, "best_run": None}
    best = min(bests, key=lambda one: (one.best * aim.sign, one.run))
    return {"best": best.best, "best_run": best.run}


def _newest(runs: Sequence[ExperimentRun], best: dict[str, _Best]) -> str | None:
    """The run that started last of those that reported something."""
    return next((run.run for run in runs if run.run in best), None)


def _seen_ms(run: ExperimentRun, best: _Best | None) -> int:
    """When a run ended, or last reported anything."""
    return run.ended_ms or max(run.reported_ms, best.until_ms if best else 0)


def _trends(store: StoreReader, window: TimeRange, aims: Iterable[tuple[str, MetricGoal]]) -> dict[str, list[float]]:
    put_goals(store, aims)
    trends: dict[str, list[float]] = defaultdict(list)
    for run, _, value in store.connection.execute(_TRENDS, list(window)).fetchall():
        trends[run].append(value)
    return trends


def _added(name: str | None, spent: Sequence[RunCost]) -> RunCost:
    held = added((name,), [one.held for one in spent])
    seen = [one.train_ms for one in spent if one.train_ms is not None]
    return RunCost(held, sum(seen) if seen or not spent else None)
