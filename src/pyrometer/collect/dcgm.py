"""What dcgm-exporter says (and our own agent, under the same names) in our records.

A series is made sense of once: its name is a column and a unit (`measure_of`), its labels are a device and who uses it
(`place_of`). Values then come as a scrape has them, or as Prometheus remembers them, and become rows together: one row
a device and time, whatever the version, the order of lines or the number of pods that share the device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pyrometer.collect.slot_watch import Sight, SlotWatch
from pyrometer.collect.values import Integers, Numbers, Sample, Values
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import WHOLE_DEVICE, GpuSample, Slot

if TYPE_CHECKING:
    import pyarrow as pa

# -- names and units --------------------------------------------------------------------------------------------------

COLUMNS = GpuSample._fields[4:]  # the values of a sample; the fields before them say which device and when

# Name → column and factor. DCGM 4.7 (exporter 4.9) renamed fields and changed units: both forms are listed.
NAMES: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("gpu_util_permille", 10),
    "DCGM_FI_DEV_GPU_UTIL_RATIO": ("gpu_util_permille", 1000),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active_permille", 1000),
    "DCGM_FI_PROF_SM_UTIL_RATIO": ("sm_active_permille", 1000),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("graphics_active_permille", 1000),
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": ("graphics_active_permille", 1000),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active_permille", 1000),
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": ("tensor_active_permille", 1000),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active_permille", 1000),
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": ("dram_active_permille", 1000),
    "DCGM_FI_DEV_FB_USED": ("memory_used_mib", 1),
    "DCGM_FI_DEV_FB_USED_BYTES": ("memory_used_mib", 2**-20),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": ("power_w", 1),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 0.001),
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": ("energy_j", 1),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1),
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": ("temperature_c", 1),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1),
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": ("sm_clock_mhz", 1e-6),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("throttle_reasons", 1),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("throttle_reasons", 1),
    "DCGM_FI_DEV_XID_ERRORS": ("xid", 1),
    "DCGM_FI_DEV_XID_ERROR": ("xid", 1),
}
# DCGM 4.6 had this name for a percentage, 4.7 for a ratio: what an exporter shows decides.
DOUBTFUL = "DCGM_FI_DEV_GPU_UTIL_RATIO"
SURELY_PERCENT = 2.0  # whole percentages go on with 2; no ratio does
PERCENT_IN_RATIO = 0.01
MOST_IN_PERCENT = 100_000  # hosts

# Above this a value is none, but a blank or nonsense. Ratios a little above one have been seen, on MIG: they are one.
MOST = {
    "memory_used_mib": 2**24, "power_w": 10_000, "energy_j": 2**50, "temperature_c": 250, "sm_clock_mhz": 20_000,
    "throttle_reasons": 2**32, "xid": 2**15,
}  # fmt: skip
WHOLE_PERMILLE, MOST_PERMILLE = 1000, 2000
BLANKS = ((2.0**31 - 16, 2.0**31), (2.0**47, 2.0**47 + 16))  # DCGM's for 32 bits and floats; that for 64 is above MOST

# Profiling counters that stand still while the device is utilised and draws power have been lost, to another profiler
# or an error. Near idle they are right: a kernel that spins in a hang does no work.
PROFILING = ("sm_active_permille", "graphics_active_permille", "tensor_active_permille", "dram_active_permille")
UTILISED_PERMILLE = 500

_MEASURES = tuple(NAMES)
_NUMBER_OF = {name: number for number, name in enumerate(_MEASURES)}
_COLUMN = np.array([COLUMNS.index(column) for column, _ in NAMES.values()])
_FACTOR = np.array([factor for _, factor in NAMES.values()])
_IS_RATIO = np.array([column.endswith("_permille") for column in COLUMNS])
_MOST = np.array([MOST.get(column, MOST_PERMILLE) for column in COLUMNS], float)
_PROFILING = [COLUMNS.index(column) for column in PROFILING]
_NO_TENSOR = [COLUMNS.index(column) for column in PROFILING if column != "tensor_active_permille"]
_UTIL, _POWER, _XID = (COLUMNS.index(column) for column in ("gpu_util_permille", "power_w", "xid"))

LATEST_MS = 2**43  # above any time: a device and a time make one number


def measure_of(name: str) -> int | None:
    """The number by which a metric's values are handed in; None when it is of no use here."""
    return _NUMBER_OF.get(name)


# -- labels -----------------------------------------------------------------------------------------------------------

_HOSTS = ("exported_Hostname", "Hostname", "exported_hostname", "hostname", "node")
# Pod and namespace. Prometheus renames the exporter's own labels where they meet its target's (honorLabels: false).
_PODS = (
    ("exported_pod", "exported_namespace", "exported_pod_uid"),
    ("pod_name", "pod_namespace", "pod_uid"),
    ("pod", "namespace", "pod_uid"),
)
_EXPORTER = re.compile(r"dcgm-exporter|pyrometer-agent")
_DEVICE = re.compile(r"nvidia(\d{1,4})")


@dataclass(frozen=True, slots=True, eq=False)  # one for each label block: told apart by identity, which is fast
class Place:
    """What labels say: which device, where, and who uses it."""

    hosts: tuple[str, ...]  # names of its machine, the best first
    slot_index: int
    instance: int = WHOLE_DEVICE
    uuid: str | None = None
    gpu_model: str | None = None
    profile: str | None = None  # of the MIG instance: 1g.10gb
    namespace: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    claim: str | None = None  # by which the pod has the device (DRA)

    @property
    def of_pod(self) -> bool:
        """Whether the series is about somebody's use of the device, and not about the device."""
        return self.pod is not None or self.claim is not None


class DeviceUse(NamedTuple):
    """Who uses a device, as an exporter's labels have it: late by minutes, gone when the kubelet does not answer."""

    node_uid: str
    slot_index: int
    instance: int
    uuid: str | None
    gpu_model: str | None
    profile: str | None
    namespace: str | None
    pod: str | None
    pod_uid: str | None
    claim: str | None


def place_of(labels: Mapping[str, str], *, node: str | None = None, address: str | None = None) -> Place | None:
    """The device that labels are about; None when they name none.

    `node` is the machine's name where the caller knows it, `address` where the exporter answers: the last resort.
    """
    index = _slot_index(labels)
    through_prometheus = "job" in labels and "instance" in labels
    if through_prometheus:
        address = address or labels["instance"].rpartition(":")[0]
    named = (node, *map(labels.get, _HOSTS), address)
    hosts = tuple(dict.fromkeys(host for host in named if host))
    if index is None or not hosts:
        return None
    instance = labels.get("GPU_I_ID", "")
    uuid = labels.get("UUID") or None
    namespace, pod, pod_uid = _user(labels, through_prometheus)
    claim = labels.get("dra_claim_name") or None
    return Place(
        hosts, index, int(instance) if instance.isdecimal() and int(instance) < 2**15 else WHOLE_DEVICE,
        None if uuid and uuid.startswith("MIG-") else uuid, labels.get("modelName") or None,
        labels.get("GPU_I_PROFILE") or labels.get("dra_mig_profile") or None,
        namespace or (labels.get("dra_claim_namespace") if claim else None), pod, pod_uid, claim,
    )  # fmt: skip


def _slot_index(labels: Mapping[str, str]) -> int | None:
    text = labels.get("gpu", "")
    if text.isdecimal() and len(text) <= 4:
        return int(text)
    device = _DEVICE.fullmatch(labels.get("device", ""))
    return int(device[1]) if device else None


def _user(labels: Mapping[str, str], through_prometheus: bool) -> tuple[str | None, str | None, str | None]:
    """Namespace, name and UID of the pod; a device that nobody has may carry the exporter's own."""
    for pod, namespace, uid in _PODS:
        name = labels.get(pod)
        if name and not (pod == "pod" and through_prometheus and _is_exporter(labels)):
            return labels.get(namespace) or None, name, labels.get(uid) or None
    return None, None, None


def _is_exporter(labels: Mapping[str, str]) -> bool:
    return (
        "exported_namespace" in labels or labels.get("container") == "exporter" or bool(_EXPORTER.search(labels["pod"]))
    )


def host_uid(host: str) -> str:
    """The node of a machine that nobody described."""
    return f"host/{host}"


# -- values -----------------------------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """What to write down, and from when to when each pod was seen on a device."""

    records: list[tuple[Any, ...]]
    uses: dict[DeviceUse, tuple[int, int]]


class _Device(NamedTuple):
    """What has rows of its own."""

    node_uid: str
    slot_index: int
    instance: int


class _Rows(NamedTuple):
    """What devices showed, in the order of devices and times; NaN is an absent value."""

    devices: list[_Device]
    device: Integers
    time_ms: Integers
    table: Numbers  # a row each, a column for each of COLUMNS
    at_work: npt.NDArray[np.bool_]  # it draws more than a board that does no work


class Dcgm:
    """Turns values into records, and remembers what it has said of each slot. Values come in the order of time.

    `node_uid_of` knows machines by name; one that it does not know is `host/NAME`. `near_idle_power_w` says for a GPU
    model how much power a board draws at most that does no work.
    """

    def __init__(
        self,
        node_uid_of: Callable[[str], str | None],
        near_idle_power_w: Callable[[str | None], int],
        known: Iterable[Slot] = (),
    ) -> None:
        self._node_uid_of = node_uid_of
        self._near_idle_power_w = near_idle_power_w
        self._slots = SlotWatch(known)
        self._in_percent: set[str] = set()  # hosts that say percent where they write ratio

    def take(self, samples: Sequence[Sample]) -> Taken:
        """What a scrape says: measure, place, value, time."""
        return self._taken(Values.of(samples))

    def take_series(self, series: Sequence[tuple[int, Place, Integers, Numbers]]) -> Taken:
        """What Prometheus remembers: measure, place, times and values of each series."""
        series = [one for one in series if len(one[2])]
        if not series:
            return Taken([], {})
        lengths = [len(times) for _, _, times, _ in series]
        return self._taken(
            Values(
                places=[place for _, place, _, _ in series],
                place=np.repeat(np.arange(len(series)), lengths),
                measure=np.repeat(np.array([measure for measure, _, _, _ in series]), lengths),
                value=np.concatenate([values for _, _, _, values in series]).astype(float),
                time_ms=np.concatenate([times for _, _, times, _ in series]).astype(np.int64),
            )
        )

    def uses_of(self, places: Iterable[Place]) -> set[DeviceUse]:
        """Who uses devices, by their labels."""
        return {_use(self._node_uid(place), place) for place in places if place.of_pod}

    def _taken(self, values: Values) -> Taken:
        if not len(values):
            return Taken([], {})
        rows, nodes, spans = self._rows(values)
        records = [*_samples(rows), *self._of_slots(values, rows, nodes, spans)]
        return Taken(records, _uses(values.places, nodes, spans))

    def take_table(self, values: Values) -> tuple[pa.Table, list[tuple[Any, ...]]]:
        """The samples of GPUs as a table, made without an object for each, and the other records. Nobody is told who
        uses the devices."""
        if not len(values):
            return SCHEMAS["gpu_sample"].table([]), []
        rows, nodes, spans = self._rows(values)
        return _sample_table(rows), self._of_slots(values, rows, nodes, spans)

    def _rows(self, values: Values) -> tuple[_Rows, list[str], list[tuple[int, int]]]:
        """One row a device and time; the nodes of places, and from when to when each was there."""
        nodes = [self._node_uid(place) for place in values.places]
        devices: dict[_Device, int] = {}
        models: dict[int, str] = {}
        of_place = []
        for node, place in zip(nodes, values.places, strict=True):
            number = devices.setdefault(_Device(node, place.slot_index, place.instance), len(devices))
            models[number] = max(models.get(number, ""), place.gpu_model or "")
            of_place.append(number)
        column = _COLUMN[values.measure]
        amount = _in_our_units(values, column, self._percent_hosts(values))
        row, device, time_ms = _row_of(np.array(of_place)[values.place], values.time_ms)
        of_pod = np.array([place.of_pod for place in values.places])[values.place]
        table = _table(len(device), row, column, amount, of_pod)
        power_w = {model: self._near_idle_power_w(model or None) for model in set(models.values())}
        near_idle_w = np.array([power_w[model] for model in models.values()])[device]
        _forget_lost_counters(table, near_idle_w)
        return _Rows(list(devices), device, time_ms, table, table[:, _POWER] > near_idle_w), nodes, _spans(values)

    def _of_slots(
        self, values: Values, rows: _Rows, nodes: list[str], spans: list[tuple[int, int]]
    ) -> list[tuple[Any, ...]]:
        """What is new about slots: boards and errors."""
        return self._slots.take([*_boards(values.places, nodes, spans), *_codes(rows)])

    def _node_uid(self, place: Place) -> str:
        for host in place.hosts:
            if uid := self._node_uid_of(host):
                return uid
        return host_uid(place.hosts[0])

    def _percent_hosts(self, values: Values) -> set[str]:
        """The hosts whose exporters say percent where they write ratio, by all that they have shown so far."""
        doubtful = values.measure == _NUMBER_OF[DOUBTFUL]
        if doubtful.any():
            shown, host_of = (
                values.value[doubtful],
                [values.places[p].hosts[0] for p in values.place[doubtful].tolist()],
            )
            hosts, of = np.unique(host_of, return_inverse=True)
            percent = np.bincount(of, (shown >= SURELY_PERCENT) & (shown <= 100)) > 0
            ratio = np.bincount(of, (shown > 0) & (shown < 1)) > 0
            for host in hosts[percent].tolist():
                if len(self._in_percent) >= MOST_IN_PERCENT:  # of machines that are gone: others show it again
                    self._in_percent.clear()
                self._in_percent.add(host)
            self._in_percent.difference_update(hosts[ratio & ~percent].tolist())  # they were updated
        return self._in_percent


def _row_of(device: Integers, time_ms: Integers) -> tuple[Integers, Integers, Integers]:
    """The row of each value, one a device and time; and the devices and times of rows, in that order."""
    if (time_ms[1:] >= time_ms[:-1]).all():  # as nearly always: then devices alone are sorted, by few bits
        order = np.argsort(device.astype(np.min_scalar_type(device.max(initial=0))), kind="stable")
    else:
        order = np.lexsort((time_ms, device))
    device, time_ms = device[order], time_ms[order]
    begins = np.r_[True, (device[1:] != device[:-1]) | (time_ms[1:] != time_ms[:-1])]
    row = np.empty(len(order), np.int64)
    row[order] = np.cumsum(begins) - 1
    return row, device[begins], time_ms[begins]


def _in_our_units(values: Values, column: Integers, percent_hosts: set[str]) -> Numbers:
    """Values as whole numbers of the columns' units; NaN is an absent value."""
    with np.errstate(over="ignore"):  # 1e308 of any unit is nonsense, and is left out below
        number = values.value * _FACTOR[values.measure]
    if percent_hosts:
        of_host = np.array([place.hosts[0] in percent_hosts for place in values.places])[values.place]
        number[of_host & (values.measure == _NUMBER_OF[DOUBTFUL])] *= PERCENT_IN_RATIO
    sane = (number >= 0) & (number <= _MOST[column])  # a NaN is not
    for low, high in BLANKS:
        sane &= ~((values.value >= low) & (values.value < high))
    number[~sane] = np.nan
    whole: Numbers = np.rint(np.where(_IS_RATIO[column], np.minimum(number, WHOLE_PERMILLE), number))
    return whole


def _table(rows: int, row: Integers, column: Integers, number: Numbers, of_pod: npt.NDArray[np.bool_]) -> Numbers:
    """One row a device and time. What is said of the device goes before what is said of a pod on it; of several equal
    words the largest counts, and nothing is summed: exporters copy the device's value to all pods that share it."""
    said = np.full((2, rows, len(COLUMNS)), np.nan)
    np.fmax.at(said.reshape(-1), (of_pod * rows + row) * len(COLUMNS) + column, number)
    chosen: Numbers = np.where(np.isnan(said[0]), said[1], said[0])
    return chosen


def _forget_lost_counters(table: Numbers, near_idle_w: Integers) -> None:
    """Profiling counters that are all zero on a board that is at work are absent."""
    still = ~(table[:, _PROFILING] > 0).any(axis=1) & ~np.isnan(table[:, _NO_TENSOR]).all(axis=1)
    at_work = (table[:, _UTIL] >= UTILISED_PERMILLE) & (table[:, _POWER] > near_idle_w)
    table[np.ix_(np.flatnonzero(still & at_work), np.array(_PROFILING))] = np.nan


def _samples(rows: _Rows) -> Iterable[GpuSample]:
    kept = np.flatnonzero(~np.isnan(rows.table).all(axis=1))
    kept = kept[np.argsort(rows.time_ms[kept], kind="stable")]  # as they came
    columns = [[None if v != v else int(v) for v in column] for column in rows.table[kept].T.tolist()]
    of_device = [rows.devices[number] for number in rows.device[kept].tolist()]
    keys = ((time, *which) for time, which in zip(rows.time_ms[kept].tolist(), of_device, strict=True))
    return [GpuSample(*key, *values) for key, values in zip(keys, zip(*columns, strict=True), strict=True)]


def _sample_table(rows: _Rows) -> pa.Table:
    """The same records as an Arrow table."""
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
        whole = table[:, column].astype(str(field.type))  # a whole number, which both name alike
        columns.append(pa.array(whole, mask=absent[:, column]))
    return pa.Table.from_arrays(columns, schema=schema)


def _spans(values: Values) -> list[tuple[int, int]]:
    """From when to when each place was there."""
    first_ms = np.full(len(values.places), LATEST_MS)
    last_ms = np.zeros_like(first_ms)
    np.minimum.at(first_ms, values.place, values.time_ms)
    np.maximum.at(last_ms, values.place, values.time_ms)
    return list(zip(first_ms.tolist(), last_ms.tolist(), strict=True))


def _boards(places: list[Place], nodes: list[str], spans: list[tuple[int, int]]) -> Iterable[Sight]:
    """Which boards came into which slots, and when."""
    came: dict[tuple[str, int, int], tuple[tuple[str | None, str | None], ...]] = {}
    for place, node, (first_ms, _) in zip(places, nodes, spans, strict=True):
        key, board = (node, place.slot_index, first_ms), (place.uuid, place.gpu_model)
        known = came.get(key, ())
        if board not in known:
            came[key] = (*known, board)
    return [Sight(*key, boards) for key, boards in came.items()]


def _codes(rows: _Rows) -> Iterable[Sight]:
    """Which codes slots show: all that are errors, and where it changes. Rows are in the order of devices and times."""
    shown = ~np.isnan(rows.table[:, _XID])
    xid, of_device, times = rows.table[shown, _XID].astype(np.int64), rows.device[shown], rows.time_ms[shown]
    same = np.zeros(len(xid), bool)
    same[1:] = (of_device[1:] == of_device[:-1]) & (xid[1:] == xid[:-1])
    told = ~same | (xid > 0)
    sights = zip(*(part[told].tolist() for part in (of_device, times, xid, rows.at_work[shown])), strict=True)
    return [
        Sight(rows.devices[number].node_uid, rows.devices[number].slot_index, at_ms, xid=code, at_work=works)
        for number, at_ms, code, works in sights
    ]


def _uses(places: list[Place], nodes: list[str], spans: list[tuple[int, int]]) -> dict[DeviceUse, tuple[int, int]]:
    uses: dict[DeviceUse, tuple[int, int]] = {}
    for place, node, (first_ms, last_ms) in zip(places, nodes, spans, strict=True):
        if place.of_pod:
            use = _use(node, place)
            before = uses.get(use, (first_ms, last_ms))
            uses[use] = min(before[0], first_ms), max(before[1], last_ms)
    return uses


def _use(node_uid: str, place: Place) -> DeviceUse:
    return DeviceUse(
        node_uid, place.slot_index, place.instance, place.uuid, place.gpu_model, place.profile, place.namespace,
        place.pod, place.pod_uid, place.claim,
    )  # fmt: skip
