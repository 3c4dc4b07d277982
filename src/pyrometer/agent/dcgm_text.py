"""Writes GPU metrics like dcgm-exporter: Prometheus' text format with DCGM's names, units and labels.

Names and units are those of dcgm-exporter up to 4.8. Metrics that DCGM does not have begin with `pyrometer_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pyrometer.agent.cgroups import ContainerCgroup
from pyrometer.agent.nvml import NvmlDevice
from pyrometer.agent.pod_resources import ContainerDevice

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricHelp(NamedTuple):
    """The type and help text of a metric."""

    type: str
    help: str


METRICS: dict[str, MetricHelp] = {
    "DCGM_FI_DEV_SM_CLOCK": MetricHelp("gauge", "SM clock frequency (in MHz)."),
    "DCGM_FI_DEV_MEM_CLOCK": MetricHelp("gauge", "Memory clock frequency (in MHz)."),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": MetricHelp("gauge", "Why clocks are below their maximum (NVML's bits)."),
    "DCGM_FI_DEV_MEMORY_TEMP": MetricHelp("gauge", "Memory temperature (in C)."),
    "DCGM_FI_DEV_GPU_TEMP": MetricHelp("gauge", "GPU temperature (in C)."),
    "DCGM_FI_DEV_POWER_USAGE": MetricHelp("gauge", "Power draw (in W)."),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": MetricHelp("counter", "Total energy consumption since boot (in mJ)."),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": MetricHelp("counter", "Total number of PCIe retries."),
    "DCGM_FI_DEV_GPU_UTIL": MetricHelp("gauge", "GPU utilization (in %)."),
    "DCGM_FI_DEV_MEM_COPY_UTIL": MetricHelp("gauge", "Memory utilization (in %)."),
    "DCGM_FI_DEV_ENC_UTIL": MetricHelp("gauge", "Encoder utilization (in %)."),
    "DCGM_FI_DEV_DEC_UTIL": MetricHelp("gauge", "Decoder utilization (in %)."),
    "DCGM_FI_DEV_XID_ERRORS": MetricHelp("gauge", "Value of the last XID error encountered."),
    "DCGM_FI_DEV_FB_FREE": MetricHelp("gauge", "Framebuffer memory free (in MiB)."),
    "DCGM_FI_DEV_FB_USED": MetricHelp("gauge", "Framebuffer memory used (in MiB)."),
    "DCGM_FI_DEV_FB_RESERVED": MetricHelp("gauge", "Framebuffer memory reserved (in MiB)."),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": MetricHelp("counter", "Total number of single-bit volatile ECC errors."),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": MetricHelp("counter", "Total number of double-bit volatile ECC errors."),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": MetricHelp("counter", "Total number of single-bit persistent ECC errors."),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": MetricHelp("counter", "Total number of double-bit persistent ECC errors."),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": MetricHelp(
        "counter", "Number of remapped rows for uncorrectable errors"
    ),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": MetricHelp("counter", "Number of remapped rows for correctable errors"),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": MetricHelp("gauge", "Whether rows wait for a reset to be remapped"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": MetricHelp("gauge", "Whether remapping of rows has failed"),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": MetricHelp("gauge", "Ratio of time the graphics engine is active."),
    "DCGM_FI_PROF_SM_ACTIVE": MetricHelp("gauge", "The ratio of cycles an SM has at least 1 warp assigned."),
    "DCGM_FI_PROF_SM_OCCUPANCY": MetricHelp("gauge", "The ratio of number of warps resident on an SM."),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": MetricHelp("gauge", "Ratio of cycles any tensor pipe is active."),
    "DCGM_FI_PROF_DRAM_ACTIVE": MetricHelp(
        "gauge", "Ratio of cycles the device memory interface is active sending or receiving data."
    ),
    "DCGM_FI_PROF_PCIE_TX_BYTES": MetricHelp("gauge", "The rate of data sent over the PCIe bus, in bytes per second."),
    "DCGM_FI_PROF_PCIE_RX_BYTES": MetricHelp(
        "gauge", "The rate of data received over the PCIe bus, in bytes per second."
    ),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": MetricHelp("gauge", "The rate of data sent over NVLink, in bytes per second."),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": MetricHelp("gauge", "The rate of data received over NVLink, in bytes per second."),
}

OWN_METRICS: dict[str, MetricHelp] = {
    "pyrometer_gpu_lost": MetricHelp("gauge", "Whether the GPU has fallen off the bus: it says nothing else then."),
    "pyrometer_gpu_allocation_info": MetricHelp("gauge", "A container has this device, as the kubelet says."),
    "pyrometer_gpu_processes": MetricHelp("gauge", "Processes that compute on this device, by pod and container."),
    "pyrometer_agent_pod_resources_up": MetricHelp(
        "gauge", "Whether the kubelet says who has which device; when 0, labels of pods are missing."
    ),
    "pyrometer_agent_reading_interval_seconds": MetricHelp("gauge", "How often a group of metrics is read now."),
    "pyrometer_agent_info": MetricHelp("gauge", "Which agent, on which driver."),
    "process_cpu_seconds_total": MetricHelp("counter", "CPU time of this process."),
    "process_resident_memory_bytes": MetricHelp("gauge", "Memory of this process."),
}

Labels = Mapping[str, str]
Samples = Iterable[tuple[str, float]]  # encoded labels, and the value


class DeviceReading(NamedTuple):
    """The current values of a GPU or MIG instance."""

    device: NvmlDevice
    values: Mapping[str, float]
    lost: bool = False
    held: Sequence[ContainerDevice] = ()  # the containers that it is allocated to
    processes: Mapping[ContainerCgroup, int] = {}


class AgentInfo(NamedTuple):
    """The state of the agent itself."""

    hostname: str
    version: str
    driver: str
    pod_resources_up: bool
    intervals_s: Mapping[str, float]
    cpu_s: float
    resident_bytes: int
    unplaced: Sequence[ContainerDevice] = ()  # allocated devices that NVML does not list


def exposition(devices: Sequence[DeviceReading], about: AgentInfo) -> str:
    """The response to a scrape."""
    series = [(shown, _written(_of_device(shown, about)), _written(_of_holder(shown.held))) for shown in devices]
    lines: list[str] = []
    for name, metric in METRICS.items():
        samples = [
            (f"{device},{holder}" if holder else device, shown.values[name])
            for shown, device, holder in series
            if name in shown.values
        ]
        lines += _family(name, metric, samples)
    for (name, metric), own in zip(OWN_METRICS.items(), _own(series, about), strict=True):
        lines += _family(name, metric, own)
    return "\n".join(lines) + "\n"


def _own(series: Sequence[tuple[DeviceReading, str, str]], about: AgentInfo) -> Iterator[Samples]:
    """The samples of OWN_METRICS, in the order of their declaration."""
    yield [(device, int(shown.lost)) for shown, device, _ in series]
    unplaced = _written({"Hostname": about.hostname})
    yield [
        *((f"{device},{_allocation(held)}", 1) for shown, device, _ in series for held in shown.held),
        *((f"{unplaced},{_allocation(held)}", 1) for held in about.unplaced),
    ]
    yield [
        (f"{device},{_written(container._asdict())}", count)
        for shown, device, _ in series
        for container, count in shown.processes.items()
    ]
    yield [("", int(about.pod_resources_up))]
    yield [(_written({"reading": name}), seconds) for name, seconds in about.intervals_s.items()]
    yield [(_written({"version": about.version, "driver": about.driver, "Hostname": about.hostname}), 1)]
    yield [("", about.cpu_s)]
    yield [("", about.resident_bytes)]


def _family(name: str, metric: MetricHelp, samples: Samples) -> list[str]:
    lines = [
        f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}" for labels, value in samples
    ]
    return [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.type}", *lines] if lines else []


def _of_device(shown: DeviceReading, about: AgentInfo) -> Labels:
    device = shown.device
    labels = {
        "gpu": str(device.gpu),
        "UUID": device.uuid,
        "pci_bus_id": device.pci_bus_id,
        "device": "" if device.minor is None else f"nvidia{device.minor}",
        "modelName": device.model,
    }
    if device.instance is not None:
        labels |= {"GPU_I_PROFILE": device.profile, "GPU_I_ID": str(device.instance)}
    labels |= {"Hostname": about.hostname, "DCGM_FI_DRIVER_VERSION": about.driver}
    return {name: value for name, value in labels.items() if value}


def _of_holder(held: Sequence[ContainerDevice]) -> Labels:
    """The labels of the pod that has a device; empty if several pods share it and its values."""
    containers = {(one.container, one.namespace, one.pod) for one in held}
    if len({(namespace, pod) for _, namespace, pod in containers}) != 1:
        return {}
    (container, namespace, pod), *others = sorted(containers)
    return {**({} if others else {"container": container}), "namespace": namespace, "pod": pod}


def _allocation(held: ContainerDevice) -> str:
    labels = {"container": held.container, "namespace": held.namespace, "pod": held.pod, "device_id": held.device_id}
    return _written(labels | ({"claim": held.claim} if held.claim else {}))


_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def _written(labels: Labels) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else str(int(value)) if value.is_integer() else f"{value:.6f}"
