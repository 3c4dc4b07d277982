"""Which devices a pod holds: from whatever says so, and none twice."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pyrometer.identify.gpus.devices import NodeHolds, PodClaim, SlotDevice, place
from pyrometer.model.units import SHARE_WHOLE

SLOTS = 4
WHOLE, HALF = SHARE_WHOLE, SHARE_WHOLE // 2


def slots_of(holds, pod_uid):
    return [hold.device.slot_index for hold in holds if hold.pod_uid == pod_uid]


def test_claim_by_count_takes_the_lowest_free_slots():
    holds = place(SLOTS, [PodClaim("a", 0, None, 2, WHOLE), PodClaim("b", 10, None, 1, WHOLE)])
    assert slots_of(holds, "a") == [0, 1]
    assert slots_of(holds, "b") == [2]


def test_freed_slot_is_assigned_again():
    holds = place(SLOTS, [PodClaim("a", 0, 10, 4, WHOLE), PodClaim("b", 10, None, 4, WHOLE)])
    assert slots_of(holds, "b") == [0, 1, 2, 3]


def test_half_claims_share_a_slot_first():
    holds = place(
        SLOTS, [PodClaim("a", 0, None, 1, HALF), PodClaim("b", 1, None, 1, HALF), PodClaim("c", 2, None, 1, HALF)]
    )
    assert [slots_of(holds, pod) for pod in "abc"] == [[0], [0], [1]]


def test_slot_of_a_later_known_claim_stays_free():
    known = PodClaim("k", 50, None, 1, WHOLE, (SlotDevice(0),), "dra")
    assert slots_of(place(SLOTS, [PodClaim("a", 0, None, 1, WHOLE), known]), "a") == [1]


def test_claim_moves_if_its_slot_belongs_to_another_pod():
    known = PodClaim("k", 50, None, 3, WHOLE, (SlotDevice(0), SlotDevice(1), SlotDevice(2)), "dra")
    short = PodClaim("s", 0, 50, 1, WHOLE, (SlotDevice(3),), "dra")
    holds = place(SLOTS, [PodClaim("a", 0, None, 1, WHOLE, before=(2,)), known, short])
    assert [(h.device.slot_index, h.from_ms, h.to_ms) for h in holds if h.pod_uid == "a"] == [(2, 0, 50), (3, 50, None)]


def test_claims_beyond_the_capacity_are_counted():
    holds = place(2, [PodClaim("a", 0, None, 2, WHOLE), PodClaim("b", 5, None, 1, WHOLE)])
    assert len(slots_of(holds, "b")) == 1


class TestBook:
    """What is written down of a node as more becomes known."""

    def test_unchanged_holds_are_not_recorded_again(self):
        book = NodeHolds("n", SLOTS)
        book.claim(PodClaim("a", 0, None, 2, WHOLE))
        assert [a.slot_index for a in book.changes(100)] == [0, 1]
        assert book.changes(200) == []

    def test_end_of_a_claim_closes_its_holds(self):
        book = NodeHolds("n", SLOTS)
        book.claim(PodClaim("a", 0, None, 2, WHOLE))
        book.changes(100)
        book.claim(PodClaim("a", 0, 90, 2, WHOLE))
        assert [(a.slot_index, a.to_ms) for a in book.changes(110)] == [(0, 90), (1, 90)]

    def test_known_devices_replace_guessed_slots(self):
        book = NodeHolds("n", SLOTS)
        book.claim(PodClaim("a", 0, None, 1, WHOLE))
        book.changes(100)
        book.claim(PodClaim("a", 0, None, 1, WHOLE, (SlotDevice(3),), "dra"))
        assert [(a.slot_index, a.from_ms, a.to_ms, a.source, a.time_ms) for a in book.changes(100)] == [
            (0, 0, 0, "count", 101),
            (3, 0, None, "dra", 101),
        ]

    def test_pod_keeps_its_slot_when_an_ended_pod_is_forgotten(self):
        book = NodeHolds("n", SLOTS)
        book.claim(PodClaim("a", 0, None, 1, WHOLE))
        book.claim(PodClaim("b", 1, None, 1, WHOLE))
        book.changes(10)
        book.claim(PodClaim("a", 0, 20, 1, WHOLE))
        book.changes(20)
        book.forget(1_000)
        book.claim(PodClaim("c", 1_001, None, 1, WHOLE))
        assert [(a.pod_uid, a.slot_index) for a in book.changes(1_001)] == [("c", 0)]


@st.composite
def claims(draw):
    """Pods that together never ask for more than the node has at any time; of some the devices are known."""
    found: list[PodClaim] = []
    for number in range(draw(st.integers(1, 12))):
        from_ms = draw(st.integers(0, 30))
        to_ms = draw(st.none() | st.integers(from_ms + 1, 40))
        count, share = draw(st.integers(1, SLOTS)), draw(st.sampled_from([WHOLE, HALF]))
        if share == HALF:
            count = 1
        claim = PodClaim(f"p{number}", from_ms, to_ms, count, share)
        if draw(st.booleans()):
            slots = draw(st.permutations(range(SLOTS)))[:count]
            claim = claim._replace(known=tuple(SlotDevice(slot) for slot in sorted(slots)), source="dra")
        if _possible([*found, claim]):
            found.append(claim)
    return found


def _possible(some):
    """Whole devices are not shared, known ones do not overlap, and there is room for the others at all times."""
    for at_ms in range(45):
        now = [c for c in some if c.from_ms <= at_ms and (c.to_ms is None or c.to_ms > at_ms)]
        taken = [0] * SLOTS
        for claim in now:
            for device in claim.known or ():
                taken[device.slot_index] += claim.share
        if any(share > WHOLE for share in taken):
            return False
        free = sum(share == 0 for share in taken)
        if sum(c.devices for c in now if c.known is None) > free:
            return False
    return True


@given(claims())
def test_slots_are_held_once_and_claims_are_fulfilled(some):
    holds = place(SLOTS, some)
    for at_ms in range(45):
        now = [h for h in holds if h.from_ms <= at_ms and (h.to_ms is None or h.to_ms > at_ms)]
        for slot in range(SLOTS):
            assert sum(h.share for h in now if h.device.slot_index == slot) <= WHOLE
        for claim in some:
            there = claim.from_ms <= at_ms and (claim.to_ms is None or claim.to_ms > at_ms)
            mine = [h for h in now if h.pod_uid == claim.pod_uid]
            assert len(mine) == (claim.devices if there else 0)
            assert claim.known is None or not there or {h.device for h in mine} == set(claim.known)


@given(claims(), st.randoms(use_true_random=False))
def test_holds_do_not_depend_on_the_order_of_claims(some, random):
    book = NodeHolds("n", SLOTS)
    order = list(some)
    random.shuffle(order)
    newest = {}
    for step, claim in enumerate(order):
        book.claim(claim)
        for a in book.changes(100 + step):
            newest[a.pod_uid, a.slot_index, a.instance, a.from_ms] = a
    held = {}
    for a in newest.values():
        held.setdefault(a.pod_uid, []).append((a.from_ms, 45 if a.to_ms is None else a.to_ms))
    for claim in some:
        whole = (45 if claim.to_ms is None else claim.to_ms) - claim.from_ms
        assert sum(to - since for since, to in held[claim.pod_uid]) == whole * claim.devices
    for slot in range(SLOTS):
        whole_holds = sorted(
            (a.from_ms, 45 if a.to_ms is None else a.to_ms)
            for a in newest.values()
            if a.slot_index == slot and a.share == WHOLE and a.to_ms != a.from_ms
        )
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(whole_holds))
