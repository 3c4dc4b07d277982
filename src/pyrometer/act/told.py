"""What was told of each finding, kept on disk: after a restart nothing is told twice, and nothing is forgotten.

How things stand is compared with what was told. So there is no queue: a receiver that was away hears how it is now, in
one message a finding, and what was over meanwhile it hears once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.act.lives import Life, more
from pyrometer.act.messages import Facts, facts_of
from pyrometer.model.states import IMMEDIATE_CAUSES
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import files

FILE = "told.json"
MOST_KEPT = 1_000  # findings; the oldest give way
LEAST_UNPRICED_MS = 10 * MS_PER_HOUR  # GPU time of what has no price
GROWN = 10  # times what it cost when it was told last
_URGENCY = ("opened", "again", "grown", "found", "over")


class Told(NamedTuple):
    """A finding, how it stands, and what was told of it."""

    facts: Facts
    is_over: bool = False
    over_at_ms: int = 0  # by the clock: when it was first known to be over
    told: str = ""  # opened, over
    told_usd_micro: int = 0
    labels: dict[str, str] | None = None  # of its alert, the same as long as it lives

    def due(self, least_usd_micro: int) -> str | None:
        """What is to be told of it now."""
        if self.is_over:
            worth = self.told == "opened" or (not self.told and self._costs(least_usd_micro))
            return ("over" if self.told else "found") if worth and self.told != "over" else None
        if self.told == "opened":
            grown = (self.facts["usd_micro"] or 0) >= GROWN * max(self.told_usd_micro, 1)
            return "grown" if grown and self._costs(least_usd_micro) else None
        return ("again" if self.told else "opened") if self.is_worth(least_usd_micro) else None

    def is_worth(self, least_usd_micro: int) -> bool:
        """Whether it is told while it goes on."""
        return self.facts["cause"] in IMMEDIATE_CAUSES or self._costs(least_usd_micro)

    def _costs(self, least_usd_micro: int) -> bool:
        if self.facts["usd_micro"] is None:
            return bool(self.facts["gpu_ms"] >= LEAST_UNPRICED_MS)
        return bool(self.facts["usd_micro"] >= least_usd_micro)

    def after(self, kind: str) -> Told:
        """When that has been told."""
        told = "over" if kind in ("over", "found") else "opened"
        return self._replace(told=told, told_usd_micro=self.facts["usd_micro"] or 0)


class Book:
    """All that may have to be told, by id; and when the last report was."""

    def __init__(self, folder: Path, least_usd_micro: int) -> None:
        self._path = folder / FILE
        self.least_usd_micro = least_usd_micro
        self.entries: dict[str, Told] = {}
        self.reports: dict[str, str] = {}  # by receiver, the day of the last one
        self._writing = threading.Lock()  # who is told to stop may still be at it
        self._is_new = not self._path.exists()
        if not self._is_new:
            self._read()

    def take(self, lives: Iterable[Life], now_ms: int, *, heard: bool) -> bool:
        """How findings stand now; says whether anything has opened or ended. Of what was over before anybody told,
        nothing is told; nor while nobody hears it."""
        lives = list(lives)
        changed = self._is_new
        for life in lives:
            before = self.entries.get(life.now.finding_id)
            facts = _facts(life, before)
            if facts is None:  # it was not found since the restart, and nothing is known of it but its numbers
                continue
            one = (before or Told(facts))._replace(facts=facts, is_over=life.is_over)
            if not life.is_over:
                one = one._replace(over_at_ms=0)
            elif not one.over_at_ms:
                one = one._replace(over_at_ms=now_ms, told=one.told or ("over" if self._is_new or not heard else ""))
            changed |= before is None or before.is_over != one.is_over
            self.entries[life.now.finding_id] = one
        self._is_new = False
        return self._let_go({life.now.finding_id for life in lives}, now_ms) or changed

    def due(self) -> list[tuple[str, Told]]:
        """What is to be told, the most urgent first."""
        found = [(kind, one) for one in self.entries.values() if (kind := one.due(self.least_usd_micro)) is not None]
        return sorted(found, key=lambda due: (_URGENCY.index(due[0]), -(due[1].facts["usd_micro"] or 0)))

    def mark(self, told: Iterable[tuple[str, Told]]) -> None:
        """That was told. What is kept may be newer by now; what was said is not."""
        for kind, one in told:
            name = one.facts["id"]
            if name in self.entries:
                after = one.after(kind)
                self.entries[name] = self.entries[name]._replace(told=after.told, told_usd_micro=after.told_usd_micro)

    def text(self) -> str:
        """All of it, as it is kept."""
        entries = {name: one._asdict() for name, one in self.entries.items()}
        return json.dumps({"findings": entries, "reports": self.reports})

    def write(self, text: str) -> None:
        """Onto the disk, whole or not at all."""
        with self._writing:
            files.write_text(self._path, text)

    def _read(self) -> None:
        try:
            kept: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            self.entries = {name: Told(**one) for name, one in kept["findings"].items()}
            self.reports = dict(kept["reports"])
        except (ValueError, KeyError, TypeError, AttributeError):  # not ours: begin anew, without telling the past
            self.entries, self.reports, self._is_new = {}, {}, True

    def _let_go(self, alive: set[str], now_ms: int) -> bool:
        """What nobody knows of any more is over; and forgotten, once there is nothing left to tell of it."""
        lost = [(name, one) for name, one in self.entries.items() if name not in alive]
        for name, one in lost:
            if not one.is_over:
                self.entries[name] = one._replace(is_over=True, over_at_ms=now_ms)
            elif one.due(self.least_usd_micro) is None:
                del self.entries[name]
        oldest = sorted(self.entries, key=lambda name: self.entries[name].facts["to_ms"])
        for name in oldest[: max(0, len(oldest) - MOST_KEPT)]:
            del self.entries[name]
        return bool(lost)


def _facts(life: Life, before: Told | None) -> Facts | None:
    """What can be told of a finding: as it was found last, with all that it cost."""
    facts = facts_of(dict(life.finding)) if life.finding is not None else before.facts if before else None
    if facts is None:
        return None
    now = life.now
    spent = (now.gpu_ms, now.usd_micro)
    if before is not None:  # the last record may be a day old
        spent = max(now.gpu_ms, before.facts["gpu_ms"]), more(now.usd_micro, before.facts["usd_micro"])
    until_ms = max(life.until_ms, now.from_ms)
    return facts | {
        "from_ms": now.from_ms, "to_ms": until_ms, "seen_ms": now.seen_ms, "gpu_ms": spent[0], "usd_micro": spent[1],
    }  # fmt: skip
