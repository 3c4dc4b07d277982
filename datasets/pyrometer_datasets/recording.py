"""Recordings of one GPU.

A recording is `NAME-gpu.csv` (NVML and GPM), `NAME-steps.csv` (every step) and `NAME-truth.json` (what was done).

The truth replaces the sources that were not recorded: Kubernetes (when the GPU was allocated) and, with steps, the
lifecycle that the SDK observes (start, checkpoint, evaluation, end of the loop). Faults are never taken from it:
a hang, a stall, a divergence or lost work must follow from the steps and the samples.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pyrometer.collect.source import Delivery, SourceError, error_text
from pyrometer.model import events, records
from pyrometer.model.records import Allocation, Event, GpuSample, Metric, Pod, Run, Slot, StepWindow, Workload
from pyrometer.model.units import SHARE_WHOLE

Row = TypeVar("Row")

WINDOW_MS = 10_000
BLANK = 2.0**62  # NVML and DCGM write numbers beyond this for "no value"
PAUSE_MS = 1_000  # between steps; longer ends a window

# What a recording is scored with: its faults last seconds, not hours.
SETTINGS = {"hang_limit_ms": 5_000, "finding_min_ms": 5_000, "finding_min_usd_micro": 0}


class RecordedStep(NamedTuple):
    """One row of the steps file, in milliseconds."""

    step: int
    from_ms: int
    to_ms: int
    data_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    loss: float
    samples: int


class Interval(NamedTuple):
    """One interval of the truth file."""

    state: str
    from_ms: int
    to_ms: int
    resumed_step: int | None = None  # of a start from a checkpoint


class Recordings:
    """A folder of recordings; each becomes one slot, one pod, one run."""

    def __init__(self, path: Path, *, with_steps: bool = True) -> None:
        self.path = path
        self.with_steps = with_steps
        self.counts: Counter[str] = Counter()

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """One delivery a recording."""
        found = sorted(self.path.glob("*-gpu.csv"))
        if not found:
            raise SourceError(f"{self.path} has no *-gpu.csv: name a folder of recordings.")
        for number, path in enumerate(found, 1):
            name = path.name.removesuffix("-gpu.csv")
            try:
                records = list(self._records(name))
            except (
                AttributeError,
                LookupError,
                TypeError,
                ArithmeticError,
                RecursionError,
                ValueError,
                OSError,
                csv.Error,
            ) as error:
                raise SourceError(f"Recording {name!r} in {self.path} cannot be read: {error_text(error)}.") from None
            yield Delivery(records, number / len(found))

    def _records(self, name: str) -> Iterator[tuple[Any, ...]]:
        recorded = _Recorded(name, _truth(self.path, name).get("gpu"), intervals_of(self.path, name))
        samples = list(_rows(self.path / f"{name}-gpu.csv", partial(_sample, recorded.node_uid)))
        self.counts["GPU samples"] += len(samples)
        yield from recorded.objects()
        yield from samples
        if self.with_steps:
            steps = steps_of(self.path, name)
            self.counts["steps"] += len(steps)
            yield from recorded.training(steps)


def intervals_of(path: Path, name: str) -> list[Interval]:
    """The intervals of the truth file, with their own state names."""
    return [
        Interval(i["state"], _ms(i["start"]), _ms(i["end"]), i.get("resumed_step"))
        for i in _truth(path, name)["intervals"]
    ]


def steps_of(path: Path, name: str) -> list[RecordedStep]:
    """Every step."""
    return list(_rows(path / f"{name}-steps.csv", _step))


def _truth(path: Path, name: str) -> dict[str, Any]:
    truth: dict[str, Any] = json.loads((path / f"{name}-truth.json").read_text(encoding="utf-8"))
    return truth


class _Recorded:
    """One recording: what it says, in our records."""

    def __init__(self, name: str, gpu_model: str | None, intervals: list[Interval]) -> None:
        self.name = name
        self.gpu_model = gpu_model
        self.intervals = intervals
        self.node_uid = f"recording-{name}"
        self.run = f"recording-{name}"
        if all(interval.state == "free" for interval in intervals):
            raise ValueError("its truth has no interval in which the GPU was held")
        self.from_ms, self.to_ms = intervals[0].from_ms, intervals[-1].to_ms

    def objects(self) -> Iterator[tuple[Any, ...]]:
        """The slot, and the pod that holds it whenever it is not free."""
        uid = self.node_uid
        held = [i for i in self.intervals if i.state != "free"]
        yield Slot(
            time_ms=self.to_ms,
            node_uid=uid,
            slot_index=0,
            gpu_model=self.gpu_model,
            from_ms=self.from_ms,
            to_ms=self.to_ms,
        )
        yield Workload(
            time_ms=self.to_ms,
            cluster="recording",
            workload_uid=uid,
            kind="Recording",
            namespace="recording",
            name=uid,
            experiment=self.name,
            experiment_rule="recording",
            team="recording",
            team_rule="recording",
        )
        yield Pod(
            time_ms=self.to_ms,
            cluster="recording",
            pod_uid=uid,
            namespace="recording",
            name=uid,
            phase="Running",
            workload_uid=uid,
            node_uid=uid,
            scheduled_ms=held[0].from_ms,
            started_ms=held[0].from_ms,
            ended_ms=self.to_ms,
            gpu_share=SHARE_WHOLE,
        )
        for from_ms, to_ms in _joined((i.from_ms, i.to_ms) for i in held):
            yield Allocation(
                time_ms=self.to_ms,
                pod_uid=uid,
                node_uid=uid,
                slot_index=0,
                from_ms=from_ms,
                to_ms=to_ms,
                share=SHARE_WHOLE,
                source="recording",
            )

    def training(self, steps: list[RecordedStep]) -> Iterator[tuple[Any, ...]]:
        """The records that the SDK would have sent: attempts, windows, events between steps, loss."""
        attempts = _attempts(steps)
        starts = [self._started_ms(attempt[0]) for attempt in attempts]
        for number, attempt in enumerate(attempts, 1):
            ended_ms = starts[number] if number < len(attempts) else None
            yield self._run(number, starts[number - 1], attempt, ended_ms)
            windows = [*self._step_windows(number, attempt), *self._other_windows(number, starts[number - 1], ended_ms)]
            windows = _touching(sorted(windows, key=lambda window: window.time_ms))
            yield from windows
            yield from self._pauses(number, windows, ended_ms or self.to_ms)
            yield from self._losses(number, attempt)

    def _started_ms(self, first: RecordedStep) -> int:
        startup = [i.from_ms for i in self.intervals if i.state == "startup" and i.from_ms <= first.from_ms]
        return max(startup, default=first.from_ms)

    def _run(self, attempt: int, started_ms: int, steps: list[RecordedStep], ended_ms: int | None) -> Run:
        return Run(
            time_ms=self.to_ms,
            run=self.run,
            attempt=attempt,
            rank=0,
            started_ms=started_ms,
            experiment=self.name,
            workload_uid=self.node_uid,
            pod_uid=self.node_uid,
            node_uid=self.node_uid,
            slot_index=0,
            first_step_ms=_first_step_ms(steps),
            ended_ms=ended_ms,
            outcome="killed" if ended_ms else None,
            resumed_step=steps[0].step if attempt > 1 else None,
        )

    def _window(self, attempt: int, from_ms: int, to_ms: int, **amounts: Any) -> StepWindow:
        return StepWindow(
            time_ms=from_ms,
            to_ms=to_ms,
            run=self.run,
            attempt=attempt,
            rank=0,
            node_uid=self.node_uid,
            slot_index=0,
            pod_uid=self.node_uid,
            **amounts,
        )

    def _step_windows(self, attempt: int, steps: list[RecordedStep]) -> Iterator[StepWindow]:
        for group in _groups(steps[1:]):  # the first step belongs to startup
            took_us = sorted((step.to_ms - step.from_ms) * 1000 for step in group)
            yield self._window(
                attempt,
                group[0].from_ms,
                group[-1].to_ms,
                first_step=group[0].step,
                steps=len(group),
                data_ms=_sum_ms(s.data_s for s in group),
                forward_ms=_sum_ms(s.forward_s for s in group),
                backward_ms=_sum_ms(s.backward_s for s in group),
                optimizer_ms=_sum_ms(s.optimizer_s for s in group),
                step_p50_us=took_us[len(took_us) // 2],
                step_max_us=took_us[-1],
                samples=sum(s.samples for s in group),
                step_lengths=records.step_lengths(took_us),
            )

    def _other_windows(self, attempt: int, started_ms: int, ended_ms: int | None) -> Iterator[StepWindow]:
        for interval in self.intervals:
            if interval.from_ms >= started_ms and (ended_ms is None or interval.to_ms <= ended_ms):
                length_ms = interval.to_ms - interval.from_ms
                if interval.state == "checkpoint":
                    yield self._window(attempt, interval.from_ms, interval.to_ms, checkpoint_ms=length_ms)
                if interval.state == "evaluate":
                    yield self._window(attempt, interval.from_ms, interval.to_ms, evaluate_ms=length_ms)

    def _pauses(self, attempt: int, windows: list[StepWindow], until_ms: int) -> Iterator[Event]:
        """No window for a while: the program left its loop by itself, or it is stuck."""
        ends = [*(window.time_ms for window in windows[1:]), until_ms]
        for window, next_ms in zip(windows, ends, strict=True):
            if next_ms - window.to_ms < PAUSE_MS:
                continue
            left = any(
                i.state == "idle_held" and i.from_ms < next_ms and i.to_ms > window.to_ms for i in self.intervals
            )
            opens, closes = (events.LOOP_ENDED, events.LOOP_RESUMED) if left else (events.STUCK, events.UNSTUCK)
            last_step = None if window.first_step is None else window.first_step + window.steps - 1
            about = {"run": self.run, "attempt": attempt, "rank": 0, "step": last_step}
            yield Event(time_ms=window.to_ms, kind=opens, **about)  # type: ignore[arg-type]
            if next_ms < until_ms:
                yield Event(time_ms=next_ms, kind=closes, **about)  # type: ignore[arg-type]

    def _losses(self, attempt: int, steps: list[RecordedStep]) -> Iterator[tuple[Any, ...]]:
        finite = True
        for step in steps:
            yield Metric(
                time_ms=step.to_ms,
                run=self.run,
                attempt=attempt,
                rank=0,
                name="loss",
                value=step.loss,
                step=step.step,
                goal="min",
            )
            if math.isfinite(step.loss) != finite:
                finite = not finite
                kind = events.FINITE_LOSS if finite else events.NONFINITE_LOSS
                yield Event(time_ms=step.from_ms, kind=kind, run=self.run, attempt=attempt, rank=0, step=step.step)


def _attempts(steps: list[RecordedStep]) -> list[list[RecordedStep]]:
    """A step number that does not grow begins another attempt."""
    attempts: list[list[RecordedStep]] = []
    for step in steps:
        if not attempts or step.step <= attempts[-1][-1].step:
            attempts.append([])
        attempts[-1].append(step)
    return attempts


def _groups(steps: list[RecordedStep]) -> Iterator[list[RecordedStep]]:
    """Consecutive steps without a pause, some ten seconds of them."""
    group: list[RecordedStep] = []
    for step in steps:
        if group and (step.from_ms - group[-1].to_ms > PAUSE_MS or step.to_ms - group[0].from_ms > WINDOW_MS):
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def _first_step_ms(steps: list[RecordedStep]) -> int:
    """The end of startup: the first step, or the point where the second step follows it."""
    follows = len(steps) > 1 and steps[1].from_ms - steps[0].to_ms < PAUSE_MS
    return steps[1].from_ms if follows else steps[0].to_ms


def _touching(windows: list[StepWindow]) -> list[StepWindow]:
    """Windows without the milliseconds between them, where one follows the other."""
    ends = [*(window.time_ms for window in windows[1:]), windows[-1].to_ms]
    return [
        window._replace(to_ms=next_ms) if 0 <= next_ms - window.to_ms < PAUSE_MS else window
        for window, next_ms in zip(windows, ends, strict=True)
    ]


def _joined(intervals: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    current: tuple[int, int] | None = None
    for from_ms, to_ms in intervals:
        if current and from_ms - current[1] <= PAUSE_MS:
            current = (current[0], to_ms)
        else:
            if current:
                yield current
            current = (from_ms, to_ms)
    if current:
        yield current


def _step(row: dict[str, str]) -> RecordedStep:
    return RecordedStep(
        int(row["step"]),
        _ms(row["start"]),
        _ms(row["end"]),
        float(row["data_s"]),
        float(row["forward_s"]),
        float(row["backward_s"]),
        float(row["optimizer_s"]),
        float(row["loss"]),
        int(row["batch_size"]),
    )


def _sample(node_uid: str, row: dict[str, str]) -> GpuSample:
    return GpuSample(
        time_ms=_ms(row["time"]),
        node_uid=node_uid,
        slot_index=0,
        gpu_util_permille=_scaled(row["gpu_util"], 10),
        sm_active_permille=_scaled(row["sm_active"], 10),
        graphics_active_permille=_scaled(row["graphics_active"], 10),
        tensor_active_permille=_scaled(row["tensor_active"], 10),
        dram_active_permille=_scaled(row["dram_active"], 10),
        memory_used_mib=_scaled(row["fb_used_bytes"], 1 / 2**20),
        power_w=_scaled(row["power_w"]),
        energy_j=_scaled(row["energy_mj"], 1 / 1000),
        temperature_c=_scaled(row["temp_c"]),
        sm_clock_mhz=_scaled(row["sm_clock_mhz"]),
        throttle_reasons=_scaled(row["throttle_reasons"]),
    )


def _rows(path: Path, convert: Callable[[dict[str, str]], Row]) -> Iterator[Row]:
    """The rows of a CSV file; an error names the file and the line."""
    try:
        stream = path.open(newline="", encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}.") from None
    with stream:
        reader = csv.DictReader(stream)
        try:
            for row in reader:
                if None in row.values():
                    raise ValueError("it has fewer values than the file has columns")
                yield convert(row)
        except KeyError as error:
            raise SourceError(f"{path} has no column {error}: is it the right file?") from None
        except (ValueError, OverflowError, csv.Error) as error:
            raise SourceError(f"{path}, line {max(reader.line_num, 1)}: {error_text(error)}.") from None


def _ms(seconds: str | float) -> int:
    return round(float(seconds) * 1000)


def _sum_ms(seconds: Iterator[float]) -> int:
    return round(sum(seconds) * 1000)


def _scaled(text: str, factor: float = 1) -> int | None:
    """A measurement as a whole number; NVML's ways to say that it has none (blank, NaN, 2^63) are absent values."""
    if not text.strip() or text.strip().upper() in ("N/A", "[N/A]"):
        return None
    value = float(text)
    return round(value * factor) if math.isfinite(value) and abs(value) < BLANK else None
