"""The lifecycle of findings: open, running, ended. Every change is stored as a record.

A finding ends when its run or its pods have ended, or when it was not found for ten minutes (`APART_MS`). If it returns
earlier, it never ended. If it returns later, it is a new finding. So a finding does not flap, wherever a moving time
range cuts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pyrometer.findings.continuity import (
    REWRITE_INTERVAL_MS,
    SEARCHED_UNTIL,
    culprit_json,
    max_gap_ms,
    recorded,
    until_ms,
)
from pyrometer.model.records import Finding
from pyrometer.model.units import MS_PER_DAY
from pyrometer.store import Store

Answer = Mapping[str, Any]
KEPT_MS = MS_PER_DAY  # how long an ended finding stays in memory


class TrackedFinding(NamedTuple):
    """A finding over its lifetime."""

    now: Finding  # its current record; its cost is the highest that any time range has shown
    until_ms: int  # when it was last found
    written_ms: int  # the time of its last record
    finding: Answer | None = None  # the last answer of this process

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.now.over_ms is not None


class FindingTracker:
    """Recent findings by id."""

    def __init__(self, remembered: Iterable[Finding] = (), looked_ms: int = 0) -> None:
        self.looked_ms = looked_ms
        self._tracked = {
            one.finding_id: TrackedFinding(one, until_ms(one, looked_ms), one.time_ms) for one in remembered
        }

    @classmethod
    def of(cls, store: Store) -> FindingTracker:
        """Loads the recent findings of a data folder."""
        looked_ms = int(store.meta(SEARCHED_UNTIL) or 0)
        return cls(recorded(store, looked_ms - KEPT_MS, looked_ms + KEPT_MS), looked_ms)

    def all(self) -> list[TrackedFinding]:
        """All recent findings in the order in which they were first found."""
        return sorted(self._tracked.values(), key=lambda tracked: (tracked.now.seen_ms, tracked.now.finding_id))

    def remember(self, store: Store, answer: Answer) -> list[Finding]:
        """Updates the findings from an answer, stores what changed, and returns it. The caller holds the store."""
        news = self.look(answer)
        if news:
            store.append(news)
        store.set_meta(SEARCHED_UNTIL, str(self.looked_ms))
        return news

    def learn(self, finding: Answer) -> Finding:
        """Sets the total cost of a finding from an answer about its whole time, and returns the record to store."""
        tracked = self._tracked[finding["id"]]
        now = tracked.now._replace(
            time_ms=tracked.written_ms + 1, gpu_ms=finding["gpu_ms"], usd_micro=finding["usd_micro"]
        )
        self._tracked[finding["id"]] = tracked._replace(now=now, written_ms=now.time_ms, finding=finding)
        return now

    def look(self, answer: Answer) -> list[Finding]:
        """Updates the findings from an answer of `why`, and returns the records to store."""
        end_ms = ms_of(answer["window"]["to"])
        found = {finding["id"]: finding for finding in answer["findings"]}
        tracked_by_id = {name: _found(self._tracked.get(name), finding, end_ms) for name, finding in found.items()}
        for name, tracked in self._tracked.items():
            # a finding that is not found any more ends after a while, and is forgotten later
            if name not in found and (not tracked.is_over or end_ms - (tracked.now.over_ms or 0) < KEPT_MS):
                gone = not tracked.is_over and end_ms - tracked.until_ms >= max_gap_ms(tracked.now.cause)
                tracked_by_id[name] = tracked._replace(now=tracked.now._replace(over_ms=end_ms)) if gone else tracked
        news = [
            tracked for name, tracked in tracked_by_id.items() if _is_news(self._tracked.get(name), tracked, end_ms)
        ]
        written = [tracked.now._replace(time_ms=max(end_ms, tracked.written_ms + 1)) for tracked in news]
        for one in written:
            tracked_by_id[one.finding_id] = tracked_by_id[one.finding_id]._replace(now=one, written_ms=one.time_ms)
        self._tracked = tracked_by_id
        self.looked_ms = max(self.looked_ms, end_ms)
        return written


def _found(tracked: TrackedFinding | None, finding: Answer, end_ms: int) -> TrackedFinding:
    from_ms, to_ms = ms_of(finding["from"]), ms_of(finding["to"])
    over_ms = end_ms if finding["ended"] or end_ms - to_ms >= max_gap_ms(finding["cause"]) else None
    one = Finding(
        time_ms=end_ms,
        finding_id=finding["id"],
        cause=finding["cause"],
        owner_uid=finding["owner_uid"],
        from_ms=from_ms,
        to_ms=to_ms,
        seen_ms=end_ms,
        over_ms=over_ms,
        gpu_ms=finding["gpu_ms"],
        usd_micro=finding["usd_micro"],
        culprit_json=culprit_json(finding["culprit"]),
    )
    if tracked is None:
        return TrackedFinding(one, to_ms, 0, finding)
    before = tracked.now
    over_ms = over_ms and (before.over_ms or over_ms)
    now = one._replace(
        from_ms=min(from_ms, before.from_ms),
        seen_ms=before.seen_ms,
        over_ms=over_ms,
        gpu_ms=max(one.gpu_ms, before.gpu_ms),
        usd_micro=more(one.usd_micro, before.usd_micro),
        culprit_json=one.culprit_json or before.culprit_json,
    )
    return TrackedFinding(now, to_ms, tracked.written_ms, finding)


def _is_news(before: TrackedFinding | None, tracked: TrackedFinding, end_ms: int) -> bool:
    """Whether to store a record: the finding is new, ended or reopened, or its last record is old."""
    if before is None or before.is_over != tracked.is_over:
        return True
    return not tracked.is_over and end_ms - tracked.written_ms >= REWRITE_INTERVAL_MS


def more(one: int | None, other: int | None) -> int | None:
    """The larger of two amounts, either of which may be unknown."""
    return max((amount for amount in (one, other) if amount is not None), default=None)


def ms_of(text: str) -> int:
    """A time of an answer, in milliseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)
