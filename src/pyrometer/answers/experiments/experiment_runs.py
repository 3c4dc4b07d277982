"""The runs of experiments and the metrics that they reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.run_tables import open_runs
from pyrometer.answers.runs.metric_curves import MetricGoal, ReportedMetric, aim_of, chosen, curves
from pyrometer.store import StoreReader


class ExperimentRun(NamedTuple):
    """A run, as lists of experiments need it."""

    run: str
    experiment: str | None
    team: str | None
    started_ms: int
    ended_ms: int | None
    outcome: str
    reported_ms: int


_RUNS = """
SELECT run, experiment, team, started_ms, ended_ms, coalesce(outcome, 'running'), reported_ms
FROM listed_run ORDER BY started_ms DESC, run
"""

_REPORTED = f"""
SELECT experiment, curve.name, max(goal), count(DISTINCT run), count(*)
FROM {curves("time_ms >= $1 AND time_ms < $2")} curve JOIN listed_run USING (run)
WHERE isfinite(value) GROUP BY ALL ORDER BY ALL
"""


def open_experiment_runs(store: StoreReader, window: TimeRange) -> list[ExperimentRun]:
    """The runs of the window, newest first."""
    open_runs(store, window)
    return [ExperimentRun(*row) for row in store.connection.execute(_RUNS).fetchall()]


def reported_metrics(store: StoreReader, window: TimeRange) -> dict[str | None, list[ReportedMetric]]:
    """The metrics of each experiment."""
    found: dict[str | None, list[ReportedMetric]] = defaultdict(list)
    for experiment, *metric in store.connection.execute(_REPORTED, list(window)).fetchall():
        found[experiment].append(ReportedMetric(*metric))
    return found


def choose_goal(reported: Sequence[ReportedMetric], metric: str | None) -> MetricGoal | None:
    """The requested metric if it was reported; without a request, the most informative one."""
    if metric is None:
        return chosen(reported)
    return next((aim_of(one) for one in reported if one.name == metric), None)


def put_goals(store: StoreReader, aims: Iterable[tuple[str, MetricGoal]]) -> None:
    """Create the table `aim`: the metric of each run, and its direction."""
    rows = [(run, aim.name, aim.sign) for run, aim in aims]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    types = (pa.string(), pa.string(), pa.int8())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    store.connection.register("aim_rows", pa.table(dict(zip(("run", "name", "sign"), arrays, strict=True))))
    store.connection.execute("CREATE OR REPLACE TEMP TABLE aim AS FROM aim_rows")
    store.connection.unregister("aim_rows")


def goal_json(aim: MetricGoal | None, name: str = "metric") -> dict[str, Any]:
    """A metric and its direction, as answers have them."""
    return {
        name: aim.name if aim else None,
        "goal": aim.goal if aim else None,
        "goal_guessed": bool(aim and aim.guessed),
    }


def main_team(weighed: Iterable[tuple[str | None, int]]) -> str | None:
    """The team with the largest weight."""
    weights: dict[str, int] = defaultdict(int)
    for name, weight in weighed:
        if name is not None:
            weights[name] += weight
    return min(weights, key=lambda name: (-weights[name], name), default=None)
