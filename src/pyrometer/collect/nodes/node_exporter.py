"""Converts node_exporter's metrics of machines (CPU, memory, disks, network) to one row per node and minute.

A series is interpreted once: its name is a measure (`measure_of`), its labels are an exporter and a part of its machine
(`machine_part_of`). Values then come from scrapes or from Prometheus and become the same rows, however they are divided
among calls. The newest value of a minute counts for that minute, and rates are computed between these values. More
frequent scrapes change nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from pyrometer.model.records import NodeSample
from pyrometer.model.units import MS_PER_MINUTE

MAX_INTERVAL_MS = 5 * MS_PER_MINUTE  # between two values, because a rate over a longer time is not that of a minute

# -- names and labels -------------------------------------------------------------------------------------------------

Measure = IntEnum(
    "Measure", "CPU_IDLE CPU_WAIT MEMORY AVAILABLE DISK_BUSY STALLED READ WRITTEN RECEIVED SENT DROPPED UNAME", start=0
)

# Of CPU time only idle and I/O wait are read. The rest is busy time, which would take four times as many series.
NAMES: dict[str, Measure] = {
    "node_cpu_seconds_total": Measure.CPU_IDLE,  # or CPU_WAIT, by its labels
    "node_memory_MemTotal_bytes": Measure.MEMORY,
    "node_memory_MemAvailable_bytes": Measure.AVAILABLE,
    "node_disk_io_time_seconds_total": Measure.DISK_BUSY,
    "node_pressure_io_stalled_seconds_total": Measure.STALLED,
    "node_disk_read_bytes_total": Measure.READ,
    "node_disk_written_bytes_total": Measure.WRITTEN,
    "node_network_receive_bytes_total": Measure.RECEIVED,
    "node_network_transmit_bytes_total": Measure.SENT,
    "node_network_receive_drop_total": Measure.DROPPED,
    "node_uname_info": Measure.UNAME,
}
MODES = {"idle": Measure.CPU_IDLE, "iowait": Measure.CPU_WAIT}

# Virtual devices and devices on top of others. Traffic is counted once, at the physical device: the members of a bond,
# the whole disk but not its partitions, the disks below a RAID or an encrypted volume.
VIRTUAL = (
    r"lo|veth.*|cni.*|docker.*|cali.*|cilium.*|lxc.*|flannel.*|weave.*|kube-.*|nodelocaldns|ovs-.*|ovn.*|genev_.*"
    r"|vxlan.*|br-.*|br[0-9]+|virbr.*|vnet.*|bond.*|team.*|vlan.*|tap.*|tun.*|tailscale.*|wg.*|gre.*|erspan.*"
    r"|sit.*|ip6.*|ifb.*|dummy.*|.*[.].*|dm-.*|md[0-9].*|loop.*|ram[0-9]+|zram.*|sr[0-9]+|fd[0-9]+"
    r"|(h|s|v|xv)d[a-z]+[0-9]+|(nvme|mmcblk).*p[0-9]+"
)

# The matchers of a Prometheus selector for all metrics that are read. The caller adds matchers for its nodes. A matcher
# that matches the empty string also selects series without that label.
MATCHERS = (f'__name__=~"{"|".join(NAMES)}"', f'mode=~"|{"|".join(MODES)}"', f'device!~"{VIRTUAL}"')

_VIRTUAL = re.compile(VIRTUAL)


class MachinePart(NamedTuple):
    """The exporter, machine and part of the machine that labels name."""

    exporter: str  # identifies it
    hosts: tuple[str, ...]  # configured names of its machine, the best one first
    address: str  # of the exporter, the last resort
    part: str = ""  # a CPU or a device
    mode: str | None = None  # of a CPU
    nodename: str | None = None  # its own hostname


def measure_of(name: str) -> Measure | None:
    """The measure of a metric; None for a metric that is not used."""
    return NAMES.get(name)


def machine_part_of(
    labels: Mapping[str, str], *, node: str | None = None, address: str | None = None
) -> MachinePart | None:
    """The part of a machine that labels name; None if it is not used or if the machine is unknown.

    `node` is the machine's name if the caller knows it. `address` is the exporter's own address.
    """
    device, mode, instance = labels.get("device", ""), labels.get("mode"), labels.get("instance", "")
    if _VIRTUAL.fullmatch(device) or (mode is not None and mode not in MODES):
        return None
    address = address or instance.rpartition(":")[0].strip("[]") or instance
    hosts = tuple(dict.fromkeys(host for host in (node, labels.get("node"), labels.get("kubernetes_node")) if host))
    exporter = instance or address or "".join(hosts[:1])
    if not exporter:
        return None
    return MachinePart(
        exporter=exporter,
        hosts=hosts,
        address=address,
        part=device or labels.get("cpu", ""),
        mode=mode,
        nodename=labels.get("nodename") or None,
    )


# -- values -----------------------------------------------------------------------------------------------------------

# CPU time and scrape times disagree slightly, so ratios just below 0 or above 1 count as 0 or 1. Ratios further away
# come from counters that jumped or stopped. No machine transfers a TiB/s.
RATIO_SLACK = 0.5
MAX_AMOUNT = 2**20
MAX_COUNTER = 2.0**63  # counters of the kernel are smaller

_GAUGES = (Measure.MEMORY, Measure.AVAILABLE)
_MEAN = (Measure.CPU_IDLE, Measure.CPU_WAIT)  # averaged over the parts; the others are summed
_LATEST_MS = 2**43  # above any time, so that a number and a time fit into one integer
_MIB = 2**20

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Item = TypeVar("Item", bound=tuple[Any, ...])  # its second field is a MachinePart


class NodeExporters:
    """Turns values of many exporters into rows. Values of one exporter must come in the order of time.

    A minute is written when a later one begins, so that it includes all series. Times must be those of scrapes, or
    steps of the same length or longer: a repeated value has no rate. `node_uid_of` finds a node by a machine's name;
    an unknown machine becomes `host/NAME`.
    """

    def __init__(self, node_uid_of: Callable[[str], str | None]) -> None:
        self._node_uid_of = node_uid_of
        self._exporters: dict[tuple[str, str], _Exporter] = {}  # an address may become another machine's

    def take(self, samples: Sequence[tuple[Measure, MachinePart, float, int]]) -> list[NodeSample]:
        """Takes the values of scrapes: measure, address, value, time."""
        rows: list[NodeSample] = []
        for exporter, items in self._by_exporter(samples):
            measures, machine_parts, values, times = zip(*items, strict=True)
            table = exporter.take(measures, machine_parts, np.ones(len(items), int), np.array(times), np.array(values))
            rows += self._rows(exporter, table)
        return rows

    def take_series(self, series: Sequence[tuple[Measure, MachinePart, Integers, Numbers]]) -> list[NodeSample]:
        """Takes the history of series from Prometheus: measure, address, times and values of each."""
        rows: list[NodeSample] = []
        for exporter, items in self._by_exporter(series):
            measures, machine_parts, times, values = zip(*items, strict=True)
            lengths = np.array([len(one) for one in times])
            table = exporter.take(measures, machine_parts, lengths, np.concatenate(times), np.concatenate(values))
            rows += self._rows(exporter, table)
        return rows

    def rest(self, silent_since_ms: int | None = None) -> list[NodeSample]:
        """Returns the rows of open minutes and forgets their exporters: those silent since then, or all.

        Callers that follow changing machines call this regularly.
        """
        silent = [
            name
            for name, exporter in self._exporters.items()
            if silent_since_ms is None or exporter.open_ms + MS_PER_MINUTE <= silent_since_ms
        ]
        gone = [self._exporters.pop(name) for name in silent]
        return [row for exporter in gone for row in self._rows(exporter, exporter.rest())]

    def _by_exporter(self, items: Iterable[Item]) -> list[tuple[_Exporter, list[Item]]]:
        of_exporter: dict[tuple[str, str], list[Item]] = defaultdict(list)
        for one in items:
            of_exporter[one[1].exporter, "".join(one[1].hosts[:1])].append(one)
        for name, of_one in of_exporter.items():
            if name not in self._exporters:
                self._exporters[name] = _Exporter(of_one[0][1])
        return [(self._exporters[name], of_one) for name, of_one in of_exporter.items()]

    def _rows(self, exporter: _Exporter, table: Iterable[tuple[int, list[float]]]) -> list[NodeSample]:
        names = exporter.names()
        known = (uid for name in names if (uid := self._node_uid_of(name)))
        node_uid = next(known, f"host/{names[0]}")
        return [  # positional: keywords would cost time for every sample
            NodeSample(minute_ms, node_uid, *(None if value != value else int(value) for value in values))
            for minute_ms, values in table
        ]


class _Points(NamedTuple):
    """Values of counters at times: the sum over the parts, and the number of parts."""

    counter: Integers
    time_ms: Integers
    total: Numbers
    parts: Integers

    def where(self, which: npt.NDArray[Any]) -> _Points:
        return _Points(*(column[which] for column in self))


class _Exporter:
    """The state of one exporter: its machine, and the points that later ones are compared with."""

    def __init__(self, part: MachinePart) -> None:
        self.open_ms = 0  # the open minute: all earlier ones are written
        self._machine = part
        self._nodename: str | None = None
        # Counters whose rates are computed: measures of the machine, and of each disk, to find the busiest one.
        self._counters: dict[tuple[Measure, str], int] = {}
        self._points = _Points(np.array([], int), np.array([], int), np.array([]), np.array([], int))

    def names(self) -> list[str]:
        """The names by which its machine may be known, the best one first."""
        return [name for name in (*self._machine.hosts, self._nodename, self._machine.address) if name]

    def take(
        self,
        measures: Sequence[Measure],
        machine_parts: Sequence[MachinePart],
        lengths: Integers,
        times: Integers,
        values: Numbers,
    ) -> Iterable[tuple[int, list[float]]]:
        """Takes values, one series after the other. Returns the complete minutes, each with the values of a row."""
        fresh = self._sums(measures, machine_parts, lengths, times, values)
        if not len(fresh.time_ms):
            return []
        columns: Any = zip(self._points, fresh, strict=True)
        points = _newest_of_minutes(_Points(*map(np.concatenate, columns)))
        newest_ms = int(points.time_ms.max())
        until_ms = newest_ms - newest_ms % MS_PER_MINUTE
        rows = self._table(points, until_ms)
        # Keep the last two points of each counter: that of the open minute, and the one before.
        last_two = np.ones(len(points.counter), bool)
        last_two[:-2] = points.counter[:-2] != points.counter[2:]
        self._points = points.where(last_two & (points.time_ms >= newest_ms - MAX_INTERVAL_MS))
        self.open_ms = until_ms
        return rows

    def rest(self) -> Iterable[tuple[int, list[float]]]:
        """The open minute."""
        return self._table(self._points, self.open_ms + MS_PER_MINUTE)

    def _sums(
        self,
        measures: Sequence[Measure],
        machine_parts: Sequence[MachinePart],
        lengths: Integers,
        times: Integers,
        values: Numbers,
    ) -> _Points:
        """Sums the values of parts. The sum of counters is a counter while the number of parts is the same.

        A part that two Prometheus jobs read at the same time counts once.
        """
        parts: dict[tuple[int, str], int] = {}
        of_series = []
        for measure, machine_part in zip(measures, machine_parts, strict=True):
            counter = self._number(measure, machine_part)
            of_series.append((counter, parts.setdefault((counter, machine_part.part), len(parts))))
        counter, part = np.repeat(np.array(of_series), lengths, axis=0).T
        usable = (counter >= 0) & (values >= 0) & (values < MAX_COUNTER) & (times >= self.open_ms)
        _, once = np.unique(part[usable] * _LATEST_MS + times[usable], return_index=True)
        key, point = np.unique((counter[usable] * _LATEST_MS + times[usable])[once], return_inverse=True)
        total = np.bincount(point, weights=values[usable][once], minlength=len(key)).astype(float)
        return _Points(key // _LATEST_MS, key % _LATEST_MS, total, np.bincount(point, minlength=len(key)))

    def _number(self, measure: Measure, part: MachinePart) -> int:
        """The number of the counter that a series belongs to; -1 if it is not used."""
        if measure == Measure.UNAME:
            self._nodename = part.nodename
            return -1
        if measure == Measure.CPU_IDLE:
            if part.mode is None or not part.part:
                return -1  # sums over CPUs or modes cannot be used
            measure = MODES[part.mode]
        disk = part.part if measure == Measure.DISK_BUSY else ""
        return self._counters.setdefault((measure, disk), len(self._counters))

    def _table(self, points: _Points, until_ms: int) -> Iterable[tuple[int, list[float]]]:
        """The rows from the open minute up to `until_ms`."""
        measure = np.array([measure for measure, _ in self._counters], int)[points.counter]
        minute_ms = points.time_ms - points.time_ms % MS_PER_MINUTE
        due = (minute_ms >= self.open_ms) & (minute_ms < until_ms)
        minutes, row = np.unique(minute_ms[due], return_inverse=True)
        table = np.full((len(minutes), len(Measure)), np.nan)
        np.fmax.at(table, (row, measure[due]), _amounts(points, measure)[due])
        columns = _columns(table)
        kept = ~np.isnan(columns).all(axis=1)
        return zip(minutes[kept].tolist(), columns[kept].tolist(), strict=True)


def _newest_of_minutes(points: _Points) -> _Points:
    """Keeps the newest point per counter and minute, ordered by counter and time."""
    points = points.where(np.lexsort((points.time_ms, points.counter)))
    newest = np.ones(len(points.counter), bool)
    newest[:-1] = (np.diff(points.counter) != 0) | (np.diff(points.time_ms // MS_PER_MINUTE) != 0)
    return points.where(newest)


def _amounts(points: _Points, measure: Integers) -> Numbers:
    """The amount of each point: the value of a gauge, the rate per second of a counter since the previous point.

    NaN is absent. A counter that fell has no rate: it cannot be assumed to have restarted at zero, because the kernel's
    I/O wait time sometimes falls slightly. A counter whose number of parts changed, or that was not read for long, has
    no rate either.
    """
    amount = np.full(len(points.total), np.nan)
    grown, passed_ms = np.diff(points.total), np.diff(points.time_ms)
    follows = (
        (np.diff(points.counter) == 0) & (np.diff(points.parts) == 0) & (grown >= 0) & (passed_ms <= MAX_INTERVAL_MS)
    )
    amount[1:][follows] = grown[follows] * 1000 / passed_ms[follows]
    gauge, mean = np.isin(measure, _GAUGES), np.isin(measure, _MEAN)
    amount[gauge] = points.total[gauge]
    amount[mean] /= points.parts[mean]
    return amount


def _columns(table: Numbers) -> Numbers:
    """Converts rows of measures to rows of a sample's values, whole numbers in its units. NaN is absent."""
    idle, wait, memory, available, disk_busy, stalled, *rates, dropped, _ = table.T
    memory = np.where(memory >= 1, memory, np.nan)
    ratios = [1 - idle - np.nan_to_num(wait), wait, 1 - available / memory, disk_busy, stalled]
    amounts = [*(rate / _MIB for rate in rates), dropped]
    return np.column_stack([*map(_permille, ratios), *(np.rint(np.where(a <= MAX_AMOUNT, a, np.nan)) for a in amounts)])


def _permille(ratio: Numbers) -> Numbers:
    sane = (ratio >= -RATIO_SLACK) & (ratio <= 1 + RATIO_SLACK)
    permille: Numbers = np.rint(1000 * np.clip(np.where(sane, ratio, np.nan), 0, 1))
    return permille
