"""The last notification of each finding, stored on disk: a restart repeats nothing and forgets nothing.

The current state of a finding is compared with the last notification, so there is no queue: a receiver that was away
gets one message per finding about its current state, and one about each finding that ended meanwhile.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.act.finding_lifecycle import TrackedFinding, more
from pyrometer.act.notification_texts import Facts, facts_of
from pyrometer.model.states import IMMEDIATE_CAUSES
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import files

FILE = "told.json"
MAX_NOTICES = 1_000  # the oldest are dropped
MIN_UNPRICED_MS = 10 * MS_PER_HOUR  # GPU time of findings without a price
GROWTH_FACTOR = 10  # of the cost since the last notification
_URGENCY = ("opened", "again", "grown", "found", "over")
_STORED_NAMES = {"sent": "told", "sent_usd_micro": "told_usd_micro"}  # of fields in the file; older versions read it


class Notice(NamedTuple):
    """The current state of a finding and its last notification."""

    facts: Facts
    is_over: bool = False
    over_at_ms: int = 0  # when this process first saw that it had ended
    sent: str = ""  # opened, over
    sent_usd_micro: int = 0
    labels: dict[str, str] | None = None  # of its alert; they never change

    def due(self, min_usd_micro: int) -> str | None:
        """The notification that is due now, if any."""
        if self.is_over:
            worth = self.sent == "opened" or (not self.sent and self._costs(min_usd_micro))
            return ("over" if self.sent else "found") if worth and self.sent != "over" else None
        if self.sent == "opened":
            grown = (self.facts["usd_micro"] or 0) >= GROWTH_FACTOR * max(self.sent_usd_micro, 1)
            return "grown" if grown and self._costs(min_usd_micro) else None
        return ("again" if self.sent else "opened") if self.is_worth(min_usd_micro) else None

    def is_worth(self, min_usd_micro: int) -> bool:
        """Whether an open finding is reported."""
        return self.facts["cause"] in IMMEDIATE_CAUSES or self._costs(min_usd_micro)

    def _costs(self, min_usd_micro: int) -> bool:
        if self.facts["usd_micro"] is None:
            return bool(self.facts["gpu_ms"] >= MIN_UNPRICED_MS)
        return bool(self.facts["usd_micro"] >= min_usd_micro)

    def after(self, kind: str) -> Notice:
        """The notice after a notification of this kind was sent."""
        sent = "over" if kind in ("over", "found") else "opened"
        return self._replace(sent=sent, sent_usd_micro=self.facts["usd_micro"] or 0)


class NotificationState:
    """The notices of all recent findings by id, and the days of the last reports."""

    def __init__(self, folder: Path, min_usd_micro: int) -> None:
        self._path = folder / FILE
        self.min_usd_micro = min_usd_micro
        self.entries: dict[str, Notice] = {}
        self.reports: dict[str, str] = {}  # by receiver, the day of the last one
        self._writing = threading.Lock()  # a cancelled task may still be writing
        self._is_new = not self._path.exists()
        if not self._is_new:
            self._read()

    def update(self, findings: Iterable[TrackedFinding], now_ms: int, *, has_receiver: bool) -> bool:
        """Updates the notices, and returns whether any finding opened or ended. Findings that ended before the first
        start, or while there was no receiver, are not reported."""
        findings = list(findings)
        changed = self._is_new
        for finding in findings:
            before = self.entries.get(finding.now.finding_id)
            facts = _facts(finding, before)
            if facts is None:  # not found since the restart: only its numbers are known
                continue
            notice = (before or Notice(facts))._replace(facts=facts, is_over=finding.is_over)
            if not finding.is_over:
                notice = notice._replace(over_at_ms=0)
            elif not notice.over_at_ms:
                unreported = "over" if self._is_new or not has_receiver else ""
                notice = notice._replace(over_at_ms=now_ms, sent=notice.sent or unreported)
            changed |= before is None or before.is_over != notice.is_over
            self.entries[finding.now.finding_id] = notice
        self._is_new = False
        return self._drop({finding.now.finding_id for finding in findings}, now_ms) or changed

    def due(self) -> list[tuple[str, Notice]]:
        """The notifications that are due, the most urgent first."""
        found = [(kind, one) for one in self.entries.values() if (kind := one.due(self.min_usd_micro)) is not None]
        return sorted(found, key=lambda due: (_URGENCY.index(due[0]), -(due[1].facts["usd_micro"] or 0)))

    def mark_sent(self, sent: Iterable[tuple[str, Notice]]) -> None:
        """Records notifications as sent. The stored notice may be newer than the one that was sent."""
        for kind, one in sent:
            name = one.facts["id"]
            if name in self.entries:
                after = one.after(kind)
                self.entries[name] = self.entries[name]._replace(sent=after.sent, sent_usd_micro=after.sent_usd_micro)

    def text(self) -> str:
        """The content of the file."""
        entries = {name: _renamed(one._asdict(), _STORED_NAMES) for name, one in self.entries.items()}
        return json.dumps({"findings": entries, "reports": self.reports})

    def write(self, text: str) -> None:
        """Writes the file completely or not at all."""
        with self._writing:
            files.write_text(self._path, text)

    def _read(self) -> None:
        try:
            kept: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            names = {stored: name for name, stored in _STORED_NAMES.items()}
            self.entries = {name: Notice(**_renamed(one, names)) for name, one in kept["findings"].items()}
            self.reports = dict(kept["reports"])
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # not a valid file: start again without reporting the past
            self.entries, self.reports, self._is_new = {}, {}, True

    def _drop(self, alive: set[str], now_ms: int) -> bool:
        """Ends findings that the store no longer has, and forgets them once nothing is left to report."""
        lost = [(name, one) for name, one in self.entries.items() if name not in alive]
        for name, one in lost:
            if not one.is_over:
                self.entries[name] = one._replace(is_over=True, over_at_ms=now_ms)
            elif one.due(self.min_usd_micro) is None:
                del self.entries[name]
        oldest = sorted(self.entries, key=lambda name: self.entries[name].facts["to_ms"])
        for name in oldest[: max(0, len(oldest) - MAX_NOTICES)]:
            del self.entries[name]
        return bool(lost)


def _renamed(fields: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}


def _facts(finding: TrackedFinding, before: Notice | None) -> Facts | None:
    """The facts of a finding from the last time it was found, with its total cost."""
    facts = facts_of(dict(finding.finding)) if finding.finding is not None else before.facts if before else None
    if facts is None:
        return None
    now = finding.now
    spent = (now.gpu_ms, now.usd_micro)
    if before is not None:  # the last record may be a day old
        spent = max(now.gpu_ms, before.facts["gpu_ms"]), more(now.usd_micro, before.facts["usd_micro"])
    until_ms = max(finding.until_ms, now.from_ms)
    return facts | {
        "from_ms": now.from_ms,
        "to_ms": until_ms,
        "seen_ms": now.seen_ms,
        "gpu_ms": spent[0],
        "usd_micro": spent[1],
    }
