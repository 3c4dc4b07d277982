"""Launches of runs and the state of their ranks."""

from __future__ import annotations

from pyrometer.collect.otlp.messages import EventMessage, Message, RankIdentity, WindowMessage
from pyrometer.identify.runs.rank_locations import RankLocation
from pyrometer.model.records import Run, Workload
from pyrometer.model.units import MS_PER_DAY, MS_PER_MINUTE

MAX_AGE_MS = 366 * MS_PER_DAY  # of a process; one that reports to be older has a clock that was not set
SILENT_MS = 10 * MS_PER_MINUTE


class RankState:
    """One rank: its location and its last record."""

    __slots__ = ("ended_ms", "last_report_ms", "location", "record", "restored", "resumed_step", "who")

    def __init__(self, who: RankIdentity, location: RankLocation) -> None:
        self.who, self.location = who, location
        self.record: Run | None = None
        self.last_report_ms = 0
        self.ended_ms: int | None = None  # as reported
        self.resumed_step: int | None = None  # as reported
        self.restored: EventMessage | None = None


class Launch:
    """One start of a training program on all of its ranks."""

    def __init__(self, launch: str) -> None:
        self.launch = launch
        self.run: str | None = None
        self.attempt = 0
        self.ranks: dict[int, RankState] = {}
        self.whole = False  # whether all of its ranks that the store has are in `ranks`
        self.started_ms = 2**62
        self.over = False  # superseded: its ranks ended at their last report at the latest
        self.workload: Workload | None = None  # its last record

    @property
    def last_report_ms(self) -> int:
        """The time of the last report of its ranks."""
        return max((rank.last_report_ms for rank in self.ranks.values()), default=0)


def identity_of(run: Run) -> RankIdentity:
    """The identity of a rank, according to its record."""
    return RankIdentity(
        launch=run.launch or "",
        rank=run.rank,
        ranks=run.ranks,
        run=run.run,
        experiment=run.experiment,
        started_ms=run.started_ms,
        framework=run.framework,
    )


def merge_identity(before: RankIdentity, now: RankIdentity) -> RankIdentity:
    """Merges two reports of a rank about itself: its experiment and framework may be missing in the first."""
    if now == before:
        return before
    added = {name: value for name, value in now._asdict().items() if getattr(before, name) is None}
    return before._replace(**added, ranks=max(before.ranks, now.ranks))


def start_of(who: RankIdentity, messages: list[Message]) -> int:
    """The start of a process: as it reports, if that is plausible; else at its first message."""
    first_ms = min(message.time_ms for message in messages)
    reported_ms = who.started_ms
    plausible = reported_ms is not None and first_ms - MAX_AGE_MS <= reported_ms <= first_ms + SILENT_MS
    return reported_ms if reported_ms is not None and plausible else first_ms


def end_of(message: Message) -> int:
    """The last time at which a message shows that its process ran."""
    return message.to_ms if isinstance(message, WindowMessage) else message.time_ms


def supersedes(launch: Launch, other: Launch, *, local: bool) -> bool:
    """Whether this launch proves that another one ended: an earlier attempt, or a silent one on the same machine.

    Kubernetes reports the ends of launches in pods.
    """
    if other is launch or other.over or not any(rank.location.own for rank in other.ranks.values()):
        return False
    if other.run == launch.run:
        return other.attempt < launch.attempt
    return local and other.last_report_ms + SILENT_MS < launch.started_ms
