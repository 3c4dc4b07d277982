"""Events of Kubernetes about pods, and the progress that a trainer reports, as records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.objects import ms
from pyrometer.identify.kubernetes.change_times import finite, iso_ms
from pyrometer.model import events
from pyrometer.model.records import Metric

# The relevant reasons of Kubernetes' events, and their kinds of records.
REASONS = {
    "Pulled": events.IMAGE_PULLED,
    "FailedScheduling": events.FAILED_SCHEDULING,
    "Preempted": events.PREEMPTED,
    "Evicted": events.PREEMPTED,
    "OOMKilling": events.OOM_KILLED,
    "SystemOOM": events.OOM_KILLED,
}
PROGRESS_OF = ("trainer.kubeflow.org", "TrainJob")

_AMOUNT = r"\d{1,9}(?:\.\d{1,9})?"
_PULLED = re.compile(rf"Successfully pulled image .*? in ((?:{_AMOUNT}(?:h|m|s|ms|µs))+)")
_DURATION = re.compile(rf"({_AMOUNT})(h|ms|m|s|µs)")
_UNIT_MS = {"h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1, "µs": 0.001}


class TranslatedEvent(NamedTuple):
    """A translated event."""

    kind: str
    at_ms: int
    duration_ms: int | None
    repeats: bool  # it is repeated, and only another message is news


def translate_event(event: objects.EventObject) -> TranslatedEvent | None:
    """Translates an event; None if it is not relevant."""
    kind = REASONS.get(event.reason)
    times = (event.series.last_observed_time if event.series else None, event.last_timestamp, event.event_time)
    at_ms = next((t for moment in times if (t := ms(moment))), None) or ms(event.metadata.creation_timestamp)
    if kind is None or at_ms is None:
        return None
    if kind != events.IMAGE_PULLED:
        return TranslatedEvent(kind, at_ms, None, repeats=True)
    match = _PULLED.search(event.message)
    if match is None:  # it was there already
        return None
    took_ms = sum(float(amount) * _UNIT_MS[unit] for amount, unit in _DURATION.findall(match[1]))
    return TranslatedEvent(kind, at_ms, round(took_ms), repeats=False)


PROGRESS, REMAINING = "progress", "remaining_seconds"  # metrics of a workload: percent done, and the time left


def progress_of(owner: objects.OwnerObject, attempt: int) -> Iterator[Metric]:
    """The progress and metrics that Kubeflow Trainer reports for a run, without any SDK."""
    status = owner.status if isinstance(owner.status, dict) else {}
    progress = status.get("trainerStatus")
    if not isinstance(progress, dict):
        return
    at_ms = iso_ms(progress.get("lastUpdatedTime"))
    metrics = progress.get("metrics")
    metrics = metrics if isinstance(metrics, list) else []
    values: list[tuple[Any, Any]] = [
        (PROGRESS, progress.get("progressPercentage")),
        (REMAINING, progress.get("estimatedRemainingSeconds")),
    ]
    values += [(each.get("name"), each.get("value")) for each in metrics if isinstance(each, dict)]
    for name, value in values:
        number = finite(value)
        if at_ms is not None and isinstance(name, str) and number is not None:
            yield Metric(time_ms=at_ms, run=owner.metadata.uid, attempt=attempt, rank=0, name=name, value=number)
