"""Texts as exporters of several versions write them, from one set of measurements."""

from __future__ import annotations

from typing import NamedTuple

H200 = "NVIDIA H200"


class Gpu(NamedTuple):
    """A GPU as it is, before anybody writes it down. None: the field is blank."""

    index: int = 0
    host: str = "node-a"
    model: str = H200
    gpu_util: float | None = 93  # percent
    sm_active: float | None = 0.82
    graphics: float | None = 0.93
    tensor: float | None = 0.25
    dram: float | None = 0.42
    memory_mib: float | None = 40_960
    power_w: float | None = 674.5
    energy_mj: float | None = 5_551_899_000
    temp_c: float | None = 61
    clock_mhz: float | None = 1969
    throttle: float | None = 4
    xid: float | None = 0
    pod: str | None = None
    namespace: str = "ml"
    instance: int | None = None

    @property
    def uuid(self):
        return f"GPU-{self.host}-{self.index}"


OLD = {
    "DCGM_FI_DEV_GPU_UTIL": lambda g: g.gpu_util,
    "DCGM_FI_PROF_SM_ACTIVE": lambda g: g.sm_active,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": lambda g: g.graphics,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": lambda g: g.tensor,
    "DCGM_FI_PROF_DRAM_ACTIVE": lambda g: g.dram,
    "DCGM_FI_DEV_FB_USED": lambda g: g.memory_mib,
    "DCGM_FI_DEV_POWER_USAGE": lambda g: g.power_w,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": lambda g: g.energy_mj,
    "DCGM_FI_DEV_GPU_TEMP": lambda g: g.temp_c,
    "DCGM_FI_DEV_SM_CLOCK": lambda g: g.clock_mhz,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": lambda g: g.throttle,
    "DCGM_FI_DEV_XID_ERRORS": lambda g: g.xid,
    "DCGM_FI_DEV_MEM_COPY_UTIL": lambda g: 7,  # of no use here
}


def times(number, factor):
    return None if number is None else number * factor


NEW = {
    "DCGM_FI_DEV_GPU_UTIL_RATIO": lambda g: times(g.gpu_util, 0.01),
    "DCGM_FI_PROF_SM_UTIL_RATIO": lambda g: g.sm_active,
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO": lambda g: g.graphics,
    "DCGM_FI_PROF_TENSOR_UTIL_RATIO": lambda g: g.tensor,
    "DCGM_FI_PROF_DRAM_UTIL_RATIO": lambda g: g.dram,
    "DCGM_FI_DEV_FB_USED_BYTES": lambda g: times(g.memory_mib, 2**20),
    "DCGM_FI_DEV_BOARD_POWER_WATTS": lambda g: g.power_w,
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": lambda g: times(g.energy_mj, 0.001),
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": lambda g: g.temp_c,
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": lambda g: times(g.clock_mhz, 1e6),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": lambda g: g.throttle,
    "DCGM_FI_DEV_XID_ERROR": lambda g: g.xid,
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": lambda g: 0.07,
}
# DCGM 4.6 wrote the new name of the utilization over the old number.
NEW_WITH_PERCENT = {**NEW, "DCGM_FI_DEV_GPU_UTIL_RATIO": lambda g: g.gpu_util}

VERSIONS = {
    "3.x": (OLD, "Hostname", ("pod_name", "pod_namespace"), "DCGM_FI_DRIVER_VERSION"),
    "4.8": (
        {**OLD, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": OLD["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"]},
        "hostname",
        ("pod", "namespace"),
        "DCGM_FI_DRIVER_VERSION",
    ),
    "4.8 on DCGM 4.6": (NEW_WITH_PERCENT, "hostname", ("pod", "namespace"), "DCGM_FI_DRIVER_VERSION"),
    "4.9": (NEW, "hostname", ("pod", "namespace"), "DCGM_FI_SYSTEM_DRIVER_VERSION"),
}
BLANK = "9223372036854775794"


def labels_of(gpu, version="4.9", **more):
    """The labels of a GPU's series."""
    _, host_label, (pod_label, namespace_label), driver_label = VERSIONS[version]
    labels = {
        "gpu": str(gpu.index),
        "UUID": gpu.uuid,
        "pci_bus_id": f"00000000:{gpu.index:02d}:00.0",
        "device": f"nvidia{gpu.index}",
        "modelName": gpu.model,
        host_label: gpu.host,
        driver_label: "580.1",
    }
    if gpu.instance is not None:
        labels |= {"GPU_I_ID": str(gpu.instance), "GPU_I_PROFILE": "1g.18gb"}
    if gpu.pod is not None:
        labels |= {"container": "train", pod_label: gpu.pod, namespace_label: gpu.namespace}
    return labels | more


def line_of(name, labels, value):
    block = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return f"{name}{{{block}}} {BLANK if value is None else value}"


def lines_of(gpus, version="4.9", **more):
    """The lines that an exporter of a version writes."""
    return [
        line_of(name, labels_of(gpu, version, **more), measured(gpu))
        for name, measured in VERSIONS[version][0].items()
        for gpu in gpus
    ]


def text_of(gpus, version="4.9", **more):
    return ("\n".join(["# HELP written by a test", *lines_of(gpus, version, **more)]) + "\n").encode()


def through_prometheus(labels, *, honor_labels):
    """The labels of a series in Prometheus, which adds the labels of its target. Those win unless `honor_labels`."""
    target = {
        "job": "dcgm-exporter",
        "instance": "10.0.0.7:9400",
        "endpoint": "metrics",
        "service": "dcgm-exporter",
        "pod": "dcgm-exporter-78z52",
        "namespace": "monitoring",
        "container": "exporter",
    }
    if honor_labels:
        return {**target, **labels}
    renamed = {f"exported_{name}" if name in target else name: value for name, value in labels.items()}
    return {**renamed, **target}
