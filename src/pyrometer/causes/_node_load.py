"""Which resource of the nodes was short while GPUs waited: disks, CPUs, memory, network.

It is additional evidence and does not change a finding. Medians over minutes are compared, so that bursts do not count.
Without samples there is no statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

from pyrometer.findings.evidence import Evidence
from pyrometer.model.human import counted, listed, percent, rate
from pyrometer.model.units import MS_PER_HOUR

MIN_MINUTES = 3
MIN_INCREASE_PERMILLE = 100  # above the usual: a smaller increase does not explain a wait
MIN_RATE_FACTOR = 2  # times the usual rate, or a fraction of that
MIN_RATE_MIB_S = 50
DROPPED_PER_S = 10
MAX_SHORTAGES = 3


class _Sign(NamedTuple):
    """A share that is critical above a limit, and its wording."""

    column: str
    short_permille: int
    words: str


_DISK = _Sign("disk_busy_permille", 800, "the busiest disk was busy {} of the time")

# Only the first of equivalent signs is reported.
_SHARES = (
    (
        _DISK,
        _Sign("io_stalled_permille", 200, "all tasks waited for I/O {} of the time"),
        _Sign("cpu_wait_permille", 200, "CPUs waited for I/O {} of the time"),
    ),
    (_Sign("cpu_busy_permille", 900, "CPUs were busy {} of the time"),),
    (_Sign("memory_used_permille", 950, "memory was {} full"),),
)
_RATES = {"disk_read_mib_s": "disks delivered {}", "network_rx_mib_s": "the network received {}"}

_COLUMNS = (*(sign.column for signs in _SHARES for sign in signs), *_RATES, "network_dropped_per_s")

# A minute belongs to the interval that contains its middle.
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

_Load = dict[str, float]  # medians by column, for measured columns only


class NodeWait(NamedTuple):
    """Nodes on which something waited in an interval, and nodes to compare them with."""

    node_uids: Sequence[str]
    from_ms: int
    to_ms: int
    peers: Sequence[str] = ()


def shortages(evidence: Evidence, waits: Sequence[NodeWait]) -> list[list[str]]:
    """What the nodes of each wait were short of, compared with the hour before or with peers; at most one sentence."""
    during = _loads(evidence, waits)
    before = _loads(
        evidence,
        [
            NodeWait(wait.node_uids, wait.from_ms - MS_PER_HOUR, wait.from_ms)
            if wait.from_ms > evidence.window.from_ms
            else NodeWait((), 0, 0)  # the wait may have begun earlier
            for wait in waits
        ],
    )
    beside = _loads(evidence, [NodeWait(wait.peers, wait.from_ms, wait.to_ms) for wait in waits])
    return [
        _shortage(evidence, wait.node_uids, *loads) for wait, *loads in zip(waits, during, before, beside, strict=True)
    ]


def _shortage(evidence: Evidence, node_uids: Sequence[str], during: _Load, before: _Load, beside: _Load) -> list[str]:
    usual, when = (before, "before") if before or not beside else (beside, "on its other nodes")
    each = " each" if len(node_uids) > 1 else ""
    reported = [*_short(during, usual, when), *_changed(during, usual, when, each)]
    return [f"on {_nodes(evidence, node_uids)} {listed(reported[:MAX_SHORTAGES])}"] if reported else []


def saving(evidence: Evidence, node_uids: Sequence[str], saves: Sequence[tuple[int, int]]) -> list[str]:
    """What nodes wrote and sent while they saved, in total; at most one sentence."""
    minutes = [
        loads
        for middle_ms, *loads in evidence.ask(_SAVING, list(node_uids), saves[0][0], saves[-1][1])
        if any(from_ms <= middle_ms < to_ms for from_ms, to_ms in saves)
    ]
    busy, written, sent = ([load[i] for load in minutes if load[i] is not None] for i in range(3))
    reported = []
    if busy and median(busy) >= _DISK.short_permille:
        reported.append(_DISK.words.format(_share(median(busy))))
    if written:
        reported.append(f"disks wrote {rate(median(written))}")
    if sent:
        reported.append(f"the network sent {rate(median(sent))}")
    return [f"on {_nodes(evidence, node_uids)} {listed(reported[:MAX_SHORTAGES])} while saving"] if reported else []


def _loads(evidence: Evidence, waits: Sequence[NodeWait]) -> list[_Load]:
    """The medians of the nodes of each wait; empty if too few minutes were measured."""
    places = [(number, node, wait.from_ms, wait.to_ms) for number, wait in enumerate(waits) for node in wait.node_uids]
    rows = evidence.ask(_MEDIANS, *map(list, zip(*places, strict=True))) if places else []
    found = {
        number: {column: value for column, value in zip(_COLUMNS, medians, strict=True) if value is not None}
        for number, minutes, *medians in rows
        if minutes >= MIN_MINUTES
    }
    return [found.get(number, {}) for number in range(len(waits))]


def _short(during: _Load, usual: _Load, when: str) -> Iterable[str]:
    """Shares that are near their limit now and were not before."""
    for signs in _SHARES:
        for column, short_permille, words in signs:
            share = during.get(column, 0)
            if share >= max(short_permille, usual.get(column, -MIN_INCREASE_PERMILLE) + MIN_INCREASE_PERMILLE):
                compared = f" ({_share(usual[column])} {when})" if column in usual else ""
                yield words.format(_share(share)) + compared
                break


def _changed(during: _Load, usual: _Load, when: str, each: str) -> Iterable[str]:
    """Rates that differ from the usual. Without the usual they mean nothing."""
    for column, words in _RATES.items():
        if column in during and column in usual:
            now, then = during[column], usual[column]
            if max(now, then) >= max(MIN_RATE_MIB_S, MIN_RATE_FACTOR * min(now, then)):
                yield f"{words.format(rate(now))}{each} ({rate(then)} {when})"
    dropped, usually = during.get("network_dropped_per_s", 0), usual.get("network_dropped_per_s")
    if usually is not None and dropped >= max(DROPPED_PER_S, MIN_RATE_FACTOR * usually):
        yield f"the network dropped {dropped:,.0f} packets/s{each} ({usually:,.0f} {when})"


def _share(permille: float) -> str:
    return percent(round(permille), 1000)


def _nodes(evidence: Evidence, node_uids: Sequence[str]) -> str:
    return str(evidence.node(node_uids[0])) if len(node_uids) == 1 else f"its {counted(len(node_uids), 'node')}"
