"""What detectors return, and the protocol of a detector."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from pyrometer.account.query.sums import Sum
from pyrometer.findings.evidence import Evidence


class Scope(NamedTuple):
    """The time that a finding is about: of a pod, on one slot or on all; or of the platform (None), on a node."""

    pod_uid: str | None
    from_ms: int
    to_ms: int
    node_uid: str | None = None
    slot_index: int | None = None
    permille: int = 1000  # the share of the time: less than 1000 if only the excess over the usual is waste


class Elapsed(NamedTuple):
    """How long steps took, and how long they would have taken without the culprit."""

    ms: int
    without_ms: int


class Detection(NamedTuple):
    """When a finding was detectable, and what it claimed after that."""

    at_ms: int
    saved: Sum


class Proposal(NamedTuple):
    """A finding before its milliseconds are claimed.

    It gets the unclaimed milliseconds of its states in its scope.
    """

    cause: str
    owner_uid: str | None  # the workload, or a pod without one; None: the platform
    from_ms: int
    to_ms: int
    states: tuple[str, ...]
    scope: tuple[Scope, ...]
    headline: (
        str  # follows the name of the workload: "hung for 20 min, since 23:41"; without a workload it is a sentence
    )
    evidence: tuple[str, ...]
    suggestion: str
    culprit: dict[str, Any] | None = None
    confidence: float = 1.0
    detectable_ms: int | None = None  # when the evidence first sufficed; None: only after it ended
    elapsed: Elapsed | None = None

    @property
    def subject(self) -> tuple[str, str | None, int, int, tuple[str | None, ...]]:
        """Its cause, owner, interval and pods."""
        return self.cause, self.owner_uid, self.from_ms, self.to_ms, tuple(scope.pod_uid for scope in self.scope)


class ClaimedFinding(NamedTuple):
    """A proposal with the time that it claimed."""

    id: str
    proposal: Proposal
    gpu_ms: int
    ms_price: int
    unpriced_gpu_ms: int
    caught: Detection
    seen_ms: int | None = None  # when it was first found; None: not recorded


class Detector(Protocol):
    """Detects one cause in the evidence of a time range."""

    def __call__(self, evidence: Evidence) -> Iterable[Proposal]:
        """The findings of this cause."""
        ...
