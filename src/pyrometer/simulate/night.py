"""Simulates a night into a data folder: everything that its sources would have sent, and `truth.json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyrometer.model.columns import schema_of
from pyrometer.model.records import Event
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.api_objects import objects
from pyrometer.simulate.measurements import MeasuredHour, Meter
from pyrometer.simulate.scenarios import SCENARIOS
from pyrometer.simulate.truth import truth
from pyrometer.store import Store, files

TRUTH = "truth.json"
SDK_KINDS = ("run", "step_window", "span", "batch", "metric")
GPU_KINDS = ("gpu_sample", "slot")
SDK_EVENTS = (
    "checkpoint_saved",
    "stuck",
    "unstuck",
    "nonfinite_loss",
    "finite_loss",
    "loop_ended",
    "loop_resumed",
    "configured",
    "rendezvous",
    "compiled",
    "restored",
    "exception",
)


def simulate(
    store: Store,
    scenario: str,
    *,
    seed: int = 1,
    gpus: int | None = None,
    hours: int | None = None,
    evidence: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Fills a new data folder with a night, writes its truth, and returns the truth.

    `evidence` limits the records to one level (kubernetes, gpu, sdk). The default is the level of the scenario.
    """
    template = SCENARIOS[scenario]
    best = evidence or template.evidence
    store.set_meta("origin", "simulated")  # first, so that an unfinished night is never mistaken for a real one
    night = template.make(seed, gpus, hours) if hours else template.make(seed, gpus)
    night.name = scenario
    meter = Meter(night)
    total = -(-(night.to_ms - night.from_ms) // MS_PER_HOUR)
    before: MeasuredHour | None = None
    for done, hour in enumerate(meter.hours()):
        progress(done, total)
        _store(store, hour.tables, hour.records, best)
        if done % 3 == 2:  # some hours are sealed before their last rows arrive
            store.seal(before_ms=hour.hour_ms)
        if before is not None:
            _store(store, before.late, [], best)
        store.seal(before_ms=hour.hour_ms - MS_PER_HOUR)
        before = hour
    if before is not None:
        _store(store, before.late, [], best)
    _store(store, {}, list(objects(night, meter.counters.resumed_step)), best)
    store.seal()
    progress(total, total)
    expected = truth(night, meter, best)
    files.write_text(store.folder / TRUTH, json.dumps(expected, indent=1))
    return expected


def _store(store: Store, tables: dict[str, Any], records: list[tuple[Any, ...]], evidence: str) -> None:
    """Stores the records of the sources that this level of evidence includes."""
    hidden: set[str] = set()
    if evidence != "sdk":
        hidden.update(SDK_KINDS)
    if evidence == "kubernetes":
        hidden.update(GPU_KINDS)
    store.append_tables({kind: table for kind, table in tables.items() if kind not in hidden})
    kept = [row for row in records if schema_of(type(row)).name not in hidden and not _is_hidden(row, evidence)]
    if kept:
        store.append(kept)


def _is_hidden(row: tuple[Any, ...], evidence: str) -> bool:
    return evidence != "sdk" and isinstance(row, Event) and row.kind in SDK_EVENTS
