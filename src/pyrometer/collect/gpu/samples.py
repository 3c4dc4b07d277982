"""Values of GPUs as columns, and the rows and records made of them.

Telemetry brings hundreds of thousands of numbers about few devices, so there is no object per value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrometer.collect.gpu.device import DeviceUse, SlotAddress, device_use
from pyrometer.collect.gpu.slot_watch import SlotSighting
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import GpuSample

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = GpuSample._fields[4:]  # the values of a sample; the fields before them are its device and time

LATEST_MS = 2**43  # above any time: a device and a time fit into one number

# Profiling counters that stay at zero while the device is utilized and draws power were lost, to another profiler or to
# an error. Near idle they are right: a kernel that spins in a hang does no work.
PROFILING = ("sm_active_permille", "graphics_active_permille", "tensor_active_permille", "dram_active_permille")
UTILIZED_PERMILLE = 500

_PROFILING = [COLUMNS.index(column) for column in PROFILING]
_NO_TENSOR = [COLUMNS.index(column) for column in PROFILING if column != "tensor_active_permille"]
_UTIL, POWER, _XID = (COLUMNS.index(column) for column in ("gpu_util_permille", "power_w", "xid"))

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Sample = tuple[int, SlotAddress, float, int]  # measure, address, value, time in ms


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Values with their address, measure and time. An address is an index into a list, which others may share."""

    addresses: list[SlotAddress]
    address: Integers
    measure: Integers
    value: Numbers
    time_ms: Integers

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Values:
        """Builds columns from rows."""
        number_of = {address: number for number, address in enumerate(dict.fromkeys([sample[1] for sample in samples]))}
        return cls(
            list(number_of),
            np.array([number_of[sample[1]] for sample in samples], np.int64),
            np.array([sample[0] for sample in samples], np.int64),
            np.array([sample[2] for sample in samples], float),
            np.array([sample[3] for sample in samples], np.int64),
        )

    @classmethod
    def joined(cls, parts: Iterable[Values]) -> Values:
        """Concatenates parts; the result lists only the addresses that occur."""
        parts = list(parts)
        if not parts:
            return cls.of([])
        addresses: list[SlotAddress] = []
        begins: dict[int, int] = {}  # offset of each shared list, by its identity
        for part in parts:
            if id(part.addresses) not in begins:
                begins[id(part.addresses)] = len(addresses)
                addresses += part.addresses
        address = np.concatenate([part.address + begins[id(part.addresses)] for part in parts])
        occurs = np.zeros(len(addresses), bool)
        occurs[address] = True
        return cls(
            [addresses[number] for number in np.flatnonzero(occurs).tolist()],
            (np.cumsum(occurs) - 1)[address],
            np.concatenate([part.measure for part in parts]),
            np.concatenate([part.value for part in parts]),
            np.concatenate([part.time_ms for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.address)

    def __iter__(self) -> Iterator[Sample]:
        rows = zip(
            self.measure.tolist(), self.address.tolist(), self.value.tolist(), self.time_ms.tolist(), strict=True
        )
        return ((measure, self.addresses[address], value, time_ms) for measure, address, value, time_ms in rows)

    def only(self, which: npt.NDArray[np.bool_] | Integers) -> Values:
        """Selects values by a mask or by positions."""
        return Values(self.addresses, self.address[which], self.measure[which], self.value[which], self.time_ms[which])


class DeviceKey(NamedTuple):
    """A device or MIG instance that has rows of its own."""

    node_uid: str
    slot_index: int
    instance: int


class SampleRows(NamedTuple):
    """Values of devices as a table, ordered by device and time; NaN is an absent value."""

    devices: list[DeviceKey]
    device: Integers
    time_ms: Integers
    table: Numbers  # one row per device and time, one column for each of COLUMNS
    at_work: npt.NDArray[np.bool_]  # whether it draws more power than an idle board


def number_rows(device: Integers, time_ms: Integers) -> tuple[Integers, Integers, Integers]:
    """Numbers the rows, one per device and time: the row of each value, then the device and the time of each row."""
    if (time_ms[1:] >= time_ms[:-1]).all():  # the usual case: sorting by device is enough, and uses few bits
        order = np.argsort(device.astype(np.min_scalar_type(device.max(initial=0))), kind="stable")
    else:
        order = np.lexsort((time_ms, device))
    device, time_ms = device[order], time_ms[order]
    begins = np.r_[True, (device[1:] != device[:-1]) | (time_ms[1:] != time_ms[:-1])]
    row = np.empty(len(order), np.int64)
    row[order] = np.cumsum(begins) - 1
    return row, device[begins], time_ms[begins]


def fill_table(rows: int, row: Integers, column: Integers, number: Numbers, of_pod: npt.NDArray[np.bool_]) -> Numbers:
    """Fills one row per device and time. Values of the device take precedence over values of pods on it.

    Among several values of a kind the largest counts. Nothing is summed: exporters copy the device's value to all pods
    that share it.
    """
    levels = np.full((2, rows, len(COLUMNS)), np.nan)
    np.fmax.at(levels.reshape(-1), (of_pod * rows + row) * len(COLUMNS) + column, number)
    chosen: Numbers = np.where(np.isnan(levels[0]), levels[1], levels[0])
    return chosen


def blank_lost_counters(table: Numbers, near_idle_w: Integers) -> None:
    """Marks profiling counters as absent where all of them are zero on a busy board."""
    still = ~(table[:, _PROFILING] > 0).any(axis=1) & ~np.isnan(table[:, _NO_TENSOR]).all(axis=1)
    at_work = (table[:, _UTIL] >= UTILIZED_PERMILLE) & (table[:, POWER] > near_idle_w)
    table[np.ix_(np.flatnonzero(still & at_work), np.array(_PROFILING))] = np.nan


def sample_records(rows: SampleRows) -> Iterable[GpuSample]:
    """The rows as records, ordered by time."""
    kept = np.flatnonzero(~np.isnan(rows.table).all(axis=1))
    kept = kept[np.argsort(rows.time_ms[kept], kind="stable")]  # in the order of arrival
    columns = [[None if v != v else int(v) for v in column] for column in rows.table[kept].T.tolist()]
    of_device = [rows.devices[number] for number in rows.device[kept].tolist()]
    keys = ((time, *which) for time, which in zip(rows.time_ms[kept].tolist(), of_device, strict=True))
    # Positional: keywords would cost time for every sample.
    return [GpuSample(*key, *values) for key, values in zip(keys, zip(*columns, strict=True), strict=True)]


def sample_table(rows: SampleRows) -> pa.Table:
    """The rows as an Arrow table, without an object per record."""
    import pyarrow as pa

    kept = ~np.isnan(rows.table).all(axis=1)
    number, table = rows.device[kept], rows.table[kept]
    absent = np.isnan(table)
    table[absent] = 0
    node_uids = [device.node_uid for device in rows.devices]
    slots = np.array([device.slot_index for device in rows.devices], np.int16)
    instances = np.array([device.instance for device in rows.devices], np.int16)
    schema = SCHEMAS["gpu_sample"].arrow()
    columns = [
        pa.array(rows.time_ms[kept]),
        pa.array(node_uids, pa.string()).take(pa.array(number)),
        pa.array(slots[number]),
        pa.array(instances[number]),
    ]
    for column, field in enumerate(list(schema)[len(columns) :]):
        whole = table[:, column].astype(str(field.type))  # an integer type, which Arrow and NumPy name alike
        columns.append(pa.array(whole, mask=absent[:, column]))
    return pa.Table.from_arrays(columns, schema=schema)


def address_spans(values: Values) -> list[tuple[int, int]]:
    """The first and the last time at which each address was seen."""
    first_ms = np.full(len(values.addresses), LATEST_MS)
    last_ms = np.zeros_like(first_ms)
    np.minimum.at(first_ms, values.address, values.time_ms)
    np.maximum.at(last_ms, values.address, values.time_ms)
    return list(zip(first_ms.tolist(), last_ms.tolist(), strict=True))


def boards_seen(addresses: list[SlotAddress], nodes: list[str], spans: list[tuple[int, int]]) -> Iterable[SlotSighting]:
    """The boards that were first seen in a slot, with the time."""
    came: dict[tuple[str, int, int], tuple[tuple[str | None, str | None], ...]] = {}
    for address, node, (first_ms, _) in zip(addresses, nodes, spans, strict=True):
        key, board = (node, address.slot_index, first_ms), (address.uuid, address.gpu_model)
        known = came.get(key, ())
        if board not in known:
            came[key] = (*known, board)
    return [SlotSighting(*key, boards) for key, boards in came.items()]


def xids_seen(rows: SampleRows) -> Iterable[SlotSighting]:
    """The XID codes of slots: every error, and every change. Rows are ordered by device and time."""
    shown = ~np.isnan(rows.table[:, _XID])
    xid, of_device, times = rows.table[shown, _XID].astype(np.int64), rows.device[shown], rows.time_ms[shown]
    same = np.zeros(len(xid), bool)
    same[1:] = (of_device[1:] == of_device[:-1]) & (xid[1:] == xid[:-1])
    reported = ~same | (xid > 0)
    sightings = zip(*(part[reported].tolist() for part in (of_device, times, xid, rows.at_work[shown])), strict=True)
    return [
        SlotSighting(rows.devices[number].node_uid, rows.devices[number].slot_index, at_ms, xid=code, at_work=works)
        for number, at_ms, code, works in sightings
    ]


def device_uses(
    addresses: list[SlotAddress], nodes: list[str], spans: list[tuple[int, int]]
) -> dict[DeviceUse, tuple[int, int]]:
    """The first and the last time of each use of a device."""
    uses: dict[DeviceUse, tuple[int, int]] = {}
    for address, node, (first_ms, last_ms) in zip(addresses, nodes, spans, strict=True):
        if address.of_pod:
            use = device_use(node, address)
            before = uses.get(use, (first_ms, last_ms))
            uses[use] = min(before[0], first_ms), max(before[1], last_ms)
    return uses
