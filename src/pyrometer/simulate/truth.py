"""The expected answer for a night: time by state, cells by workload and hour, and the planted findings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyrometer.model.states import STATE, STATES
from pyrometer.model.units import gpu_hours, largest_remainder, usd
from pyrometer.simulate.jobs import Night, PlantedFinding
from pyrometer.simulate.measurements import Meter
from pyrometer.simulate.true_time import TrueTime

LEVELS = ("kubernetes", "gpu", "sdk")
# Cheaper findings are optional: neither reporting nor missing one is an error.
MIN_FINDING_USD = 3.0
MIN_FINDING_SHARE = 0.0003
MIN_IDLE_MS = 20 * 60_000  # idle time that GPU telemetry alone can distinguish from a pause


def truth(night: Night, meter: Meter, evidence: str) -> dict[str, Any]:
    """Returns the content of truth.json. `evidence` is the best level that the night's records include."""
    true_time = meter.true_time
    cells = _cells(true_time)
    by_state: dict[str, int] = {}
    for cell in cells:
        by_state[cell["state"]] = by_state.get(cell["state"], 0) + cell["gpu_ms"]
    priced = sum(true_time.usd.values())
    whole = sum(by_state.values())
    min_usd = max(MIN_FINDING_USD, MIN_FINDING_SHARE * priced)
    return {
        "scenario": night.name,
        "seed": night.seed,
        "simulated": True,
        "evidence": {"kubernetes": "kubernetes", "gpu": "gpu", "sdk": "full"}[evidence],
        "window": {"from": _iso(night.from_ms), "to": _iso(night.to_ms)},
        "total": {
            "gpu_ms": whole,
            "gpu_hours": gpu_hours(whole),
            "usd_micro": round(priced * 1e6),
            "usd": usd(round(priced * 1e6)),
            "unpriced_gpu_ms": 0,
        },
        "states": [
            {
                "state": state.name,
                "family": STATE[state.name].family,
                "gpu_ms": by_state[state.name],
                "usd_micro": round(true_time.usd[state.name] * 1e6),
                "usd": usd(round(true_time.usd[state.name] * 1e6)),
            }
            for state in STATES
            if by_state.get(state.name)
        ],
        "findings": [_finding(planted, evidence, min_usd) for planted in night.planted],
        "cells": cells,
    }


def _cells(true_time: TrueTime) -> list[dict[str, Any]]:
    rows = []
    for (owner, hour_ms), states in sorted(true_time.cells.items(), key=lambda cell: (cell[0][0] or "", cell[0][1])):
        whole = round(sum(states.values()))
        names = sorted(state for state, ms in states.items() if ms > 0.5)
        if names:
            parts = largest_remainder([round(states[name] * 1000) for name in names], whole)
            for name, ms in zip(names, parts, strict=True):
                rows.append({"workload_uid": owner, "hour": _iso(hour_ms), "state": name, "gpu_ms": ms})
    return rows


def _finding(planted: PlantedFinding, evidence: str, min_usd: float) -> dict[str, Any]:
    job = planted.job
    cause, culprit = planted.cause, planted.culprit
    shown = LEVELS.index(planted.needs) <= LEVELS.index(evidence)
    if evidence == "gpu" and cause == "hang":
        culprit = None  # only the ranks themselves can report which of them is the culprit
    if not shown and evidence == "gpu" and planted.gpu_cause:
        cause, culprit = planted.gpu_cause, None
        shown = cause != "idle_held" or planted.to_ms - planted.from_ms >= MIN_IDLE_MS
    micro = round(planted.usd * 1e6)
    return {
        "cause": cause,
        "workload": None
        if job is None
        else {"uid": job.uid, "kind": job.kind, "namespace": job.namespace, "name": job.name},
        "experiment": job.experiment if job else None,
        "team": job.team if job else "platform",
        "culprit": culprit,
        "from": _iso(planted.from_ms),
        "to": _iso(planted.to_ms),
        "gpu_ms": round(planted.gpu_ms),
        "usd_micro": micro,
        "usd": usd(micro),
        "detectable": shown and planted.usd >= min_usd,
    }


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace(".000", "")
