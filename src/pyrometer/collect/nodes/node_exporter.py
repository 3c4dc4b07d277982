"""What node_exporter says of a machine (CPU, memory, disks, network) in our records: one row a node and minute.

A series is interpreted once: its name is a measure (`measure_of`), its labels are an exporter and a part of its machine
(`machine_part_of`). Values then come from scrapes or from Prometheus and become the same rows, however they are divided
among calls. The newest value of a minute counts for it, and a rate is that from one such value to
the next: scraping more often than that costs nothing and changes nothing.
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

LONGEST_MS = 5 * MS_PER_MINUTE  # between two values: a rate over more says nothing about a minute

# -- names and labels -------------------------------------------------------------------------------------------------

Measure = IntEnum(
    "Measure", "CPU_IDLE CPU_WAIT MEMORY AVAILABLE DISK_BUSY STALLED READ WRITTEN RECEIVED SENT DROPPED UNAME", start=0
)

# Idle and waiting for disks is all that is read of a CPU: the rest of the time it is busy, and a large machine shows
# four times as many series otherwise.
NAMES: dict[str, Measure] = {
    "node_cpu_seconds_total": Measure.CPU_IDLE,  # or CPU_WAIT: the labels say
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

# Devices that are made of others, or of nothing: what goes through them is counted where it leaves the machine. Of a
# bond its members count, of a disk not its partitions, of a RAID or encrypted volume the disks below.
VIRTUAL = (
    r"lo|veth.*|cni.*|docker.*|cali.*|cilium.*|lxc.*|flannel.*|weave.*|kube-.*|nodelocaldns|ovs-.*|ovn.*|genev_.*"
    r"|vxlan.*|br-.*|br[0-9]+|virbr.*|vnet.*|bond.*|team.*|vlan.*|tap.*|tun.*|tailscale.*|wg.*|gre.*|erspan.*"
    r"|sit.*|ip6.*|ifb.*|dummy.*|.*[.].*|dm-.*|md[0-9].*|loop.*|ram[0-9]+|zram.*|sr[0-9]+|fd[0-9]+"
    r"|(h|s|v|xv)d[a-z]+[0-9]+|(nvme|mmcblk).*p[0-9]+"
)

# The matchers of a Prometheus selector for all that is read; the caller adds those of its nodes. A matcher that takes
# the empty text lets series without that label through.
MATCHERS = (f'__name__=~"{"|".join(NAMES)}"', f'mode=~"|{"|".join(MODES)}"', f'device!~"{VIRTUAL}"')

_VIRTUAL = re.compile(VIRTUAL)


class MachinePart(NamedTuple):
    """What labels say: which exporter, on which machine, and about which part of it."""

    exporter: str  # what tells it from the others
    hosts: tuple[str, ...]  # names of its machine that somebody gave it, the best first
    address: str  # where it answers: the last resort
    part: str = ""  # a CPU or a device
    mode: str | None = None  # of a CPU
    nodename: str | None = None  # what the machine calls itself


def measure_of(name: str) -> Measure | None:
    """What a metric's values are; None when it is of no use here."""
    return NAMES.get(name)


def machine_part_of(
    labels: Mapping[str, str], *, node: str | None = None, address: str | None = None
) -> MachinePart | None:
    """What labels are about; None when that is of no use here, or when nothing says of which machine it is.

    `node` is the machine's name where the caller knows it, `address` where the exporter answers.
    """
    device, mode, instance = labels.get("device", ""), labels.get("mode"), labels.get("instance", "")
    if _VIRTUAL.fullmatch(device) or (mode is not None and mode not in MODES):
        return None
    address = address or instance.rpartition(":")[0].strip("[]") or instance
    hosts = tuple(dict.fromkeys(host for host in (node, labels.get("node"), labels.get("kubernetes_node")) if host))
    exporter = instance or address or "".join(hosts[:1])
    if not exporter:
        return None
    return MachinePart(exporter, hosts, address, device or labels.get("cpu", ""), mode, labels.get("nodename") or None)


# -- values -----------------------------------------------------------------------------------------------------------

# CPU time and the clock of the scrapes disagree by a little: ratios just below 0 or above 1 are meant to be those.
# Further away they are no ratios, but a counter that jumped or values that stood still; and no machine moves a TiB/s.
RATIO_SLACK = 0.5
MOST = 2**20
COUNTED = 2.0**63  # the kernel counts no further: not a value

_GAUGES = (Measure.MEMORY, Measure.AVAILABLE)
_MEAN = (Measure.CPU_IDLE, Measure.CPU_WAIT)  # over the parts; the others are added up
_LATEST_MS = 2**43  # above any time: a number and a time make one number
_MIB = 2**20

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Said = TypeVar("Said", bound=tuple[Any, ...])  # its second item is a place


class NodeExporters:
    """Turns values of many exporters into rows. Values of one exporter come in the order of time; a minute is written
    when a later one begins, so all its series come together. Times are those of scrapes, or steps that are no finer:
    the rate of a value that is only repeated is none.

    `node_uid_of` knows machines by name; one that it does not know is `host/NAME`.
    """

    def __init__(self, node_uid_of: Callable[[str], str | None]) -> None:
        self._node_uid_of = node_uid_of
        self._exporters: dict[tuple[str, str], _Exporter] = {}  # an address may become another machine's

    def take(self, samples: Sequence[tuple[Measure, MachinePart, float, int]]) -> list[NodeSample]:
        """What scrapes say: measure, place, value, time."""
        rows: list[NodeSample] = []
        for exporter, said in self._by_exporter(samples):
            measures, places, values, times = zip(*said, strict=True)
            table = exporter.take(measures, places, np.ones(len(said), int), np.array(times), np.array(values))
            rows += self._rows(exporter, table)
        return rows

    def take_series(self, series: Sequence[tuple[Measure, MachinePart, Integers, Numbers]]) -> list[NodeSample]:
        """What Prometheus remembers: measure, place, times and values of each series."""
        rows: list[NodeSample] = []
        for exporter, said in self._by_exporter(series):
            measures, places, times, values = zip(*said, strict=True)
            lengths = np.array([len(one) for one in times])
            table = exporter.take(measures, places, lengths, np.concatenate(times), np.concatenate(values))
            rows += self._rows(exporter, table)
        return rows

    def rest(self, silent_since_ms: int | None = None) -> list[NodeSample]:
        """The rows of minutes that are still open, of exporters that are silent since then, or of all.

        Those are forgotten: whoever follows machines that come and go calls this now and then.
        """
        silent = [
            name
            for name, exporter in self._exporters.items()
            if silent_since_ms is None or exporter.open_ms + MS_PER_MINUTE <= silent_since_ms
        ]
        gone = [self._exporters.pop(name) for name in silent]
        return [row for exporter in gone for row in self._rows(exporter, exporter.rest())]

    def _by_exporter(self, said: Iterable[Said]) -> list[tuple[_Exporter, list[Said]]]:
        of_exporter: dict[tuple[str, str], list[Said]] = defaultdict(list)
        for one in said:
            of_exporter[one[1].exporter, "".join(one[1].hosts[:1])].append(one)
        for name, of_one in of_exporter.items():
            if name not in self._exporters:
                self._exporters[name] = _Exporter(of_one[0][1])
        return [(self._exporters[name], of_one) for name, of_one in of_exporter.items()]

    def _rows(self, exporter: _Exporter, table: Iterable[tuple[int, list[float]]]) -> list[NodeSample]:
        names = exporter.names()
        known = (uid for name in names if (uid := self._node_uid_of(name)))
        node_uid = next(known, f"host/{names[0]}")
        return [  # positional: keywords would take longer for every sample
            NodeSample(minute_ms, node_uid, *(None if value != value else int(value) for value in values))
            for minute_ms, values in table
        ]


class _Points(NamedTuple):
    """Counters as they stood at times: the sum over so many parts."""

    counter: Integers
    time_ms: Integers
    total: Numbers
    parts: Integers

    def where(self, which: npt.NDArray[Any]) -> _Points:
        return _Points(*(column[which] for column in self))


class _Exporter:
    """What one exporter said: whose it is, and the points that later ones are compared with."""

    def __init__(self, place: MachinePart) -> None:
        self.open_ms = 0  # the minute that may go on: all before it are written
        self._place = place
        self._nodename: str | None = None
        # What has a rate of its own: a measure of the machine; of disks each, so that the busiest can be found.
        self._counters: dict[tuple[Measure, str], int] = {}
        self._points = _Points(np.array([], int), np.array([], int), np.array([]), np.array([], int))

    def names(self) -> list[str]:
        """What its machine may be known by, the best first."""
        return [name for name in (*self._place.hosts, self._nodename, self._place.address) if name]

    def take(
        self,
        measures: Sequence[Measure],
        places: Sequence[MachinePart],
        lengths: Integers,
        times: Integers,
        values: Numbers,
    ) -> Iterable[tuple[int, list[float]]]:
        """Values of series, one series after the other; gives the minutes that are over now, with a row's values."""
        fresh = self._added_up(measures, places, lengths, times, values)
        if not len(fresh.time_ms):
            return []
        columns: Any = zip(self._points, fresh, strict=True)
        points = _newest_of_minutes(_Points(*map(np.concatenate, columns)))
        newest_ms = int(points.time_ms.max())
        until_ms = newest_ms - newest_ms % MS_PER_MINUTE
        rows = self._table(points, until_ms)
        # The last two points of each counter: that of the open minute, and what it is compared with.
        last_two = np.ones(len(points.counter), bool)
        last_two[:-2] = points.counter[:-2] != points.counter[2:]
        self._points = points.where(last_two & (points.time_ms >= newest_ms - LONGEST_MS))
        self.open_ms = until_ms
        return rows

    def rest(self) -> Iterable[tuple[int, list[float]]]:
        """The open minute."""
        return self._table(self._points, self.open_ms + MS_PER_MINUTE)

    def _added_up(
        self,
        measures: Sequence[Measure],
        places: Sequence[MachinePart],
        lengths: Integers,
        times: Integers,
        values: Numbers,
    ) -> _Points:
        """Values of parts as sums: the sum of counters is a counter, as long as they are as many.

        A part that two jobs of Prometheus read at the same time counts once.
        """
        parts: dict[tuple[int, str], int] = {}
        of_series = []
        for measure, place in zip(measures, places, strict=True):
            counter = self._number(measure, place)
            of_series.append((counter, parts.setdefault((counter, place.part), len(parts))))
        counter, part = np.repeat(np.array(of_series), lengths, axis=0).T
        usable = (counter >= 0) & (values >= 0) & (values < COUNTED) & (times >= self.open_ms)
        _, once = np.unique(part[usable] * _LATEST_MS + times[usable], return_index=True)
        key, point = np.unique((counter[usable] * _LATEST_MS + times[usable])[once], return_inverse=True)
        total = np.bincount(point, weights=values[usable][once], minlength=len(key)).astype(float)
        return _Points(key // _LATEST_MS, key % _LATEST_MS, total, np.bincount(point, minlength=len(key)))

    def _number(self, measure: Measure, place: MachinePart) -> int:
        """Which counter a series belongs to; -1: none."""
        if measure == Measure.UNAME:
            self._nodename = place.nodename
            return -1
        if measure == Measure.CPU_IDLE:
            if place.mode is None or not place.part:
                return -1  # somebody has added up what must not be
            measure = MODES[place.mode]
        disk = place.part if measure == Measure.DISK_BUSY else ""
        return self._counters.setdefault((measure, disk), len(self._counters))

    def _table(self, points: _Points, until_ms: int) -> Iterable[tuple[int, list[float]]]:
        """The rows of minutes from the open one on, and before another."""
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
    """One point a counter and minute, in the order of counters and times."""
    points = points.where(np.lexsort((points.time_ms, points.counter)))
    newest = np.ones(len(points.counter), bool)
    newest[:-1] = (np.diff(points.counter) != 0) | (np.diff(points.time_ms // MS_PER_MINUTE) != 0)
    return points.where(newest)


def _amounts(points: _Points, measure: Integers) -> Numbers:
    """What each point says: gauges their value, counters a rate per second since the point before; NaN is absent.

    A counter that fell was reset, and says nothing about that time: it cannot be taken to have begun at zero, since
    the kernel's time of waiting for disks falls by a little now and then. Nor does one that has other parts than
    before, or was not read for long.
    """
    amount = np.full(len(points.total), np.nan)
    grown, passed_ms = np.diff(points.total), np.diff(points.time_ms)
    follows = (np.diff(points.counter) == 0) & (np.diff(points.parts) == 0) & (grown >= 0) & (passed_ms <= LONGEST_MS)
    amount[1:][follows] = grown[follows] * 1000 / passed_ms[follows]
    gauge, mean = np.isin(measure, _GAUGES), np.isin(measure, _MEAN)
    amount[gauge] = points.total[gauge]
    amount[mean] /= points.parts[mean]
    return amount


def _columns(table: Numbers) -> Numbers:
    """Rows of measures as rows of a sample's values, whole numbers in its units; NaN is absent."""
    idle, wait, memory, available, disk_busy, stalled, *rates, dropped, _ = table.T
    memory = np.where(memory >= 1, memory, np.nan)
    ratios = [1 - idle - np.nan_to_num(wait), wait, 1 - available / memory, disk_busy, stalled]
    amounts = [*(rate / _MIB for rate in rates), dropped]
    return np.column_stack([*map(_permille, ratios), *(np.rint(np.where(a <= MOST, a, np.nan)) for a in amounts)])


def _permille(ratio: Numbers) -> Numbers:
    sane = (ratio >= -RATIO_SLACK) & (ratio <= 1 + RATIO_SLACK)
    permille: Numbers = np.rint(1000 * np.clip(np.where(sane, ratio, np.nan), 0, 1))
    return permille
