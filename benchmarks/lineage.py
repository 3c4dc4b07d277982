"""What lineage weighs on disk and how long a question takes: `python benchmarks/lineage.py [MILLIONS] [FOLDER]`.

Some million samples of one run, 64 ranks, batches of 32, sealed. Sizes by how the samples are drawn and kept; then
the questions on the shuffled ones, as the command asks them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC
from pathlib import Path

import numpy as np
import pyarrow as pa

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.lineage import lineage_of_checkpoint, lineage_of_sample, lineage_of_step
from pyrometer.answers.runs.spikes import lineage_of_spikes
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Event, Metric, Run, StepWindow
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store

START_MS = 1_791_000_000_000 // MS_PER_HOUR * MS_PER_HOUR
RANKS, BATCH = 64, 32
DATASET = 100_000_000
EVER = TimeRange(0, 2**62)
HOUR = 10_000_000  # samples


def table(samples: np.ndarray, first_step: int, hour: int, *, texts: bool) -> pa.Table:
    """Batches of samples, as all ranks consume them."""
    count = len(samples) // BATCH
    number = np.arange(count)
    step, rank = first_step + number // RANKS, number % RANKS
    offsets = pa.array(np.arange(0, len(samples) + 1, BATCH, dtype=np.int32))
    values = pa.array(samples)
    kept = pa.ListArray.from_arrays(offsets, values.cast(pa.string()) if texts else values)
    columns = {
        "time_ms": START_MS + hour * MS_PER_HOUR + number * MS_PER_HOUR // count,
        "run": pa.array(["bench"] * count),
        "attempt": np.full(count, 1, np.int16),
        "rank": rank.astype(np.int32),
        "loader": np.zeros(count, np.int16),
        "epoch": (step * RANKS * BATCH // DATASET).astype(np.int32),
        "send_index": step,
        "micro_batch": np.zeros(count, np.int32),
        "step": step,
        "dataset": pa.array(["pile"] * count),
        "samples": kept if texts else pa.nulls(count, pa.list_(pa.string())),
        "rows": pa.nulls(count, pa.list_(pa.int64())) if texts else kept,
    }
    return pa.table({name: columns[name] for name in SCHEMAS["batch"].column_names})


def drawn(how: str, count: int, seed: int) -> np.ndarray:
    """Indices of a dataset as a sampler hands them out."""
    if how == "shuffled":
        return np.random.default_rng(seed).integers(0, DATASET, count)
    steps = np.arange(seed * count, (seed + 1) * count)
    if how == "sequential":  # each rank reads a shard of its own from end to end
        step, rank, place = steps // (RANKS * BATCH), steps // BATCH % RANKS, steps % BATCH
        return (rank * (DATASET // RANKS) + step * BATCH + place) % DATASET
    step, rank, place = steps // (RANKS * BATCH), steps // BATCH % RANKS, steps % BATCH
    return ((step * BATCH + place) * RANKS + rank) % DATASET  # "strided": a DistributedSampler without shuffle


def weigh(folder: Path) -> None:
    """Bytes per million samples, all columns of the record included."""
    count = 4_194_304
    for how in ("shuffled", "sequential", "strided"):
        for texts in (True, False):
            where = folder / f"{how}-{texts}"
            with Store(where, create=True) as store:
                store.append_tables({"batch": table(drawn(how, count, 0), 0, 0, texts=texts)})
                (part,) = store.seal()
            size = part.bytes * 1e6 / count
            print(
                f"{how:<11} kept as {'texts' if texts else 'numbers':<8} {size:>12,.0f} bytes per million samples",
                flush=True,
            )
            shutil.rmtree(where)


def fill(store: Store, millions: int) -> int:
    """Writes a run of some million shuffled samples, and returns the number of its last step."""
    hours = max(1, millions * 1_000_000 // HOUR)
    steps = HOUR // (RANKS * BATCH)
    for hour in range(hours):
        samples = drawn("shuffled", steps * RANKS * BATCH, hour)
        if hour == 0:  # one bad row, behind both spikes
            samples[[500 * RANKS * BATCH + 77, 900 * RANKS * BATCH + 1_234]] = 4_711
        store.append_tables({"batch": table(samples, hour * steps, hour, texts=False)})
        store.seal()
    last = hours * steps
    store.append(
        [Run(START_MS, "bench", 1, rank, START_MS, RANKS) for rank in range(RANKS)],
        [StepWindow(START_MS, START_MS + 10, "bench", 1, 0, "node", 0, first_step=0, steps=last)],
        [Event(START_MS + hours * MS_PER_HOUR, "checkpoint_saved", 9, run="bench", attempt=1, rank=0, step=last)],
        [
            Metric(
                START_MS + step,
                "bench",
                1,
                0,
                "loss",
                2.0 + step % 7 / 100 + 9.0 * (step in (500, 900)),
                step,
                "min",
                "pyrometer",
                step,
                step,
            )
            for step in range(1_000)
        ],
    )
    return last


def timed(what: str, ask: Callable[[], object]) -> None:
    """The second of two times: what is asked first also reads the files from the disk."""
    ask()
    wall, cpu = time.perf_counter(), time.process_time()
    ask()
    print(f"{what:<52} {time.perf_counter() - wall:>7.2f} s {time.process_time() - cpu:>7.2f} CPU-s", flush=True)


def main() -> None:
    """Prints sizes, then times."""
    millions = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    folder = Path(tempfile.mkdtemp(prefix="lineage-", dir=sys.argv[2] if len(sys.argv) > 2 else None))
    try:
        weigh(folder)
        with Store(folder / "run", create=True) as store:
            last = fill(store, millions)
            print(
                f"{millions} million samples in {sum(p.row_count for p in store.parts('batch')):,} batches, "
                f"{sum(p.bytes for p in store.parts('batch')) / 2**20:,.0f} MiB"
            )
            timed("one sample", lambda: lineage_of_sample(store, "bench", "4711", EVER, zone=UTC))
            timed("one step", lambda: lineage_of_step(store, "bench", last // 2, EVER, zone=UTC))
            timed("a checkpoint of all samples", lambda: lineage_of_checkpoint(store, "bench", last, EVER, zone=UTC))
            timed("what is behind two spikes", lambda: lineage_of_spikes(store, "bench", EVER, zone=UTC))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
