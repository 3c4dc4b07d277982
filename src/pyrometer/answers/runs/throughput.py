"""Throughput of runs: samples, tokens and FLOPs per second, step times and their phases."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from statistics import median
from typing import Any

from pyrometer.identify.gpus.gpu_models import gpu_model
from pyrometer.store import StoreReader

PHASES = ("data", "copy", "forward", "backward", "comm", "optimizer", "checkpoint", "evaluate", "compile", "garbage")
OWN = ("data", "copy", "forward", "backward", "garbage")  # phases in which a rank does not wait for others
OUTLIER_FACTOR = 1.15
OUTLIER_SHARE = 0.02  # of a step
MAX_OUTLIERS = 5

# Rates are added up over ranks, so that a lost window does not change a rate.
_RATES = """
WITH of_rank AS (
    SELECT run, rank, any_value(node_uid) AS node_uid, any_value(slot_index) AS slot_index,
        sum(to_ms - time_ms) FILTER (WHERE samples IS NOT NULL) AS samples_ms, sum(samples) AS samples,
        sum(to_ms - time_ms) FILTER (WHERE tokens IS NOT NULL) AS tokens_ms, sum(tokens) AS tokens,
        sum(to_ms - time_ms) FILTER (WHERE flops IS NOT NULL) AS flops_ms, sum(flops::HUGEINT) AS flops,
        max(memory_peak_mib) AS memory_peak_mib
    FROM {windows} WHERE steps > 0 AND to_ms > time_ms GROUP BY run, rank
), seen AS (
    SELECT node_uid, slot_index, arg_max(gpu_model, time_ms) AS gpu_model
    FROM slot WHERE gpu_model IS NOT NULL GROUP BY ALL
)
SELECT run, rank, coalesce(seen.gpu_model, node_name.gpu_model),
    samples_ms, samples, tokens_ms, tokens, flops_ms, flops, memory_peak_mib
FROM of_rank LEFT JOIN seen USING (node_uid, slot_index) LEFT JOIN node_name USING (node_uid) ORDER BY run, rank
"""

# Percentiles of the lengths of all steps of all ranks, interpolated like numpy: percentile p of n steps is at place
# (n - 1) * p, counted from 0. Windows of older senders have no lengths but a median. All their steps count with it, so
# the run has a median and no other percentile. Lengths that differ by less than half a percent count as one, because
# there are millions of windows and sorting them takes a minute.
_LENGTHS = """
WITH stepped AS (
    SELECT run, steps, step_p50_us, step_max_us, step_lengths FROM {windows}
    WHERE steps > 0 AND (step_p50_us > 0 OR step_lengths IS NOT NULL)
), listed AS (
    SELECT run, step_lengths, unnest(range(1, len(step_lengths), 2)) AS place FROM stepped
    WHERE step_lengths IS NOT NULL
), length AS (
    SELECT run, step_lengths[place] AS us, step_lengths[place + 1] AS n FROM listed
    UNION ALL SELECT run, step_p50_us, steps FROM stepped WHERE step_lengths IS NULL
), rounded AS (
    SELECT run, max(us) AS us, sum(n) AS n FROM length GROUP BY run, (ln(us) * 200)::INTEGER
), ranked AS (
    SELECT run, us, sum(n) OVER (PARTITION BY run ORDER BY us) AS up_to, sum(n) OVER (PARTITION BY run) AS whole
    FROM rounded
), recorded AS (
    SELECT run, max(step_max_us) AS longest_step_us, bool_and(step_lengths IS NOT NULL) AS all_listed
    FROM stepped GROUP BY run
)
SELECT run, longest_step_us, all_listed, any_value(whole),
    min(us) FILTER (WHERE up_to > floor((whole - 1) * 0.5)), min(us) FILTER (WHERE up_to > ceil((whole - 1) * 0.5)),
    min(us) FILTER (WHERE up_to > floor((whole - 1) * 0.99)), min(us) FILTER (WHERE up_to > ceil((whole - 1) * 0.99))
FROM ranked JOIN recorded USING (run) GROUP BY run, longest_step_us, all_listed
"""


ONE_RUN = "(SELECT * FROM step_window WHERE run = $1)"  # windows of one run


def throughput(
    store: StoreReader, windows: str = "step_window", values: Sequence[object] = ()
) -> dict[str, dict[str, Any]]:
    """The throughput of every run with steps. Requires `windows` and names."""
    requested = _LENGTHS.format(windows=windows)
    lengths = {run: figures for run, *figures in store.connection.execute(requested, list(values)).fetchall()}
    ranks: dict[str, list[tuple[Any, ...]]] = {}
    for run, *rank in store.connection.execute(_RATES.format(windows=windows), list(values)).fetchall():
        ranks.setdefault(run, []).append(tuple(rank))
    return {run: {**_rates(rows), **_lengths(lengths.get(run))} for run, rows in ranks.items()}


def nothing() -> dict[str, Any]:
    """The same values for a run without steps."""
    return {**_rates([]), **_lengths(None)}


def _lengths(found: Sequence[Any] | None) -> dict[str, Any]:
    if found is None:
        return {"step_p50_ms": None, "step_p99_ms": None, "step_max_ms": None}
    longest_step_us, all_listed, steps, low_50, high_50, low_99, high_99 = found
    p50_us = _percentile(0.5, steps, low_50, high_50, longest_step_us)
    p99_us = _percentile(0.99, steps, low_99, high_99, longest_step_us) if all_listed else None
    named = {"step_p50_ms": p50_us, "step_p99_ms": p99_us, "step_max_ms": longest_step_us}
    return {name: None if us is None else round(us) / 1000 for name, us in named.items()}


def _percentile(share: float, steps: int, low_us: int, high_us: int, longest_step_us: int | None) -> float:
    """A percentile from the two nearest step lengths. The longest one is known exactly."""
    place = (steps - 1) * share
    if longest_step_us is not None:
        low_us, high_us = (
            longest_step_us if at == steps - 1 else min(us, longest_step_us)
            for at, us in ((floor(place), low_us), (ceil(place), high_us))
        )
    return low_us + (place - floor(place)) * (high_us - low_us)


def _rates(ranks: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    samples = [1000 * n / ms for _, _, ms, n, *_ in ranks if ms and n is not None]
    tokens = [1000 * n / ms for _, _, _, _, ms, n, *_ in ranks if ms and n is not None]
    counted = [(name, ms, int(n)) for _, name, _, _, _, _, ms, n, _ in ranks if ms and n]
    peaks = [(ms, n, peak) for name, ms, n in counted if (peak := peak_flops(name)) is not None]
    memory = [(mib, rank) for rank, *_, mib in ranks if mib is not None]
    most = max(memory, default=None, key=lambda one: (one[0], -one[1]))
    return {
        "samples_per_s": round(sum(samples), 3) if samples else None,
        "tokens_per_s": round(sum(tokens), 3) if tokens else None,
        "flops_per_s": round(sum(1000 * n / ms for _, ms, n in counted)) if counted else None,
        "mfu": round(sum(n for _, n, _ in peaks) / sum(ms * peak / 1000 for ms, _, peak in peaks), 4)
        if peaks
        else None,
        "memory_peak_mib": most[0] if most else None,
        "memory_peak_rank": most[1] if most else None,
    }


def peak_flops(name: str | None) -> float | None:
    """The peak FLOPs per second of a GPU model, if its vendor states it."""
    recorded = gpu_model(name)
    return recorded.peak_tflops_bf16 * 1e12 if recorded and recorded.peak_tflops_bf16 else None


def phases(store: StoreReader, run: str) -> dict[str, float]:
    """The share of each phase in the windows of a run, largest first; the rest is "other"."""
    shares = phases_of_all(store, ONE_RUN, [run]).get(run, {})
    return {name: share for name, share in sorted(shares.items(), key=lambda one: -one[1]) if share}


def phases_of_all(store: StoreReader, windows: str, values: Sequence[object] = ()) -> dict[str, dict[str, float]]:
    """The share of each phase in the windows of every run, in the order of the phases; "other" comes last."""
    sums = ", ".join(f"sum({name}_ms)" for name in PHASES)
    rows = store.connection.execute(
        f"SELECT run, sum(to_ms - time_ms), {sums} FROM {windows} WHERE to_ms > time_ms GROUP BY run", list(values)
    ).fetchall()
    found = {}
    for run, *lasted in rows:
        whole_ms, *spent_ms = map(int, lasted)
        whole_ms = max(whole_ms, sum(spent_ms))
        parts = zip((*PHASES, "other"), (*spent_ms, whole_ms - sum(spent_ms)), strict=True)
        found[run] = {name: round(ms / whole_ms, 4) for name, ms in parts}
    return found


def outliers(store: StoreReader, run: str) -> list[dict[str, Any]]:
    """Ranks that take longer than the others in their own phases, by milliseconds per step."""
    sums = ", ".join(f"sum({name}_ms) / sum(steps)" for name in OWN)
    rows = store.connection.execute(
        f"SELECT rank, sum(to_ms - time_ms) / sum(steps), {sums} FROM step_window WHERE run = ? AND steps > 0 "
        "GROUP BY rank ORDER BY rank",
        [run],
    ).fetchall()
    found = []
    for place, name in enumerate(OWN, start=2):
        usual = median(row[place] for row in rows) if len(rows) > 2 else 0.0
        for row in rows if len(rows) > 2 else ():
            excess = row[place] - usual
            if row[place] > usual * OUTLIER_FACTOR and excess > OUTLIER_SHARE * row[1]:
                found.append(
                    {
                        "rank": row[0],
                        "phase": name,
                        "ms_per_step": round(row[place], 3),
                        "median_ms_per_step": round(usual, 3),
                    }
                )
    found.sort(key=lambda one: one["median_ms_per_step"] - one["ms_per_step"])
    return found[:MAX_OUTLIERS]
