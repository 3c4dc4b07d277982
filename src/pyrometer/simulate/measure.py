"""A night as its sources report it, hour by hour; beside it the books are kept of where the time really went."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.books import Books
from pyrometer.simulate.jobs import Attempt, Job, Night, Stretch, slots_of
from pyrometer.simulate.sdk import Counters, Sdk
from pyrometer.simulate.steps import Integers, Numbers, steps_of
from pyrometer.simulate.telemetry import Gpus, Telemetry


class Measured(NamedTuple):
    """What one hour brought; late rows arrive after it."""

    hour_ms: int
    tables: dict[str, pa.Table]
    late: dict[str, pa.Table]
    records: list[tuple[Any, ...]]


class Meter:
    """Goes through a night once; afterwards its books hold the truth."""

    def __init__(self, night: Night) -> None:
        self.night = night
        self.books = Books(night)
        self.counters = Counters()
        self.gpus = Gpus(night, np.random.default_rng([night.seed, 1]))
        for job in night.jobs:
            for attempt in job.attempts:
                attempt.stretches = list(_split(attempt.stretches, night.from_ms))

    def hours(self) -> Iterator[Measured]:
        """The night's measurements, an hour at a time."""
        attempts = sorted(
            ((job, attempt) for job in self.night.jobs for attempt in job.attempts),
            key=lambda each: (min(each[1].scheduled_ms), each[0].uid),
        )
        for from_ms in range(self.night.from_ms, self.night.to_ms, MS_PER_HOUR):
            yield self._hour(attempts, from_ms, min(from_ms + MS_PER_HOUR, self.night.to_ms))

    def _hour(self, attempts: list[tuple[Job, Attempt]], from_ms: int, to_ms: int) -> Measured:
        rng = np.random.default_rng([self.night.seed, 2, from_ms // MS_PER_HOUR])
        telemetry = Telemetry(self.night, self.gpus, rng, from_ms, to_ms)
        sdk = Sdk(self.night, self.gpus, self.counters, rng, from_ms, to_ms)
        held_ms = np.zeros(len(self.gpus.index))
        for job, attempt in attempts:
            over_ms = attempt.ended_ms or self.night.to_ms
            if over_ms < from_ms:
                continue
            if min(attempt.scheduled_ms) >= to_ms or over_ms == from_ms:
                sdk.take_events(job, attempt, None)  # of pods that wait, or have just ended
                continue
            slots = np.array([place.machine.first_slot + gpu for place in attempt.places for gpu in place.gpus])
            steps = steps_of(rng, job, attempt, self.gpus.slowness[slots], from_ms, to_ms, self.night.window_ms)
            self.books.take_attempt(job, attempt, steps, slots, from_ms, to_ms)
            sdk.take_attempt(job, attempt, steps, slots)
            telemetry.take_attempt(job, attempt, steps, slots, over_ms)
            self._hold(held_ms, job, attempt, slots, from_ms, min(over_ms, to_ms))
        self.books.take_platform(held_ms, from_ms, to_ms)
        samples, late = telemetry.samples()
        found = {"gpu_sample": samples, "step_window": sdk.windows(), "metric": sdk.metrics()}
        tables = {kind: table for kind, table in found.items() if table is not None}
        return Measured(from_ms, tables, {"gpu_sample": late}, sdk.records)

    def _hold(self, held_ms: Numbers, job: Job, attempt: Attempt, slots: Integers, from_ms: int, to_ms: int) -> None:
        """Adds what the attempt held of each slot while that worked."""
        since = np.maximum(np.repeat(attempt.scheduled_ms, job.gpus), from_ms)
        held_ms[slots] += np.maximum(to_ms - since, 0)
        for outage in self.books.outages(attempt, "device"):
            broken = np.maximum(np.minimum(to_ms, outage.to_ms) - np.maximum(since, outage.from_ms), 0)
            held_ms[slots] -= broken * np.isin(slots, slots_of(outage))


def _split(stretches: list[Stretch], at_ms: int) -> Iterator[Stretch]:
    """Cuts the stretch that goes on while the night begins: nothing before is measured."""
    for stretch in stretches:
        if stretch.from_ms < at_ms < stretch.to_ms:
            yield stretch._replace(to_ms=at_ms)
            yield stretch._replace(from_ms=at_ms)
        else:
            yield stretch
