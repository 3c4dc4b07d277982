"""The measurements of a night hour by hour, and the true use of its time from the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.gpu_samples import Gpus, SimulatedTelemetry
from pyrometer.simulate.jobs import Activity, Job, JobAttempt, Night, slots_of
from pyrometer.simulate.rank_steps import Integers, Numbers, steps_of
from pyrometer.simulate.sdk import Counters, Sdk
from pyrometer.simulate.true_time import TrueTime


class MeasuredHour(NamedTuple):
    """The measurements of one hour. Late rows arrive after it."""

    hour_ms: int
    tables: dict[str, pa.Table]
    late: dict[str, pa.Table]
    records: list[tuple[Any, ...]]


class Meter:
    """Measures a night once, hour by hour. Afterwards `true_time` is complete."""

    def __init__(self, night: Night) -> None:
        self.night = night
        self.true_time = TrueTime(night)
        self.counters = Counters()
        self.gpus = Gpus(night, np.random.default_rng([night.seed, 1]))
        for job in night.jobs:
            for attempt in job.attempts:
                attempt.activities = list(_split(attempt.activities, night.from_ms))

    def hours(self) -> Iterator[MeasuredHour]:
        """The night's measurements, an hour at a time."""
        attempts = sorted(
            ((job, attempt) for job in self.night.jobs for attempt in job.attempts),
            key=lambda each: (min(each[1].scheduled_ms), each[0].uid),
        )
        for from_ms in range(self.night.from_ms, self.night.to_ms, MS_PER_HOUR):
            yield self._hour(attempts, from_ms, min(from_ms + MS_PER_HOUR, self.night.to_ms))

    def _hour(self, attempts: list[tuple[Job, JobAttempt]], from_ms: int, to_ms: int) -> MeasuredHour:
        rng = np.random.default_rng([self.night.seed, 2, from_ms // MS_PER_HOUR])
        telemetry = SimulatedTelemetry(self.night, self.gpus, rng, from_ms, to_ms)
        sdk = Sdk(self.night, self.gpus, self.counters, rng, from_ms, to_ms)
        held_ms = np.zeros(len(self.gpus.index))
        for job, attempt in attempts:
            over_ms = attempt.ended_ms or self.night.to_ms
            if over_ms < from_ms:
                continue
            if min(attempt.scheduled_ms) >= to_ms or over_ms == from_ms:
                sdk.add_events(job, attempt, None)  # pods that wait or have just ended
                continue
            slots = np.array([place.machine.first_slot + gpu for place in attempt.places for gpu in place.gpus])
            steps = steps_of(rng, job, attempt, self.gpus.slowness[slots], from_ms, to_ms, self.night.window_ms)
            self.true_time.add_attempt(job, attempt, steps, slots, from_ms, to_ms)
            sdk.add_attempt(job, attempt, steps, slots)
            telemetry.add_attempt(job, attempt, steps, slots, over_ms)
            self._hold(held_ms, job, attempt, slots, from_ms, min(over_ms, to_ms))
        self.true_time.add_platform(held_ms, from_ms, to_ms)
        samples, late = telemetry.samples()
        found = {"gpu_sample": samples, "step_window": sdk.windows(), "metric": sdk.metrics()}
        tables = {kind: table for kind, table in found.items() if table is not None}
        return MeasuredHour(from_ms, tables, {"gpu_sample": late}, sdk.records)

    def _hold(self, held_ms: Numbers, job: Job, attempt: JobAttempt, slots: Integers, from_ms: int, to_ms: int) -> None:
        """Adds the time that the attempt held each slot while the slot worked."""
        since = np.maximum(np.repeat(attempt.scheduled_ms, job.gpus), from_ms)
        held_ms[slots] += np.maximum(to_ms - since, 0)
        for outage in self.true_time.outages(attempt, "device"):
            broken = np.maximum(np.minimum(to_ms, outage.to_ms) - np.maximum(since, outage.from_ms), 0)
            held_ms[slots] -= broken * np.isin(slots, slots_of(outage))


def _split(activities: list[Activity], at_ms: int) -> Iterator[Activity]:
    """Splits the activity that is running when the night starts, because nothing before is measured."""
    for activity in activities:
        if activity.from_ms < at_ms < activity.to_ms:
            yield activity._replace(to_ms=at_ms)
            yield activity._replace(from_ms=at_ms)
        else:
            yield activity
