"""How fast runs train: samples, tokens and FLOPs a second, the length of steps and what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from pyrometer.identify.gpu_models import gpu_model
from pyrometer.store import Store

PHASES = ("data", "copy", "forward", "backward", "comm", "optimizer", "checkpoint", "evaluate", "compile", "garbage")
OWN = ("data", "copy", "forward", "backward", "garbage")  # what a rank does by itself: in the rest it waits for others
OUTLIER_FACTOR = 1.15
OUTLIER_SHARE = 0.02  # of a step
MOST_OUTLIERS = 5

# Rates are those of each rank, added up: a window that got lost changes no rate.
_RATES = """
WITH of_rank AS (
    SELECT run, rank, any_value(node_uid) AS node_uid, any_value(slot_index) AS slot_index,
        sum(to_ms - time_ms) FILTER (WHERE samples IS NOT NULL) AS samples_ms, sum(samples) AS samples,
        sum(to_ms - time_ms) FILTER (WHERE tokens IS NOT NULL) AS tokens_ms, sum(tokens) AS tokens,
        sum(to_ms - time_ms) FILTER (WHERE flops IS NOT NULL) AS flops_ms, sum(flops::HUGEINT) AS flops,
        max(memory_peak_mib) AS memory_peak_mib
    FROM step_window WHERE steps > 0 AND to_ms > time_ms GROUP BY run, rank
), seen AS (
    SELECT node_uid, slot_index, arg_max(gpu_model, time_ms) AS gpu_model
    FROM slot WHERE gpu_model IS NOT NULL GROUP BY ALL
)
SELECT run, rank, coalesce(seen.gpu_model, node_name.gpu_model),
    samples_ms, samples, tokens_ms, tokens, flops_ms, flops, memory_peak_mib
FROM of_rank LEFT JOIN seen USING (node_uid, slot_index) LEFT JOIN node_name USING (node_uid) ORDER BY run, rank
"""

# A window knows the median and the slowest of its steps: it counts as one slow step and the rest at the median.
_LENGTHS = """
WITH said AS (
    SELECT run, step_p50_us AS us, greatest(steps - 1, 1) AS n FROM step_window WHERE steps > 0 AND step_p50_us > 0
    UNION ALL SELECT run, step_max_us, 1 FROM step_window WHERE steps > 1 AND step_max_us > 0
), summed AS (
    SELECT run, us, sum(n) OVER (PARTITION BY run ORDER BY us) AS up_to, sum(n) OVER (PARTITION BY run) AS whole
    FROM said
)
SELECT run, min(us) FILTER (WHERE up_to * 2 >= whole), min(us) FILTER (WHERE up_to * 100 >= whole * 99), max(us)
FROM summed GROUP BY run
"""


def throughput(store: Store) -> dict[str, dict[str, Any]]:
    """The figures of every run with steps. `step_window` is exposed and names are open."""
    lengths = {run: figures for run, *figures in store.connection.execute(_LENGTHS).fetchall()}
    ranks: dict[str, list[tuple[Any, ...]]] = {}
    for run, *rank in store.connection.execute(_RATES).fetchall():
        ranks.setdefault(run, []).append(tuple(rank))
    return {run: {**_rates(rows), **_lengths(lengths.get(run))} for run, rows in ranks.items()}


def nothing() -> dict[str, Any]:
    """The same figures of a run that has done no steps."""
    return {**_rates([]), **_lengths(None)}


def _lengths(figures: Sequence[int | None] | None) -> dict[str, Any]:
    names = ("step_p50_ms", "step_p99_ms", "step_max_ms")
    return dict(zip(names, (None if us is None else us / 1000 for us in figures or (None,) * 3), strict=True))


def _rates(ranks: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    samples = [1000 * n / ms for _, _, ms, n, *_ in ranks if ms and n is not None]
    tokens = [1000 * n / ms for _, _, _, _, ms, n, *_ in ranks if ms and n is not None]
    counted = [(name, ms, int(n)) for _, name, _, _, _, _, ms, n, _ in ranks if ms and n]
    peaks = [(ms, n, peak) for name, ms, n in counted if (peak := _peak_flops(name)) is not None]
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


def _peak_flops(name: str | None) -> float | None:
    """What a GPU of that name can do in a second, where its maker says so."""
    known = gpu_model(name)
    return known.peak_tflops_bf16 * 1e12 if known and known.peak_tflops_bf16 else None


def phases(store: Store, run: str) -> dict[str, float]:
    """The share of a run's windows that each phase took, the largest first; what is left is "other"."""
    sums = ", ".join(f"sum({name}_ms)" for name in PHASES)
    row = store.connection.execute(
        f"SELECT sum(to_ms - time_ms), {sums} FROM step_window WHERE run = ? AND to_ms > time_ms", [run]
    ).fetchone()
    if row is None or not row[0]:
        return {}
    whole = max(int(row[0]), sum(map(int, row[1:])))
    spent = {name: int(ms) for name, ms in zip(PHASES, row[1:], strict=True)}
    spent["other"] = whole - sum(spent.values())
    return {name: round(ms / whole, 4) for name, ms in sorted(spent.items(), key=lambda one: -one[1]) if ms}


def outliers(store: Store, run: str) -> list[dict[str, Any]]:
    """Ranks that take longer than the others for what they do by themselves, by milliseconds of a step."""
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
                        "rank": row[0], "phase": name, "ms_per_step": round(row[place], 3),
                        "median_ms_per_step": round(usual, 3),
                    }
                )  # fmt: skip
    found.sort(key=lambda one: one["median_ms_per_step"] - one["ms_per_step"])
    return found[:MOST_OUTLIERS]
