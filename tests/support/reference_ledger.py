"""A reference ledger in plain Python for the simple parts: the holders of slots, and the time of the platform.

It is written from the design, not from the SQL, and has no chunks, hours or carried states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from pyrometer.account.build.ledger import DATED
from pyrometer.model.columns import schema_of
from pyrometer.model.records import Allocation, Node, Pod, Slot
from pyrometer.model.units import MS_PER_MINUTE, SHARE_WHOLE, largest_remainder
from tests.support.histories import History

SlotKey = tuple[str, int]
HeldKey = tuple[str, int, int, str]  # node, slot, minute, the pod or the platform's state


class Span(NamedTuple):
    """A time range and its value."""

    from_ms: int
    to_ms: int
    what: Any = None


class Cluster:
    """The records of a history that are not from the future."""

    def __init__(self, history: History) -> None:
        self.known = [record for record in history.records if record.time_ms <= history.now_ms]
        dated = [record.time_ms for record in self.known if schema_of(type(record)).name in DATED]
        self.end_ms = (max(dated) // MS_PER_MINUTE + 1) * MS_PER_MINUTE if dated else 0

    def of(self, kind: type, **values: Any) -> list[Any]:
        """The records of a kind whose columns have these values, oldest first."""
        found = [r for r in self.known if type(r) is kind and all(getattr(r, n) == v for n, v in values.items())]
        return sorted(found, key=lambda record: record.time_ms)

    def newest(self, kind: type, **values: Any) -> Any:
        """The newest record of a kind with these values."""
        found = self.of(kind, **values)
        return found[-1] if found else None

    def observed(self, kind: type, **values: Any) -> list[Span]:
        """Each observation, from its time to the next one's."""
        seen = self.of(kind, **values)
        ends = [*(record.time_ms for record in seen[1:]), self.end_ms]
        return [Span(record.time_ms, to_ms, record) for record, to_ms in zip(seen, ends, strict=bool(seen))]

    # -- slots

    def places(self) -> dict[SlotKey, str]:
        """Every slot that ever existed, and its source: its node, its own lifetime, or a hold."""
        found: dict[SlotKey, str] = {}
        for hold in self.holds():
            found[hold.node_uid, hold.slot_index] = "hold"
        for slot in self.of(Slot):
            if slot.from_ms is not None and not any(node.present for node in self.of(Node, node_uid=slot.node_uid)):
                found[slot.node_uid, slot.slot_index] = "life"
        for node in self.of(Node):
            seen = [one for one in self.of(Node, node_uid=node.node_uid) if one.time_ms <= node.time_ms]
            if node.present:
                found |= {(node.node_uid, index): "node" for index in range(max(one.gpu_count for one in seen))}
        return found

    def there(self, place: SlotKey, known_by: str) -> list[Span]:
        """The time ranges in which a slot existed."""
        if known_by == "node":
            minutes = {m for span in self.node_spans(place) for m in minutes_of(span) if span.from_ms < span.to_ms}
            return [Span(minute, minute + MS_PER_MINUTE) for minute in sorted(minutes)]
        if known_by == "life":
            slot = self.of(Slot, node_uid=place[0], slot_index=place[1])
            life = [one for one in slot if one.from_ms is not None][-1]
            to_ms = self.end_ms if life.to_ms is None else min(life.to_ms, self.end_ms)
            return [Span(life.from_ms, to_ms)] if life.from_ms < to_ms else []
        holds = self.holds(place)
        return [Span(min(h.from_ms for h in holds), max(h.to_ms for h in holds))]

    def node_spans(self, place: SlotKey) -> list[Span]:
        """The observations of its node while it had this slot."""
        capacity = 0
        spans = []
        for from_ms, to_ms, node in self.observed(Node, node_uid=place[0]):
            capacity = max(capacity, node.gpu_count)
            if node.present and place[1] < capacity:
                spans.append(Span(from_ms, to_ms, node))
        return spans

    def changes(self, place: SlotKey) -> list[int]:
        """The times at which its node was observed while the slot existed."""
        spans = self.node_spans(place)
        found = []
        for before, after in pairwise(spans):
            same = before.what._replace(time_ms=0) == after.what._replace(time_ms=0) and before.to_ms == after.from_ms
            if not same and minutes_of(before)[-1] >= minutes_of(after)[0]:
                found.append(after.from_ms)
        return found

    def available(self, place: SlotKey, known_by: str, at_ms: int) -> bool:
        """Whether the node of a slot could have taken a pod for it."""
        if known_by != "node":
            return True
        spans = self.node_spans(place)
        before = [span for span in spans if span.from_ms <= at_ms and span.from_ms < span.to_ms]
        minute = at_ms // MS_PER_MINUTE * MS_PER_MINUTE
        if before and before[-1].to_ms > minute:
            node = before[-1].what
        else:  # the minute in which it is first seen, before it is seen
            node = next(span.what for span in spans if span.to_ms > minute and span.from_ms < span.to_ms)
        return bool(node.ready and node.schedulable and place[1] < node.gpu_count)

    def broken(self, place: SlotKey) -> list[Span]:
        """When a device was seen to be broken."""
        return [s for s in self.observed(Slot, node_uid=place[0], slot_index=place[1]) if not s.what.healthy]

    # -- holders

    def holds(self, place: SlotKey | None = None) -> list[Allocation]:
        """The allocations as they turned out: each from its beginning to its end."""
        newest: dict[Any, Allocation] = {}
        for hold in self.of(Allocation):
            newest[hold.pod_uid, hold.node_uid, hold.slot_index, hold.instance, hold.from_ms] = hold
        found = []
        for hold in newest.values():
            pod = self.newest(Pod, pod_uid=hold.pod_uid)
            ends = hold.to_ms if hold.to_ms is not None else pod.ended_ms if pod else None
            hold = hold._replace(to_ms=self.end_ms if ends is None else min(ends, self.end_ms))
            if hold.from_ms < hold.to_ms and place in (None, (hold.node_uid, hold.slot_index)):
                found.append(hold)
        return found

    def held(self) -> Counter[HeldKey]:
        """Milliseconds of every slot, by minute and holder."""
        found: Counter[HeldKey] = Counter()
        for place, known_by in self.places().items():
            holds = self.holds(place)
            broken = self.broken(place)
            changes = self.changes(place) if known_by == "node" else []
            cuts = sorted({t for span in [*holds, *broken] for t in (span.from_ms, span.to_ms)} | set(changes))
            for span in self.there(place, known_by):
                for piece in pieces(span, cuts):
                    ill = any(b.from_ms <= piece.from_ms and piece.to_ms <= b.to_ms for b in broken)
                    on = [h for h in holds if h.from_ms <= piece.from_ms and piece.to_ms <= h.to_ms]
                    fit = not ill and self.available(place, known_by, piece.from_ms)
                    minute = piece.from_ms // MS_PER_MINUTE * MS_PER_MINUTE
                    for holder, ms in split_by_share(piece.to_ms - piece.from_ms, on, known_by, fit):
                        found[(*place, minute, "unhealthy" if ill else holder)] += ms
        return +found


def split_by_share(wall_ms: int, holds: Iterable[Allocation], known_by: str, fit: bool) -> list[tuple[str, int]]:
    """Splits a part of a slot's time by share. The rest belongs to the platform, except for slots known from holds."""
    shares: Counter[tuple[str, int]] = Counter()
    for hold in holds:
        shares[hold.pod_uid, hold.instance] += hold.share
    whole = max(sum(shares.values()), SHARE_WHOLE)
    left = whole - sum(shares.values())
    parts = [(("free" if fit else "unhealthy", -1), left), *sorted(shares.items())]
    if known_by == "hold" and shares:
        parts = parts[1:]
        wall_ms = wall_ms * sum(shares.values()) // whole
    elif known_by == "hold":
        return []
    return [
        (holder, ms)
        for ((holder, _), _), ms in zip(parts, largest_remainder([p for _, p in parts], wall_ms), strict=True)
    ]


def minutes_of(span: Span) -> range:
    """The minutes that a span touches."""
    return range(span.from_ms // MS_PER_MINUTE * MS_PER_MINUTE, span.to_ms, MS_PER_MINUTE)


def pieces(span: Span, cuts: Iterable[int]) -> list[Span]:
    """A span, cut at these times and at every minute."""
    at = {span.from_ms, span.to_ms, *minutes_of(span)[1:]} | {t for t in cuts if span.from_ms < t < span.to_ms}
    edges = sorted(at)
    return [Span(from_ms, to_ms) for from_ms, to_ms in pairwise(edges)]
