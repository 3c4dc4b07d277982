"""A run on one time axis: its GPUs, its steps by rank and phase, its throughput and memory, and its events.

A step window that spans several buckets contributes to each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.rank_tables import add_controller_runs, open_ranks
from pyrometer.answers.runs.lifecycle import life_of
from pyrometer.answers.runs.overview import RunNotFoundError
from pyrometer.answers.runs.throughput import PHASES, peak_flops
from pyrometer.model import events
from pyrometer.model.records import WHOLE_DEVICE
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND
from pyrometer.store import StoreReader

MAX_RANKS = 1_024
MAX_BUCKETS = 240
MAX_CELLS = 60_000  # of a heat map
BUCKETS_MS = (
    *(n * MS_PER_SECOND for n in (1, 2, 5, 10, 15, 30)),
    *(n * MS_PER_MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * MS_PER_HOUR for n in (1, 2, 3, 6, 12)),
)

# The signals of a GPU: the column of a sample, and its divisor.
SERIES = {
    "gpu_util": ("gpu_util_permille", 1000),
    "sm_active": ("sm_active_permille", 1000),
    "tensor_active": ("tensor_active_permille", 1000),
    "dram_active": ("dram_active_permille", 1000),
    "power_w": ("power_w", 1),
    "memory_used_mib": ("memory_used_mib", 1),
    "temperature_c": ("temperature_c", 1),
    "sm_clock_mhz": ("sm_clock_mhz", 1),
}
MEMORY = {"allocated_mib": ("memory_peak_mib", 1), "reserved_mib": ("memory_reserved_mib", 1)}
RATES = {"samples_per_s": "samples", "tokens_per_s": "tokens", "flops_per_s": "flops"}
SHOWN = {"comm": "sync"}  # phases with another shown name

# The slot of each rank of each attempt, and until when: its end, or its pod's, or the next attempt.
_RANKS = """
CREATE OR REPLACE TEMP TABLE signal_rank AS
WITH newest AS (
    SELECT * FROM {runs} WHERE run = $1 AND time_ms <= $3
    QUALIFY row_number() OVER (PARTITION BY attempt, rank ORDER BY time_ms DESC) = 1
),
gone AS (
    SELECT pod_uid, arg_max(ended_ms, time_ms) AS pod_ended_ms FROM pod
    WHERE pod_uid IN (SELECT pod_uid FROM newest) GROUP BY pod_uid
)
SELECT attempt, rank, node_uid, slot_index, greatest(started_ms, $2) AS from_ms,
    least(coalesce(ended_ms, lead(started_ms) OVER (PARTITION BY rank ORDER BY attempt), pod_ended_ms, $3), $3) AS to_ms
FROM newest LEFT JOIN gone USING (pod_uid)
"""

_WINDOWS = f"""
CREATE OR REPLACE TEMP TABLE signal_window AS
WITH placed AS (
    SELECT *, unnest(range((greatest(time_ms, $2) - $2) // $4, (least(to_ms, $3) - $2 - 1) // $4 + 1)) AS bucket
    FROM step_window WHERE run = $1 AND time_ms < $3 AND to_ms > $2 AND to_ms > time_ms
),
cut AS (
    SELECT *, (least(to_ms, $2 + (bucket + 1) * $4) - greatest(time_ms, $2 + bucket * $4))::DOUBLE AS ms,
        ms / (to_ms - time_ms) AS part
    FROM placed
)
SELECT bucket, rank, any_value(node_uid) AS node_uid, any_value(slot_index) AS slot_index, sum(ms) AS ms,
    sum(ms) FILTER (WHERE steps > 0) AS stepping_ms, sum(part * steps) AS steps,
    {", ".join(f"sum(part * {name}_ms) AS {name}_ms" for name in PHASES)},
    {", ".join(f"sum(ms) FILTER (WHERE steps > 0 AND {n} IS NOT NULL) AS {n}_ms" for n in RATES.values())},
    {", ".join(f"sum(part * {name}) FILTER (WHERE steps > 0) AS {name}" for name in RATES.values())},
    {", ".join(f"max({column}) AS {column}" for column, _ in MEMORY.values())}
FROM cut GROUP BY bucket, rank
"""

_SAMPLES = f"""
CREATE OR REPLACE TEMP TABLE signal_sample AS
SELECT (sample.time_ms - $1) // $3 AS bucket, rank,
    {
    ", ".join(
        f"sum({column}) AS {name}_sum, count({column}) AS {name}_count, min({column}) AS {name}_min, "
        f"max({column}) AS {name}_max"
        for name, (column, _) in SERIES.items()
    )
}
FROM gpu_sample sample JOIN signal_rank placed USING (node_uid, slot_index)
WHERE sample.instance = {WHOLE_DEVICE} AND sample.time_ms >= $1 AND sample.time_ms < $2
    AND sample.time_ms >= placed.from_ms AND sample.time_ms < placed.to_ms
GROUP BY ALL
"""

# Rates are those of each rank, added up: a window that got lost changes no rate.
_THROUGHPUT = f"""
SELECT bucket, {", ".join(f"sum(1000 * {name} / nullif({name}_ms, 0))" for name in RATES.values())}
FROM signal_window GROUP BY bucket
"""

_FLOPS = """
SELECT bucket, coalesce(seen.gpu_model, node_name.gpu_model), sum(flops), sum(flops_ms)
FROM signal_window
LEFT JOIN (
    SELECT node_uid, slot_index, arg_max(gpu_model, time_ms) AS gpu_model
    FROM slot WHERE gpu_model IS NOT NULL GROUP BY ALL
) seen USING (node_uid, slot_index)
LEFT JOIN node_name USING (node_uid)
WHERE flops > 0 AND flops_ms > 0 GROUP BY ALL
"""

_CHECKPOINTS = f"""
SELECT max(time_ms), step, max(duration_ms), attempt FROM event
WHERE run = $1 AND kind = '{events.CHECKPOINT_SAVED}' AND time_ms >= $2 AND time_ms < $3
GROUP BY attempt, step ORDER BY 1
"""

Column = list[float | None]


class _Axis(NamedTuple):
    """Buckets of equal length, one after the other."""

    from_ms: int
    bucket_ms: int
    buckets: int

    @classmethod
    def of(cls, from_ms: int, to_ms: int, most: int) -> _Axis:
        """The shortest round buckets that are few enough."""
        days = -(-(to_ms - from_ms) // (MS_PER_DAY * max(most - 1, 1))) or 1
        for bucket_ms in (*BUCKETS_MS, days * MS_PER_DAY):
            begin_ms = from_ms - from_ms % bucket_ms
            buckets = -(-(to_ms - begin_ms) // bucket_ms)
            if buckets <= most:
                break
        return cls(begin_ms, bucket_ms, buckets)

    def column(self, values: dict[int, Any]) -> Column:
        """A value for each bucket; None where there is none."""
        return [_short(values.get(bucket)) for bucket in range(self.buckets)]


def signals(store: StoreReader, run: str, window: TimeRange, *, zone: tzinfo) -> dict[str, Any]:
    """All measurements of a run, over its part of the time range."""
    open_names(store)
    store.expose_all(["run", "event"])
    connection = store.connection
    connection.execute(_RANKS.format(runs="run"), [run, *window])
    ranks = _ranks(store)
    if not ranks:  # it may be a run that only its controller reports
        store.expose_all(["metric"])
        open_ranks(store, window.to_ms)
        add_controller_runs(store)
        connection.execute(_RANKS.format(runs="the_run"), [run, *window])
        ranks = _ranks(store)
    if not ranks:
        raise RunNotFoundError(run)
    attempts = connection.execute(
        "SELECT attempt, min(from_ms), max(to_ms) FROM signal_rank GROUP BY attempt ORDER BY attempt"
    ).fetchall()
    from_ms = min(begin_ms for _, begin_ms, _ in attempts)
    to_ms = max(from_ms, *(end_ms for *_, end_ms in attempts))
    shown = _evenly(ranks, MAX_RANKS)
    axis = _Axis.of(from_ms, to_ms, min(MAX_BUCKETS, MAX_CELLS // len(shown)))
    store.expose(["step_window"], from_ms - MS_PER_HOUR, to_ms)  # a window may begin in the hour before
    store.expose(["gpu_sample"], from_ms, to_ms)
    connection.execute(_WINDOWS, [run, axis.from_ms, max(to_ms, axis.from_ms), axis.bucket_ms])
    connection.execute(_SAMPLES, [axis.from_ms, max(to_ms, axis.from_ms), axis.bucket_ms])
    lives = life_of(store, run, TimeRange(from_ms, to_ms))
    return {
        "run": run,
        "from": iso(from_ms, zone),
        "to": iso(to_ms, zone),
        "bucket_ms": axis.bucket_ms,
        "times_ms": [axis.from_ms + bucket * axis.bucket_ms for bucket in range(axis.buckets)],
        "ranks": shown,
        "ranks_total": len(ranks),
        "series": _series(store, axis),
        "heat": _heat(store, axis, [row["rank"] for row in shown]),
        "phases": _phases(store, axis),
        "throughput": _throughput(store, axis),
        "memory": _memory(store, axis),
        "checkpoints": _checkpoints(store, run, from_ms, to_ms),
        "attempts": [
            {
                "attempt": attempt,
                "from_ms": begin_ms,
                "to_ms": end_ms,
                **{name: lives.attempts.get(attempt, {}).get(name) for name in ("outcome", "resumed_step")},
            }
            for attempt, begin_ms, end_ms in attempts
        ],
        "lifecycle": lives.pieces,
    }


def _ranks(store: StoreReader) -> list[dict[str, Any]]:
    """Every rank, where its last attempt had it."""
    rows = store.connection.execute(
        """
        SELECT rank, coalesce(node_name.node, node_uid), slot_index, uuid
        FROM (SELECT * FROM signal_rank QUALIFY row_number() OVER (PARTITION BY rank ORDER BY attempt DESC) = 1)
        LEFT JOIN node_name USING (node_uid)
        LEFT JOIN (SELECT node_uid, slot_index, arg_max(uuid, time_ms) AS uuid FROM slot GROUP BY ALL)
            USING (node_uid, slot_index)
        ORDER BY rank
        """
    ).fetchall()
    return [{"rank": rank, "node": node, "slot_index": slot, "gpu": gpu} for rank, node, slot, gpu in rows]


def _evenly(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """All items, or evenly spaced ones with the first and the last."""
    if len(rows) <= most:
        return list(rows)
    return [rows[place * (len(rows) - 1) // (most - 1)] for place in range(most)]


def _series(store: StoreReader, axis: _Axis) -> dict[str, dict[str, Column]]:
    sums = ", ".join(
        f"sum({name}_sum) / nullif(sum({name}_count), 0) / {unit}, min({name}_min) / {unit}, max({name}_max) / {unit}"
        for name, (_, unit) in SERIES.items()
    )
    return _figures(store, f"SELECT bucket, {sums} FROM signal_sample GROUP BY bucket", SERIES, axis)


def _memory(store: StoreReader, axis: _Axis) -> dict[str, dict[str, Column]]:
    sums = ", ".join(f"avg({column}), min({column}), max({column})" for column, _ in MEMORY.values())
    return _figures(store, f"SELECT bucket, {sums} FROM signal_window GROUP BY bucket", MEMORY, axis)


def _figures(store: StoreReader, query: str, names: dict[str, Any], axis: _Axis) -> dict[str, dict[str, Column]]:
    """Mean, minimum and maximum of each name, as a query returns them after the bucket."""
    rows = store.connection.execute(query).fetchall()
    return {
        name: {
            figure: axis.column({row[0]: row[1 + 3 * place + offset] for row in rows})
            for offset, figure in enumerate(("mean", "min", "max"))
        }
        for place, name in enumerate(names)
    }


def _heat(store: StoreReader, axis: _Axis, ranks: Sequence[int]) -> dict[str, list[Column]]:
    """One row per rank and one column per bucket: step time, share of waiting, and GPU activity."""
    _, unit = SERIES["gpu_util"]
    queries = {
        "step_ms": "SELECT rank, bucket, stepping_ms / nullif(steps, 0) FROM signal_window",
        "wait_ms_share": "SELECT rank, bucket, comm_ms / nullif(ms, 0) FROM signal_window",
        "gpu_util": f"SELECT rank, bucket, gpu_util_sum / nullif(gpu_util_count, 0) / {unit} FROM signal_sample",
    }
    found = {}
    for name, query in queries.items():
        rows: dict[int, Column] = {rank: [None] * axis.buckets for rank in ranks}
        for rank, bucket, value in store.connection.execute(query).fetchall():
            if rank in rows and 0 <= bucket < axis.buckets:
                rows[rank][bucket] = _short(value)
        found[name] = list(rows.values())
    return found


def _phases(store: StoreReader, axis: _Axis) -> list[dict[str, Any]]:
    """The phases of a step in milliseconds, as the mean over all ranks."""
    sums = ", ".join(f"sum({name}_ms) / nullif(sum(steps), 0)" for name in PHASES)
    rows = store.connection.execute(
        f"SELECT bucket, {sums}, greatest(sum(ms - {' - '.join(f'{name}_ms' for name in PHASES)}), 0) "
        "/ nullif(sum(steps), 0) FROM signal_window GROUP BY bucket"
    ).fetchall()
    return [
        {"name": SHOWN.get(name, name), "ms_per_step": axis.column({row[0]: row[place] for row in rows})}
        for place, name in enumerate((*PHASES, "other"), start=1)
    ]


def _throughput(store: StoreReader, axis: _Axis) -> dict[str, Column]:
    rows = store.connection.execute(_THROUGHPUT).fetchall()
    rates = {name: axis.column({row[0]: row[place] for row in rows}) for place, name in enumerate(RATES, start=1)}
    done: dict[int, float] = {}
    possible: dict[int, float] = {}
    for bucket, gpu_model, flops, ms in store.connection.execute(_FLOPS).fetchall():
        peak = peak_flops(gpu_model)
        if peak is not None:
            done[bucket] = done.get(bucket, 0.0) + flops
            possible[bucket] = possible.get(bucket, 0.0) + ms * peak / 1000
    return rates | {"mfu": axis.column({bucket: done[bucket] / possible[bucket] for bucket in done})}


def _checkpoints(store: StoreReader, run: str, from_ms: int, to_ms: int) -> list[dict[str, Any]]:
    rows = store.connection.execute(_CHECKPOINTS, [run, from_ms, to_ms]).fetchall()
    return [
        {"at_ms": at_ms, "step": step, "duration_ms": duration_ms, "attempt": attempt}
        for at_ms, step, duration_ms, attempt in rows
    ]


def _short(value: float | None) -> float | None:
    """A rounded number: an answer has tens of thousands of them."""
    if value is None:
        return None
    return round(value) if abs(value) >= 10_000 else float(f"{value:.5g}")
