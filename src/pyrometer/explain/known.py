"""Findings keep their names: what is found again is the same finding, however the window has moved meanwhile.

A server remembers what it has found (the record `Finding`). What an answer finds is matched with that: the same cause
of the same owner, where the times overlap or nearly touch, is the same finding and has its id. What nobody remembers
is named after where it begins, so that a folder without memory gives what begins in the window the same name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyrometer.explain.findings import Proposal
from pyrometer.model.records import Finding as Known
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import StoreReader
from pyrometer.store.reader import newest_records

LOOKED = "findings_looked_ms"  # kept with the store: until when the ledger reached when somebody last looked
APART_MS = 10 * MS_PER_MINUTE  # what comes back later than this after its end is another finding
RECUR = ("crash_loop", "out_of_memory", "slow_checkpoint", "starved", "preempted")  # they are there now and then
RECUR_APART_MS = MS_PER_HOUR
WRITTEN_EVERY_MS = MS_PER_DAY  # of what goes on: so that who asks about a day need not read those long before
_AROUND_MS = 2 * WRITTEN_EVERY_MS


class Name(NamedTuple):
    """What a finding is called, and since when it is known; None where nobody remembers it."""

    id: str
    seen_ms: int | None = None


def known(store: StoreReader, from_ms: int, to_ms: int) -> list[Known]:
    """What is remembered of findings that were there in some time: the last word on each."""
    if not store.has("finding"):
        return []
    store.expose(["finding"], from_ms - _AROUND_MS, to_ms + _AROUND_MS)
    looked_ms = int(store.meta(LOOKED) or 0)
    found = newest_records(store, Known, "finding_id", "true", [], "true")
    return [
        one for one in found
        if one.from_ms - apart_ms(one.cause) <= to_ms and until_ms(one, looked_ms) + apart_ms(one.cause) >= from_ms
    ]  # fmt: skip


def apart_ms(cause: str) -> int:
    """How long something must not have been there to be over."""
    return RECUR_APART_MS if cause in RECUR else APART_MS


def until_ms(one: Known, looked_ms: int) -> int:
    """Until when a finding is known to have lasted: one that is not over, until somebody last looked."""
    return one.to_ms if one.over_ms is not None else max(one.to_ms, min(looked_ms, one.time_ms + _AROUND_MS))


def named(proposals: Sequence[Proposal], remembered: Iterable[Known], looked_ms: int) -> list[Name]:
    """A name for each of the findings of one answer, no two the same: a remembered one goes to what fits it best."""
    before = sorted(remembered)
    places: dict[tuple[str, str | None], list[int]] = {}
    for place, one in enumerate(before):
        places.setdefault((one.cause, one.owner_uid), []).append(place)
    fits = sorted(
        (fit, number, place)
        for number, proposal in enumerate(proposals)
        for place in places.get((proposal.cause, proposal.owner_uid), ())
        if (fit := _fit(proposal, before[place], looked_ms)) is not None
    )
    names: dict[int, Name] = {}
    taken: set[str] = set()
    for _, number, place in fits:
        one = before[place]
        if number not in names and one.finding_id not in taken:
            names[number] = Name(one.finding_id, one.seen_ms)
            taken.add(one.finding_id)
    taken |= {one.finding_id for one in before}
    in_order = sorted(
        (number for number in range(len(proposals)) if number not in names),
        key=lambda number: (proposals[number].to_ms, culprit_json(proposals[number].culprit) or "", number),
    )
    for number in in_order:
        names[number] = Name(_new_id(proposals[number], taken))
        taken.add(names[number].id)
    return [names[number] for number in range(len(proposals))]


def _fit(proposal: Proposal, one: Known, looked_ms: int) -> tuple[int, ...] | None:
    """How badly a proposal fits what is remembered of its cause and owner; None when it is something else."""
    culprit: dict[str, Any] = json.loads(one.culprit_json or "{}")
    ours, theirs = (proposal.culprit or {}).get("node"), culprit.get("node")
    # who is to blame may turn out later; of what is nobody's, a node is all there is to tell it by
    if ours != theirs and (one.owner_uid is None or (ours is not None and theirs is not None)):
        return None
    shared_ms = min(proposal.to_ms, until_ms(one, looked_ms)) - max(proposal.from_ms, one.from_ms)
    if shared_ms < -apart_ms(one.cause):
        return None
    return (shared_ms <= 0, ours != theirs, culprit_json(proposal.culprit) != one.culprit_json, -shared_ms)


def culprit_json(culprit: dict[str, Any] | None) -> str | None:
    """A culprit as it is remembered."""
    return json.dumps(culprit, sort_keys=True) if culprit else None


def _new_id(proposal: Proposal, taken: set[str]) -> str:
    """A hash of what it is and where it begins; of what is taken already, another."""
    node = (proposal.culprit or {}).get("node")
    words = [proposal.cause, proposal.owner_uid or "", str(proposal.from_ms), str(node or "")]
    found = _hash(words)
    again = 1
    while found in taken:
        again += 1
        found = _hash([*words, str(again)])
    return found


def _hash(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]
