"""Metrics of dcgm-exporter, and of our own agent under the same names, as records.

A series is interpreted once: its name gives a column and a unit (`measure_of`), its labels give a device and the pod
that uses it (`slot_address_of`). Values then come from a scrape or from Prometheus and become rows together: one row
per device and time, whatever the version, the order of lines or the number of pods that share the device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyrometer.collect.gpu.device import DeviceUse, GpuBatch, SlotAddress, device_use, host_uid
from pyrometer.collect.gpu.samples import (
    COLUMNS,
    POWER,
    DeviceKey,
    Integers,
    Numbers,
    Sample,
    SampleRows,
    Values,
    address_spans,
    blank_lost_counters,
    boards_seen,
    device_uses,
    fill_table,
    number_rows,
    sample_records,
    sample_table,
    xids_seen,
)
from pyrometer.collect.gpu.slot_watch import SlotWatch
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import WHOLE_DEVICE, Slot

if TYPE_CHECKING:
    import pyarrow as pa

# -- names and units --------------------------------------------------------------------------------------------------

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
# DCGM 4.6 used this name for a percentage, 4.7 uses it for a ratio: the values of an exporter decide.
DOUBTFUL = "DCGM_FI_DEV_GPU_UTIL_RATIO"
SURELY_PERCENT = 2.0  # percentages are whole numbers, and a ratio is never this large
PERCENT_IN_RATIO = 0.01
MAX_PERCENT_HOSTS = 100_000  # hosts

# A larger value is a blank or nonsense. Ratios slightly above one occur on MIG and count as one.
MAX_VALUES = {
    "memory_used_mib": 2**24,
    "power_w": 10_000,
    "energy_j": 2**50,
    "temperature_c": 250,
    "sm_clock_mhz": 20_000,
    "throttle_reasons": 2**32,
    "xid": 2**15,
}
WHOLE_PERMILLE, MAX_PERMILLE = 1000, 2000
# DCGM's blanks for 32 bits and floats; the one for 64 bits is above MAX_VALUES.
BLANKS = ((2.0**31 - 16, 2.0**31), (2.0**47, 2.0**47 + 16))

_MEASURES = tuple(NAMES)
_NUMBER_OF = {name: number for number, name in enumerate(_MEASURES)}
_COLUMN = np.array([COLUMNS.index(column) for column, _ in NAMES.values()])
_FACTOR = np.array([factor for _, factor in NAMES.values()])
_IS_RATIO = np.array([column.endswith("_permille") for column in COLUMNS])
_MAX = np.array([MAX_VALUES.get(column, MAX_PERMILLE) for column in COLUMNS], float)


def measure_of(name: str) -> int | None:
    """The number of a metric in `NAMES`; None for a metric that is not used."""
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


def slot_address_of(
    labels: Mapping[str, str], *, node: str | None = None, address: str | None = None
) -> SlotAddress | None:
    """The device that labels name; None when they name no device.

    `node` is the machine's name if the caller knows it. `address` is the exporter's own address, the last resort.
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
    return SlotAddress(
        hosts,
        index,
        int(instance) if instance.isdecimal() and int(instance) < 2**15 else WHOLE_DEVICE,
        None if uuid and uuid.startswith("MIG-") else uuid,
        labels.get("modelName") or None,
        labels.get("GPU_I_PROFILE") or labels.get("dra_mig_profile") or None,
        namespace or (labels.get("dra_claim_namespace") if claim else None),
        pod,
        pod_uid,
        claim,
    )


def _slot_index(labels: Mapping[str, str]) -> int | None:
    text = labels.get("gpu", "")
    if text.isdecimal() and len(text) <= 4:
        return int(text)
    device = _DEVICE.fullmatch(labels.get("device", ""))
    return int(device[1]) if device else None


def _user(labels: Mapping[str, str], through_prometheus: bool) -> tuple[str | None, str | None, str | None]:
    """Namespace, name and UID of the pod. The labels of an unused device may name the exporter's own pod."""
    for pod, namespace, uid in _PODS:
        name = labels.get(pod)
        if name and not (pod == "pod" and through_prometheus and _is_exporter(labels)):
            return labels.get(namespace) or None, name, labels.get(uid) or None
    return None, None, None


def _is_exporter(labels: Mapping[str, str]) -> bool:
    return (
        "exported_namespace" in labels or labels.get("container") == "exporter" or bool(_EXPORTER.search(labels["pod"]))
    )


# -- values -----------------------------------------------------------------------------------------------------------


class Dcgm:
    """Turns values into records, and remembers the last record of each slot. Values come in the order of time.

    `node_uid_of` finds a node by a machine's name; an unknown machine becomes `host/NAME`. `near_idle_power_w` gives
    the most power that an idle board of a GPU model draws.
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
        self._in_percent: set[str] = set()  # hosts whose ratios are percentages

    def take(self, samples: Sequence[Sample]) -> GpuBatch:
        """Takes the values of a scrape."""
        return self._batch(Values.of(samples))

    def take_series(self, series: Sequence[tuple[int, SlotAddress, Integers, Numbers]]) -> GpuBatch:
        """Takes the history of series from Prometheus: measure, address, times and values of each."""
        series = [one for one in series if len(one[2])]
        if not series:
            return GpuBatch([], {})
        lengths = [len(times) for _, _, times, _ in series]
        return self._batch(
            Values(
                addresses=[address for _, address, _, _ in series],
                address=np.repeat(np.arange(len(series)), lengths),
                measure=np.repeat(np.array([measure for measure, _, _, _ in series]), lengths),
                value=np.concatenate([values for _, _, _, values in series]).astype(float),
                time_ms=np.concatenate([times for _, _, times, _ in series]).astype(np.int64),
            )
        )

    def uses_of(self, addresses: Iterable[SlotAddress]) -> set[DeviceUse]:
        """The uses of devices that the labels name."""
        return {device_use(self._node_uid(address), address) for address in addresses if address.of_pod}

    def _batch(self, values: Values) -> GpuBatch:
        if not len(values):
            return GpuBatch([], {})
        rows, nodes, spans = self._rows(values)
        records = [*sample_records(rows), *self._of_slots(values, rows, nodes, spans)]
        return GpuBatch(records, device_uses(values.addresses, nodes, spans))

    def take_table(self, values: Values) -> tuple[pa.Table, list[tuple[Any, ...]]]:
        """Like `take`, with the samples as a table, made without an object per sample. Uses of devices are left out."""
        if not len(values):
            return SCHEMAS["gpu_sample"].table([]), []
        rows, nodes, spans = self._rows(values)
        return sample_table(rows), self._of_slots(values, rows, nodes, spans)

    def _rows(self, values: Values) -> tuple[SampleRows, list[str], list[tuple[int, int]]]:
        """Builds one row per device and time. Also returns the node and the span of each address."""
        nodes = [self._node_uid(address) for address in values.addresses]
        devices: dict[DeviceKey, int] = {}
        models: dict[int, str] = {}
        of_address = []
        for node, address in zip(nodes, values.addresses, strict=True):
            number = devices.setdefault(DeviceKey(node, address.slot_index, address.instance), len(devices))
            models[number] = max(models.get(number, ""), address.gpu_model or "")
            of_address.append(number)
        column = _COLUMN[values.measure]
        amount = _in_our_units(values, column, self._percent_hosts(values))
        row, device, time_ms = number_rows(np.array(of_address)[values.address], values.time_ms)
        of_pod = np.array([address.of_pod for address in values.addresses])[values.address]
        table = fill_table(len(device), row, column, amount, of_pod)
        power_w = {model: self._near_idle_power_w(model or None) for model in set(models.values())}
        near_idle_w = np.array([power_w[model] for model in models.values()])[device]
        blank_lost_counters(table, near_idle_w)
        return (
            SampleRows(list(devices), device, time_ms, table, table[:, POWER] > near_idle_w),
            nodes,
            address_spans(values),
        )

    def _of_slots(
        self, values: Values, rows: SampleRows, nodes: list[str], spans: list[tuple[int, int]]
    ) -> list[tuple[Any, ...]]:
        """The changes of slots: their boards and errors."""
        return self._slots.take([*boards_seen(values.addresses, nodes, spans), *xids_seen(rows)])

    def _node_uid(self, address: SlotAddress) -> str:
        for host in address.hosts:
            if uid := self._node_uid_of(host):
                return uid
        return host_uid(address.hosts[0])

    def _percent_hosts(self, values: Values) -> set[str]:
        """The hosts whose exporters report percentages as ratios, judging by all of their values so far."""
        doubtful = values.measure == _NUMBER_OF[DOUBTFUL]
        if doubtful.any():
            shown, host_of = (
                values.value[doubtful],
                [values.addresses[p].hosts[0] for p in values.address[doubtful].tolist()],
            )
            hosts, of = np.unique(host_of, return_inverse=True)
            percent = np.bincount(of, (shown >= SURELY_PERCENT) & (shown <= 100)) > 0
            ratio = np.bincount(of, (shown > 0) & (shown < 1)) > 0
            for host in hosts[percent].tolist():
                if len(self._in_percent) >= MAX_PERCENT_HOSTS:  # some are gone; the others show it again
                    self._in_percent.clear()
                self._in_percent.add(host)
            self._in_percent.difference_update(hosts[ratio & ~percent].tolist())  # their exporter was updated
        return self._in_percent


def _in_our_units(values: Values, column: Integers, percent_hosts: set[str]) -> Numbers:
    """Values as whole numbers in the units of the columns; NaN is an absent value."""
    with np.errstate(over="ignore"):  # 1e308 of any unit is nonsense and is dropped below
        number = values.value * _FACTOR[values.measure]
    if percent_hosts:
        of_host = np.array([address.hosts[0] in percent_hosts for address in values.addresses])[values.address]
        number[of_host & (values.measure == _NUMBER_OF[DOUBTFUL])] *= PERCENT_IN_RATIO
    sane = (number >= 0) & (number <= _MAX[column])  # false for NaN
    for low, high in BLANKS:
        sane &= ~((values.value >= low) & (values.value < high))
    number[~sane] = np.nan
    whole: Numbers = np.rint(np.where(_IS_RATIO[column], np.minimum(number, WHOLE_PERMILLE), number))
    return whole
