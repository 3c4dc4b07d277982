"""What the machines around the GPUs were short of while those waited: disks, CPUs, memory, network.

It is evidence beside a finding and changes nothing about it. Medians over minutes are compared, so that a burst here or
there says nothing; where nothing was measured, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from pyrometer.explain.night import Night
from pyrometer.model.human import counted, listed, percent, rate
from pyrometer.model.units import MS_PER_HOUR

ENOUGH_MINUTES = 3
MORE_PERMILLE = 100  # than usual: below, it was as short before, and nobody waited
OTHER_RATE = 2  # times as much as usual, or as little
WORTH_NAMING_MIB_S = 50
DROPPED_PER_S = 10
MOST_TOLD = 3


class _Sign(NamedTuple):
    """A share of time or room that is short from a limit on, in words."""

    column: str
    short_permille: int
    words: str


_DISK = _Sign("disk_busy_permille", 800, "the busiest disk worked {} of the time")

# Of signs that say the same, the first one is told.
_SHARES = (
    (
        _DISK,
        _Sign("io_stalled_permille", 200, "everything waited for I/O {} of the time"),
        _Sign("cpu_wait_permille", 200, "CPUs waited for I/O {} of the time"),
    ),
    (_Sign("cpu_busy_permille", 900, "CPUs were busy {} of the time"),),
    (_Sign("memory_used_permille", 950, "memory was {} full"),),
)
_RATES = {"disk_read_mib_s": "disks gave {}", "network_rx_mib_s": "the network brought {}"}

_COLUMNS = (*(sign.column for signs in _SHARES for sign in signs), *_RATES, "network_dropped_per_s")

# A minute belongs to the time in which its middle lies.
_MEDIANS = f"""
WITH place AS (SELECT unnest($1) AS number, unnest($2) AS node_uid, unnest($3) AS from_ms, unnest($4) AS to_ms)
SELECT number, count(DISTINCT time_ms), {", ".join(f"median({column})" for column in _COLUMNS)}
FROM node_sample JOIN place USING (node_uid)
WHERE time_ms >= from_ms - 30000 AND time_ms < to_ms - 30000 GROUP BY number
"""

_SAVING = """
SELECT time_ms + 30000, max(disk_busy_permille), sum(disk_write_mib_s), sum(network_tx_mib_s) FROM node_sample
WHERE list_contains($1, node_uid) AND time_ms >= $2 - 30000 AND time_ms < $3 - 30000 GROUP BY time_ms
"""

_Load = dict[str, float]  # medians by column; what was not measured is not in it


class Wait(NamedTuple):
    """Nodes on which something waited from then to then, and others that it can be compared with."""

    node_uids: Sequence[str]
    from_ms: int
    to_ms: int
    peers: Sequence[str] = ()


def shortages(night: Night, waits: Sequence[Wait]) -> list[list[str]]:
    """What the nodes of each wait were short of, against the hour before, else against peers; one sentence or none."""
    during = _loads(night, waits)
    before = _loads(
        night,
        [
            Wait(wait.node_uids, wait.from_ms - MS_PER_HOUR, wait.from_ms)
            if wait.from_ms > night.window.from_ms else Wait((), 0, 0)  # it may have begun earlier
            for wait in waits
        ],
    )  # fmt: skip
    beside = _loads(night, [Wait(wait.peers, wait.from_ms, wait.to_ms) for wait in waits])
    return [
        _shortage(night, wait.node_uids, *loads) for wait, *loads in zip(waits, during, before, beside, strict=True)
    ]


def _shortage(night: Night, node_uids: Sequence[str], during: _Load, before: _Load, beside: _Load) -> list[str]:
    usual, when = (before, "before") if before or not beside else (beside, "on its other nodes")
    each = " each" if len(node_uids) > 1 else ""
    told = [*_short(during, usual, when), *_changed(during, usual, when, each)]
    return [f"on {_nodes(night, node_uids)} {listed(told[:MOST_TOLD])}"] if told else []


def saving(night: Night, node_uids: Sequence[str], saves: Sequence[tuple[int, int]]) -> list[str]:
    """What nodes wrote and sent while they saved, all together; one sentence or none."""
    minutes = [
        loads
        for middle_ms, *loads in night.ask(_SAVING, list(node_uids), saves[0][0], saves[-1][1])
        if any(from_ms <= middle_ms < to_ms for from_ms, to_ms in saves)
    ]
    busy, written, sent = ([load[i] for load in minutes if load[i] is not None] for i in range(3))
    told = []
    if busy and median(busy) >= _DISK.short_permille:
        told.append(_DISK.words.format(_share(median(busy))))
    if written:
        told.append(f"disks took {rate(median(written))}")
    if sent:
        told.append(f"the network took {rate(median(sent))}")
    return [f"on {_nodes(night, node_uids)} {listed(told[:MOST_TOLD])} meanwhile"] if told else []


def _loads(night: Night, waits: Sequence[Wait]) -> list[_Load]:
    """The medians of the nodes of each wait; nothing when too little of it was measured."""
    places = [(number, node, wait.from_ms, wait.to_ms) for number, wait in enumerate(waits) for node in wait.node_uids]
    rows = night.ask(_MEDIANS, *map(list, zip(*places, strict=True))) if places else []
    found = {
        number: {column: value for column, value in zip(_COLUMNS, medians, strict=True) if value is not None}
        for number, minutes, *medians in rows
        if minutes >= ENOUGH_MINUTES
    }
    return [found.get(number, {}) for number in range(len(waits))]


def _short(during: _Load, usual: _Load, when: str) -> Iterable[str]:
    """Shares that are near their limit, and were not where nobody waited."""
    for signs in _SHARES:
        for column, short_permille, words in signs:
            share = during.get(column, 0)
            if share >= max(short_permille, usual.get(column, -MORE_PERMILLE) + MORE_PERMILLE):
                compared = f" ({_share(usual[column])} {when})" if column in usual else ""
                yield words.format(_share(share)) + compared
                break


def _changed(during: _Load, usual: _Load, when: str, each: str) -> Iterable[str]:
    """Rates that are other than usual: without the usual they say nothing."""
    for column, words in _RATES.items():
        if column in during and column in usual:
            now, then = during[column], usual[column]
            if max(now, then) >= max(WORTH_NAMING_MIB_S, OTHER_RATE * min(now, then)):
                yield f"{words.format(rate(now))}{each} ({rate(then)} {when})"
    dropped, usually = during.get("network_dropped_per_s", 0), usual.get("network_dropped_per_s")
    if usually is not None and dropped >= max(DROPPED_PER_S, OTHER_RATE * usually):
        yield f"the network dropped {dropped:,.0f} packets/s{each} ({usually:,.0f} {when})"


def _share(permille: float) -> str:
    return percent(round(permille), 1000)


def _nodes(night: Night, node_uids: Sequence[str]) -> str:
    return str(night.node(node_uids[0])) if len(node_uids) == 1 else f"its {counted(len(node_uids), 'node')}"
