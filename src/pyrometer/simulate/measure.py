"""A night as it is measured, hour by hour: what each GPU shows, what the SDK folds into windows, and, beside it, where
the time really went.

All ranks of an attempt step together. Each has its own time for data and computation; the slowest is waited for; then
they exchange gradients. What a rank waits beyond what all must wait is the slowest one's doing.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pyrometer.model.records import Batch, Event, Metric, Span
from pyrometer.simulate.cluster import SIGNATURES, Signature
from pyrometer.simulate.jobs import Attempt, Claim, Job, Night, Outage, Planted, Stretch
from pyrometer.simulate.lives import HOUR

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]

STATE_OF = {
    "startup": "startup", "checkpoint": "checkpoint", "evaluate": "evaluate", "hang": "hang", "spin": "hang",
    "idle": "idle_held", "busy": "active", "pause": "starved", "serve": "infer",
}  # fmt: skip
LOOKS = {
    "startup": "startup", "checkpoint": "checkpoint", "evaluate": "evaluate", "hang": "idle", "spin": "spin",
    "idle": "idle", "busy": "train", "pause": "idle", "serve": "serve", "steps": "train",
}  # fmt: skip
# How computation divides into phases, and what the optimizer adds to it.
COPY, FORWARD, BACKWARD, OPTIMIZER = 0.02, 0.33, 0.58, 0.07
TRACE_EVERY_MS = 20 * 60_000
MOST_TRACED_RANKS = 64
TOO_HOT = 0x20 | 0x40  # NVML: thermal slowdown, by software and by hardware
NOT_BUSY, AT_THE_CAP = 0x1, 0x4


class Measured(NamedTuple):
    """What one hour brought, by record kind; late rows arrive after the hour, some arrive twice."""

    hour_ms: int
    tables: dict[str, pa.Table]
    late: dict[str, pa.Table]
    records: list[tuple[Any, ...]]


class Steps(NamedTuple):
    """The windows of steps that begin in an hour: times, and milliseconds of each rank and window."""

    starts: Integers
    ends: Integers
    first_step: Integers
    steps: Integers
    step_ms: Numbers
    done: Numbers  # steps, with fractions
    data: Numbers
    copy: Numbers
    forward: Numbers
    backward: Numbers
    wait: Numbers  # for the slowest
    comm: Numbers
    optimizer: Numbers

    @property
    def train(self) -> Numbers:
        """What is left when all waiting is taken away."""
        return (self.ends - self.starts) - self.data - self.wait - self.comm


class Meter:
    """Goes through a night once; afterwards `cells` and the planted findings hold the truth."""

    def __init__(self, night: Night) -> None:
        self.night = night
        self.rng = np.random.default_rng([night.seed, 1])
        machines = night.machines
        self.machine_index = {machine.uid: number for number, machine in enumerate(machines)}
        self.slot_machine = np.concatenate([np.full(m.pool.gpus, n) for n, m in enumerate(machines)])
        self.slot_gpu = np.concatenate([np.arange(m.pool.gpus) for m in machines])
        models = [m.pool.model for m in machines for _ in range(m.pool.gpus)]
        spread = self.rng.normal(1.0, 0.02, len(models))
        self.idle_w = np.array([model.idle_w for model in models]) * spread
        self.busy_w = np.array([model.busy_w for model in models]) * spread
        self.clock = np.array([model.clock_mhz for model in models], float)
        self.memory = np.array([model.memory_mib for model in models], float)
        self.price = np.array([model.usd_micro_per_hour for model in models]) / 1e6 / HOUR
        self.offset_ms = self.rng.integers(0, night.sample_every_ms, len(machines))
        self.skew_ms = np.round(self.rng.normal(0, 40, len(machines))).astype(int)
        self.cells: dict[tuple[str | None, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.usd: dict[str, float] = defaultdict(float)
        self.step: dict[tuple[str, int], float] = {}
        self.saved_step: dict[str, int] = {}
        self.flat_step: dict[str, float] = {}
        self.resumed_step: dict[tuple[str, int], int] = {}
        self.claims: dict[str | None, list[tuple[Planted, Claim]]] = defaultdict(list)
        for planted in night.planted:
            for claim in planted.claims:
                self.claims[None if claim.machine or planted.job is None else planted.job.uid].append((planted, claim))

    def hours(self) -> Iterator[Measured]:
        """The night's measurements, an hour at a time."""
        attempts = sorted(
            ((job, attempt) for job in self.night.jobs for attempt in job.attempts),
            key=lambda each: (min(each[1].scheduled_ms), each[0].uid),
        )
        for from_ms in range(self.night.from_ms, self.night.to_ms, HOUR):
            yield _Hour(self, from_ms, min(from_ms + HOUR, self.night.to_ms)).measured(attempts)


class _Hour:
    """One hour: the samples of all slots, filled in by the attempts that hold them, and the windows of their steps."""

    def __init__(self, meter: Meter, from_ms: int, to_ms: int) -> None:
        self.meter, self.from_ms, self.to_ms = meter, from_ms, to_ms
        self.rng = np.random.default_rng([meter.night.seed, 2, from_ms // HOUR])
        every = meter.night.sample_every_ms
        grid = np.arange(from_ms, to_ms, every)
        jitter = self.rng.integers(-400, 400, (len(meter.night.machines), len(grid)))
        self.times = np.clip(grid[None, :] + meter.offset_ms[:, None] + jitter, from_ms, to_ms - 1)
        slots, count = len(meter.slot_gpu), len(grid)
        free = SIGNATURES["free"]
        self.shown = {name: np.full((slots, count), float(getattr(free, name))) for name in Signature._fields}
        self.used = np.zeros((slots, count))  # share of the memory
        self.hot = np.zeros((slots, count), bool)
        self.held_ms = np.zeros(slots)  # by pods, and not broken
        self.windows: list[dict[str, Any]] = []
        self.records: list[tuple[Any, ...]] = []

    def measured(self, attempts: list[tuple[Job, Attempt]]) -> Measured:
        for job, attempt in attempts:
            over_ms = attempt.ended_ms or self.meter.night.to_ms
            if min(attempt.scheduled_ms) < self.to_ms and over_ms > self.from_ms:
                self._attempt(job, attempt, over_ms)
        self._platform()
        samples, late = self._samples()
        tables = {"gpu_sample": samples} if samples.num_rows else {}
        if self.windows:
            tables["step_window"] = pa.concat_tables([pa.table(window) for window in self.windows]).combine_chunks()
        return Measured(self.from_ms, tables, {"gpu_sample": late} if late.num_rows else {}, self.records)

    # -- one attempt ----------------------------------------------------------------------------------------------

    def _attempt(self, job: Job, attempt: Attempt, over_ms: int) -> None:
        slots = np.array([place.machine.first_slot + gpu for place in attempt.places for gpu in place.gpus])
        pods = np.repeat(np.arange(job.pods), job.gpus)
        held_from = np.maximum(np.array(attempt.scheduled_ms)[pods], self.from_ms)
        self.held_ms[slots] += np.maximum(min(over_ms, self.to_ms) - held_from, 0)
        for outage in self.meter.night.outages:
            if outage.kind == "device":
                overlap = np.minimum(min(over_ms, self.to_ms), outage.to_ms) - np.maximum(held_from, outage.from_ms)
                mine = slots == outage.machine.first_slot + (outage.gpu or 0)
                self.held_ms[slots] -= np.maximum(overlap, 0) * mine  # counted as broken
        steps = self._steps(job, attempt)
        share = np.zeros((job.ranks, 0))
        for stretch in attempt.stretches:
            if stretch.kind != "steps" and stretch.from_ms < self.to_ms and stretch.to_ms > self.from_ms:
                self._spend_stretch(job, attempt, stretch, slots)
        if steps is not None:
            self._spend_steps(job, attempt, steps, slots)
            share = steps.train / np.maximum(steps.ends - steps.starts, 1)
            if job.instrumented:
                self._emit_windows(job, attempt, steps, slots)
        self._emit_between(job, attempt, steps, slots)
        self._emit_events(job, attempt, steps)
        self._show(job, attempt, over_ms, slots, pods, steps, share)

    def _steps(self, job: Job, attempt: Attempt) -> Steps | None:
        """The windows of steps that begin in this hour."""
        every = self.meter.night.window_ms
        pieces = []
        for stretch in attempt.stretches:
            if stretch.kind == "steps" and stretch.from_ms < self.to_ms and stretch.to_ms > self.from_ms:
                skipped = max(0, -(-(self.from_ms - stretch.from_ms) // every))
                starts = np.arange(stretch.from_ms + skipped * every, min(stretch.to_ms, self.to_ms), every)
                pieces.append((starts, np.minimum(starts + every, stretch.to_ms)))
        if not pieces or not sum(len(starts) for starts, _ in pieces):
            return None
        starts = np.concatenate([starts for starts, _ in pieces])
        ends = np.concatenate([ends for _, ends in pieces])
        shape = (job.ranks, len(starts))
        ready = job.step_ms * (1 - job.comm_share - OPTIMIZER)
        own = self.rng.normal(1.0, 0.0025, (job.ranks, 1))  # no two devices are quite the same
        compute = ready * own * self.rng.normal(1.0, 0.003, shape)
        extra = {phase: np.zeros(shape) for phase in ("data", "copy", "forward", "backward")}
        data = ready * job.data_share * self.rng.lognormal(-0.05, 0.3, shape)
        comm = np.full(len(starts), job.step_ms * job.comm_share) * self.rng.normal(1.0, 0.04, len(starts))
        slowed = np.ones(shape)
        for effect in attempt.effects:
            inside = _inside(starts, ends, effect.from_ms, effect.to_ms)
            ranks = slice(None) if effect.ranks is None else list(effect.ranks)
            if effect.kind == "data":
                noise = self.rng.lognormal(-0.02, 0.2, extra["data"][ranks].shape)
                extra["data"][ranks] += job.step_ms * effect.size * inside * noise
            elif effect.kind == "slow":
                extra[effect.phase][ranks] += job.step_ms * effect.size * inside
            elif effect.kind == "comm":
                comm *= 1 + (effect.size - 1) * inside
            elif effect.kind == "clock":
                slowed[ranks] /= 1 - (1 - effect.size) * inside
        copy, forward, backward = (
            compute * slowed * part / (COPY + FORWARD + BACKWARD) for part in (COPY, FORWARD, BACKWARD)
        )
        data = data + extra["data"]
        copy, forward, backward = copy + extra["copy"], forward + extra["forward"], backward + extra["backward"]
        at_hand = data + copy + forward + backward
        slowest = at_hand.max(axis=0)
        optimizer = job.step_ms * OPTIMIZER
        step_ms = slowest + comm + optimizer
        count = (ends - starts) / step_ms
        first, steps = self._count(job, attempt, count)
        return Steps(
            starts, ends, first, steps, step_ms, count, data * count, copy * count, forward * count, backward * count,
            (slowest - at_hand) * count, np.broadcast_to(comm * count, shape),
            np.broadcast_to(optimizer * count, shape),
        )  # fmt: skip

    def _count(self, job: Job, attempt: Attempt, count: Numbers) -> tuple[Integers, Integers]:
        """Numbers the steps: an attempt that resumes goes on where the last save was."""
        key = (job.uid, attempt.number)
        if key not in self.meter.step:
            begin = self.meter.saved_step.get(job.uid, job.first_step) if attempt.resumes else job.first_step
            self.meter.step[key] = float(begin)
            if attempt.resumes:
                self.meter.resumed_step[key] = begin
        edges = np.floor(self.meter.step[key] + np.concatenate([[0.0], np.cumsum(count)])).astype(np.int64)
        self.meter.step[key] += float(count.sum())
        return edges[:-1], np.diff(edges)

    # -- where the time went --------------------------------------------------------------------------------------

    def _spend_stretch(self, job: Job, attempt: Attempt, stretch: Stretch, slots: Integers) -> None:
        from_ms, to_ms = max(stretch.from_ms, self.from_ms), min(stretch.to_ms, self.to_ms)
        if stretch.kind == "startup":
            for pod, scheduled_ms in enumerate(attempt.scheduled_ms):
                ranks = slice(pod * job.gpus, (pod + 1) * job.gpus)
                together_ms = attempt.complete_ms if job.gang and job.pods > 1 else scheduled_ms
                self._spend_piece(
                    job, attempt, "gang_wait", max(from_ms, scheduled_ms), min(to_ms, together_ms), slots, ranks
                )
                self._spend_piece(job, attempt, "startup", max(from_ms, together_ms), to_ms, slots, ranks)
            return
        state = STATE_OF[stretch.kind]
        if job.instrumented:
            for effect in attempt.effects:
                if effect.kind == "nan" and effect.from_ms <= stretch.from_ms < effect.to_ms:
                    state = "diverged"
        self._spend_piece(job, attempt, state, from_ms, to_ms, slots, slice(None))

    def _spend_piece(
        self, job: Job, attempt: Attempt, state: str, from_ms: int, to_ms: int, slots: Integers, ranks: slice
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
                self._spend(job, attempt, "unused_device", *times, unused, slots)
                ms = ms - unused
        if not job.instrumented and state != "gang_wait":
            for outage in self.meter.night.outages:
                if outage.kind == "telemetry":
                    unseen = ms * (self.meter.slot_machine[slots] == self._machine(outage))[:, None]
                    unseen = unseen * _inside(*times, outage.from_ms, outage.to_ms)
                    self._spend(job, attempt, "unobserved", *times, unseen, slots)
                    ms = ms - unseen
        self._spend(job, attempt, state, *times, ms, slots)

    def _spend_steps(self, job: Job, attempt: Attempt, steps: Steps, slots: Integers) -> None:
        amounts = {
            "train": steps.train, "data_stall": steps.data, "straggler_wait": steps.wait, "comm_stall": steps.comm,
        }  # fmt: skip
        restated = np.zeros(len(steps.starts))
        for state, part in self._restated(attempt, steps):
            part = np.minimum(part, 1 - restated)
            whole = (steps.ends - steps.starts) * part
            self._spend(job, attempt, state, steps.starts, steps.ends, np.tile(whole, (job.ranks, 1)), slots)
            restated = restated + part
        for state, ms in amounts.items():
            self._spend(job, attempt, state, steps.starts, steps.ends, ms * (1 - restated), slots)

    def _restated(self, attempt: Attempt, steps: Steps) -> Iterator[tuple[str, Numbers]]:
        for effect in attempt.effects:
            if effect.kind == "nan":
                yield "diverged", _inside(steps.starts, steps.ends, effect.from_ms, effect.to_ms)
        if attempt.lost_from_ms is not None:
            yield "lost_work", (steps.starts >= attempt.lost_from_ms).astype(float)

    def _spend(
        self, job: Job, attempt: Attempt, state: str, starts: Integers, ends: Integers, ms: Numbers, slots: Integers
    ) -> None:
        """Books time of ranks and windows: to the job's hours, and to what was planted."""
        for outage in self.meter.night.outages:
            if outage.kind == "device":  # a broken device is the platform's, whoever holds it
                ranks = slots == outage.machine.first_slot + (outage.gpu or 0)
                if ranks.any():
                    ms = ms * (1 - ranks[:, None] * _inside(starts, ends, outage.from_ms, outage.to_ms))
        self._book(job.uid, state, starts, ends, ms, slots)
        for planted, claim in self.meter.claims[job.uid]:
            if state in claim.states and (claim.attempts is None or attempt.number in claim.attempts):
                claimed = ms * _inside(starts, ends, claim.from_ms, claim.to_ms) * claim.part
                if claim.ranks is not None:
                    claimed = claimed[list(claim.ranks)]
                planted.gpu_ms += float(claimed.sum())
                planted.usd += float(claimed.sum() * self.meter.price[slots[0]])
        if state == "unobserved":
            self._book_platform(state, starts, ends, ms, slots)

    def _book(
        self, owner: str | None, state: str, starts: Integers, ends: Integers, ms: Numbers, slots: Integers
    ) -> None:
        by_window = ms.sum(axis=0)
        here = by_window * _inside(starts, ends, self.from_ms, self.to_ms)
        after = by_window.sum() - here.sum()
        self.meter.cells[owner, self.from_ms][state] += float(here.sum())
        if after > 0.5:
            self.meter.cells[owner, self.to_ms][state] += float(after)
        self.meter.usd[state] += float(by_window.sum() * self.meter.price[slots[0]])

    def _book_platform(self, state: str, starts: Integers, ends: Integers, ms: Numbers, slots: Integers) -> None:
        """What is planted on machines."""
        for planted, claim in self.meter.claims[None]:
            if claim.machine is not None and state in claim.states:
                of_it = self.meter.slot_machine[slots] == self.meter.machine_index[claim.machine.uid]
                claimed = ms[of_it] * _inside(starts, ends, claim.from_ms, claim.to_ms) * claim.part
                planted.gpu_ms += float(claimed.sum())
                planted.usd += float(claimed.sum() * self.meter.price[slots[0]])

    def _platform(self) -> None:
        """What nobody held: free, or broken."""
        length = self.to_ms - self.from_ms
        every = np.arange(len(self.meter.slot_gpu))
        broken_ms = np.zeros(len(every))
        for outage in self.meter.night.outages:
            if outage.kind == "device":
                slot = outage.machine.first_slot + (outage.gpu or 0)
                times = np.array([max(outage.from_ms, self.from_ms)]), np.array([min(outage.to_ms, self.to_ms)])
                if times[0] < times[1]:
                    broken_ms[slot] = (times[1] - times[0])[0]
                    ms = np.array([[broken_ms[slot]]])
                    self._book(None, "unhealthy", *times, ms, np.array([slot]))
                    self._book_platform("unhealthy", *times, ms, np.array([slot]))
        free = np.maximum(length - self.held_ms - broken_ms, 0)
        for price in np.unique(self.meter.price):
            of_it = every[self.meter.price == price]
            edges = np.array([self.from_ms]), np.array([self.to_ms])
            self._book(None, "free", *edges, free[of_it][:, None], of_it)
            self._book_platform("free", *edges, free[of_it][:, None], of_it)

    def _machine(self, outage: Outage) -> int:
        return self.meter.machine_index[outage.machine.uid]

    # -- what the SDK sends ---------------------------------------------------------------------------------------

    def _emit_windows(self, job: Job, attempt: Attempt, steps: Steps, slots: Integers) -> None:
        ranks, count = steps.data.shape
        skew = self.meter.skew_ms[self.meter.slot_machine[slots]][:, None]
        memory = np.broadcast_to((0.72 * self.meter.memory[slots])[:, None], (ranks, count))
        kept = self.rng.random((ranks, count)) > 0.0005  # some get lost on their way

        def column(values: Any, kind: Any = np.int32) -> pa.Array:
            rounded = np.broadcast_to(np.round(values), (ranks, count)).astype(kind)
            return pa.array(rounded[kept])

        def noisy(values: Numbers) -> pa.Array:
            return column(values * self.rng.normal(1.0, 0.004, values.shape))

        tokens = steps.steps * 4096 * 8
        self.windows.append(
            self._identity(job, attempt, slots, kept)
            | {
                "time_ms": column(steps.starts + skew, np.int64),
                "to_ms": column(steps.ends + skew, np.int64),
                "first_step": column(steps.first_step, np.int64),
                "steps": column(steps.steps),
                "data_ms": noisy(steps.data), "copy_ms": noisy(steps.copy), "forward_ms": noisy(steps.forward),
                "backward_ms": noisy(steps.backward), "comm_ms": column(steps.wait + steps.comm),
                "optimizer_ms": noisy(steps.optimizer), "checkpoint_ms": column(0), "evaluate_ms": column(0),
                "compile_ms": column(0), "garbage_ms": column(0),
                "step_p50_us": column(steps.step_ms * 1000, np.int64),
                "step_max_us": column(steps.step_ms * 1000 * self.rng.uniform(1.02, 1.3, count), np.int64),
                "samples": column(steps.steps * 8, np.int64), "tokens": column(tokens, np.int64),
                "flops": pa.nulls(int(kept.sum()), pa.int64()), "memory_peak_mib": column(memory),
            }
        )  # fmt: skip
        self._emit_loss(job, attempt, steps)
        self._emit_traces(job, attempt, steps)

    def _identity(self, job: Job, attempt: Attempt, slots: Integers, kept: NDArray[np.bool_]) -> dict[str, pa.Array]:
        ranks = np.broadcast_to(np.arange(job.ranks)[:, None], kept.shape)[kept]
        machines = sorted({place.machine.uid for place in attempt.places})
        uids = [place.machine.uid for place in attempt.places]
        place = np.array([machines.index(uid) for uid in uids])
        pods = [job.pod_uid(attempt, pod) for pod in range(job.pods)]
        pod = ranks // job.gpus
        return {
            "time_ms": pa.nulls(0), "to_ms": pa.nulls(0),
            "run": pa.DictionaryArray.from_arrays(np.zeros(len(ranks), np.int32), [job.uid]).cast(pa.string()),
            "attempt": pa.array(np.full(len(ranks), attempt.number, np.int16)),
            "rank": pa.array(ranks.astype(np.int32)),
            "node_uid": pa.DictionaryArray.from_arrays(place[pod].astype(np.int32), machines).cast(pa.string()),
            "slot_index": pa.array(self.meter.slot_gpu[slots][ranks].astype(np.int16)),
            "pod_uid": pa.DictionaryArray.from_arrays(pod.astype(np.int32), pods).cast(pa.string()),
        }  # fmt: skip

    def _emit_between(self, job: Job, attempt: Attempt, steps: Steps | None, slots: Integers) -> None:
        """Windows without steps: saves and evaluations."""
        if not job.instrumented:
            return
        for stretch in attempt.stretches:
            if stretch.kind in ("checkpoint", "evaluate") and self.from_ms <= stretch.from_ms < self.to_ms:
                length = stretch.to_ms - stretch.from_ms
                kept = np.ones((job.ranks, 1), bool)
                skew = self.meter.skew_ms[self.meter.slot_machine[slots]]
                number = job.ranks
                none = pa.nulls(number, pa.int64())
                zero = pa.array(np.zeros(number, np.int32))
                lasted = pa.array(np.full(number, length, np.int32))
                saves = stretch.kind == "checkpoint"
                self.windows.append(
                    self._identity(job, attempt, slots, kept)
                    | {
                        "time_ms": pa.array(stretch.from_ms + skew), "to_ms": pa.array(stretch.to_ms + skew),
                        "first_step": none, "steps": zero, "data_ms": zero, "copy_ms": zero, "forward_ms": zero,
                        "backward_ms": zero, "comm_ms": zero, "optimizer_ms": zero,
                        "checkpoint_ms": lasted if saves else zero, "evaluate_ms": zero if saves else lasted,
                        "compile_ms": zero, "garbage_ms": zero, "step_p50_us": none, "step_max_us": none,
                        "samples": none, "tokens": none, "flops": none,
                        "memory_peak_mib": pa.nulls(number, pa.int32()),
                    }
                )  # fmt: skip
                if saves:
                    self._emit_save(job, attempt, steps, stretch)

    def _emit_save(self, job: Job, attempt: Attempt, steps: Steps | None, stretch: Stretch) -> None:
        step = self._step_at(job, attempt, steps, stretch.from_ms)
        if attempt.ended_ms is None or stretch.to_ms < attempt.ended_ms:
            self.meter.saved_step[job.uid] = step
            self.records.append(
                Event(
                    stretch.to_ms, "checkpoint_saved", duration_ms=stretch.to_ms - stretch.from_ms, run=job.uid,
                    workload_uid=job.uid, attempt=attempt.number, rank=0, step=step,
                )
            )  # fmt: skip

    def _step_at(self, job: Job, attempt: Attempt, steps: Steps | None, at_ms: int) -> int:
        """How many steps were done at a time of this hour."""
        now = self.meter.step.get((job.uid, attempt.number), float(job.first_step))
        if steps is None:
            return int(now)
        done = (steps.done * _inside(steps.starts, steps.ends, 0, at_ms)).sum()
        return round(float(now - steps.done.sum() + done))

    def _emit_loss(self, job: Job, attempt: Attempt, steps: Steps) -> None:
        floor, scale, exponent = job.loss
        at = steps.first_step + steps.steps / 2
        flat = next((effect for effect in attempt.effects if effect.kind == "flat"), None)
        if flat is not None:
            before = at[steps.starts < flat.from_ms]
            reached = before[-1] if len(before) else self.meter.flat_step.get(job.uid, at[0])
            self.meter.flat_step[job.uid] = reached
            at = np.where(steps.starts < flat.from_ms, at, reached)
        value = (floor + scale * (at + 50.0) ** -exponent) * self.rng.normal(1.0, 0.012, len(at))
        for effect in attempt.effects:
            if effect.kind == "nan":
                value = np.where((steps.ends > effect.from_ms) & (steps.ends <= effect.to_ms), np.nan, value)
        rows = zip(
            steps.ends.tolist(), (steps.first_step + steps.steps).tolist(), value.tolist(), steps.steps, strict=True
        )
        for end, step, loss, number in rows:
            if number:
                self.records.append(Metric(end, job.uid, attempt.number, 0, "loss", round(loss, 5), step, "min"))

    def _emit_traces(self, job: Job, attempt: Attempt, steps: Steps) -> None:
        """Now and then one step of every rank, whole, with the data behind it."""
        fresh = np.flatnonzero(np.diff(steps.starts // TRACE_EVERY_MS, prepend=-1) & (steps.steps > 0))
        for window in fresh.tolist():
            step, start = int(steps.first_step[window]), int(steps.starts[window])
            trace = hashlib.sha256(f"{job.uid} {attempt.number} {step}".encode()).hexdigest()[:32]
            number = max(int(steps.steps[window]), 1)
            for rank in range(min(job.ranks, MOST_TRACED_RANKS)):
                at_us, parent = 0, f"{trace[:12]}{rank:04x}"
                pieces = (
                    ("data", steps.data), ("copy", steps.copy), ("forward", steps.forward),
                    ("backward", steps.backward), ("sync", steps.wait + steps.comm), ("optimizer", steps.optimizer),
                )  # fmt: skip
                whole = 0
                for place, (name, ms) in enumerate(pieces):
                    lasted = int(ms[rank, window] * 1000 / number)
                    self.records.append(
                        Span(
                            start + at_us // 1000, trace, f"{parent[:15]}{place:x}", name, lasted, job.uid,
                            attempt.number, rank, step, parent,
                        )
                    )  # fmt: skip
                    at_us += lasted
                    whole += lasted
                self.records.append(Span(start, trace, parent, "step", whole, job.uid, attempt.number, rank, step))
                sample = (step * job.ranks + rank) * 8
                ids = tuple(str(sample + offset) for offset in range(8))
                self.records.append(
                    Batch(
                        start,
                        job.uid,
                        attempt.number,
                        rank,
                        0,
                        0,
                        step,
                        step=step,
                        dataset=job.experiment,
                        samples=ids,
                    )
                )

    def _emit_events(self, job: Job, attempt: Attempt, steps: Steps | None) -> None:
        first_ms = attempt.first_step_ms
        if (
            job.digest
            and first_ms is not None
            and max(first_ms, self.meter.night.from_ms) // HOUR == self.from_ms // HOUR
        ):
            self.records.append(
                Event(
                    first_ms - 1000, "configured", run=job.uid, workload_uid=job.uid, attempt=attempt.number, rank=0,
                    reason=job.digest,
                )
            )  # fmt: skip
        for event in attempt.events:
            if not self.from_ms <= event["at_ms"] < self.to_ms:
                continue
            rank = event.get("rank")
            pod = event["pod"] if rank is None else rank // job.gpus
            step = event.get("step_offset")
            if step is not None:
                step += self._step_at(job, attempt, steps, event["at_ms"])
            self.records.append(
                Event(
                    event["at_ms"], event["kind"], event.get("duration_ms"), "simulated",
                    attempt.places[pod].machine.uid, pod_uid=job.pod_uid(attempt, pod), workload_uid=job.uid,
                    run=None if rank is None else job.uid, attempt=attempt.number, rank=rank, step=step,
                    reason=event.get("reason"), message=event.get("message"),
                )
            )  # fmt: skip

    # -- what the GPUs show ---------------------------------------------------------------------------------------

    def _show(
        self,
        job: Job,
        attempt: Attempt,
        over_ms: int,
        slots: Integers,
        pods: Integers,
        steps: Steps | None,
        share: Numbers,
    ) -> None:
        begins = np.array([stretch.from_ms for stretch in attempt.stretches])
        looks = [SIGNATURES[LOOKS[stretch.kind]] for stretch in attempt.stretches]
        stepping = np.array([stretch.kind == "steps" for stretch in attempt.stretches])
        serving = job.serves
        for pod, place in enumerate(attempt.places):
            times = self.times[self.meter.machine_index[place.machine.uid]]
            there = (times >= attempt.scheduled_ms[pod]) & (times < over_ms)
            if not there.any():
                continue
            at = np.clip(np.searchsorted(begins, times, side="right") - 1, 0, len(looks) - 1)
            ranks = np.flatnonzero(pods == pod)
            rows = slots[ranks]
            shown = {
                name: np.tile(np.array([getattr(look, name) for look in looks], float)[at], (len(ranks), 1))
                for name in Signature._fields
            }
            if steps is not None and len(steps.starts):
                window = np.clip(np.searchsorted(steps.starts, times, side="right") - 1, 0, len(steps.starts) - 1)
                length = np.maximum(steps.ends - steps.starts, 1)
                working = np.where(stepping[at], share[ranks][:, window], 1.0)
                seen = np.where(stepping[at], 1 - (steps.data[ranks] / length)[:, window], 1.0)
                shown["util"] *= seen
                for name in ("sm", "tensor", "dram", "power"):
                    shown[name] *= np.minimum(working * 1.12, 1.05) if job.instrumented else working
            if serving:
                load = 0.55 + 0.4 * np.sin(times / HOUR * 1.3 + pod) + self.rng.normal(0, 0.05, times.shape)
                for name in ("util", "sm", "tensor", "dram", "power"):
                    shown[name] *= np.clip(load, 0.25, 1.0)
            self._effects(attempt, times, ranks, rows, shown, there)
            for name, values in shown.items():
                self.shown[name][rows[:, None], np.flatnonzero(there)[None, :]] = values[:, there]
            used = np.where(np.array([s.kind in ("startup",) for s in attempt.stretches])[at], 0.01, 0.72)
            self.used[rows[:, None], np.flatnonzero(there)[None, :]] = np.maximum(
                np.tile(used, (len(ranks), 1)), self.used[rows]
            )[:, there]

    def _effects(
        self, attempt: Attempt, times: Integers, ranks: Integers, rows: Integers, shown: dict[str, Numbers],
        there: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        for effect in attempt.effects:
            inside = (times >= effect.from_ms) & (times < effect.to_ms)
            mine = np.isin(ranks, effect.ranks) if effect.ranks is not None else np.ones(len(ranks), bool)
            where = mine[:, None] & inside[None, :]
            if effect.kind == "nan":
                nan = SIGNATURES["nan"]
                shown["power"][where] *= nan.power / 1000
            elif effect.kind == "unused":
                for name in Signature._fields:
                    shown[name][where] = getattr(SIGNATURES["idle"], name)
            elif effect.kind == "clock":
                shown["clock"][where] *= effect.size
                shown["power"][where] *= 0.35 + 0.65 * effect.size
                self.hot[rows[:, None], np.arange(len(times))[None, :]] |= where & there[None, :]
            elif effect.kind == "memory":
                grown = np.clip((times - effect.from_ms) / max(effect.to_ms - effect.from_ms, 1), 0, 1) * 0.26 + 0.72
                self.used[rows[:, None], np.arange(len(times))[None, :]] = np.where(
                    where, grown[None, :], self.used[rows]
                )

    def _samples(self) -> tuple[pa.Table, pa.Table]:
        meter, shape = self.meter, self.used.shape
        times = self.times[meter.slot_machine]
        kept = self.rng.random(shape) > 0.003  # a scrape that took too long
        kept &= (self.rng.random(self.times.shape) > 0.001)[meter.slot_machine]
        for outage in meter.night.outages:
            rows = meter.slot_machine == self._machine(outage)
            if outage.gpu is not None:
                rows &= meter.slot_gpu == outage.gpu
            kept &= ~(rows[:, None] & (times >= outage.from_ms) & (times < outage.to_ms))
        active = self.rng.normal(1.0, 0.03, shape)
        util = np.clip(self.shown["util"] * (1 + (active - 1) / 3), 0, 1000)
        sm, tensor, dram = (np.clip(self.shown[name] * active, 0, 1000) for name in ("sm", "tensor", "dram"))
        power = meter.idle_w[:, None] + self.shown["power"] / 1000 * (meter.busy_w - meter.idle_w)[:, None]
        power = power * self.rng.normal(1.0, 0.012, shape)
        clock = self.shown["clock"] / 1000 * meter.clock[:, None] * self.rng.normal(1.0, 0.004, shape)
        warm = 31 + 34 * power / meter.busy_w[:, None] + np.where(self.hot, 19, 0) + self.rng.normal(0, 1, shape)
        busy = self.shown["sm"] > 400
        reasons = np.where(busy & (self.rng.random(shape) < 0.3), AT_THE_CAP, np.where(busy, 0, NOT_BUSY))
        reasons = np.where(self.hot, TOO_HOT, reasons)
        nothing = pa.nulls(int(kept.sum()))
        machines = [machine.uid for machine in meter.night.machines]

        def column(numbers: Any, kind: Any = np.int16) -> pa.Array:
            return pa.array(np.round(np.broadcast_to(numbers, shape)[kept]).astype(kind))

        node = np.broadcast_to(meter.slot_machine[:, None], shape)[kept].astype(np.int32)
        table = pa.table(
            {
                "time_ms": column(times, np.int64),
                "node_uid": pa.DictionaryArray.from_arrays(node, machines),
                "slot_index": column(meter.slot_gpu[:, None]),
                "instance": column(np.full((1, 1), -1)),
                "gpu_util_permille": column(util),
                "sm_active_permille": column(sm),
                "graphics_active_permille": nothing.cast(pa.int16()),
                "tensor_active_permille": column(tensor),
                "dram_active_permille": column(dram),
                "memory_used_mib": column(self.used * meter.memory[:, None], np.int32),
                "power_w": column(power), "energy_j": nothing.cast(pa.int64()),
                "temperature_c": column(warm), "sm_clock_mhz": column(clock),
                "throttle_reasons": column(reasons, np.int64), "xid": nothing.cast(pa.int32()),
            }
        )  # fmt: skip
        # A few rows arrive after their hour, a few twice.
        chance = self.rng.random(table.num_rows)
        late = table.filter(pa.array(chance < 0.002))
        on_time = table.filter(pa.array(chance >= 0.001))
        return on_time, late


def _inside(starts: Integers, ends: Integers, from_ms: int, to_ms: int) -> Numbers:
    """Which part of each window lies between two times."""
    length = np.maximum(ends - starts, 1)
    part: Numbers = np.clip((np.minimum(ends, to_ms) - np.maximum(starts, from_ms)) / length, 0, 1)
    return part
