"""Whether a run was worth what it cost: its metric against its dollars, and against other runs of its experiment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import tzinfo
from statistics import median
from typing import Any, NamedTuple

import pyarrow as pa

from pyrometer.account.answer_json import amounts
from pyrometer.account.answer_json import iso
from pyrometer.account.answer_json import time_range_json
from pyrometer.account.answer_json import total
from pyrometer.account.names import open_names
from pyrometer.account.sums import added
from pyrometer.account.sums import rounded
from pyrometer.account.sums import sums
from pyrometer.account.time_range import TimeRange
from pyrometer.account.relations.run_minutes import open_run_minutes
from pyrometer.account.relations.runs import open_runs
from pyrometer.explain.dominated import Reached, beaten_since
from pyrometer.explain.metrics import LOGGED, Aim, Reported, aim_of, chosen, curves
from pyrometer.explain.spending import NOTHING, Spent, beside_costs, costs, costs_of_minutes
from pyrometer.model import events
from pyrometer.model.units import USD_MICRO_PER_USD, gpu_hours, usd, usd_micro
from pyrometer.store import StoreReader

MOST_POINTS, LEAST_POINTS = 200, 24  # of a curve
MOST_IN_ALL = 40_000  # of all curves of an answer: a sweep has thousands of runs
MOST_TREND = 24
LEAST_TREND = 6  # values from which one can see whether it still gets better
LAST_PART = 10  # the last tenth of a run's dollars
LEAST_USD_MICRO = USD_MICRO_PER_USD // 100  # of that tenth: less buys nothing that anybody counts


class NoSuchExperimentError(LookupError):
    """There is no experiment of that name; `known` are those that there are."""

    def __init__(self, experiment: str, known: Iterable[str]) -> None:
        super().__init__(experiment)
        self.known = sorted(known)


class NoSuchMetricError(LookupError):
    """No run of the experiment has reported a metric of that name; the text says which there are."""


class Point(NamedTuple):
    """A value, and what its run had cost when it was reported."""

    step: int | None
    time_ms: int
    value: float
    gpu_ms: int
    usd_micro: int | None


class _Listed(NamedTuple):
    run: str
    experiment: str | None
    team: str | None
    started_ms: int
    ended_ms: int | None
    outcome: str
    reported_ms: int


_LISTED = """
SELECT run, experiment, team, started_ms, ended_ms, coalesce(outcome, 'running'), reported_ms
FROM listed_run ORDER BY started_ms DESC, run
"""

_REPORTED = f"""
SELECT experiment, curve.name, max(goal), count(DISTINCT run), count(*)
FROM {curves("time_ms >= $1 AND time_ms < $2")} curve JOIN listed_run USING (run)
WHERE isfinite(value) GROUP BY ALL ORDER BY ALL
"""

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


# -- one experiment -----------------------------------------------------------------------------------------------


def worth(
    store: StoreReader, experiment: str, window: TimeRange, *, zone: tzinfo, metric: str | None = None,
    target: float | None = None, price_usd_micro: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The answer of `pyrometer worth EXPERIMENT`: its runs, most expensive first; none of an experiment that only held
    GPUs."""
    everything = _open(store, window)
    listed = [run for run in everything if run.experiment == experiment]
    if not listed:
        if not _exists(store, experiment):
            known = {run.experiment for run in everything if run.experiment is not None}
            raise NoSuchExperimentError(experiment, known)
        return _without_runs(store, experiment, window, zone, target, price_usd_micro)
    names = [run.run for run in listed]
    open_run_minutes(store, window, price_usd_micro, names)
    reported = _reported(store, window).get(experiment, [])
    aim = _aim(reported, metric)
    spent = costs_of_minutes(store)
    groups = [spent.get(name, NOTHING).held for name in names]
    most = max(LEAST_POINTS, min(MOST_POINTS, MOST_IN_ALL // len(names)))
    points = _points(store, window, [(name, aim) for name in names], most) if aim else {}
    steps, startups, already = _steps(store), _startups(store), _already(points, aim)
    rows = [
        {
            **_row(run, spent.get(run.run, NOTHING), micro, zone), "steps": steps.get(run.run, 0),
            **startups.get(run.run, _NO_STARTUP), **_beaten(already.get(run.run), micro, zone),
            **_judged(points.get(run.run, []), aim, target, run.started_ms, micro, most),
        }
        for run, micro in zip(listed, rounded(groups), strict=True)
    ]  # fmt: skip
    best = _pareto(rows, aim)
    for row in rows:
        row["pareto"] = row["run"] in best
    rows.sort(key=lambda row: (-(row["usd_micro"] or 0), -row["gpu_ms"], row["run"]))
    metrics = [_told(aim_of(one), "name") | {"runs": one.runs} for one in reported]
    teams = [(row["team"], row["gpu_ms"]) for row in rows]
    return _answer(experiment, time_range_json(window, zone), teams, aim, target, metrics, rows, total(groups))


def _exists(store: StoreReader, experiment: str) -> bool:
    """Whether an experiment of that name has runs or holds GPUs, at any time."""
    open_names(store)
    store.expose_all(["run"])
    (known,) = store.connection.execute(
        "SELECT EXISTS (FROM holder_name WHERE experiment = $1) OR EXISTS (FROM run WHERE experiment = $1)",
        [experiment],
    ).fetchall()
    return bool(known[0])


def _without_runs(
    store: StoreReader,
    experiment: str,
    window: TimeRange,
    zone: tzinfo,
    target: float | None,
    price_usd_micro: int | None,
) -> dict[str, Any]:
    """What an experiment cost that has no training runs in the window."""
    groups = sums(store, window, ("team", "experiment"), zone=zone, price_usd_micro=price_usd_micro)
    own = [group for group in groups if group.key[1] == experiment]
    teams = [(group.key[0], group.gpu_ms) for group in own]
    return _answer(experiment, time_range_json(window, zone), teams, None, target, [], [], total(own))


def _answer(
    experiment: str, window: dict[str, str], teams: Sequence[tuple[str | None, int]], aim: Aim | None,
    target: float | None, metrics: list[dict[str, Any]], rows: list[dict[str, Any]], whole: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    beaten = [row["usd_micro"] or 0 for row in rows if row["best"] is not None and not row["pareto"]]
    after = [row["dominated_after_usd_micro"] or 0 for row in rows]
    priced = whole["usd_micro"] is not None
    return {
        "experiment": experiment,
        "window": window,
        "team": _mostly(teams),
        "teams": sorted({team for team, _ in teams if team is not None}),
        **_told(aim),
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
    points: Sequence[Point], aim: Aim | None, target: float | None, started_ms: int, micro: int | None, most: int
) -> dict[str, Any]:
    """What a run's metric says about it."""
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


def best_of(points: Sequence[Point], aim: Aim | None) -> Point | None:
    """The first of the best values; None where no direction is known to be better."""
    if aim is None or aim.goal is None or not points:
        return None
    return min(points, key=lambda point: point.value * aim.sign)  # the first of equal ones


def reached_at(points: Sequence[Point], aim: Aim | None, target: float | None) -> Point | None:
    """The first value that is at least as good as the target."""
    if aim is None or aim.goal is None or target is None:
        return None
    return next((point for point in points if point.value * aim.sign <= target * aim.sign), None)


def marginal(points: Sequence[Point], aim: Aim | None, usd_micro: int | None) -> dict[str, Any] | None:
    """What the last tenth of a run's dollars bought: by how much its best value got better in it."""
    if usd_micro is None or usd_micro < LAST_PART * LEAST_USD_MICRO:
        return None
    last_usd_micro = usd_micro // LAST_PART
    before = best_of([p for p in points if (p.usd_micro or 0) <= usd_micro - last_usd_micro], aim)
    after = best_of(points, aim)
    if before is None or after is None or aim is None:
        return None
    gain = (before.value - after.value) * aim.sign
    all_gain = (points[0].value - after.value) * aim.sign
    dollars = last_usd_micro / USD_MICRO_PER_USD
    return {
        "usd_micro": last_usd_micro,
        "usd": usd(last_usd_micro),
        "gain": _short(gain),
        "gain_per_usd": _short(gain / dollars),
        "share_of_all_gain": _short(gain / all_gain) if all_gain else None,
    }


def thinned(points: Sequence[Point], best: Point | None, most: int = MOST_POINTS) -> list[Point]:
    """A part of the points, evenly; the first, the last and the best are in it."""
    if len(points) <= most:
        return list(points)
    evenly = {number * (len(points) - 1) // (most - 2) for number in range(most - 1)}
    return [point for number, point in enumerate(points) if number in evenly or point is best]


def pareto(spent: Sequence[tuple[int, float]]) -> list[bool]:
    """Which of (cost, badness) no other one beats: as good or better for as much or less, and not the same in both."""
    kept = [False] * len(spent)
    least: float | None = None
    cheapest: dict[float, int] = {}
    for place in sorted(range(len(spent)), key=lambda place: spent[place]):
        cost, badness = spent[place]
        if least is None or badness < least:
            least = badness
            cheapest[badness] = cost
        kept[place] = cheapest.get(badness) == cost and badness == least
    return kept


def _pareto(rows: Sequence[dict[str, Any]], aim: Aim | None) -> set[str]:
    """The runs that no other one beats; by GPU time, where some have no price."""
    judged = [row for row in rows if row["best"] is not None]
    if aim is None or not judged:
        return set()
    cost = "usd_micro" if all(row["usd_micro"] is not None for row in judged) else "gpu_ms"
    kept = pareto([(row[cost], row["best"] * aim.sign) for row in judged])
    return {row["run"] for row, stays in zip(judged, kept, strict=True) if stays}


def _already(points: Mapping[str, Sequence[Point]], aim: Aim | None) -> dict[str, Point]:
    """For each run that another one had beaten before it ended: its value from which on that was so; by GPU time, where
    some have no price."""
    if aim is None or aim.goal is None:
        return {}
    priced = all(point.usd_micro is not None for values in points.values() for point in values)
    reached = {
        run: [Reached(p.time_ms, (p.usd_micro or 0) if priced else p.gpu_ms, p.value * aim.sign) for p in values]
        for run, values in points.items()
    }
    return {run: points[run][place] for run, place in beaten_since(reached).items()}


def _beaten(since: Point | None, micro: int | None, zone: tzinfo) -> dict[str, Any]:
    """Since when another run had got as good for less, and what was spent after that."""
    after = None if micro is None else 0 if since is None else max(0, micro - (since.usd_micro or 0))
    return {
        "dominated_since": iso(since.time_ms, zone) if since else None,
        "dominated_after_usd_micro": after,
        "dominated_after_usd": _usd(after),
    }


# -- all experiments ----------------------------------------------------------------------------------------------


def experiments(
    store: StoreReader,
    window: TimeRange,
    *,
    zone: tzinfo,
    metric: str | None = None,
    price_usd_micro: int | None = None,
) -> dict[str, Any]:
    """The answer of `pyrometer worth`: every experiment, most expensive first. Runs without one are together."""
    grouped: dict[str | None, list[_Listed]] = defaultdict(list)
    for run in _open(store, window):
        grouped[run.experiment].append(run)
    spent = costs(store, window, price_usd_micro)
    reported = _reported(store, window)
    aims = {name: _chosen(reported.get(name, []), metric) for name in grouped}
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
                "team": _mostly((run.team, spent.get(run.run, NOTHING).held.gpu_ms) for run in runs),
                "teams": sorted({run.team for run in runs if run.team is not None}),
                "runs": len(runs),
                "running": sum(run.outcome == "running" for run in runs),
                **amounts(whole.held, micro),
                "goodput": whole.goodput,
                **_told(aim),
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


# Without windows over all values: there may be millions of them.
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
SELECT run, {MOST_TREND} * (time_ms - from_ms) // (to_ms - from_ms + 1) AS part,
    arg_max(value, (time_ms, attempt, step))
FROM aimed JOIN ranged USING (run, rank) GROUP BY run, part ORDER BY run, part
"""


def improving(trend: Sequence[float], aim: Aim | None) -> bool | None:
    """Whether the last third is better than the one before it, by more than neighbours usually differ."""
    if aim is None or aim.goal is None or len(trend) < LEAST_TREND:
        return None
    third = len(trend) // 3
    late, before = trend[-third:], trend[-2 * third : -third]
    usual = median(abs(b - a) for a, b in zip(trend[-2 * third :], trend[1 - 2 * third :], strict=False))
    return (median(before) - median(late)) * aim.sign > usual


def _bests(store: StoreReader, window: TimeRange, aims: Iterable[tuple[str, Aim]]) -> dict[str, _Best]:
    _put_aims(store, aims)
    return {row[0]: _Best(*row) for row in store.connection.execute(_BESTS, list(window)).fetchall()}


def _best_run(bests: Sequence[_Best], aim: Aim | None) -> dict[str, Any]:
    if aim is None or aim.goal is None or not bests:
        return {"best": None, "best_run": None}
    best = min(bests, key=lambda one: (one.best * aim.sign, one.run))
    return {"best": best.best, "best_run": best.run}


def _newest(runs: Sequence[_Listed], best: dict[str, _Best]) -> str | None:
    """The run that started last of those that reported something."""
    return next((run.run for run in runs if run.run in best), None)


def _seen_ms(run: _Listed, best: _Best | None) -> int:
    """When a run ended, else when it last said something."""
    return run.ended_ms or max(run.reported_ms, best.until_ms if best else 0)


def _trends(store: StoreReader, window: TimeRange, aims: Iterable[tuple[str, Aim]]) -> dict[str, list[float]]:
    _put_aims(store, aims)
    trends: dict[str, list[float]] = defaultdict(list)
    for run, _, value in store.connection.execute(_TRENDS, list(window)).fetchall():
        trends[run].append(value)
    return trends


def _added(name: str | None, spent: Sequence[Spent]) -> Spent:
    held = added((name,), [one.held for one in spent])
    seen = [one.train_ms for one in spent if one.train_ms is not None]
    return Spent(held, sum(seen) if seen or not spent else None)


# -- what both need -----------------------------------------------------------------------------------------------


def _open(store: StoreReader, window: TimeRange) -> list[_Listed]:
    """The runs of the window, newest first."""
    open_runs(store, window)
    return [_Listed(*row) for row in store.connection.execute(_LISTED).fetchall()]


def _reported(store: StoreReader, window: TimeRange) -> dict[str | None, list[Reported]]:
    """The metrics of each experiment."""
    found: dict[str | None, list[Reported]] = defaultdict(list)
    for experiment, *metric in store.connection.execute(_REPORTED, list(window)).fetchall():
        found[experiment].append(Reported(*metric))
    return found


def _chosen(reported: Sequence[Reported], metric: str | None) -> Aim | None:
    """The metric that was asked for, where it was reported; else the one that says the most."""
    if metric is None:
        return chosen(reported)
    return next((aim_of(one) for one in reported if one.name == metric), None)


def _aim(reported: Sequence[Reported], metric: str | None) -> Aim | None:
    aim = _chosen(reported, metric)
    if aim is None and metric is not None:
        known = ", ".join(one.name for one in reported[:12]) or "none"
        raise NoSuchMetricError(f"No run has a metric {metric!r} in that time. Known: {known}.")
    return aim


def _points(
    store: StoreReader, window: TimeRange, aims: Iterable[tuple[str, Aim]], most: int
) -> dict[str, list[Point]]:
    _put_aims(store, aims)
    points: dict[str, list[Point]] = defaultdict(list)
    for run, time_ms, _, step, value, gpu_ms, micro in beside_costs(store, _POINTS, *window, most):
        points[run].append(Point(step, time_ms, value, gpu_ms, micro))
    return points


def _put_aims(store: StoreReader, aims: Iterable[tuple[str, Aim]]) -> None:
    """Which metric of which run is looked at, for SQL."""
    rows = [(run, aim.name, aim.sign) for run, aim in aims]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], [], []]
    types = (pa.string(), pa.string(), pa.int8())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    store.connection.register("aim_rows", pa.table(dict(zip(("run", "name", "sign"), arrays, strict=True))))
    store.connection.execute("CREATE OR REPLACE TEMP TABLE aim AS FROM aim_rows")
    store.connection.unregister("aim_rows")


def _steps(store: StoreReader) -> dict[str, int]:
    """Up to which step the runs came whose minutes are open."""
    rows = store.connection.execute(
        "SELECT run, max(first_step + steps) FROM step_window SEMI JOIN wanted_run USING (run) "
        "WHERE steps > 0 GROUP BY run"
    ).fetchall()
    return {run: int(steps or 0) for run, steps in rows}


_NO_STARTUP = {"startup_gpu_ms": 0, "startup_usd_micro": None, "startup_usd": None, "compile_ms": None}


def _startups(store: StoreReader) -> dict[str, dict[str, Any]]:
    """What runs paid before their first step was done, and how long they compiled, in all; None where nobody said.
    Their minutes are open."""
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
            "startup_gpu_ms": int(ms), "startup_usd_micro": micro, "startup_usd": _usd(micro),
            "compile_ms": None if compile_ms is None else int(compile_ms),
        }  # fmt: skip
    return found


def _row(run: _Listed, spent: Spent, micro: int | None, zone: tzinfo) -> dict[str, Any]:
    return {
        "run": run.run,
        "team": run.team,
        "outcome": run.outcome,
        "started": iso(run.started_ms, zone),
        **amounts(spent.held, micro),
        "goodput": spent.goodput,
    }


def _told(aim: Aim | None, name: str = "metric") -> dict[str, Any]:
    return {
        name: aim.name if aim else None, "goal": aim.goal if aim else None, "goal_guessed": bool(aim and aim.guessed),
    }  # fmt: skip


def _mostly(weighed: Iterable[tuple[str | None, int]]) -> str | None:
    """Whose most of it is."""
    weights: dict[str, int] = defaultdict(int)
    for name, weight in weighed:
        if name is not None:
            weights[name] += weight
    return min(weights, key=lambda name: (-weights[name], name), default=None)


def _usd(micro: int | None) -> float | None:
    return None if micro is None else usd(micro)


def _short(value: float) -> float:
    """As many digits as mean something."""
    return float(f"{value:.6g}")
