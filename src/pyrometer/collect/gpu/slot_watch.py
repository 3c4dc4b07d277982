"""What telemetry shows of slots as such: which board is in them, and whether its driver reported an error.

Written down on change only. A code (XID) is the last one that there was, and it stays: its coming is an event, and one
that stood there when a slot was first seen is from nobody knows when.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from pyrometer.model import events
from pyrometer.model.records import Event, Slot
from pyrometer.model.units import MS_PER_DAY, MS_PER_MINUTE
from pyrometer.model.xids import FATAL_XIDS, HARDWARE_XIDS

WORKS_AGAIN_MS = 10 * MS_PER_MINUTE  # a board at work so long after a fatal code is in service, whatever still stands
MOST_REMEMBERED = 10_000  # slots, beyond twice those that were there a day ago
MOST_SLOTS = 500_000  # in all: who makes up machines makes up many in a day

_CODE = re.compile(r"XID (\d+)")


class Sight(NamedTuple):
    """A slot at a time: what board is in it, or which code its driver shows and whether it is at work."""

    node_uid: str
    slot_index: int
    time_ms: int
    boards: tuple[tuple[str | None, str | None], ...] = ()  # UUID and model
    xid: int | None = None
    at_work: bool = False


class _SlotState:
    """The last word on a slot."""

    __slots__ = ("read_ms", "slot", "xid", "xid_ms")

    def __init__(self, slot: Slot) -> None:
        code = _CODE.fullmatch(slot.reason or "")
        self.slot = slot
        self.xid = int(code[1]) if code else None  # the code that it shows; None before it was seen
        self.xid_ms = slot.time_ms
        self.read_ms = slot.time_ms  # when a code was last read


class SlotWatch:
    """Remembers what was said of every slot, beginning with what is known from before."""

    def __init__(self, known: Iterable[Slot] = ()) -> None:
        self._known = {(slot.node_uid, slot.slot_index): _SlotState(slot) for slot in known}
        self._seen_ms: dict[tuple[str, int], int] = {}
        self._forget_at = MOST_REMEMBERED + 2 * len(self._known)

    def take(self, sights: Iterable[Sight]) -> list[tuple[Any, ...]]:
        """What is new about the slots."""
        records: list[tuple[Any, ...]] = []
        sights = list(sights)
        stirred = {sight[:2] for sight in sights if not self._is_as_before(sight)}
        told = []
        for sight in sights:
            if sight[:2] in stirred:
                told.append(sight)
            else:
                self._seen_ms[sight[:2]] = sight.time_ms
                if sight.xid is not None:
                    known = self._known[sight[:2]]
                    known.read_ms = max(known.read_ms, sight.time_ms)
        ordered = sorted(told, key=attrgetter("node_uid", "slot_index", "time_ms"))
        for (node_uid, slot_index, time_ms), together in groupby(ordered, key=lambda sight: sight[:3]):
            records += self._see(node_uid, slot_index, time_ms, list(together))
        if len(self._known) > self._forget_at:
            self._forget(max(sight.time_ms for sight in sights) - MS_PER_DAY)
        return records

    def _is_as_before(self, sight: Sight) -> bool:
        """Whether a sight says what is known, as nearly all do: a slot of which all do so is not looked at further."""
        known = self._known.get(sight[:2])
        if known is None or not known.slot.healthy:
            return False
        if sight.boards and sight.boards != ((known.slot.uuid, known.slot.gpu_model),):
            return False
        return sight.xid is None or sight.xid == known.xid

    def _see(self, node_uid: str, slot_index: int, time_ms: int, sights: list[Sight]) -> Iterable[tuple[Any, ...]]:
        key = node_uid, slot_index
        self._seen_ms[key] = time_ms
        boards = sorted({board for sight in sights for board in sight.boards}, key=lambda b: (b[0] or "", b[1] or ""))
        codes = [sight.xid for sight in sights if sight.xid is not None]
        known = self._known.get(key)
        if known is None:
            uuid, gpu_model = boards[-1] if boards else (None, None)
            known = self._known[key] = _SlotState(
                Slot(time_ms=time_ms, node_uid=node_uid, slot_index=slot_index, uuid=uuid, gpu_model=gpu_model)
            )
            known.xid = max(codes, default=None)
            yield known.slot
            return
        slot = known.slot
        if boards and time_ms >= slot.time_ms and (slot.uuid, slot.gpu_model) not in boards:
            uuid, gpu_model = boards[-1]
            if slot.uuid and uuid != slot.uuid:  # another board: what the last one suffered from is gone with it
                slot, known.xid = slot._replace(healthy=True, reason=None), None
            slot = slot._replace(uuid=uuid or slot.uuid, gpu_model=gpu_model or slot.gpu_model)
        if codes and time_ms >= known.read_ms:  # what comes late says nothing new
            known.read_ms = time_ms
            code = max(codes)
            if code and known.xid is not None and code != known.xid:
                known.xid_ms = time_ms
                yield Event(
                    time_ms=time_ms,
                    kind=events.XID_ERROR,
                    node_uid=node_uid,
                    slot_index=slot_index,
                    reason=str(code),
                    message=HARDWARE_XIDS.get(code),
                )
                if code in FATAL_XIDS:
                    slot = slot._replace(healthy=False, reason=f"XID {code}")
            works_again = any(s.at_work for s in sights) and time_ms - known.xid_ms >= WORKS_AGAIN_MS
            if not slot.healthy and _CODE.fullmatch(slot.reason or "") and (code == 0 or works_again):
                slot = slot._replace(healthy=True, reason=None)
            known.xid = code
        if slot != known.slot:
            known.slot = slot._replace(time_ms=time_ms)
            yield known.slot

    def _forget(self, before_ms: int) -> None:
        """Slots of machines that are gone: where nodes come and go every day, there is no end of them."""
        self._known = {key: known for key, known in self._known.items() if self._seen_ms.get(key, 0) >= before_ms}
        if len(self._known) > MOST_SLOTS // 2:
            newest = sorted(self._known, key=lambda key: self._seen_ms[key], reverse=True)
            self._known = {key: self._known[key] for key in newest[: MOST_SLOTS // 2]}
        self._seen_ms = {key: self._seen_ms[key] for key in self._known}
        self._forget_at = min(MOST_REMEMBERED + 2 * len(self._known), MOST_SLOTS)
