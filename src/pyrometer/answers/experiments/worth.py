"""The answer of `pyrometer worth EXPERIMENT`: the metric of each run against its cost, and against the other runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from typing import Any

from pyrometer.account.query.answer_json import amounts, iso, time_range_json, total
from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import rounded, sums
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.run_minutes import open_run_minutes
from pyrometer.answers.experiments.dominated import ReachedValue, beaten_since
from pyrometer.answers.experiments.experiment_runs import (
    ExperimentRun,
    choose_goal,
    goal_json,
    main_team,
    open_experiment_runs,
    put_goals,
    reported_metrics,
)
from pyrometer.answers.experiments.tradeoffs import (
    MAX_POINTS,
    CurvePoint,
    best_of,
    marginal,
    pareto,
    reached_at,
    thinned,
)
from pyrometer.answers.runs.metric_curves import LOGGED, MetricGoal, ReportedMetric, aim_of
from pyrometer.answers.runs.run_cost import NOTHING, RunCost, costs_of_minutes, with_costs
from pyrometer.model import events
from pyrometer.model.units import gpu_hours, usd, usd_micro
from pyrometer.store import StoreReader

MIN_POINTS = 24  # of a curve
MAX_TOTAL_POINTS = 40_000  # of all curves of an answer: a sweep has thousands of runs


class ExperimentNotFoundError(LookupError):
    """There is no experiment of that name. `recorded` are the existing ones."""

    def __init__(self, experiment: str, recorded: Iterable[str]) -> None:
        super().__init__(experiment)
        self.recorded = sorted(recorded)


class MetricNotFoundError(LookupError):
    """No run of the experiment reported a metric of that name. The text lists the reported ones."""


# Of a metric that several ranks report, the first rank's; of its values those that are better than all before, and some
# of the others, evenly: the best, the first that reaches a target and what came last are among them.
_POINTS = f"""
WITH aimed AS MATERIALIZED (
    SELECT metric.*, sign FROM {LOGGED} metric JOIN aim USING (run, name)
    WHERE isfinite(value) AND time_ms >= $1 AND time_ms < $2
    QUALIFY rank = min(rank) OVER (PARTITION BY run)
)
SELECT run, time_ms, attempt, step, value FROM (
    SELECT *, row_number() OVER in_time AS number, count(*) OVER (PARTITION BY run) AS values,
        min(value * sign) OVER (in_time ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS best_before
    FROM aimed WINDOW in_time AS (PARTITION BY run ORDER BY time_ms, attempt, step)
)
WHERE number IN (1, values) OR value * sign < best_before
    OR number * $3 // values > (number - 1) * $3 // values
"""


def worth(
    store: StoreReader,
    experiment: str,
    window: TimeRange,
    *,
    zone: tzinfo,
    metric: str | None = None,
    target: float | None = None,
    price_usd_micro: int | None = None,
) -> dict[str, Any]:
    """The runs of an experiment, most expensive first. An experiment without runs only has a cost."""
    everything = open_experiment_runs(store, window)
    listed = [run for run in everything if run.experiment == experiment]
    if not listed:
        if not _exists(store, experiment):
            recorded = {run.experiment for run in everything if run.experiment is not None}
            raise ExperimentNotFoundError(experiment, recorded)
        return _without_runs(store, experiment, window, zone, target, price_usd_micro)
    names = [run.run for run in listed]
    open_run_minutes(store, window, price_usd_micro, names)
    reported = reported_metrics(store, window).get(experiment, [])
    aim = _aim(reported, metric)
    spent = costs_of_minutes(store)
    groups = [spent.get(name, NOTHING).held for name in names]
    most = max(MIN_POINTS, min(MAX_POINTS, MAX_TOTAL_POINTS // len(names)))
    points = _points(store, window, [(name, aim) for name in names], most) if aim else {}
    steps, startups, already = _steps(store), _startups(store), _already(points, aim)
    rows = [
        {
            **_row(run, spent.get(run.run, NOTHING), micro, zone),
            "steps": steps.get(run.run, 0),
            **startups.get(run.run, _NO_STARTUP),
            **_beaten(already.get(run.run), micro, zone),
            **_judged(points.get(run.run, []), aim, target, run.started_ms, micro, most),
        }
        for run, micro in zip(listed, rounded(groups), strict=True)
    ]
    best = _pareto(rows, aim)
    for row in rows:
        row["pareto"] = row["run"] in best
    rows.sort(key=lambda row: (-(row["usd_micro"] or 0), -row["gpu_ms"], row["run"]))
    metrics = [goal_json(aim_of(one), "name") | {"runs": one.runs} for one in reported]
    teams = [(row["team"], row["gpu_ms"]) for row in rows]
    return _answer(experiment, time_range_json(window, zone), teams, aim, target, metrics, rows, total(groups))


def _exists(store: StoreReader, experiment: str) -> bool:
    """Whether an experiment of that name has runs or holds GPUs, at any time."""
    open_names(store)
    store.expose_all(["run"])
    (recorded,) = store.connection.execute(
        "SELECT EXISTS (FROM holder_name WHERE experiment = $1) OR EXISTS (FROM run WHERE experiment = $1)",
        [experiment],
    ).fetchall()
    return bool(recorded[0])


def _without_runs(
    store: StoreReader,
    experiment: str,
    window: TimeRange,
    zone: tzinfo,
    target: float | None,
    price_usd_micro: int | None,
) -> dict[str, Any]:
    """The cost of an experiment without training runs in the time range."""
    groups = sums(store, window, ("team", "experiment"), zone=zone, price_usd_micro=price_usd_micro)
    own = [group for group in groups if group.key[1] == experiment]
    teams = [(group.key[0], group.gpu_ms) for group in own]
    return _answer(experiment, time_range_json(window, zone), teams, None, target, [], [], total(own))


def _answer(
    experiment: str,
    window: dict[str, str],
    teams: Sequence[tuple[str | None, int]],
    aim: MetricGoal | None,
    target: float | None,
    metrics: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    whole: dict[str, Any],
) -> dict[str, Any]:
    beaten = [row["usd_micro"] or 0 for row in rows if row["best"] is not None and not row["pareto"]]
    after = [row["dominated_after_usd_micro"] or 0 for row in rows]
    priced = whole["usd_micro"] is not None
    return {
        "experiment": experiment,
        "window": window,
        "team": main_team(teams),
        "teams": sorted({team for team, _ in teams if team is not None}),
        **goal_json(aim),
        "target": target,
        "metrics": metrics,
        "runs": rows,
        "total": whole,
        "dominated_usd_micro": sum(beaten) if priced else None,
        "dominated_usd": usd(sum(beaten)) if priced else None,
        "dominated_runs": len(beaten),
        "already_dominated_usd_micro": sum(after) if priced else None,
        "already_dominated_usd": usd(sum(after)) if priced else None,
    }


def _judged(
    points: Sequence[CurvePoint],
    aim: MetricGoal | None,
    target: float | None,
    started_ms: int,
    micro: int | None,
    most: int,
) -> dict[str, Any]:
    """The metric of a run as JSON: best and final value, target, gain, curve."""
    best = best_of(points, aim)
    reached = reached_at(points, aim, target)
    return {
        "best": best.value if best else None,
        "best_step": best.step if best else None,
        "final": points[-1].value if points else None,
        "to_target_usd_micro": reached.usd_micro if reached else None,
        "to_target_usd": _usd(reached.usd_micro if reached else None),
        "to_target_gpu_hours": gpu_hours(reached.gpu_ms) if reached else None,
        "to_target_step": reached.step if reached else None,
        "to_target_ms": max(0, reached.time_ms - started_ms) if reached else None,
        "marginal": marginal(points, aim, micro),
        "curve": [list(point) for point in thinned(points, best, most)],
    }


def _pareto(rows: Sequence[dict[str, Any]], aim: MetricGoal | None) -> set[str]:
    """The runs on the Pareto front; by GPU time if some have no price."""
    judged = [row for row in rows if row["best"] is not None]
    if aim is None or not judged:
        return set()
    cost = "usd_micro" if all(row["usd_micro"] is not None for row in judged) else "gpu_ms"
    kept = pareto([(row[cost], row["best"] * aim.sign) for row in judged])
    return {row["run"] for row, stays in zip(judged, kept, strict=True) if stays}


def _already(points: Mapping[str, Sequence[CurvePoint]], aim: MetricGoal | None) -> dict[str, CurvePoint]:
    """For each run that another one outperformed before it ended: its value from which on that was the case; by GPU
    time if some have no price."""
    if aim is None or aim.goal is None:
        return {}
    priced = all(point.usd_micro is not None for values in points.values() for point in values)
    reached = {
        run: [ReachedValue(p.time_ms, (p.usd_micro or 0) if priced else p.gpu_ms, p.value * aim.sign) for p in values]
        for run, values in points.items()
    }
    return {run: points[run][place] for run, place in beaten_since(reached).items()}


def _beaten(since: CurvePoint | None, micro: int | None, zone: tzinfo) -> dict[str, Any]:
    """When another run was as good for less, and what was spent after that."""
    after = None if micro is None else 0 if since is None else max(0, micro - (since.usd_micro or 0))
    return {
        "dominated_since": iso(since.time_ms, zone) if since else None,
        "dominated_after_usd_micro": after,
        "dominated_after_usd": _usd(after),
    }


def _aim(reported: Sequence[ReportedMetric], metric: str | None) -> MetricGoal | None:
    aim = choose_goal(reported, metric)
    if aim is None and metric is not None:
        recorded = ", ".join(one.name for one in reported[:12]) or "none"
        raise MetricNotFoundError(f"No run reported a metric {metric!r} in this time range. Reported: {recorded}.")
    return aim


def _points(
    store: StoreReader, window: TimeRange, aims: Iterable[tuple[str, MetricGoal]], most: int
) -> dict[str, list[CurvePoint]]:
    put_goals(store, aims)
    points: dict[str, list[CurvePoint]] = defaultdict(list)
    for run, time_ms, _, step, value, gpu_ms, micro in with_costs(store, _POINTS, *window, most):
        points[run].append(CurvePoint(step, time_ms, value, gpu_ms, micro))
    return points


def _steps(store: StoreReader) -> dict[str, int]:
    """The last step of the runs in `run_minute`."""
    rows = store.connection.execute(
        "SELECT run, max(first_step + steps) FROM step_window SEMI JOIN wanted_run USING (run) "
        "WHERE steps > 0 GROUP BY run"
    ).fetchall()
    return {run: int(steps or 0) for run, steps in rows}


_NO_STARTUP = {"startup_gpu_ms": 0, "startup_usd_micro": None, "startup_usd": None, "compile_ms": None}


def _startups(store: StoreReader) -> dict[str, dict[str, Any]]:
    """What runs paid before their first step, and how long they compiled in total; None if not reported.

    Requires `run_minute`.
    """
    rows = store.connection.execute(
        f"""
        WITH started AS (
            SELECT run, coalesce(sum(ms) FILTER (WHERE state = 'startup'), 0) AS ms,
                CASE WHEN count(ms_price) > 0 THEN coalesce(sum(ms_price) FILTER (WHERE state = 'startup'), 0) END
                    AS paid
            FROM run_minute GROUP BY run
        ),
        compiled AS (  -- ranks compile at the same time
            SELECT run, sum(ms) AS ms FROM (
                SELECT run, attempt, max(ms) AS ms FROM (
                    SELECT run, attempt, rank, sum(duration_ms) AS ms FROM event SEMI JOIN wanted_run USING (run)
                    WHERE kind = '{events.COMPILED}' AND duration_ms > 0 GROUP BY run, attempt, rank
                ) GROUP BY run, attempt
            ) GROUP BY run
        )
        SELECT started.run, started.ms, paid, compiled.ms FROM started LEFT JOIN compiled USING (run)
        """
    ).fetchall()
    found = {}
    for run, ms, paid, compile_ms in rows:
        micro = None if paid is None else usd_micro(int(paid))
        found[run] = {
            "startup_gpu_ms": int(ms),
            "startup_usd_micro": micro,
            "startup_usd": _usd(micro),
            "compile_ms": None if compile_ms is None else int(compile_ms),
        }
    return found


def _row(run: ExperimentRun, spent: RunCost, micro: int | None, zone: tzinfo) -> dict[str, Any]:
    return {
        "run": run.run,
        "team": run.team,
        "outcome": run.outcome,
        "started": iso(run.started_ms, zone),
        **amounts(spent.held, micro),
        "goodput": spent.goodput,
    }


def _usd(micro: int | None) -> float | None:
    return None if micro is None else usd(micro)
