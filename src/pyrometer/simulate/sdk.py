"""Telemetry of training processes: step windows, checkpoints, evaluations, losses, traced steps, batches, events."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Batch, Event, Span, named_samples
from pyrometer.simulate.gpu_samples import Gpus, memory_share
from pyrometer.simulate.jobs import Activity, Job, JobAttempt, Night
from pyrometer.simulate.rank_steps import Integers, Steps, inside

SAMPLES_PER_STEP, TOKENS_PER_STEP = 8, 32_768


class Counters:
    """The progress of every run from hour to hour."""

    def __init__(self) -> None:
        self.step: dict[tuple[str, int], float] = {}
        self.saved_step: dict[str, int] = {}
        self.flat_step: dict[str, float] = {}
        self.resumed_step: dict[tuple[str, int], int] = {}

    def advance(self, job: Job, attempt: JobAttempt, done: Any) -> Integers:
        """Returns the step number at each window edge. An attempt that resumes starts at the last checkpoint."""
        key = (job.uid, attempt.number)
        if key not in self.step:
            begin = self.saved_step.get(job.uid, job.first_step) if attempt.resumes else job.first_step
            self.step[key] = float(begin)
            if attempt.resumes:
                self.resumed_step[key] = begin
        edges: Integers = np.floor(self.step[key] + np.concatenate([[0.0], np.cumsum(done)])).astype(np.int64)
        self.step[key] += float(done.sum())
        return edges


class _Rows(NamedTuple):
    """Step windows of one attempt: shared values, and one column per window."""

    run: int
    attempt: int
    first_pod: int
    gpus: int
    slots: Integers
    rank: Integers
    of_window: Any
    of_rank: Any


class Sdk:
    """One hour of telemetry of all instrumented attempts."""

    def __init__(
        self, night: Night, gpus: Gpus, counters: Counters, rng: np.random.Generator, from_ms: int, to_ms: int
    ) -> None:
        self.night, self.gpus, self.counters, self.rng = night, gpus, counters, rng
        self.from_ms, self.to_ms = from_ms, to_ms
        self.records: list[tuple[Any, ...]] = []
        self._rows: list[_Rows] = []
        self._metrics: dict[str, list[Any]] = {}
        self._names: dict[str, list[str]] = {"run": [], "pod_uid": []}

    def add_attempt(self, job: Job, attempt: JobAttempt, steps: Steps | None, slots: Integers) -> None:
        """Adds an attempt: its step windows if it is instrumented, and the events of its pods and ranks."""
        if job.instrumented:
            self._names["run"].append(job.uid)
            self._names["pod_uid"] += [job.pod_uid(attempt, pod) for pod in range(job.pods)]
            if steps is not None:
                edges = self.counters.advance(job, attempt, steps.done)
                self._windows(job, attempt, steps, edges, slots)
                self._loss(job, attempt, steps, edges)
                self._traces(job, attempt, steps, edges)
            for activity in attempt.activities:
                if activity.kind in ("checkpoint", "evaluate") and self.from_ms <= activity.from_ms < self.to_ms:
                    self._between(job, attempt, steps, activity, slots)
        self.add_events(job, attempt, steps)

    def windows(self) -> pa.Table | None:
        """Returns the step windows of the hour as one table."""
        if not self._rows:
            return None
        sizes = [len(rows.rank) for rows in self._rows]
        rank = np.concatenate([rows.rank for rows in self._rows])
        slot = np.concatenate([rows.slots[rows.rank] for rows in self._rows])
        machine = self.gpus.machine[slot]
        gpus = np.repeat([rows.gpus for rows in self._rows], sizes)
        columns: dict[str, Any] = {
            name: np.repeat([getattr(rows, name) for rows in self._rows], sizes) for name in ("run", "attempt")
        }
        columns |= {"rank": rank, "node_uid": machine, "slot_index": self.gpus.index[slot]}
        columns["pod_uid"] = np.repeat([rows.first_pod for rows in self._rows], sizes) + rank // gpus
        for names, field in ((_OF_WINDOW, "of_window"), (_OF_RANK, "of_rank")):
            whole = np.concatenate([getattr(rows, field) for rows in self._rows], axis=1)
            columns |= {name: np.round(whole[row]).astype(np.int64) for row, name in enumerate(names)}
        for name in ("time_ms", "to_ms"):
            columns[name] = columns[name] + self.gpus.skew_ms[machine]
        return self._table(columns)

    def _table(self, columns: dict[str, Any]) -> pa.Table:
        names = self._names | {"node_uid": self.gpus.machines}
        size = len(columns["time_ms"])
        arrays = {}
        for column in SCHEMAS["step_window"].column_names:
            if column in names:
                arrays[column] = pa.DictionaryArray.from_arrays(columns[column].astype(np.int32), names[column])
            elif column == "step_lengths":
                arrays[column] = _step_lengths(columns["steps"], columns["step_p50_us"], columns["step_max_us"])
            elif column in _NEVER:
                arrays[column] = pa.array(np.zeros(size, np.int64))
            elif column not in columns:
                arrays[column] = pa.nulls(size, pa.int64())
            else:  # windows without steps have no values about steps
                void = columns["steps"] == 0 if column in _OF_STEPS else None
                arrays[column] = pa.array(columns[column], mask=void)
        return pa.table(arrays)

    def metrics(self) -> pa.Table | None:
        """Returns the losses that rank 0 reports in this hour."""
        if not self._metrics:
            return None
        columns = {name: np.concatenate(parts) for name, parts in self._metrics.items()}
        size = len(columns["time_ms"])
        same = np.zeros(size, np.int32)
        return pa.table(
            {
                "time_ms": columns["time_ms"],
                "run": pa.DictionaryArray.from_arrays(columns["run"].astype(np.int32), self._names["run"]),
                "attempt": columns["attempt"],
                "rank": same,
                "name": pa.DictionaryArray.from_arrays(same, ["loss"]),
                "value": columns["value"],
                "step": columns["step"],
                "goal": pa.DictionaryArray.from_arrays(same, ["min"]),
                "source": pa.DictionaryArray.from_arrays(same, ["backward"]),
                "first_step": columns["first_step"],
                "last_step": columns["step"] - 1,
            }
        )

    def _add(
        self, job: Job, attempt: JobAttempt, slots: Integers, rank: Integers, of_window: Any, of_rank: Any
    ) -> None:
        """Adds rows of an attempt: the rank of each row, and one line of values per column."""
        run, first_pod = len(self._names["run"]) - 1, len(self._names["pod_uid"]) - job.pods
        self._rows.append(_Rows(run, attempt.number, first_pod, job.gpus, slots, rank, of_window, of_rank))

    def _windows(self, job: Job, attempt: JobAttempt, steps: Steps, edges: Integers, slots: Integers) -> None:
        shape = steps.data.shape
        count = np.diff(edges)
        phases = np.stack([steps.data, steps.copy, steps.forward, steps.backward, steps.optimizer])
        phases *= self.rng.normal(1.0, 0.004, phases.shape)
        kept = self.rng.random(shape) > 0.0005  # some are lost in transit
        slowest = steps.step_ms * 1000 * self.rng.uniform(1.02, 1.3, shape[1])
        memory = self.gpus.memory_mib[slots][:, None] * memory_share(attempt, np.arange(job.ranks), steps.ends)
        nothing = np.zeros(shape[1])
        of_window = np.stack(
            [
                steps.starts,
                steps.ends,
                nothing,
                nothing,
                edges[:-1],
                count,
                steps.step_ms * 1000,
                slowest,
                count * SAMPLES_PER_STEP,
                count * TOKENS_PER_STEP,
            ]
        )
        of_rank = np.concatenate([phases, (steps.wait + steps.comm)[None], memory[None]])
        rank, window = np.nonzero(kept)
        self._add(job, attempt, slots, rank, of_window[:, window], of_rank[:, rank, window])

    def _between(self, job: Job, attempt: JobAttempt, steps: Steps | None, activity: Activity, slots: Integers) -> None:
        """Adds a window without steps: a checkpoint or an evaluation."""
        lasted = activity.to_ms - activity.from_ms
        of_window = np.zeros((len(_OF_WINDOW), job.ranks))
        for name, value in (("time_ms", activity.from_ms), ("to_ms", activity.to_ms), (f"{activity.kind}_ms", lasted)):
            of_window[_OF_WINDOW.index(name)] = value
        self._add(job, attempt, slots, np.arange(job.ranks), of_window, np.zeros((len(_OF_RANK), job.ranks)))
        whole = attempt.ended_ms is None or activity.to_ms < attempt.ended_ms
        if activity.kind == "checkpoint" and whole:
            step = self._step_at(job, attempt, steps, activity.from_ms)
            self.counters.saved_step[job.uid] = step
            self.records.append(
                Event(
                    activity.to_ms,
                    "checkpoint_saved",
                    lasted,
                    workload_uid=job.uid,
                    run=job.uid,
                    attempt=attempt.number,
                    rank=0,
                    step=step,
                )
            )

    def _step_at(self, job: Job, attempt: JobAttempt, steps: Steps | None, at_ms: int) -> int:
        """The number of steps that were finished at a time of this hour."""
        now = self.counters.step.get((job.uid, attempt.number), float(job.first_step))
        if steps is None:
            return int(now)
        done = (steps.done * inside(steps.starts, steps.ends, 0, at_ms)).sum()
        return int(now - steps.done.sum() + done + 1e-6)

    def _loss(self, job: Job, attempt: JobAttempt, steps: Steps, edges: Integers) -> None:
        """Adds losses: a power law with noise, until it is flat or NaN."""
        floor, scale, exponent = job.loss
        at = (edges[:-1] + edges[1:]) / 2
        for effect in attempt.effects:
            if effect.kind == "flat":
                before = at[steps.starts < effect.from_ms]
                reached = float(before[-1]) if len(before) else self.counters.flat_step.get(job.uid, float(at[0]))
                self.counters.flat_step[job.uid] = reached
                at = np.where(steps.starts < effect.from_ms, at, reached)
        value = (floor + scale * (at + 50.0) ** -exponent) * self.rng.normal(1.0, 0.012, len(at))
        for effect in attempt.effects:
            if effect.kind == "nan":
                value = np.where((steps.ends > effect.from_ms) & (steps.ends <= effect.to_ms), np.nan, value)
        some = np.diff(edges) > 0
        count = int(some.sum())
        for name, values in (
            ("time_ms", steps.ends[some]),
            ("run", np.full(count, len(self._names["run"]) - 1)),
            ("attempt", np.full(count, attempt.number)),
            ("value", np.round(value[some], 5)),
            ("step", edges[1:][some]),
            ("first_step", edges[:-1][some]),
        ):
            self._metrics.setdefault(name, []).append(values)

    def _traces(self, job: Job, attempt: JobAttempt, steps: Steps, edges: Integers) -> None:
        """Adds complete traces of some steps on every rank, with their data."""
        fresh = np.diff(steps.starts // self.night.trace_every_ms, prepend=-1) > 0
        for window in np.flatnonzero(fresh & (np.diff(edges) > 0)).tolist():
            step, start = int(edges[window]), int(steps.starts[window])
            trace = hashlib.sha256(f"{job.uid} {attempt.number} {step}".encode()).hexdigest()[:32]
            for rank in range(min(job.ranks, self.night.traced_ranks)):
                self._trace(job, attempt, steps, window, rank, step, start, trace)

    def _trace(
        self, job: Job, attempt: JobAttempt, steps: Steps, window: int, rank: int, step: int, start: int, trace: str
    ) -> None:
        parent = f"{trace[:11]}{rank:05x}"
        at_us = 0
        pieces = (
            ("data", steps.data),
            ("copy", steps.copy),
            ("forward", steps.forward),
            ("backward", steps.backward),
            ("sync", steps.wait + steps.comm),
            ("optimizer", steps.optimizer),
        )
        of_rank = (job.uid, attempt.number, rank, step)
        for place, (name, ms) in enumerate(pieces):
            lasted = int(ms[rank, window] * 1000 / steps.done[window])
            span_id = f"{trace[:10]}{rank:05x}{place}"
            begun_ms, after_us = start + at_us // 1000, at_us % 1000
            self.records.append(Span(begun_ms, trace, span_id, name, lasted, *of_rank, parent, after_us=after_us))
            at_us += lasted
        self.records.append(Span(start, trace, parent, "step", at_us, *of_rank, after_us=0))
        first = (step * job.ranks + rank) * SAMPLES_PER_STEP
        samples = named_samples(range(first, first + SAMPLES_PER_STEP))
        self.records.append(
            Batch(
                time_ms=start,
                run=job.uid,
                attempt=attempt.number,
                rank=rank,
                loader=0,
                epoch=0,
                send_index=step,
                micro_batch=0,
                step=step,
                dataset=job.experiment,
                **samples,
            )
        )

    def add_events(self, job: Job, attempt: JobAttempt, steps: Steps | None) -> None:
        """Adds the events of an attempt's pods and ranks in this hour."""
        first_ms = attempt.first_step_ms
        seen_ms = max(first_ms or 0, self.night.from_ms)  # running runs report it again as the night starts
        if job.digest and first_ms is not None and self.from_ms <= seen_ms < self.to_ms:
            self.records.append(
                Event(
                    seen_ms,
                    "configured",
                    workload_uid=job.uid,
                    run=job.uid,
                    attempt=attempt.number,
                    rank=0,
                    reason=job.digest,
                )
            )
        for event in attempt.events:
            if self.from_ms <= event["at_ms"] < self.to_ms:
                self._event(job, attempt, steps, event)

    def _event(self, job: Job, attempt: JobAttempt, steps: Steps | None, event: dict[str, Any]) -> None:
        rank = event.get("rank")
        pod = event["pod"] if rank is None else rank // job.gpus
        step = event.get("step_offset")
        if step is not None:
            step += self._step_at(job, attempt, steps, event["at_ms"])
        self.records.append(
            Event(
                event["at_ms"],
                event["kind"],
                event.get("duration_ms"),
                "simulated",
                attempt.places[pod].machine.uid,
                pod_uid=job.pod_uid(attempt, pod),
                workload_uid=job.uid,
                run=None if rank is None else job.uid,
                attempt=attempt.number,
                rank=rank,
                step=step,
                reason=event.get("reason"),
                message=event.get("message"),
            )
        )


def _step_lengths(steps: Integers, usual_us: Integers, slowest_us: Integers) -> pa.Array:
    """One slow step per window and the others at the median. Null for windows without steps."""
    pairs = np.stack([usual_us, steps - 1, slowest_us, np.ones_like(steps)], axis=1)
    kept = np.repeat(np.stack([steps > 1, steps > 0], axis=1), 2, axis=1)
    ends = np.cumsum(kept.sum(axis=1), dtype=np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    return pa.ListArray.from_arrays(offsets, pairs[kept].astype(np.int64), mask=pa.array(steps == 0))


_OF_STEPS = ("first_step", "step_p50_us", "step_max_us", "samples", "tokens", "memory_peak_mib")
_OF_WINDOW = (
    "time_ms",
    "to_ms",
    "checkpoint_ms",
    "evaluate_ms",
    "first_step",
    "steps",
    "step_p50_us",
    "step_max_us",
    "samples",
    "tokens",
)
_OF_RANK = ("data_ms", "copy_ms", "forward_ms", "backward_ms", "optimizer_ms", "comm_ms", "memory_peak_mib")
_NEVER = ("compile_ms", "garbage_ms")
