"""What a detector gives, and the seam it fits into."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from pyrometer.account.sums import Sum
from pyrometer.explain.night import Night


class Scope(NamedTuple):
    """Part of what a finding is about: a pod's time, on one slot or on all; or the platform's (None), on a node."""

    pod_uid: str | None
    from_ms: int
    to_ms: int
    node_uid: str | None = None
    slot_index: int | None = None
    permille: int = 1000  # of the time in it: less where only the excess over the usual is waste


class Elapsed(NamedTuple):
    """How long steps took, and how long they would have without the culprit."""

    ms: int
    without_ms: int


class Caught(NamedTuple):
    """When a finding could have been told, and what it claimed after that: nobody would have had to spend it."""

    at_ms: int
    saved: Sum


class Proposal(NamedTuple):
    """A finding before its milliseconds are claimed.

    It gets those of its states in its scope that nobody has claimed yet.
    """

    cause: str
    owner_uid: str | None  # the workload, or the pod that belongs to none; None: nobody's but the platform's
    from_ms: int
    to_ms: int
    states: tuple[str, ...]
    scope: tuple[Scope, ...]
    headline: str  # goes on after the workload's name: "hung for 20 min, since 23:41"; without one it is a sentence
    evidence: tuple[str, ...]
    suggestion: str
    culprit: dict[str, Any] | None = None
    confidence: float = 1.0
    known_ms: int | None = None  # when the evidence for it sufficed, at the earliest; None: once it was over
    elapsed: Elapsed | None = None

    @property
    def subject(self) -> tuple[str, str | None, int, int, tuple[str | None, ...]]:
        """Its cause, and what it is about: whose, from when to when, in which pods."""
        return self.cause, self.owner_uid, self.from_ms, self.to_ms, tuple(scope.pod_uid for scope in self.scope)


class Finding(NamedTuple):
    """A proposal with what it claimed."""

    id: str
    proposal: Proposal
    gpu_ms: int
    ms_price: int
    unpriced_gpu_ms: int
    caught: Caught
    seen_ms: int | None = None  # when it was first found; None: nobody remembers it


class Detector(Protocol):
    """One cause: looks at the ledger and the evidence of a night, and proposes findings."""

    def __call__(self, night: Night) -> Iterable[Proposal]:
        """The findings of this cause."""
        ...
