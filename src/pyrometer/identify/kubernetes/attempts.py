"""Which attempt of its workload a pod belongs to, in whatever order pods are seen.

Pods of which the lives overlap are one attempt. A pod that was created after all pods before it had ended begins the
next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

MS_PER_SECOND = 1_000  # the API's creation times are whole seconds: ends are compared as such


class _Life:
    """The start and the end of a pod, in seconds."""

    def __init__(self, from_ms: int, to_ms: int | None, *, fixed: bool) -> None:
        self.from_s = from_ms // MS_PER_SECOND
        self.to_s: float = math.inf
        self.fixed = fixed  # its number comes from itself or from the store, and never changes
        if to_ms is not None:
            self.end(to_ms)

    def end(self, to_ms: int) -> None:
        """It existed for a second at least: pods that end at once overlap."""
        self.to_s = max(to_ms // MS_PER_SECOND, self.from_s + 1)


class _Attempt:
    """The pods of one attempt."""

    def __init__(self, number: int, from_s: float) -> None:
        self.number = number
        self.fixed = False
        self.from_s = from_s
        self.last_from_s: float = from_s  # when the youngest pod began
        self.over_s: float = -math.inf  # when the last of the pods that ended did
        self.forgotten_s: float = -math.inf  # the same, of pods that are forgotten
        self.pods: dict[str, _Life] = {}
        self.open: set[str] = set()  # pods that have not ended

    @property
    def to_s(self) -> float:
        """The time when its last pod ended."""
        return math.inf if self.open else self.over_s

    def take(self, uid: str, life: _Life) -> None:
        """Adds a pod."""
        self.pods[uid] = life
        self.fixed = self.fixed or life.fixed
        self.from_s, self.last_from_s = min(self.from_s, life.from_s), max(self.last_from_s, life.from_s)
        if life.to_s == math.inf:
            self.open.add(uid)
        else:
            self.over_s = max(self.over_s, life.to_s)

    def merge(self, other: _Attempt) -> None:
        """Adds all pods of another one."""
        for uid, life in other.pods.items():
            self.take(uid, life)
        self.over_s = max(self.over_s, other.over_s)
        self.forgotten_s = max(self.forgotten_s, other.forgotten_s)


class Attempts:
    """The attempts of one workload."""

    def __init__(self, before: int = 0, before_ms: int = 0) -> None:
        """`before` attempts were over at `before_ms`, and their pods are forgotten."""
        self._of: dict[str, _Attempt] = {}
        self._attempts: list[_Attempt] = []  # in the order of time
        if before:
            past = _Attempt(before, -math.inf)
            past.fixed, past.over_s = True, before_ms // MS_PER_SECOND
            self._attempts.append(past)

    def resume(self, pods: Iterable[tuple[str, int, int | None, int]]) -> None:
        """Takes the pods that the store has, each with its life and its number: those stay as they are."""
        by_number = {attempt.number: attempt for attempt in self._attempts}
        for uid, from_ms, to_ms, number in pods:
            life = _Life(from_ms, to_ms, fixed=True)
            attempt = self._of[uid] = by_number.setdefault(number, _Attempt(number, life.from_s))
            attempt.take(uid, life)
        self._attempts = list(by_number.values())
        self._renumber()

    def __contains__(self, uid: str) -> bool:
        return uid in self._of

    def of(self, uid: str) -> int:
        """The attempt of a pod."""
        return self._of[uid].number

    @property
    def last(self) -> int:
        """The number of the newest attempt; 0: there was none."""
        return max((each.number for each in self._attempts), default=0)

    @property
    def open(self) -> bool:
        """Whether a pod has not ended."""
        return any(each.open for each in self._attempts)

    @property
    def over_ms(self) -> int:
        """The time when the last of the ended pods ended."""
        over_s = max((each.over_s for each in self._attempts), default=0)
        return max(int(over_s), 0) * MS_PER_SECOND

    def add(self, uid: str, from_ms: int, to_ms: int | None, number: int | None = None) -> set[str]:
        """Takes a new pod, with the number of its attempt where that is known. Returns pods that have a new number."""
        life = _Life(from_ms, to_ms, fixed=number is not None)
        together = [each for each in self._attempts if each.from_s < life.to_s and life.from_s < each.to_s]
        if number is not None:
            joined = [each for each in self._attempts if each.fixed and each.number == number][:1]
        else:
            fixed = sorted((each for each in together if each.fixed), key=lambda each: each.number)
            joined = [*fixed[-1:], *(each for each in together if not each.fixed)]
        moved: dict[str, int] = {}
        if joined:
            attempt = joined[0]
            for other in joined[1:]:
                moved.update(dict.fromkeys(other.pods, other.number))
                attempt.merge(other)
                self._attempts.remove(other)
                self._of.update(dict.fromkeys(other.pods, attempt))
        else:
            attempt = _Attempt(number or 1, life.from_s)
            self._attempts.append(attempt)
        attempt.take(uid, life)
        self._of[uid] = attempt
        if len(joined) == 1:
            return set()
        changed = self._renumber() | {each for each, before in moved.items() if before != attempt.number}
        return changed - {uid}

    def end(self, uid: str, to_ms: int) -> set[str]:
        """A pod has ended. Returns the pods that turn out to belong to another attempt: they were created later."""
        attempt = self._of[uid]
        if uid not in attempt.open:
            return set()
        life = attempt.pods[uid]
        life.end(to_ms)
        attempt.open.discard(uid)
        # A pod that is seen only after this end comes after it, even within the same second.
        attempt.over_s = max(attempt.over_s, to_ms // MS_PER_SECOND, life.from_s)
        if attempt.last_from_s < life.to_s or any(attempt.pods[each].from_s < life.to_s for each in attempt.open):
            return set()
        return self._split(attempt)

    def forget(self, uid: str) -> None:
        """A pod that ended cannot change any more. Its attempt keeps its time and its number."""
        attempt = self._of.pop(uid)
        attempt.forgotten_s = max(attempt.forgotten_s, min(attempt.pods.pop(uid).to_s, attempt.over_s))
        attempt.open.discard(uid)
        attempt.fixed = attempt.fixed or not attempt.pods
        while len(self._attempts) > 1 and not self._attempts[0].pods and not self._attempts[1].pods:
            del self._attempts[0]
        if not self._attempts[0].pods:
            self._attempts[0].from_s = -math.inf

    def _split(self, attempt: _Attempt) -> set[str]:
        """Parts of an attempt between which no pod existed are attempts of their own."""
        parts: list[_Attempt] = []
        if attempt.forgotten_s > -math.inf:
            parts.append(_Attempt(attempt.number, attempt.from_s))
            parts[0].over_s = parts[0].forgotten_s = attempt.forgotten_s
            parts[0].fixed = True
        for uid, life in sorted(attempt.pods.items(), key=lambda each: each[1].from_s):
            if not parts or parts[-1].to_s <= life.from_s:
                parts.append(_Attempt(attempt.number, life.from_s))
            parts[-1].take(uid, life)
        for part in parts:
            self._of.update(dict.fromkeys(part.pods, part))
        self._attempts.remove(attempt)
        self._attempts += parts
        return self._renumber() if len(parts) > 1 else set()

    def _renumber(self) -> set[str]:
        """Numbers attempts in the order of time, around fixed numbers. Returns pods that have a new number."""
        self._attempts.sort(key=lambda each: (each.from_s, each.number))
        most = math.inf
        limits: list[float] = []
        for attempt in reversed(self._attempts):
            most = min(most, attempt.number) if attempt.fixed else most
            limits.append(most)
        changed: set[str] = set()
        last = 0
        for attempt, limit in zip(self._attempts, reversed(limits), strict=True):
            number = attempt.number if attempt.fixed else int(min(last + 1, limit))
            if number != attempt.number:
                attempt.number = number
                changed |= attempt.pods.keys()
            last = max(last, number)
        return changed
