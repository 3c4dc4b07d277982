"""Tracks which board is in each slot and which driver errors (XIDs) it reported.

Only changes are recorded. An exporter keeps reporting the last XID code, so an event is recorded when the code changes.
A code that a slot already had when it was first seen is of unknown age and is not recorded as an event.
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

WORKS_AGAIN_MS = (
    10 * MS_PER_MINUTE
)  # a board that works this long after a fatal code is healthy, whatever code it still reports
MAX_EXTRA_SLOTS = 10_000  # slots in addition to twice those seen within the last day
MAX_SLOTS = 500_000  # total, in case a sender invents machines

_CODE = re.compile(r"XID (\d+)")


class SlotSighting(NamedTuple):
    """An observation of a slot: its boards, or its current XID code and whether the board is working."""

    node_uid: str
    slot_index: int
    time_ms: int
    boards: tuple[tuple[str | None, str | None], ...] = ()  # UUID and model
    xid: int | None = None
    at_work: bool = False


class _SlotState:
    """The last known state of a slot."""

    __slots__ = ("read_ms", "slot", "xid", "xid_ms")

    def __init__(self, slot: Slot) -> None:
        code = _CODE.fullmatch(slot.reason or "")
        self.slot = slot
        self.xid = int(code[1]) if code else None  # the reported code; None before the first one
        self.xid_ms = slot.time_ms
        self.read_ms = slot.time_ms  # when a code was last read


class SlotWatch:
    """Remembers the state of every slot, starting with the recorded slots."""

    def __init__(self, known: Iterable[Slot] = ()) -> None:
        self._known = {(slot.node_uid, slot.slot_index): _SlotState(slot) for slot in known}
        self._seen_ms: dict[tuple[str, int], int] = {}
        self._forget_at = MAX_EXTRA_SLOTS + 2 * len(self._known)

    def take(self, sightings: Iterable[SlotSighting]) -> list[tuple[Any, ...]]:
        """Returns records of what changed."""
        records: list[tuple[Any, ...]] = []
        sightings = list(sightings)
        changed = {sighting[:2] for sighting in sightings if not self._is_as_before(sighting)}
        of_changed = []
        for sighting in sightings:
            if sighting[:2] in changed:
                of_changed.append(sighting)
            else:
                self._seen_ms[sighting[:2]] = sighting.time_ms
                if sighting.xid is not None:
                    known = self._known[sighting[:2]]
                    known.read_ms = max(known.read_ms, sighting.time_ms)
        ordered = sorted(of_changed, key=attrgetter("node_uid", "slot_index", "time_ms"))
        for (node_uid, slot_index, time_ms), together in groupby(ordered, key=lambda sighting: sighting[:3]):
            records += self._see(node_uid, slot_index, time_ms, list(together))
        if len(self._known) > self._forget_at:
            self._forget(max(sighting.time_ms for sighting in sightings) - MS_PER_DAY)
        return records

    def _is_as_before(self, sighting: SlotSighting) -> bool:
        """Whether a sighting confirms the known state, like nearly all do. Such slots are not examined further."""
        known = self._known.get(sighting[:2])
        if known is None or not known.slot.healthy:
            return False
        if sighting.boards and sighting.boards != ((known.slot.uuid, known.slot.gpu_model),):
            return False
        return sighting.xid is None or sighting.xid == known.xid

    def _see(
        self, node_uid: str, slot_index: int, time_ms: int, sightings: list[SlotSighting]
    ) -> Iterable[tuple[Any, ...]]:
        key = node_uid, slot_index
        self._seen_ms[key] = time_ms
        boards = sorted(
            {board for sighting in sightings for board in sighting.boards}, key=lambda b: (b[0] or "", b[1] or "")
        )
        codes = [sighting.xid for sighting in sightings if sighting.xid is not None]
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
            if slot.uuid and uuid != slot.uuid:  # another board: errors of the previous one no longer apply
                slot, known.xid = slot._replace(healthy=True, reason=None), None
            slot = slot._replace(uuid=uuid or slot.uuid, gpu_model=gpu_model or slot.gpu_model)
        if codes and time_ms >= known.read_ms:  # late codes are not news
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
            works_again = any(s.at_work for s in sightings) and time_ms - known.xid_ms >= WORKS_AGAIN_MS
            if not slot.healthy and _CODE.fullmatch(slot.reason or "") and (code == 0 or works_again):
                slot = slot._replace(healthy=True, reason=None)
            known.xid = code
        if slot != known.slot:
            known.slot = slot._replace(time_ms=time_ms)
            yield known.slot

    def _forget(self, before_ms: int) -> None:
        """Forgets slots of machines that are gone, which would accumulate where nodes change every day."""
        self._known = {key: known for key, known in self._known.items() if self._seen_ms.get(key, 0) >= before_ms}
        if len(self._known) > MAX_SLOTS // 2:
            newest = sorted(self._known, key=lambda key: self._seen_ms[key], reverse=True)
            self._known = {key: self._known[key] for key in newest[: MAX_SLOTS // 2]}
        self._seen_ms = {key: self._seen_ms[key] for key in self._known}
        self._forget_at = min(MAX_EXTRA_SLOTS + 2 * len(self._known), MAX_SLOTS)
