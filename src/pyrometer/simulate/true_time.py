"""The true use of a night's time: by workload, hour and state, and by planted finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from pyrometer.model.units import MS_PER_HOUR
from pyrometer.simulate.jobs import Activity, Job, JobAttempt, Night, Outage, PlantedClaim, PlantedFinding, slots_of
from pyrometer.simulate.rank_steps import Integers, Numbers, Steps, inside

STATE_OF = {
    "startup": "startup",
    "checkpoint": "checkpoint",
    "evaluate": "evaluate",
    "hang": "hang",
    "spin": "hang",
    "idle": "idle_held",
    "busy": "active",
    "pause": "starved",
    "serve": "infer",
}


class TrueTime:
    """Sums of GPU time and cost. Amounts are added as milliseconds of ranks (rows) in intervals (columns)."""

    def __init__(self, night: Night) -> None:
        self.night = night
        slot_prices = [m.pool.model.usd_micro_per_hour for m in night.machines for _ in m.slots]
        self.usd_per_ms = np.array(slot_prices) / 1e6 / MS_PER_HOUR
        self.cells: dict[tuple[str | None, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.usd: dict[str, float] = defaultdict(float)
        self._claims: dict[str | None, list[tuple[PlantedFinding, PlantedClaim]]] = defaultdict(list)
        for planted in night.planted:
            for claim in planted.claims:
                job = None if claim.machine is not None else planted.job
                self._claims[job.uid if job else None].append((planted, claim))
        self._outages: dict[str, list[Outage]] = defaultdict(list)
        for outage in night.outages:
            self._outages[outage.machine.uid].append(outage)

    # -- time of attempts -----------------------------------------------------------------------------------------

    def add_attempt(
        self, job: Job, attempt: JobAttempt, steps: Steps | None, slots: Integers, from_ms: int, to_ms: int
    ) -> None:
        """Adds an attempt's time between two times, including the steps whose windows start there."""
        for activity in attempt.activities:
            if activity.kind != "steps" and activity.from_ms < to_ms and activity.to_ms > from_ms:
                clipped = activity._replace(from_ms=max(activity.from_ms, from_ms), to_ms=min(activity.to_ms, to_ms))
                self._add_activity(job, attempt, clipped, slots)
        if steps is not None:
            self._add_steps(job, attempt, steps, slots)

    def _add_activity(self, job: Job, attempt: JobAttempt, activity: Activity, slots: Integers) -> None:
        if activity.kind == "startup":
            for pod, scheduled_ms in enumerate(attempt.scheduled_ms):
                ranks = slice(pod * job.gpus, (pod + 1) * job.gpus)
                together_ms = attempt.complete_ms if job.gang and job.pods > 1 else scheduled_ms
                alone = max(activity.from_ms, scheduled_ms), min(activity.to_ms, together_ms)
                self._add_interval(job, attempt, "gang_wait", *alone, slots, ranks)
                together = max(activity.from_ms, together_ms), activity.to_ms
                self._add_interval(job, attempt, "startup", *together, slots, ranks)
            return
        nan = any(e.kind == "nan" and e.from_ms <= activity.from_ms < e.to_ms for e in attempt.effects)
        state = "diverged" if nan and job.instrumented else STATE_OF[activity.kind]
        self._add_interval(job, attempt, state, activity.from_ms, activity.to_ms, slots, slice(None))

    def _add_interval(
        self, job: Job, attempt: JobAttempt, state: str, from_ms: int, to_ms: int, slots: Integers, ranks: slice
    ) -> None:
        if from_ms >= to_ms:
            return
        times = np.array([from_ms]), np.array([to_ms])
        ms = np.zeros((job.ranks, 1))
        ms[ranks] = to_ms - from_ms
        for effect in attempt.effects:
            if effect.kind == "unused" and effect.ranks and state in ("active", "starved"):
                unused = np.zeros_like(ms)
                unused[list(effect.ranks)] = ms[list(effect.ranks)]
                self._add_time(job, attempt, "unused_device", *times, unused, slots)
                ms = ms - unused
        if not job.instrumented and state not in ("gang_wait", "startup"):
            for outage in self.outages(attempt, "telemetry"):
                on_it = np.isin(slots, slots_of(outage))
                unseen = ms * on_it[:, None] * inside(*times, outage.from_ms, outage.to_ms)
                if unseen.any():
                    during = np.maximum(times[0], outage.from_ms), np.minimum(times[1], outage.to_ms)
                    self._add_time(job, attempt, "unobserved", *during, unseen, slots)
                    ms = ms - unseen
        self._add_time(job, attempt, state, *times, ms, slots)

    def _add_steps(self, job: Job, attempt: JobAttempt, steps: Steps, slots: Integers) -> None:
        restated = np.zeros(len(steps.starts))
        for state, part in self._restated(attempt, steps):
            part = np.minimum(part, 1 - restated)
            whole = np.tile((steps.ends - steps.starts) * part, (job.ranks, 1))
            self._add_time(job, attempt, state, steps.starts, steps.ends, whole, slots)
            restated = restated + part
        for state, ms in (
            ("train", steps.train),
            ("data_stall", steps.data),
            ("straggler_wait", steps.wait),
            ("comm_stall", steps.comm),
        ):
            self._add_time(job, attempt, state, steps.starts, steps.ends, ms * (1 - restated), slots)

    def _restated(self, attempt: JobAttempt, steps: Steps) -> Iterator[tuple[str, Numbers]]:
        for effect in attempt.effects:
            if effect.kind == "nan":
                yield "diverged", inside(steps.starts, steps.ends, effect.from_ms, effect.to_ms)
        if attempt.lost_from_ms is not None:
            yield "lost_work", (steps.starts >= attempt.lost_from_ms).astype(float)

    def _add_time(
        self, job: Job, attempt: JobAttempt, state: str, starts: Integers, ends: Integers, ms: Numbers, slots: Integers
    ) -> None:
        for outage in self.outages(attempt, "device"):  # the time of a broken device belongs to the platform
            broken = np.isin(slots, slots_of(outage))
            ms = ms * (1 - broken[:, None] * inside(starts, ends, outage.from_ms, outage.to_ms))
        self._add(job.uid, state, starts, ends, ms, slots)
        for planted, claim in self._claims[job.uid]:
            if state in claim.states and (claim.attempts is None or attempt.number in claim.attempts):
                self._credit(planted, claim, starts, ends, ms, slots, claim.ranks)
        if state == "unobserved":
            self._credit_machines(state, starts, ends, ms, slots)

    # -- time of the platform -------------------------------------------------------------------------------------

    def add_platform(self, held_ms: Numbers, from_ms: int, to_ms: int) -> None:
        """Adds unheld time between two times, free or broken. `held_ms` is the held time of each working slot."""
        edges = np.array([from_ms]), np.array([to_ms])
        free = (to_ms - from_ms) - held_ms
        for outage in self.night.outages:
            if outage.kind != "telemetry":
                slots = np.array(slots_of(outage))
                during = np.maximum(edges[0], outage.from_ms), np.minimum(edges[1], outage.to_ms)
                ms = np.maximum(during[1] - during[0], 0) * np.ones((len(slots), 1))
                free[slots] -= ms[:, 0]
                if ms.any():
                    self._add(None, "unhealthy", *during, ms, slots)
                    self._credit_machines("unhealthy", *during, ms, slots)
        for price in np.unique(self.usd_per_ms):
            slots = np.flatnonzero(self.usd_per_ms == price)
            self._add(None, "free", *edges, free[slots][:, None], slots)
        for planted, claim in self._claims[None]:
            if claim.machine is not None and "free" in claim.states:  # the whole machine: it has no jobs
                gpus = np.array(claim.machine.slots)
                self._credit(planted, claim, *edges, np.full((len(gpus), 1), to_ms - from_ms), gpus, None)

    def outages(self, attempt: JobAttempt, kind: str) -> list[Outage]:
        """The outages of a kind on an attempt's machines."""
        if not self._outages:
            return []
        machines = {place.machine.uid for place in attempt.places}
        return [outage for uid in sorted(machines) for outage in self._outages.get(uid, ()) if outage.kind == kind]

    def _credit_machines(self, state: str, starts: Integers, ends: Integers, ms: Numbers, slots: Integers) -> None:
        for planted, claim in self._claims[None]:
            if claim.machine is not None and state in claim.states:
                positions = np.flatnonzero(np.isin(slots, claim.machine.slots))
                self._credit(planted, claim, starts, ends, ms, slots, tuple(positions.tolist()))

    # -- sums -----------------------------------------------------------------------------------------------------

    def _add(
        self, owner: str | None, state: str, starts: Integers, ends: Integers, ms: Numbers, slots: Integers
    ) -> None:
        """Adds time to the hours that the windows overlap: the hour in which they start, and the next."""
        by_window = ms.sum(axis=0)
        if not by_window.any():
            return
        first = int(starts[0]) // MS_PER_HOUR
        for hour in range(first, int(ends[-1] - 1) // MS_PER_HOUR + 1):
            part = by_window * inside(starts, ends, hour * MS_PER_HOUR, (hour + 1) * MS_PER_HOUR)
            self.cells[owner, hour * MS_PER_HOUR][state] += float(part.sum())
        self.usd[state] += float(ms.sum(axis=1) @ self.usd_per_ms[slots])

    def _credit(
        self,
        planted: PlantedFinding,
        claim: PlantedClaim,
        starts: Integers,
        ends: Integers,
        ms: Numbers,
        slots: Integers,
        rows: tuple[int, ...] | None,
    ) -> None:
        mine = np.arange(len(slots)) if rows is None else np.array(rows, int)
        by_rank = (ms[mine] * inside(starts, ends, claim.from_ms, claim.to_ms)).sum(axis=1) * claim.part
        planted.gpu_ms += float(by_rank.sum())
        planted.usd += float(by_rank @ self.usd_per_ms[slots[mine]])
