"""Pods → slots: the devices of a node that each pod holds, from all evidence, and no device twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from pyrometer.collect.kubernetes import objects
from pyrometer.model.records import WHOLE_DEVICE, Allocation
from pyrometer.model.units import SHARE_WHOLE


class SlotDevice(NamedTuple):
    """A slot of a node, or a MIG instance on it."""

    slot_index: int
    instance: int = WHOLE_DEVICE


class PodClaim(NamedTuple):
    """The devices of a pod on its node. `known`: its devices if there is evidence; else only their number is known."""

    pod_uid: str
    from_ms: int
    to_ms: int | None
    devices: int
    share: int  # of each, in parts of a whole slot
    known: tuple[SlotDevice, ...] | None = None
    source: str = "count"
    before: tuple[int, ...] = ()  # the slots that it was given, when only their number was known


class Hold(NamedTuple):
    """A claim on one device for a while."""

    pod_uid: str
    device: SlotDevice
    from_ms: int
    to_ms: int | None
    share: int
    source: str


_FOREVER = 2**62
_DRA_NAME = re.compile(r"gpu-(\d+)(?:-mig-.*)?")


def devices_of(claim: objects.ResourceClaim) -> tuple[SlotDevice, ...]:
    """The GPUs that a claim was given (DRA); a MIG device counts as the one that it is on."""
    results = claim.status.allocation.devices.results if claim.status.allocation else None
    found = (_DRA_NAME.fullmatch(result.device) for result in results or () if "gpu" in result.driver)
    return tuple(SlotDevice(int(match[1])) for match in found if match)


def place(slots: int, claims: Iterable[PodClaim]) -> list[Hold]:
    """Gives every claim its devices, at all times no slot more than once as far as there are enough.

    Devices that are known come first. The others stay where they were, or get slots that are free, those that no pod is
    known to need later before any other; one whose slot turns out to be another's continues elsewhere.
    """
    listed = sorted(claims, key=lambda claim: (not claim.before, claim.from_ms, claim.pod_uid))
    known = [claim for claim in listed if claim.known is not None]
    holds = [
        Hold(
            pod_uid=claim.pod_uid,
            device=device,
            from_ms=claim.from_ms,
            to_ms=claim.to_ms,
            share=claim.share,
            source=claim.source,
        )
        for claim in known
        for device in claim.known or ()
    ]
    cuts = sorted({at for claim in known for at in (claim.from_ms, _end(claim.to_ms))})
    for claim in listed:
        if claim.known is None:
            holds += _placed(slots, claim, holds, cuts)
    return sorted(holds, key=lambda hold: (hold.from_ms, hold.pod_uid, hold.device))


def _placed(slots: int, claim: PodClaim, holds: Sequence[Hold], cuts: Sequence[int]) -> list[Hold]:
    """One claim of which only the number of devices is known, piece by piece where others are known to come and go."""
    to_ms = _end(claim.to_ms)
    others = [hold for hold in holds if hold.from_ms < to_ms and _end(hold.to_ms) > claim.from_ms]
    edges = sorted({claim.from_ms, *(at for at in cuts if claim.from_ms < at < to_ms), to_ms})
    mine: list[Hold] = []
    before: Sequence[int] = claim.before
    for from_ms, until_ms in pairwise(edges):
        chosen = _free(slots, claim, others, from_ms, until_ms, to_ms, before)
        mine = [
            *(hold for hold in mine if hold.to_ms != from_ms or hold.device.slot_index not in chosen),
            *(
                Hold(
                    pod_uid=claim.pod_uid,
                    device=SlotDevice(slot),
                    from_ms=_since(mine, slot, from_ms),
                    to_ms=until_ms,
                    share=claim.share,
                    source=claim.source,
                )
                for slot in chosen
            ),
        ]
        before = chosen
    return [hold if hold.to_ms != _FOREVER else hold._replace(to_ms=None) for hold in mine]


def _free(
    slots: int, claim: PodClaim, others: Sequence[Hold], from_ms: int, until_ms: int, to_ms: int, before: Sequence[int]
) -> list[int]:
    """The slots for a piece: those that it had before, then those free for all of its time, then those free for now."""
    taken, wanted = [0] * slots, [0] * slots
    for hold in others:
        if hold.device.slot_index < slots:
            if hold.from_ms < until_ms and _end(hold.to_ms) > from_ms:
                taken[hold.device.slot_index] += hold.share
            if hold.from_ms < to_ms and _end(hold.to_ms) > from_ms:
                wanted[hold.device.slot_index] += hold.share
    fits = [slot for slot in range(slots) if taken[slot] + claim.share <= SHARE_WHOLE]
    fits.sort(key=lambda slot: (slot not in before, wanted[slot] + claim.share > SHARE_WHOLE, -taken[slot], slot))
    chosen = fits[: claim.devices]
    if len(chosen) < claim.devices:  # more than the node has: shares are scaled down where they are counted
        rest = sorted(set(range(slots)) - set(chosen), key=lambda slot: (taken[slot], slot))
        chosen += rest[: claim.devices - len(chosen)]
    return sorted(chosen)


def _since(mine: Sequence[Hold], slot: int, from_ms: int) -> int:
    return next((hold.from_ms for hold in mine if hold.device.slot_index == slot and hold.to_ms == from_ms), from_ms)


def _end(to_ms: int | None) -> int:
    return _FOREVER if to_ms is None else to_ms


class NodeHolds:
    """The holds on one node with their last records, and the changes to record when more is known."""

    def __init__(self, node_uid: str, slots: int) -> None:
        self.node_uid = node_uid
        self.slots = slots
        self._claims: dict[str, PodClaim] = {}
        self._written: dict[str, dict[tuple[SlotDevice, int], Hold]] = {}  # of each pod
        self._newest_ms = 0
        self._changed: set[str] = set()

    def claim(self, claim: PodClaim) -> None:
        """A pod came, or ended, or more is known about it."""
        self._claims[claim.pod_uid] = claim
        self._changed.add(claim.pod_uid)

    def resume(self, hold: Hold) -> None:
        """A hold that was recorded before this process began; the holds of a pod are its claim."""
        mine = self._written.setdefault(hold.pod_uid, {})
        mine[hold.device, hold.from_ms] = hold
        to_ms = max((one.to_ms for one in mine.values()), key=_end)
        now = [one for one in mine.values() if one.to_ms == to_ms]  # one that was moved had other devices before
        known = None if hold.source == "count" else tuple(one.device for one in now)
        from_ms = min(one.from_ms for one in mine.values())
        self._claims[hold.pod_uid] = PodClaim(
            pod_uid=hold.pod_uid,
            from_ms=from_ms,
            to_ms=to_ms,
            devices=len(now),
            share=hold.share,
            known=known,
            source=hold.source,
        )

    def changes(self, now_ms: int) -> list[Allocation]:
        """The changes to record. Wrong holds end when they began."""
        guessing = all(claim.known is None for claim in self._claims.values())
        placed = self._placed_alone() if guessing else self._placed_anew()
        self._changed.clear()
        changed: list[Hold] = []
        for pod_uid, holds in placed.items():
            now, before = {(hold.device, hold.from_ms): hold for hold in holds}, self._written.get(pod_uid, {})
            changed += [hold._replace(to_ms=hold.from_ms) for key, hold in before.items() if key not in now]
            changed += [hold for key, hold in now.items() if before.get(key) != hold]
            self._written[pod_uid] = now
        if changed:  # of two words on a hold the later counts
            self._newest_ms = max(now_ms, self._newest_ms + 1)
        return [self._allocation(hold, self._newest_ms) for hold in changed]

    def _placed_alone(self) -> dict[str, list[Hold]]:
        """Without known devices, assigned slots stay: only changed claims are placed."""
        placed: dict[str, list[Hold]] = {}
        for pod_uid in sorted(self._changed, key=lambda uid: (self._claims[uid].from_ms, uid)):
            claim, mine = self._claims[pod_uid], list(self._written.get(pod_uid, {}).values())
            same = [
                hold._replace(to_ms=claim.to_ms, share=claim.share) for hold in mine if hold.from_ms == claim.from_ms
            ]
            if len(same) == len(mine) == claim.devices and all(hold.source == claim.source for hold in mine):
                placed[pod_uid] = same
                continue
            others = [h for uid, held in self._written.items() if uid != pod_uid for h in held.values()]
            others += [h for uid, held in placed.items() if uid not in self._written for h in held]
            placed[pod_uid] = _placed(self.slots, self._with_before(claim), others, ())
        return placed

    def _placed_anew(self) -> dict[str, list[Hold]]:
        """Devices that are known may belong to another than was guessed: everything is looked at."""
        placed: dict[str, list[Hold]] = {pod_uid: [] for pod_uid in self._claims}
        for hold in place(self.slots, [self._with_before(claim) for claim in self._claims.values()]):
            placed[hold.pod_uid].append(hold)
        return placed

    def _with_before(self, claim: PodClaim) -> PodClaim:
        return claim._replace(before=tuple(device.slot_index for device, _ in self._written.get(claim.pod_uid, ())))

    def forget(self, before_ms: int) -> None:
        """Pods that ended long ago keep what was written of them."""
        for pod_uid in [uid for uid, claim in self._claims.items() if _end(claim.to_ms) <= before_ms]:
            del self._claims[pod_uid]
            self._written.pop(pod_uid, None)

    def _allocation(self, hold: Hold, now_ms: int) -> Allocation:
        return Allocation(
            time_ms=now_ms,
            pod_uid=hold.pod_uid,
            node_uid=self.node_uid,
            slot_index=hold.device.slot_index,
            from_ms=hold.from_ms,
            to_ms=hold.to_ms,
            share=hold.share,
            instance=hold.device.instance,
            source=hold.source,
        )
