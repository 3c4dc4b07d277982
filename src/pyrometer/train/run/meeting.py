"""What all ranks of a launch agree on: its name, and the steps at which windows end.

Rank 0 decides and writes it into the store of the process group. The other ranks look there from time to time. No rank
ever waits for another one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import Any

LAUNCH, PLAN = "pyrometer/launch", "pyrometer/plan"
MIN_STEPS = 3  # before the length of a window is chosen
# of a window: the ring has room for twice as many, so that no step is overwritten before it is folded
MAX_STEPS = 8_192
MAX_PARTS = 32
MAX_KEPT_STEPS = 200  # of a window that later windows are compared with
MAX_LENGTH_RATIO = 3.0  # a window that is longer or shorter than wanted by this factor gets another size
MIN_CHANGED_STEPS, MIN_UNLIKE_SHARE = (
    6,
    0.8,
)  # number of steps, and the share of them that is slower or faster than the previous window
TAIL_SHARE, MIN_CHANGE = 0.1, 1.1  # slower or faster than 90% of the previous window, and by 10% than its median
NEWS_LEAD_S = 3.0  # ranks look for news once per second


def _usual_length_s(first: int, after: int, steps_s: Callable[[int, int], float]) -> float:
    """How long these steps take without hangs: the longest of several parts counts like the average of the others."""
    parts = min(after - first, MAX_PARTS)
    bounds = [first + (after - first) * part // parts for part in range(parts + 1)]
    took = sorted(steps_s(begin, end) for begin, end in pairwise(bounds))
    usual = took[:-1] if parts > 2 else took
    return sum(usual) / len(usual) * parts


class Meeting:
    """The agreement as this rank knows it. Only one thread uses it, except for `join`."""

    def __init__(self, torch: Any, window_s: float) -> None:
        self._torch = torch
        self._window_s = window_s
        self._rank = 0
        self._ranks = 1
        self._launch: str | None = None
        self.restart_of: str | None = None
        self._plans: list[tuple[int, int]] = []  # from this step on, windows have this many steps
        # further ends of windows: where the length of steps changed, and shortly after that
        self._changes: list[int] = []
        # the step length of the previous window in seconds: 10th percentile, median, 90th percentile
        self._previous: tuple[float, float, float] | None = None
        self.is_calling = False  # whether a call of the store, which runs in C++, has not returned yet

    @property
    def size(self) -> int:
        """Steps per window; 0 until that is known."""
        return self._plans[-1][1] if self._plans else 0

    def join(self, rank: int, ranks: int, launch: str, restart_of: str | None = None) -> None:
        """The process group is complete."""
        self._rank, self._ranks = rank, ranks
        self._launch = launch if rank == 0 else None
        if rank == 0:
            self._write(LAUNCH, f"{launch} {restart_of or ''}".strip())

    def launch(self) -> str | None:
        """The name of this launch; None until rank 0 has published it."""
        if self._launch is None:
            value = self._read(LAUNCH)
            if value is not None:
                self._launch, _, again = value.partition(" ")
                self.restart_of = again or None
        return self._launch

    def window_end(self, first: int, count: int, steps_s: Callable[[int, int], float]) -> int | None:
        """Where the window that begins with a step ends; None until that is known."""
        if self._rank == 0:
            self._decide(first, count, steps_s)
            self._look_for_change(first, count, steps_s)
        else:
            self._read_news()
        planned = self._planned_end(first)
        if planned is None:
            return None
        early = [end for end in self._changes[-4:] if first < end < planned]
        if self._rank == 0 and not early and planned <= count and not self._changed_since(first, planned, steps_s):
            self._store_previous(
                [steps_s(step, step + 1) for step in range(max(first, planned - MAX_KEPT_STEPS), planned)]
            )
        return min(early, default=planned)

    def _planned_end(self, first: int) -> int | None:
        for from_step, size in reversed(self._plans):
            if first >= from_step:
                return (first // size + 1) * size
        return None

    def _decide(self, first: int, count: int, steps_s: Callable[[int, int], float]) -> None:
        done = count - first
        if done < MIN_STEPS:
            return
        if not self._plans:
            if steps_s(first, count) >= self._window_s / 2 or done >= MAX_STEPS / 2:
                took_s = [steps_s(step, step + 1) for step in range(max(first, count - 99), count)]
                self._plan(0, median(took_s))
                self._store_previous(took_s)
            return
        from_step, size = self._plans[-1]
        whole_s = _usual_length_s(first, min(first + size, count), steps_s) * size / min(size, done)
        target = self._target_size(whole_s / size)
        too_long, too_short = (
            whole_s > MAX_LENGTH_RATIO * self._window_s and size > target,
            target > MAX_LENGTH_RATIO * size,
        )
        if first > from_step and (too_long or too_short) and done * 2 > size:
            # far enough ahead for all ranks to read it in time, at a step where windows of both sizes end
            new_from = ((count + 2 * size) // size + 1) * size
            self._plan(new_from, whole_s / size)

    def _look_for_change(self, first: int, count: int, steps_s: Callable[[int, int], float]) -> None:
        """Ends a window where steps become slower or faster, so that the change is known at once, and no window mixes
        both."""
        planned = self._planned_end(first)
        if self._previous is None or planned is None or count - MIN_CHANGED_STEPS <= first or count >= planned:
            return
        # other ranks may already end the window as planned
        if (planned - count) * steps_s(count - 1, count) < NEWS_LEAD_S:
            return
        since = self._changed_since(first, count, steps_s)
        if since is not None and count - since >= MIN_CHANGED_STEPS:
            took_s = sorted(steps_s(step, step + 1) for step in range(since, count))
            if self._announce(f"{since}-{count}"):
                self._previous = took_s[0], median(took_s), took_s[-1]
                self._changes += since, count

    def _changed_since(self, first: int, count: int, steps_s: Callable[[int, int], float]) -> int | None:
        """The step since which steps up to the last one are mostly slower, or mostly faster, than in the previous
        window."""
        if self._previous is None:
            return None
        least, usual, most = self._previous
        slower = steps_s(count - 1, count) > usual
        limit_s = max(most, MIN_CHANGE * usual) if slower else min(least, usual / MIN_CHANGE)
        since, unlike = None, 0
        for step in range(count - 1, max(first, count - MAX_KEPT_STEPS) - 1, -1):
            if (steps_s(step, step + 1) > limit_s) == slower:
                since, unlike = step, unlike + 1
            if unlike < MIN_UNLIKE_SHARE * (count - step):
                break
        return since

    def _store_previous(self, took_s: list[float]) -> None:
        took_s.sort()
        few = round(TAIL_SHARE * len(took_s))
        self._previous = (
            (took_s[few], median(took_s), took_s[-1 - few]) if len(took_s) > 2 * MIN_CHANGED_STEPS else None
        )

    def _target_size(self, step_s: float) -> int:
        """How many steps a window should have."""
        return min(max(1, round(self._window_s / max(step_s, 1e-9))), MAX_STEPS)

    def _plan(self, from_step: int, step_s: float) -> None:
        size = self._target_size(step_s)
        if from_step:
            # so that a window begins at this step; never more steps than wanted
            size = max(1, from_step // -(-from_step // size))
            from_step -= from_step % size
        if self._plans and self._plans[-1] == (from_step, size):
            return
        if self._announce(f"{from_step}:{size}"):
            self._plans.append((from_step, size))

    def _announce(self, news: str) -> bool:
        """Whether all ranks can read the news. Otherwise it does not count as news and gets no number."""
        return self._ranks == 1 or self._write(self._next_news(), news)

    def _read_news(self) -> None:
        while (value := self._read(self._next_news())) is not None:
            if ":" in value:
                from_step, _, size = value.partition(":")
                self._plans.append((int(from_step), int(size)))
            else:
                self._changes += map(int, value.split("-"))

    def _next_news(self) -> str:
        """The key of the next plan or change, in the order in which they are made."""
        return f"{PLAN}/{len(self._plans) + len(self._changes) // 2}"

    def _read(self, key: str) -> str | None:
        self.is_calling = True
        try:
            store = self._store()
            return str(store.get(key).decode()) if store is not None and store.check([key]) else None
        except RuntimeError:  # the process that hosts the store has ended
            return None
        finally:
            self.is_calling = False

    def _write(self, key: str, text: str) -> bool:
        self.is_calling = True
        try:
            with suppress(RuntimeError):
                store = self._store()
                if store is not None:
                    store.set(key, text)
                    return True
            return False
        finally:
            self.is_calling = False

    def _store(self) -> Any:
        """The store of the process group. It is looked up for each call, because its port must be free when the group
        ends."""
        try:
            return self._torch.distributed.distributed_c10d._get_default_store()
        except ValueError:
            return None
