"""A finding opens, goes on and is over. Each is written down when that happens, and told by those who tell.

It is over when its run or its pods have ended, or when it has not been there for ten minutes (`APART_MS`); what comes
back before that was never gone, and what comes back later is another one. So nothing flaps, however a moving window
cuts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pyrometer.explain.known import LOOKED, WRITTEN_EVERY_MS, apart_ms, culprit_json, known, until_ms
from pyrometer.model.records import Finding
from pyrometer.model.units import MS_PER_DAY
from pyrometer.store import Store

Answer = Mapping[str, Any]
KEPT_MS = MS_PER_DAY  # in memory, after it is over


class Life(NamedTuple):
    """A finding from its beginning on."""

    now: Finding  # as it stands: what it cost is the most that any window has shown of it
    until_ms: int  # it is known to have been there until then
    written_ms: int  # the time of its last record
    finding: Answer | None = None  # as it was last found by this process

    @property
    def is_over(self) -> bool:
        """Whether it has not been there for a while."""
        return self.now.over_ms is not None


class Lives:
    """All that was found lately, by id."""

    def __init__(self, remembered: Iterable[Finding] = (), looked_ms: int = 0) -> None:
        self.looked_ms = looked_ms
        self._lives = {one.finding_id: Life(one, until_ms(one, looked_ms), one.time_ms) for one in remembered}

    @classmethod
    def of(cls, store: Store) -> Lives:
        """What a data folder remembers."""
        looked_ms = int(store.meta(LOOKED) or 0)
        return cls(known(store, looked_ms - KEPT_MS, looked_ms + KEPT_MS), looked_ms)

    def all(self) -> list[Life]:
        """Every one of them, the first that was found first."""
        return sorted(self._lives.values(), key=lambda life: (life.now.seen_ms, life.now.finding_id))

    def remember(self, store: Store, answer: Answer) -> list[Finding]:
        """Looks, and writes down what is new, which it gives back. The caller has the store."""
        news = self.look(answer)
        if news:
            store.append(news)
        store.set_meta(LOOKED, str(self.looked_ms))
        return news

    def learn(self, finding: Answer) -> Finding:
        """What one cost in all, from an answer about all of its time; gives back what is to be written down."""
        life = self._lives[finding["id"]]
        now = life.now._replace(
            time_ms=life.written_ms + 1, gpu_ms=finding["gpu_ms"], usd_micro=finding["usd_micro"]
        )  # fmt: skip
        self._lives[finding["id"]] = life._replace(now=now, written_ms=now.time_ms, finding=finding)
        return now

    def look(self, answer: Answer) -> list[Finding]:
        """Takes what `why` found; says what is to be written down."""
        end_ms = ms_of(answer["window"]["to"])
        found = {finding["id"]: finding for finding in answer["findings"]}
        lives = {name: _found(self._lives.get(name), finding, end_ms) for name, finding in found.items()}
        for name, life in self._lives.items():
            # what is not found any more is over, after a while, and forgotten, after another
            if name not in found and (not life.is_over or end_ms - (life.now.over_ms or 0) < KEPT_MS):
                gone = not life.is_over and end_ms - life.until_ms >= apart_ms(life.now.cause)
                lives[name] = life._replace(now=life.now._replace(over_ms=end_ms)) if gone else life
        news = [life for name, life in lives.items() if _is_news(self._lives.get(name), life, end_ms)]
        written = [life.now._replace(time_ms=max(end_ms, life.written_ms + 1)) for life in news]
        for one in written:
            lives[one.finding_id] = lives[one.finding_id]._replace(now=one, written_ms=one.time_ms)
        self._lives = lives
        self.looked_ms = max(self.looked_ms, end_ms)
        return written


def _found(life: Life | None, finding: Answer, end_ms: int) -> Life:
    from_ms, to_ms = ms_of(finding["from"]), ms_of(finding["to"])
    over_ms = end_ms if finding["ended"] or end_ms - to_ms >= apart_ms(finding["cause"]) else None
    one = Finding(
        end_ms, finding["id"], finding["cause"], finding["owner_uid"], from_ms, to_ms, end_ms, over_ms,
        finding["gpu_ms"], finding["usd_micro"], culprit_json(finding["culprit"]),
    )  # fmt: skip
    if life is None:
        return Life(one, to_ms, 0, finding)
    before = life.now
    over_ms = over_ms and (before.over_ms or over_ms)
    now = one._replace(
        from_ms=min(from_ms, before.from_ms), seen_ms=before.seen_ms, over_ms=over_ms,
        gpu_ms=max(one.gpu_ms, before.gpu_ms), usd_micro=more(one.usd_micro, before.usd_micro),
        culprit_json=one.culprit_json or before.culprit_json,
    )  # fmt: skip
    return Life(now, to_ms, life.written_ms, finding)


def _is_news(before: Life | None, life: Life, end_ms: int) -> bool:
    """Whether it is to be written down: it is new, over, or there again; or it goes on, and that was long ago."""
    if before is None or before.is_over != life.is_over:
        return True
    return not life.is_over and end_ms - life.written_ms >= WRITTEN_EVERY_MS


def more(one: int | None, other: int | None) -> int | None:
    """The larger of two amounts, either of which may not be known."""
    return max((amount for amount in (one, other) if amount is not None), default=None)


def ms_of(text: str) -> int:
    """A time of an answer in milliseconds."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)
