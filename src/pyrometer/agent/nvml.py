"""GPUs through NVML: which there are and what they say, in dcgm-exporter's metric names and units. No DCGM is needed.

Every metric stands for itself: what a GPU, a driver or a MIG instance does not know is absent, and the others are read
all the same. A GPU that has fallen off the bus says nothing any more, is marked as lost, and stops nobody else.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pynvml

from pyrometer.agent.gpm import Profiler

Values = dict[str, float]  # by metric name; what is not known is not in it
Reader = Callable[[Any], Values]  # from NVML's handle of a GPU or a MIG instance

MIB = 1 << 20

# What NVML and DCGM write where they know nothing: all bits set, or the largest signed numbers.
_BLANKS = {2**32 - 1, 2**64 - 1, *range(2**31 - 16, 2**31), *range(2**63 - 16, 2**63)}


class NvmlError(Exception):
    """NVML cannot be used; the text says why and the way out."""


class NvmlDevice(NamedTuple):
    """What a series is about: a GPU, or one MIG instance of it."""

    gpu: int  # NVML's index
    uuid: str = ""  # of the GPU, also for an instance
    pci_bus_id: str = ""
    minor: int | None = None  # the number in /dev/nvidia0
    model: str = ""
    instance: int | None = None  # of MIG, as `nvidia-smi` and DCGM count them
    profile: str = ""  # of the MIG instance: 1g.18gb
    instance_uuids: tuple[str, ...] = ()  # its MIG devices: one for every compute instance

    @property
    def names(self) -> tuple[str, ...]:
        """What device plugins and drivers call it: NVIDIA's plugin by UUID, GKE's and DRA by the minor number."""
        if self.instance is not None:
            return (*self.instance_uuids, f"nvidia{self.minor}/gi{self.instance}")
        return (self.uuid, f"nvidia{self.minor}", f"gpu-{self.minor}") if self.uuid else ()


class Gpu:
    """A GPU or a MIG instance, and how to ask it."""

    def __init__(self, device: NvmlDevice, handle: Any, parent: Gpu | None = None) -> None:
        self.device = device
        self.handle = handle
        self.parent = parent
        self.divided = False  # it has MIG instances, which have the processes
        self._lost = handle is None
        self.profiler = None if handle is None else _profiler(device, handle, parent)

    @property
    def lost(self) -> bool:
        """It has fallen off the bus."""
        return self.parent.lost if self.parent else self._lost

    def read(self, readers: Iterable[Reader]) -> Values:
        """What the readers find; each fails alone."""
        values: Values = {}
        for reader in readers:
            found = self._ask(reader, self.handle)
            if self.lost:
                return {}
            values.update(found or {})
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def profile(self) -> Values:
        """What the profiling counters say of the time since they were last asked."""
        if self.profiler is None:
            return {}
        return self._ask(self.profiler.read) or {}

    def pids(self) -> list[int]:
        """The processes that compute on it."""
        if self.divided:
            return []
        found = self._ask(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, self.handle)
        return [process.pid for process in found or ()]

    def close(self) -> None:
        """Gives back what NVML keeps for it."""
        if self.profiler is not None:
            self._ask(self.profiler.close)
            self.profiler = None

    def _ask(self, question: Callable[..., Any], *about: Any) -> Any:
        """The answer, or None where NVML has none; notes whether the GPU is still there."""
        if self.handle is None:
            return None
        root = self.parent or self
        try:
            answer = question(*about)
        except pynvml.NVMLError as error:
            root._lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST or root._lost
            return None
        root._lost = False
        return answer


class Nvml:
    """The opened library."""

    def __init__(self) -> None:
        if not hasattr(pynvml, "_nvmlGetFunctionPointer"):
            raise NvmlError(
                "The deprecated package `pynvml` hides `nvidia-ml-py`: "
                "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py"
            )
        try:
            pynvml.nvmlInit()
            self.driver: str = pynvml.nvmlSystemGetDriverVersion()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise NvmlError(
                f"NVML cannot be opened: {error}. It comes with the NVIDIA driver (libnvidia-ml.so.1); "
                "a container needs `--gpus all`, in Kubernetes `runtimeClassName: nvidia`."
            ) from None
        self.gpus = [gpu for gpu in map(_gpu, range(count)) if gpu]
        self.instances: list[Gpu] = []
        self.list_instances()

    @property
    def everything(self) -> list[Gpu]:
        """The GPUs, and then their MIG instances."""
        return [*self.gpus, *self.instances]

    def list_instances(self) -> None:
        """Looks which MIG instances there are now. Those that stayed are kept, with their counters."""
        known = {instance.device: instance for instance in self.instances}
        found: list[Gpu] = []
        for gpu in self.gpus:
            instances = _instances(gpu)
            gpu.divided = bool(instances)
            found += (known.get(device) or Gpu(device, handle, gpu) for device, handle in instances)
        self.instances = found
        for gone in set(known.values()) - set(found):
            gone.close()

    def close(self) -> None:
        """Gives the library back."""
        for gpu in self.everything:
            gpu.close()
        pynvml.nvmlShutdown()


def address(handle: Any) -> int:
    """What two handles of one GPU have in common."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


# -- which GPUs there are ---------------------------------------------------------------------------------------------


def _gpu(index: int) -> Gpu | None:
    """A GPU by its index; None where we may not see it."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        device = NvmlDevice(
            index,
            uuid=pynvml.nvmlDeviceGetUUID(handle),
            pci_bus_id=_text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
            minor=_minor(handle),
            model=pynvml.nvmlDeviceGetName(handle),
        )
    except pynvml.NVMLError_NoPermission:
        return None
    except pynvml.NVMLError:  # lost before we came: it is counted, and that is all that is known of it
        return Gpu(NvmlDevice(index), None)
    return Gpu(device, handle)


def _minor(handle: Any) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetMinorNumber(handle))
    except pynvml.NVMLError:  # Windows' Linux has none
        return None


def _instances(gpu: Gpu) -> list[tuple[NvmlDevice, Any]]:
    """The GPU instances of MIG; compute instances that share one share its counters, too."""
    if gpu.handle is None:
        return []
    found: dict[int, tuple[NvmlDevice, Any]] = {}
    try:
        places = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)
    except pynvml.NVMLError:
        return []
    for place in range(places):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
            number = pynvml.nvmlDeviceGetGpuInstanceId(handle)
            uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
        except pynvml.NVMLError:  # an empty place
            continue
        device, first = found.get(number) or (gpu.device._replace(instance=number, profile=_profile(name)), handle)
        found[number] = device._replace(instance_uuids=(*device.instance_uuids, uuid)), first
    return list(found.values())


def _profile(name: str) -> str:
    """The profile of a GPU instance from the name of a MIG device: "NVIDIA H200 MIG 1c.3g.71gb" is in a 3g.71gb."""
    _, named, profile = name.rpartition(" MIG ")
    return profile.split("c.", 1)[-1] if named else ""


def _profiler(device: NvmlDevice, handle: Any, parent: Gpu | None) -> Profiler | None:
    """The profiling counters, where there are any: Hopper and later."""
    whole = parent.handle if parent else handle
    try:
        if not pynvml.nvmlGpmQueryDeviceSupport(whole).isSupportedDevice:
            return None
        if device.instance is None:
            return Profiler(lambda sample: pynvml.nvmlGpmSampleGet(whole, sample))
        return Profiler(lambda sample: pynvml.nvmlGpmMigSampleGet(whole, device.instance, sample))
    except pynvml.NVMLError:
        return None


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


# -- what they say ----------------------------------------------------------------------------------------------------


def _amount(raw: int, unit: int = 1) -> float:
    """A number in a larger unit; not a number where NVML wrote that it knows nothing."""
    if raw in _BLANKS:
        return math.nan
    return raw if unit == 1 else raw / unit


def _utilization(handle: Any) -> Values:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"DCGM_FI_DEV_GPU_UTIL": _amount(rates.gpu), "DCGM_FI_DEV_MEM_COPY_UTIL": _amount(rates.memory)}


def _encoder(handle: Any) -> Values:
    return {"DCGM_FI_DEV_ENC_UTIL": _amount(pynvml.nvmlDeviceGetEncoderUtilization(handle)[0])}


def _decoder(handle: Any) -> Values:
    return {"DCGM_FI_DEV_DEC_UTIL": _amount(pynvml.nvmlDeviceGetDecoderUtilization(handle)[0])}


def _memory(handle: Any) -> Values:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)  # `used` without `reserved`
    return {
        "DCGM_FI_DEV_FB_FREE": _amount(memory.free) // MIB,
        "DCGM_FI_DEV_FB_USED": _amount(memory.used) // MIB,
        "DCGM_FI_DEV_FB_RESERVED": _amount(memory.reserved) // MIB,
    }


def _power(handle: Any) -> Values:
    return {"DCGM_FI_DEV_POWER_USAGE": _amount(pynvml.nvmlDeviceGetPowerUsage(handle), 1000)}


def _temperature(handle: Any) -> Values:
    return {"DCGM_FI_DEV_GPU_TEMP": _amount(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))}


def _memory_temperature(handle: Any) -> Values:
    (field,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
    return {"DCGM_FI_DEV_MEMORY_TEMP": _amount(field.value.uiVal)} if field.nvmlReturn == pynvml.NVML_SUCCESS else {}


def _sm_clock(handle: Any) -> Values:
    return {"DCGM_FI_DEV_SM_CLOCK": _amount(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))}


def _memory_clock(handle: Any) -> Values:
    return {"DCGM_FI_DEV_MEM_CLOCK": _amount(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM))}


def _clock_reasons(handle: Any) -> Values:
    return {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": _amount(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))}


def _energy(handle: Any) -> Values:
    return {"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": _amount(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))}


def _pcie_replays(handle: Any) -> Values:
    return {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": _amount(pynvml.nvmlDeviceGetPcieReplayCounter(handle))}


def _remapped_rows(handle: Any) -> Values:
    correctable, uncorrectable, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": _amount(correctable),
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": _amount(uncorrectable),
        "DCGM_FI_DEV_ROW_REMAP_PENDING": _amount(pending),
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": _amount(failed),
    }


def _ecc(name: str, errors: str, since: str) -> Reader:
    """Reads one of the counters of memory errors: corrected or not, since the driver was loaded or since ever."""

    def read(handle: Any) -> Values:
        return {name: _amount(pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter))}

    kind, counter = getattr(pynvml, f"NVML_MEMORY_ERROR_TYPE_{errors}"), getattr(pynvml, f"NVML_{since}_ECC")
    return read


ACTIVITY: Sequence[Reader] = (
    _utilization,
    _power,
    _memory,
    _sm_clock,
    _memory_clock,
    _clock_reasons,
    _temperature,
    _memory_temperature,
    _encoder,
    _decoder,
)
ENERGY: Sequence[Reader] = (_energy,)
HEALTH: Sequence[Reader] = (
    _remapped_rows,
    _pcie_replays,
    _ecc("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "CORRECTED", "VOLATILE"),
    _ecc("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "UNCORRECTED", "VOLATILE"),
    _ecc("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "CORRECTED", "AGGREGATE"),
    _ecc("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "UNCORRECTED", "AGGREGATE"),
)
# What NVML can say of a MIG instance; the rest is the whole GPU's, and told once, of the GPU.
INSTANCE: Sequence[Reader] = (_memory,)
