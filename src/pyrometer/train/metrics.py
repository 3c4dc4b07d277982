"""Loss and other metrics: what the program logs, and the loss that every backward begins with.

A number that is on a GPU is copied without waiting and read some steps later. Values that come faster than anybody
looks are thinned; one that is not finite is told at once. A program that tells several trackers the same says it once:
what has the name and the value of what another tracker was told in the same step is dropped.

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
    from pyrometer.train.device import Device

MOST_WAITING = 20_000
MOST_NAMES = 500  # a name with a number in it for every step would be a metric each
MOST_PER_S = 50  # values of one name
LOSSES_AT_ONCE = 500  # of the loss that nobody logged: all those of a short run, then one for every refill
JUMP = 6.0  # spreads above the usual: such a loss is reported beyond the pace, up to `MOST_PER_S` more
LEAST_BEFORE_JUMP = 20
MOST_ARRIVING = 64  # steps whose loss is on its way from a GPU
_GREATEST = sys.float_info.max
_NONE = -math.inf  # as the highest loss that needs no look: all do
LONGEST_NAME = 200
MAX_OWN_LOSSES = 64  # recent losses of backward that logged values are compared with
BACKWARD, PROGRAM = "backward", "pyrometer"  # sources: the loss of a backward, and `pyrometer.log`
_GOALS = {
    "min": ("loss", "error", "perplexity", "ppl", "wer", "cer", "mse", "mae", "rmse", "nll", "bpb", "grad_norm"),
    "max": ("acc", "f1", "bleu", "rouge", "auc", "reward", "iou", "precision", "recall", "score", "return"),
}


_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_EVALUATION = {"val", "valid", "validation", "eval", "evaluation", "test", "dev", "heldout", "holdout"}

Steps = tuple[int, int]  # the first and the last one, counted in this process


class Value(NamedTuple):
    """One value of a metric."""

    at_ns: int  # UTC
    name: str
    value: float
    number: int  # of the step, in this process
    step: int | None  # as the program numbers them
    goal: str | None
    source: str
    covers: Steps | None  # None: unknown


class _Said(NamedTuple):
    """Who says how much of what, and when: all but the value, which may come later."""

    name: str
    number: int
    step: int | None
    goal: str | None
    door: str
    covers: Steps | None


class _Arriving(NamedTuple):
    """The loss of a step that is on its way from the GPU, in as many parts as there are micro-batches."""

    number: int
    parts: list[float | None]


class _Level:
    """What the values of a loss usually are, and how far they spread, as they go."""

    __slots__ = ("_count", "_spread", "_usual")

    def __init__(self) -> None:
        self._count = 0
        self._usual = self._spread = 0.0

    def jumps(self, value: float, *, allowed: bool = True) -> bool:
        """Whether a finite value is far above those before it."""
        beyond = value - self._usual
        jumps = allowed and value > self.limit()
        self._count += 1
        weight = max(1 / self._count, 0.02)
        if jumps:
            beyond = JUMP * self._spread  # one loss is not to make others usual
        self._usual += weight * beyond
        self._spread += weight * (abs(beyond) - self._spread)
        return jumps

    def limit(self) -> float:
        """The highest value that does not jump; infinite while too few values are known."""
        return self._usual + JUMP * self._spread if self._count >= LEAST_BEFORE_JUMP else math.inf


class Metrics:
    """What the training thread hands over, and the sender's thread takes."""

    def __init__(
        self,
        count: Callable[[], int],
        told: Callable[[str, int, float], None],
        trained: Callable[[], Steps | None] | None = None,
    ) -> None:
        self.waiting: deque[Value] = deque(maxlen=MOST_WAITING)
        self._count = count
        self._trained = trained or (lambda: (count(), count()))  # the step that this thread trains or has just trained
        self._logged: dict[tuple[str, str], Steps] = {}  # by source and name: the last log and the one before it
        self._own: deque[tuple[int, float]] = deque(maxlen=MAX_OWN_LOSSES)  # steps and their losses of backward
        self._told = told  # the loss became non-finite, or finite again
        self._finite = True
        self._logged_loss = False
        self._parts: list[float] = []
        self._arriving: deque[_Arriving] = deque(maxlen=MOST_ARRIVING)
        self._fetching = -1  # the step for which that was decided last
        self._allowed = LOSSES_AT_ONCE
        self._unremarkable = _NONE  # a loss up to this needs no look
        self._level = _Level()  # of the loss of backward
        self._levels: dict[str, _Level] = {}  # of logged losses
        self._goals: dict[str, str | None] = {}
        self._paces: dict[str, tuple[int, int, int]] = {}  # in which second, how many, and how many of them jumped
        self.steps: deque[tuple[int, int]] = deque(maxlen=8)  # the program's numbers beside ours
        self._told_by: dict[str, tuple[str, int, float]] = {}  # who said it last, in which step, and what

    def log(
        self,
        values: Mapping[str, Any],
        *,
        step: int | None = None,
        goals: Mapping[str, str] | None = None,
        device: Device | None = None,
        door: str = PROGRAM,
        of_training: bool | None = None,
    ) -> None:
        """What the program logs, and to whom: numbers, or tensors with one number each.

        `of_training` says whether the values are about the steps that were just trained. By default they are unless
        the program gives a step number of its own.
        """
        trained = self._trained()
        count = self._count() if trained is None else trained[1]
        if step is not None:
            self.steps.append((count, step))
        if of_training is None:
            of_training = step is None
        for key, value in values.items():
            name = str(key)[:LONGEST_NAME]
            covers = self._since_last_log(door, name, trained) if of_training and trained is not None else None
            self._take(_Said(name, count, step, goals.get(key) if goals else None, door, covers), value, device)

    def _since_last_log(self, door: str, name: str, trained: Steps) -> Steps | None:
        """The steps after the last one in which this name was logged. A log in the same step covers the same steps."""
        first, last = trained
        known = self._logged.get((door, name))
        if known is None and (len(self._logged) >= MOST_NAMES or not _EVALUATION.isdisjoint(_words(name))):
            return None
        before, newest = known or (-1, -1)
        if first > newest:
            before, newest = newest, first
            self._logged[door, name] = (before, newest)
        return min(before + 1, first), last

    def _take(self, said: _Said, value: Any, device: Device | None) -> None:
        if isinstance(value, bool | str | bytes) or value is None:
            return
        if isinstance(value, int | float):
            self._add(said, float(value))
        elif hasattr(value, "detach"):
            if value.numel() != 1:
                return
            if value.device.type == "cpu":
                self._add(said, float(value.detach()))
            elif device is not None and value.is_cuda:
                device.copy(value.detach(), lambda number: self._add(said, number))
        elif hasattr(value, "item") and getattr(value, "size", 1) == 1:  # numpy's numbers
            self._add(said, float(value.item()))

    def _add(self, said: _Said, value: float) -> None:
        now_ns = time.time_ns()
        name, count = said.name, said.number
        finite = math.isfinite(value)
        is_loss = _is_training_loss(name)
        if is_loss:
            self._logged_loss = True
            self._judge(finite, count, value)
        second, seen, jumped = self._paces.get(name, (0, 0, 0))
        this_second = now_ns // 1_000_000_000
        seen, jumped = (seen + 1, jumped) if second == this_second else (1, 0)
        if name not in self._paces and len(self._paces) >= MOST_NAMES:
            return
        jumps = is_loss and finite and self._levels.setdefault(name, _Level()).jumps(value, allowed=jumped < MOST_PER_S)
        self._paces[name] = (this_second, seen, jumped + jumps)
        if self._is_news(said, value) and (seen <= MOST_PER_S or jumps or not finite):
            goal = said.goal or self._goal(name)
            self.waiting.append(Value(now_ns, name, value, count, said.step, goal, said.door, self._exact(said, value)))

    def _exact(self, said: _Said, value: float) -> Steps | None:
        """The steps that a value covers: only one if it is the loss that a backward of that step began with. A program
        that logs the loss of the step before does so in the first of these, or after it."""
        if said.covers is None or not _is_training_loss(said.name):
            return said.covers
        first, last = said.covers
        own = [(step, loss) for step, loss in self._own if first - 1 <= step <= last]
        if self._parts and first - 1 <= self._count() <= last:
            own.append((self._count(), _sum(self._parts)))
        if math.isfinite(value):
            step = next((step for step, loss in reversed(own) if loss == value), None)
        else:
            step = _first_nonfinite(own, first)
        return said.covers if step is None else (step, step)

    def _is_news(self, said: _Said, value: float) -> bool:
        door, number, before = self._told_by.get(said.name, ("", -1, 0.0))
        same = number == said.number and (value == before or (value != value and before != before))
        if same and door != said.door:
            return False
        self._told_by[said.name] = (said.door, said.number, value)
        return True

    def told_elsewhere(self, names: Iterable[str]) -> None:
        """Another rank tells these for all: then this one has nothing to say of its own part of the loss."""
        self._logged_loss = self._logged_loss or any(map(_is_training_loss, names))

    def backward(self, tensor: Any, device: Device | None) -> None:
        """A backward begins with this loss. The parts of one step are summed: micro-batches divide it among them."""
        if tensor.is_cpu:
            self._parts.append(tensor.item())
        elif device is not None and tensor.is_cuda:
            self._fetch(tensor.detach(), device)

    def closed(self, count: int) -> None:
        """A step is over. Almost all losses are neither wanted nor remarkable, and that is seen at once."""
        parts = self._parts
        if parts:
            loss = parts[0] if len(parts) == 1 else _sum(parts)
            parts.clear()
            if self._logged_loss:
                self._own.append((count, loss))
            if self._allowed > 0 or not -_GREATEST <= loss <= self._unremarkable:
                self._loss(loss, count)
        elif self._arriving:
            self._arrived(count)

    def refill(self) -> None:
        """Another loss may be told: called about once a second."""
        if self._allowed < LOSSES_AT_ONCE:
            self._allowed += 1

    def finish(self, device: Device | None) -> None:
        """There is no more to come, but for what a GPU has written by now."""
        if device is not None:
            device.read_copies()
            self._arrived(self._count() + 1)

    def _fetch(self, tensor: Any, device: Device) -> None:
        count = self._count()
        if count != self._fetching:  # decided with the first micro-batch of a step, for all of them
            self._fetching = count
            if not device.may_copy():
                return
            self._arriving.append(_Arriving(count, []))
        last = self._arriving[-1] if self._arriving else None
        if last is None or last.number != count:
            return
        parts, place = last.parts, len(last.parts)
        parts.append(None)
        device.copy(tensor, lambda number: parts.__setitem__(place, number))

    def _arrived(self, count: int) -> None:
        """Takes the losses of steps up to this one, as far as they are complete."""
        while self._arriving and self._arriving[0].number <= count:
            number, parts = self._arriving[0]
            there = [part for part in parts if part is not None]
            if len(there) < len(parts) and len(self._arriving) < MOST_ARRIVING:
                return
            self._arriving.popleft()
            if len(there) == len(parts):
                loss = _sum(there)
                if self._logged_loss:
                    self._own.append((number, loss))
                self._loss(loss, number)

    def _loss(self, loss: float, count: int) -> None:
        finite = math.isfinite(loss)
        turned = finite != self._finite
        if turned:
            self._judge(finite, count, loss)
        if self._logged_loss:
            self._allowed = 0
            self._unremarkable = _GREATEST if finite else _NONE
            return
        jumps = finite and self._level.jumps(loss, allowed=self._allowed > -MOST_PER_S)
        if jumps or turned or self._allowed > 0:
            self._allowed = max(self._allowed - 1, -MOST_PER_S)
            self.waiting.append(Value(time.time_ns(), "loss", loss, count, None, "min", BACKWARD, (count, count)))
        limit = self._level.limit()
        self._unremarkable = limit if finite and limit < math.inf else _NONE

    def _judge(self, finite: bool, count: int, value: float) -> None:
        if finite != self._finite:
            self._finite = finite
            self._told("finite_loss" if finite else "nonfinite_loss", count, value)

    def _goal(self, name: str) -> str | None:
        """Whether less or more is better, where the name tells."""
        if name not in self._goals:
            lower = name.lower()
            found = [goal for goal, words in _GOALS.items() if any(word in lower for word in words)]
            self._goals[name] = found[0] if found else None
        return self._goals[name]


def _is_training_loss(name: str) -> bool:
    lower = name.lower()
    return "loss" in lower and not any(word in lower for word in ("val", "test"))  # and so not "eval"


def _first_nonfinite(own: list[tuple[int, float]], first: int) -> int | None:
    """The step that made a value from `first` on infinite or NaN; None where the losses before it are not all known."""
    expected = first
    for step, loss in own:
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
