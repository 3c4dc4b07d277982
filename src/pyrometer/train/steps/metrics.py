"""Loss and other metrics: what the program logs, and the loss that every backward begins with.

A number on a GPU is copied without waiting and read some steps later. Values that are logged very often are thinned
out. A value that is not finite is reported at once. A program may log the same value to several trackers: a value that
another tracker received under the same name in the same step is dropped.

Every value has two kinds of step numbers: the one that the program or its framework shows, and the training steps that
the value covers. A value that is logged without a step number, and the loss that a framework logs during training,
cover the steps since the same name was last logged: one step if it is logged in every step, and all steps of a mean
that starts again at each log. A value that is equal to the loss of one backward covers only the step of that backward.
Everything else may be about any step, so its steps are unknown.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyrometer.train.steps.gpu_time import CudaTimer

MAX_WAITING_VALUES = 20_000
MAX_NAMES = 500  # a name with a step number in it would be a new metric in every step
MAX_VALUES_PER_S = 50  # of one name
MAX_LOSS_BURST = 500  # of a loss that the program does not log: all losses of a short run, then one per refill
# a loss this many spreads above the usual is reported beyond the rate, up to `MAX_VALUES_PER_S` more
JUMP_SPREADS = 6.0
MIN_VALUES_BEFORE_JUMP = 20
MAX_PENDING_LOSSES = 64  # steps whose loss is being copied from a GPU
_MAX_FLOAT = sys.float_info.max
_NONE = -math.inf  # as the highest unremarkable loss: every loss is looked at
MAX_NAME_CHARACTERS = 200
MAX_OWN_LOSSES = 64  # recent losses of backward, which logged values are compared with
BACKWARD, PROGRAM = "backward", "pyrometer"  # sources: the loss of a backward, and `pyrometer.log`
_GOALS = {
    "min": ("loss", "error", "perplexity", "ppl", "wer", "cer", "mse", "mae", "rmse", "nll", "bpb", "grad_norm"),
    "max": ("acc", "f1", "bleu", "rouge", "auc", "reward", "iou", "precision", "recall", "score", "return"),
}


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_EVALUATION = {"val", "valid", "validation", "eval", "evaluation", "test", "dev", "heldout", "holdout"}

Steps = tuple[int, int]  # the first and the last step, counted in this process


class MetricValue(NamedTuple):
    """One value of a metric."""

    at_ns: int  # UTC
    name: str
    value: float
    number: int  # of the step, in this process
    step: int | None  # as the program numbers steps
    goal: str | None
    source: str
    covers: Steps | None  # None: unknown


class _LogEntry(NamedTuple):
    """Everything about a logged value except the value itself, which may arrive later."""

    name: str
    number: int
    step: int | None
    goal: str | None
    source: str
    covers: Steps | None


class _PendingLoss(NamedTuple):
    """The loss of a step that is being copied from the GPU, one part per micro-batch."""

    number: int
    parts: list[float | None]


class _LossLevel:
    """The running mean and spread of a loss."""

    __slots__ = ("_count", "_spread", "_usual")

    def __init__(self) -> None:
        self._count = 0
        self._usual = self._spread = 0.0

    def jumps(self, value: float, *, allowed: bool = True) -> bool:
        """Whether a finite value is far above the values before it."""
        beyond = value - self._usual
        jumps = allowed and value > self.limit()
        self._count += 1
        weight = max(1 / self._count, 0.02)
        if jumps:
            beyond = JUMP_SPREADS * self._spread  # a single value must not change what is usual
        self._usual += weight * beyond
        self._spread += weight * (abs(beyond) - self._spread)
        return jumps

    def limit(self) -> float:
        """The highest value that is not a jump; infinite while too few values are known."""
        return self._usual + JUMP_SPREADS * self._spread if self._count >= MIN_VALUES_BEFORE_JUMP else math.inf


class Metrics:
    """Collects values on the training thread. The rank's own thread takes them from `waiting`."""

    def __init__(
        self,
        count: Callable[[], int],
        report_finite: Callable[[str, int, float], None],
        trained: Callable[[], Steps | None] | None = None,
    ) -> None:
        self.waiting: deque[MetricValue] = deque(maxlen=MAX_WAITING_VALUES)
        self._count = count
        self._trained = trained or (lambda: (count(), count()))  # the step that this thread trains or has just trained
        self._logged: dict[tuple[str, str], Steps] = {}  # by source and name: the last log and the one before it
        self._backward_losses: deque[tuple[int, float]] = deque(
            maxlen=MAX_OWN_LOSSES
        )  # steps and their losses of backward
        self._report_finite = report_finite  # called when the loss becomes non-finite, or finite again
        self._finite = True
        self._logged_loss = False
        self._parts: list[float] = []
        self._pending: deque[_PendingLoss] = deque(maxlen=MAX_PENDING_LOSSES)
        self._copy_decided_for = -1  # the step for which it was decided whether its loss is copied
        self._allowed = MAX_LOSS_BURST
        self._max_unremarkable = _NONE  # a loss up to this value needs no look
        self._loss_level = _LossLevel()  # of the loss of backward
        self._logged_loss_levels: dict[str, _LossLevel] = {}  # of logged losses
        self._goals: dict[str, str | None] = {}
        # by name: the current second, the values in it, and how many of them jumped
        self._rates: dict[str, tuple[int, int, int]] = {}
        self.steps: deque[tuple[int, int]] = deque(maxlen=8)  # our step number and the program's
        self._last_values: dict[str, tuple[str, int, float]] = {}  # by name: source, step and value of the newest log

    def log(
        self,
        values: Mapping[str, Any],
        *,
        step: int | None = None,
        goals: Mapping[str, str] | None = None,
        device: CudaTimer | None = None,
        source: str = PROGRAM,
        of_training: bool | None = None,
    ) -> None:
        """Records values that the program logs to a source: numbers, or tensors with one number each.

        `of_training` says whether the values are about the steps that were just trained. By default they are, unless
        the program gives a step number of its own.
        """
        trained = self._trained()
        count = self._count() if trained is None else trained[1]
        if step is not None:
            self.steps.append((count, step))
        if of_training is None:
            of_training = step is None
        for key, value in values.items():
            name = str(key)[:MAX_NAME_CHARACTERS]
            covers = self._since_last_log(source, name, trained) if of_training and trained is not None else None
            self._log_value(
                _LogEntry(name, count, step, goals.get(key) if goals else None, source, covers), value, device
            )

    def _since_last_log(self, source: str, name: str, trained: Steps) -> Steps | None:
        """The steps after the last one in which this name was logged. A log in the same step covers the same steps."""
        first, last = trained
        known = self._logged.get((source, name))
        if known is None and (len(self._logged) >= MAX_NAMES or not _EVALUATION.isdisjoint(_words(name))):
            return None
        before, newest = known or (-1, -1)
        if first > newest:
            before, newest = newest, first
            self._logged[source, name] = (before, newest)
        return min(before + 1, first), last

    def _log_value(self, entry: _LogEntry, value: Any, device: CudaTimer | None) -> None:
        if isinstance(value, bool | str | bytes) or value is None:
            return
        if isinstance(value, int | float):
            self._add(entry, float(value))
        elif hasattr(value, "detach"):
            if value.numel() != 1:
                return
            if value.device.type == "cpu":
                self._add(entry, float(value.detach()))
            elif device is not None and value.is_cuda:
                device.copy(value.detach(), lambda number: self._add(entry, number))
        elif hasattr(value, "item") and getattr(value, "size", 1) == 1:  # numbers of NumPy
            self._add(entry, float(value.item()))

    def _add(self, entry: _LogEntry, value: float) -> None:
        now_ns = time.time_ns()
        name, count = entry.name, entry.number
        finite = math.isfinite(value)
        is_loss = _is_training_loss(name)
        if is_loss:
            self._logged_loss = True
            self._check_finite(finite, count, value)
        second, seen, jumped = self._rates.get(name, (0, 0, 0))
        this_second = now_ns // 1_000_000_000
        seen, jumped = (seen + 1, jumped) if second == this_second else (1, 0)
        if name not in self._rates and len(self._rates) >= MAX_NAMES:
            return
        jumps = (
            is_loss
            and finite
            and self._logged_loss_levels.setdefault(name, _LossLevel()).jumps(value, allowed=jumped < MAX_VALUES_PER_S)
        )
        self._rates[name] = (this_second, seen, jumped + jumps)
        if self._is_news(entry, value) and (seen <= MAX_VALUES_PER_S or jumps or not finite):
            goal = entry.goal or self._goal(name)
            self.waiting.append(
                MetricValue(
                    now_ns, name, value, count, entry.step, goal, entry.source, self._steps_covered(entry, value)
                )
            )

    def _steps_covered(self, entry: _LogEntry, value: float) -> Steps | None:
        """The steps that a value covers: a single one if the value is the loss of that step's backward. A program that
        logs the loss of the previous step does so in the first of these steps, or after it."""
        if entry.covers is None or not _is_training_loss(entry.name):
            return entry.covers
        first, last = entry.covers
        losses = [(step, loss) for step, loss in self._backward_losses if first - 1 <= step <= last]
        if self._parts and first - 1 <= self._count() <= last:
            losses.append((self._count(), _sum(self._parts)))
        if math.isfinite(value):
            step = next((step for step, loss in reversed(losses) if loss == value), None)
        else:
            step = _first_nonfinite(losses, first)
        return entry.covers if step is None else (step, step)

    def _is_news(self, entry: _LogEntry, value: float) -> bool:
        source, number, before = self._last_values.get(entry.name, ("", -1, 0.0))
        same = number == entry.number and (value == before or (value != value and before != before))
        if same and source != entry.source:
            return False
        self._last_values[entry.name] = (entry.source, entry.number, value)
        return True

    def logged_by_another_rank(self, names: Iterable[str]) -> None:
        """Another rank logs these values for all ranks, so this rank does not report its own part of the loss."""
        self._logged_loss = self._logged_loss or any(map(_is_training_loss, names))

    def backward(self, tensor: Any, device: CudaTimer | None) -> None:
        """A backward begins with this loss. The losses of all micro-batches of a step are added."""
        if tensor.is_cpu:
            self._parts.append(tensor.item())
        elif device is not None and tensor.is_cuda:
            self._copy_from_gpu(tensor.detach(), device)

    def step_closed(self, count: int) -> None:
        """A step is closed. Nearly all losses are neither wanted nor remarkable, which this detects quickly."""
        parts = self._parts
        if parts:
            loss = parts[0] if len(parts) == 1 else _sum(parts)
            parts.clear()
            if self._logged_loss:
                self._backward_losses.append((count, loss))
            if self._allowed > 0 or not -_MAX_FLOAT <= loss <= self._max_unremarkable:
                self._loss(loss, count)
        elif self._pending:
            self._read_pending(count)

    def refill(self) -> None:
        """Allows one more loss to be reported. Called about once per second."""
        if self._allowed < MAX_LOSS_BURST:
            self._allowed += 1

    def finish(self, device: CudaTimer | None) -> None:
        """The program has ended: reads the values that the GPU has written by now."""
        if device is not None:
            device.read_copies()
            self._read_pending(self._count() + 1)

    def _copy_from_gpu(self, tensor: Any, device: CudaTimer) -> None:
        count = self._count()
        if count != self._copy_decided_for:  # decided at the first micro-batch of a step, for all of its micro-batches
            self._copy_decided_for = count
            if not device.may_copy():
                return
            self._pending.append(_PendingLoss(count, []))
        last = self._pending[-1] if self._pending else None
        if last is None or last.number != count:
            return
        parts, place = last.parts, len(last.parts)
        parts.append(None)
        device.copy(tensor, lambda number: parts.__setitem__(place, number))

    def _read_pending(self, count: int) -> None:
        """Reads the losses of steps up to this one that are complete."""
        while self._pending and self._pending[0].number <= count:
            number, parts = self._pending[0]
            there = [part for part in parts if part is not None]
            if len(there) < len(parts) and len(self._pending) < MAX_PENDING_LOSSES:
                return
            self._pending.popleft()
            if len(there) == len(parts):
                loss = _sum(there)
                if self._logged_loss:
                    self._backward_losses.append((number, loss))
                self._loss(loss, number)

    def _loss(self, loss: float, count: int) -> None:
        finite = math.isfinite(loss)
        turned = finite != self._finite
        if turned:
            self._check_finite(finite, count, loss)
        if self._logged_loss:
            self._allowed = 0
            self._max_unremarkable = _MAX_FLOAT if finite else _NONE
            return
        jumps = finite and self._loss_level.jumps(loss, allowed=self._allowed > -MAX_VALUES_PER_S)
        if jumps or turned or self._allowed > 0:
            self._allowed = max(self._allowed - 1, -MAX_VALUES_PER_S)
            self.waiting.append(MetricValue(time.time_ns(), "loss", loss, count, None, "min", BACKWARD, (count, count)))
        limit = self._loss_level.limit()
        self._max_unremarkable = limit if finite and limit < math.inf else _NONE

    def _check_finite(self, finite: bool, count: int, value: float) -> None:
        if finite != self._finite:
            self._finite = finite
            self._report_finite("finite_loss" if finite else "nonfinite_loss", count, value)

    def _goal(self, name: str) -> str | None:
        """Whether lower or higher values are better, if the name tells."""
        if name not in self._goals:
            lower = name.lower()
            found = [goal for goal, words in _GOALS.items() if any(word in lower for word in words)]
            self._goals[name] = found[0] if found else None
        return self._goals[name]


def _is_training_loss(name: str) -> bool:
    lower = name.lower()
    return "loss" in lower and not any(word in lower for word in ("val", "test"))  # which includes "eval"


def _first_nonfinite(losses: list[tuple[int, float]], first: int) -> int | None:
    """The step that made a value from `first` on infinite or NaN; None if the losses before it are not all known."""
    expected = first
    for step, loss in losses:
        if step > expected:
            return None
        if not math.isfinite(loss):
            return step
        expected = step + 1
    return None


def _sum(parts: list[float]) -> float:
    try:
        return math.fsum(parts)
    except (ValueError, OverflowError):  # infinities of both signs, or too large
        return sum(parts)


def _words(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}
