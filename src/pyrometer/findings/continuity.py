"""Findings keep their ids when the time range moves.

A server records its findings (the record `Finding`). The findings of an answer are matched with these records: the same
cause of the same owner with overlapping or nearly adjacent times is the same finding and has its id. The id of a new
finding depends on where it begins, so that it is stable without records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyrometer.findings.proposals import Proposal
from pyrometer.model.records import Finding as FindingRecord
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import StoreReader
from pyrometer.store.reader import newest_records

SEARCHED_UNTIL = "findings_looked_ms"  # metadata of the store: the end of the ledger at the last search
MAX_GAP_MS = 10 * MS_PER_MINUTE  # what recurs later than this after its end is another finding
RECURRING = ("crash_loop", "out_of_memory", "slow_checkpoint", "starved", "preempted")  # causes that occur now and then
RECURRING_MAX_GAP_MS = MS_PER_HOUR
REWRITE_INTERVAL_MS = MS_PER_DAY  # of ongoing findings, so that a question about a day reads few records
_AROUND_MS = 2 * REWRITE_INTERVAL_MS


class FindingName(NamedTuple):
    """The id of a finding and when it was first found; None if that is not recorded."""

    id: str
    seen_ms: int | None = None


def recorded(store: StoreReader, from_ms: int, to_ms: int) -> list[FindingRecord]:
    """The newest record of each finding in a time range."""
    if not store.has("finding"):
        return []
    store.expose(["finding"], from_ms - _AROUND_MS, to_ms + _AROUND_MS)
    looked_ms = int(store.meta(SEARCHED_UNTIL) or 0)
    found = newest_records(store, FindingRecord, "finding_id", "true", [], "true")
    return [
        one
        for one in found
        if one.from_ms - max_gap_ms(one.cause) <= to_ms and until_ms(one, looked_ms) + max_gap_ms(one.cause) >= from_ms
    ]


def max_gap_ms(cause: str) -> int:
    """The gap after which a recurrence is another finding."""
    return RECURRING_MAX_GAP_MS if cause in RECURRING else MAX_GAP_MS


def until_ms(one: FindingRecord, looked_ms: int) -> int:
    """Until when a finding is known to have lasted; an ongoing one until the last search."""
    return one.to_ms if one.over_ms is not None else max(one.to_ms, min(looked_ms, one.time_ms + _AROUND_MS))


def named(proposals: Sequence[Proposal], remembered: Iterable[FindingRecord], looked_ms: int) -> list[FindingName]:
    """A unique id for each finding of an answer. A recorded id goes to the best match."""
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
    names: dict[int, FindingName] = {}
    used: set[str] = set()
    for _, number, place in fits:
        one = before[place]
        if number not in names and one.finding_id not in used:
            names[number] = FindingName(one.finding_id, one.seen_ms)
            used.add(one.finding_id)
    used |= {one.finding_id for one in before}
    in_order = sorted(
        (number for number in range(len(proposals)) if number not in names),
        key=lambda number: (proposals[number].to_ms, culprit_json(proposals[number].culprit) or "", number),
    )
    for number in in_order:
        names[number] = FindingName(_new_id(proposals[number], used))
        used.add(names[number].id)
    return [names[number] for number in range(len(proposals))]


def _fit(proposal: Proposal, one: FindingRecord, looked_ms: int) -> tuple[int, ...] | None:
    """The distance between a proposal and a record of the same cause and owner; None if they differ."""
    culprit: dict[str, Any] = json.loads(one.culprit_json or "{}")
    ours, theirs = (proposal.culprit or {}).get("node"), culprit.get("node")
    # a culprit may be identified later; without an owner only the node identifies a finding
    if ours != theirs and (one.owner_uid is None or (ours is not None and theirs is not None)):
        return None
    shared_ms = min(proposal.to_ms, until_ms(one, looked_ms)) - max(proposal.from_ms, one.from_ms)
    if shared_ms < -max_gap_ms(one.cause):
        return None
    return (shared_ms <= 0, ours != theirs, culprit_json(proposal.culprit) != one.culprit_json, -shared_ms)


def culprit_json(culprit: dict[str, Any] | None) -> str | None:
    """A culprit as it is recorded."""
    return json.dumps(culprit, sort_keys=True) if culprit else None


def _new_id(proposal: Proposal, used: set[str]) -> str:
    """A hash of the cause, the owner and the start; a different one if that is in use."""
    node = (proposal.culprit or {}).get("node")
    words = [proposal.cause, proposal.owner_uid or "", str(proposal.from_ms), str(node or "")]
    found = _hash(words)
    again = 1
    while found in used:
        again += 1
        found = _hash([*words, str(again)])
    return found


def _hash(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:12]
