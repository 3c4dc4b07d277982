"""What GPUs say, as dcgm-exporter writes it: Prometheus' text format with DCGM's names, units and labels.

Names and units are those of dcgm-exporter up to 4.8. What DCGM has no name for begins with `pyrometer_`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pyrometer.agent.cgroups import ContainerCgroup
from pyrometer.agent.nvml import NvmlDevice
from pyrometer.agent.pod_resources import ContainerDevice

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    """A metric's type and its help."""

    type: str
    help: str


METRICS: dict[str, Metric] = {
    "DCGM_FI_DEV_SM_CLOCK": Metric("gauge", "SM clock frequency (in MHz)."),
    "DCGM_FI_DEV_MEM_CLOCK": Metric("gauge", "Memory clock frequency (in MHz)."),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": Metric("gauge", "Why clocks are below their maximum (NVML's bits)."),
    "DCGM_FI_DEV_MEMORY_TEMP": Metric("gauge", "Memory temperature (in C)."),
    "DCGM_FI_DEV_GPU_TEMP": Metric("gauge", "GPU temperature (in C)."),
    "DCGM_FI_DEV_POWER_USAGE": Metric("gauge", "Power draw (in W)."),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": Metric("counter", "Total energy consumption since boot (in mJ)."),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": Metric("counter", "Total number of PCIe retries."),
    "DCGM_FI_DEV_GPU_UTIL": Metric("gauge", "GPU utilization (in %)."),
    "DCGM_FI_DEV_MEM_COPY_UTIL": Metric("gauge", "Memory utilization (in %)."),
    "DCGM_FI_DEV_ENC_UTIL": Metric("gauge", "Encoder utilization (in %)."),
    "DCGM_FI_DEV_DEC_UTIL": Metric("gauge", "Decoder utilization (in %)."),
    "DCGM_FI_DEV_XID_ERRORS": Metric("gauge", "Value of the last XID error encountered."),
    "DCGM_FI_DEV_FB_FREE": Metric("gauge", "Framebuffer memory free (in MiB)."),
    "DCGM_FI_DEV_FB_USED": Metric("gauge", "Framebuffer memory used (in MiB)."),
    "DCGM_FI_DEV_FB_RESERVED": Metric("gauge", "Framebuffer memory reserved (in MiB)."),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": Metric("counter", "Total number of single-bit volatile ECC errors."),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": Metric("counter", "Total number of double-bit volatile ECC errors."),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": Metric("counter", "Total number of single-bit persistent ECC errors."),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": Metric("counter", "Total number of double-bit persistent ECC errors."),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": Metric("counter", "Number of remapped rows for uncorrectable errors"),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": Metric("counter", "Number of remapped rows for correctable errors"),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": Metric("gauge", "Whether rows wait for a reset to be remapped"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": Metric("gauge", "Whether remapping of rows has failed"),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": Metric("gauge", "Ratio of time the graphics engine is active."),
    "DCGM_FI_PROF_SM_ACTIVE": Metric("gauge", "The ratio of cycles an SM has at least 1 warp assigned."),
    "DCGM_FI_PROF_SM_OCCUPANCY": Metric("gauge", "The ratio of number of warps resident on an SM."),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": Metric("gauge", "Ratio of cycles any tensor pipe is active."),
    "DCGM_FI_PROF_DRAM_ACTIVE": Metric(
        "gauge", "Ratio of cycles the device memory interface is active sending or receiving data."
    ),
    "DCGM_FI_PROF_PCIE_TX_BYTES": Metric("gauge", "The rate of data sent over the PCIe bus, in bytes per second."),
    "DCGM_FI_PROF_PCIE_RX_BYTES": Metric("gauge", "The rate of data received over the PCIe bus, in bytes per second."),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": Metric("gauge", "The rate of data sent over NVLink, in bytes per second."),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": Metric("gauge", "The rate of data received over NVLink, in bytes per second."),
}

OWN_METRICS: dict[str, Metric] = {
    "pyrometer_gpu_lost": Metric("gauge", "Whether the GPU has fallen off the bus: it says nothing else then."),
    "pyrometer_gpu_allocation_info": Metric("gauge", "A container has this device, as the kubelet says."),
    "pyrometer_gpu_processes": Metric("gauge", "Processes that compute on this device, by pod and container."),
    "pyrometer_agent_pod_resources_up": Metric(
        "gauge", "Whether the kubelet says who has which device; when 0, labels of pods are missing."
    ),
    "pyrometer_agent_reading_interval_seconds": Metric("gauge", "How often a group of metrics is read now."),
    "pyrometer_agent_info": Metric("gauge", "Which agent, on which driver."),
    "process_cpu_seconds_total": Metric("counter", "CPU time of this process."),
    "process_resident_memory_bytes": Metric("gauge", "Memory of this process."),
}

Labels = Mapping[str, str]
Samples = Iterable[tuple[str, float]]  # labels as they are written, and the value


class Shown(NamedTuple):
    """All that is known of a GPU or MIG instance now."""

    device: NvmlDevice
    values: Mapping[str, float]
    lost: bool = False
    held: Sequence[ContainerDevice] = ()  # the containers that it is allocated to
    processes: Mapping[ContainerCgroup, int] = {}


class About(NamedTuple):
    """What the agent says of itself."""

    hostname: str
    version: str
    driver: str
    pod_resources_up: bool
    intervals_s: Mapping[str, float]
    cpu_s: float
    resident_bytes: int
    unplaced: Sequence[ContainerDevice] = ()  # allocated devices that NVML does not show us


def exposition(devices: Sequence[Shown], about: About) -> str:
    """The page that a scrape gets."""
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


def _own(series: Sequence[tuple[Shown, str, str]], about: About) -> Iterator[Samples]:
    """The samples of our own metrics, in the order in which they are declared."""
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


def _family(name: str, metric: Metric, samples: Samples) -> list[str]:
    lines = [
        f"{name}{{{labels}}} {_number(value)}" if labels else f"{name} {_number(value)}" for labels, value in samples
    ]
    return [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.type}", *lines] if lines else []


def _of_device(shown: Shown, about: About) -> Labels:
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
    """Whose device it is. Of a device that several pods share, nobody's: its values are nobody's alone."""
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
