"""How right `why` is about a cluster whose truth is known: findings, culprits, states and dollars, compared.

The truth says what really happened. With less than full evidence, a state that this evidence cannot show counts as
right when the ledger has it as one of those that it can look like:

| evidence   | truth                                             | the ledger may have        |
|------------|---------------------------------------------------|----------------------------|
| full       | any state                                         | itself                     |
| gpu        | train, evaluate, diverged, lost_work              | active                     |
|            | data_stall, checkpoint, comm_stall, straggler_wait | active, starved           |
|            | hang                                              | hang, idle_held, starved   |
|            | any other                                         | itself                     |
| kubernetes | free, unhealthy, gang_wait                        | itself                     |
|            | startup                                           | startup, unobserved        |
|            | any other                                         | unobserved                 |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyrometer.account.query.sums import sums
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.states import CAUSES, STATES
from pyrometer.store import Store

SAME_INTERVAL = 0.5  # of the time that either covers is covered by both
PLACES = 4  # of a share in the answer

_STATES = tuple(state.name for state in STATES)
_LOOKS_LIKE: dict[str, dict[str, tuple[str, ...]]] = {
    "full": {},
    "gpu": {
        **dict.fromkeys(("train", "evaluate", "diverged", "lost_work"), ("active",)),
        **dict.fromkeys(("data_stall", "checkpoint", "comm_stall", "straggler_wait"), ("active", "starved")),
        "hang": ("hang", "idle_held", "starved"),
    },
    "kubernetes": {
        **{state: ("unobserved",) for state in _STATES if state not in ("free", "unhealthy", "gang_wait")},
        "startup": ("startup", "unobserved"),
    },
}

_Cell = tuple[str | None, int]  # workload, hour


class TruthError(ValueError):
    """The truth cannot be compared with. The text states why."""


class _Pair(NamedTuple):
    """A planted finding and a found one that may match, by their indexes."""

    planted: int
    found: int
    overlap: float
    culprit_right: bool


def truth_window(truth: Mapping[str, Any]) -> TimeRange:
    """The time range of a truth."""
    try:
        return TimeRange(_ms(truth["window"]["from"]), _ms(truth["window"]["to"]))
    except (KeyError, TypeError, ValueError):
        raise TruthError("its window lacks 'from' or 'to'") from None


def ledger_cells(store: Store, window: TimeRange) -> list[dict[str, Any]]:
    """The ledger by workload, hour and state, in the form of a truth."""
    return [
        {"workload_uid": workload and workload["uid"], "hour": hour, "state": state, "gpu_ms": group.gpu_ms}
        for group in sums(store, window, ("workload", "hour", "state"), zone=UTC)
        for workload, hour, state in [group.key]
    ]


def score(truth: Mapping[str, Any], answer: Mapping[str, Any], cells: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the answer of `why` and the cells of its ledger with the truth."""
    evidence = truth.get("evidence", "full")
    if evidence not in _LOOKS_LIKE:
        raise TruthError(f"its evidence is {evidence!r}, not one of {', '.join(_LOOKS_LIKE)}")
    try:
        state_error, states = _states(truth["cells"], cells, _LOOKS_LIKE[evidence])
        compared = _findings(truth["findings"], answer["findings"])
    except (KeyError, TypeError) as error:
        raise TruthError(f"its findings or cells lack {error}") from None
    except ValueError as error:
        raise TruthError(str(error)) from None
    return {
        "scenario": truth.get("scenario"),
        "seed": truth.get("seed"),
        "evidence": evidence,
        "origin": truth.get("origin", "simulated"),
        "window": truth["window"],
        **{name: compared[name] for name in ("precision", "recall", "culprit")},
        "state_error": state_error,
        "usd_error": compared["usd_error"],
        "detect_s_p90": compared["detect_s_p90"],
        "causes": compared["causes"],
        "states": states,
        **{name: compared[name] for name in ("missed", "wrong", "wrong_culprit")},
    }


# -- findings ---------------------------------------------------------------------------------------------------------


def _findings(planted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    pairs = _pairs(planted, found)
    matched = _matched(planted, pairs)
    detectable = [number for number, finding in enumerate(planted) if finding.get("detectable", True)]
    right = [pair for pair in matched if pair.planted in set(detectable)]
    # A finding that this evidence cannot show, even in part, is neither right nor wrong.
    excused = {pair.found for pair in pairs if pair.planted not in set(detectable)} - {pair.found for pair in right}
    counted = [number for number in range(len(found)) if number not in excused]
    named = [pair for pair in right if planted[pair.planted].get("culprit")]
    seen, hit = {pair.planted for pair in right}, {pair.found for pair in right}
    overlaps: dict[int, float] = defaultdict(float)
    for pair in pairs:
        overlaps[pair.planted] = max(overlaps[pair.planted], pair.overlap)
    return {
        "precision": _share(len(right), len(counted)),
        "recall": _share(len(right), len(detectable)),
        "culprit": _share(sum(pair.culprit_right for pair in named), len(named)),
        "usd_error": _usd_error([planted[n] for n in detectable], [found[n] for n in counted]),
        "detect_s_p90": _p90(_detect_s(planted[pair.planted], found[pair.found]) for pair in right),
        "causes": _causes(
            [planted[n]["cause"] for n in detectable],
            [found[n]["cause"] for n in counted],
            [planted[pair.planted]["cause"] for pair in right],
        ),
        "missed": [_brief(planted[n]) | {"overlap": round(overlaps[n], PLACES)} for n in detectable if n not in seen],
        "wrong": [_brief(found[n]) | {"title": found[n].get("title")} for n in counted if n not in hit],
        "wrong_culprit": [
            _brief(planted[pair.planted]) | {"found": found[pair.found].get("culprit")}
            for pair in named
            if not pair.culprit_right
        ],
    }


def _pairs(planted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> list[_Pair]:
    """All pairs of the same cause and workload with overlapping intervals."""
    by_subject: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for number, finding in enumerate(found):
        by_subject[_subject(finding)].append(number)
    pairs = []
    for number, finding in enumerate(planted):
        for other in by_subject[_subject(finding)]:
            overlap = _overlap(finding, found[other])
            if overlap > 0:
                right = _culprit_right(finding.get("culprit"), found[other].get("culprit"))
                pairs.append(_Pair(number, other, overlap, right))
    return pairs


def _matched(planted: Sequence[Mapping[str, Any]], pairs: Iterable[_Pair]) -> list[_Pair]:
    """A one-to-one matching, best overlaps first. Findings without a workload are distinguished by their culprit."""

    def order(pair: _Pair) -> tuple[bool, float, bool, int, int]:
        truth = planted[pair.planted]
        another = truth.get("workload") is None and not pair.culprit_right
        return another, -pair.overlap, not truth.get("detectable", True), pair.planted, pair.found

    matched_planted: set[int] = set()
    matched_found: set[int] = set()
    matched = []
    for pair in sorted((pair for pair in pairs if pair.overlap >= SAME_INTERVAL), key=order):
        if pair.planted not in matched_planted and pair.found not in matched_found:
            matched_planted.add(pair.planted)
            matched_found.add(pair.found)
            matched.append(pair)
    return matched


def _subject(finding: Mapping[str, Any]) -> tuple[str, str | None]:
    return finding["cause"], (finding["workload"] or {}).get("uid")


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Intersection over union of two intervals."""
    (from_a, to_a), (from_b, to_b) = ((_ms(f["from"]), _ms(f["to"])) for f in (one, other))
    both = min(to_a, to_b) - max(from_a, from_b)
    either = max(to_a, to_b) - min(from_a, from_b)
    return max(0.0, both / either) if either > 0 else 0.0


def _culprit_right(truth: Mapping[str, Any] | None, found: Mapping[str, Any] | None) -> bool:
    """Whether every field of the true culprit is equal; lists in any order."""
    return all(_plain(value) == _plain((found or {}).get(name)) for name, value in (truth or {}).items())


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, list | tuple) else value


def _causes(planted: Sequence[str], found: Sequence[str], right: Sequence[str]) -> list[dict[str, Any]]:
    there = {*planted, *found}
    return [
        {
            "cause": cause,
            "precision": _share(right.count(cause), found.count(cause)),
            "recall": _share(right.count(cause), planted.count(cause)),
            "found": found.count(cause),
            "planted": planted.count(cause),
            "matched": right.count(cause),
        }
        for cause in [*(cause for cause in CAUSES if cause in there), *sorted(there - set(CAUSES))]
    ]


def _usd_error(planted: Iterable[Mapping[str, Any]], found: Iterable[Mapping[str, Any]]) -> float | None:
    truth, reported = (sum(finding.get("usd_micro") or 0 for finding in findings) for findings in (planted, found))
    return round(abs(reported - truth) / truth, PLACES) if truth else None


def _detect_s(planted: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """The time from the start of a fault until it was detectable."""
    return (_ms(found["what_if"]["detected"]) - _ms(planted["from"])) / 1000


def _p90(values: Iterable[float]) -> float | None:
    """The 90th percentile."""
    ordered = sorted(values)
    return ordered[-(-9 * len(ordered) // 10) - 1] if ordered else None


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, PLACES) if whole else None


def _brief(finding: Mapping[str, Any]) -> dict[str, Any]:
    names = ("cause", "workload", "culprit", "from", "to", "gpu_ms", "usd_micro", "usd")
    return {name: finding.get(name) for name in names}


# -- states -----------------------------------------------------------------------------------------------------------


def _states(
    truth: Iterable[Mapping[str, Any]], ledger: Iterable[Mapping[str, Any]], looks_like: Mapping[str, tuple[str, ...]]
) -> tuple[float | None, list[dict[str, Any]]]:
    """Half of all differences relative to the total of the truth, and the time of each state: true, as observable, and
    found."""
    true_cells, found_cells = _by_cell(truth), _by_cell(ledger)
    looked: dict[str, int] = defaultdict(int)
    reported: dict[str, int] = defaultdict(int)
    twice_wrong = 0
    for cell in true_cells.keys() | found_cells.keys():
        true_ms, found_ms = true_cells.get(cell, {}), found_cells.get(cell, {})
        seen = _as_observed(true_ms, found_ms, looks_like)
        twice_wrong += sum(abs(seen.get(state, 0) - found_ms.get(state, 0)) for state in {*seen, *found_ms})
        for state, ms in seen.items():
            looked[state] += ms
        for state, ms in found_ms.items():
            reported[state] += ms
    total = sum(looked.values())
    rows = [
        {"state": state, "truth_gpu_ms": looked[state], "found_gpu_ms": reported[state]}
        for state in _STATES
        if looked[state] or reported[state]
    ]
    return (round(twice_wrong / 2 / total, PLACES) if total else None), rows


def _by_cell(cells: Iterable[Mapping[str, Any]]) -> dict[_Cell, dict[str, int]]:
    by_cell: dict[_Cell, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for cell in cells:
        if cell["state"] not in _STATES:
            raise ValueError(f"{cell['state']!r} is not a state")
        by_cell[cell["workload_uid"], _ms(cell["hour"])][cell["state"]] += cell["gpu_ms"]
    return by_cell


def _as_observed(
    true_ms: Mapping[str, int], found_ms: Mapping[str, int], looks_like: Mapping[str, tuple[str, ...]]
) -> dict[str, int]:
    """A cell of the truth, with each state replaced by the found state that it may look like.

    States with the fewest choices are assigned first, and choices that few states share come first, so that as much as
    possible matches.
    """
    left = dict(found_ms)
    seen: dict[str, int] = defaultdict(int)
    for state in sorted(true_ms, key=lambda state: (len(looks_like.get(state, (state,))), _STATES.index(state))):
        choices = looks_like.get(state, (state,))
        rest = true_ms[state]
        for choice in choices:
            fits = min(rest, left.get(choice, 0))
            seen[choice] += fits
            left[choice] = left.get(choice, 0) - fits
            rest -= fits
        seen[choices[0]] += rest
    return {state: ms for state, ms in seen.items() if ms}


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
