"""Lists and reads GPUs through NVML, with the metric names and units of dcgm-exporter. It does not need DCGM.

Every metric is read separately. A metric that a GPU, driver or MIG instance does not support is absent. A GPU that has
fallen off the bus is marked as lost and does not affect the others.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pynvml

from pyrometer.agent.gpm import Profiler

Values = dict[str, float]  # by metric name; unknown values are absent
Reader = Callable[[Any], Values]  # reads an NVML handle of a GPU or MIG instance

MIB = 1 << 20

# The values of NVML and DCGM for unknown numbers: all bits set, or the largest signed numbers.
_BLANKS = {2**32 - 1, 2**64 - 1, *range(2**31 - 16, 2**31), *range(2**63 - 16, 2**63)}


class NvmlError(Exception):
    """NVML cannot be used. The message states the reason and a remedy."""


class NvmlDevice(NamedTuple):
    """A GPU or a MIG instance."""

    gpu: int  # NVML's index
    uuid: str = ""  # of the GPU, also for an instance
    pci_bus_id: str = ""
    minor: int | None = None  # the number in /dev/nvidia0
    model: str = ""
    instance: int | None = None  # of MIG, as `nvidia-smi` and DCGM count them
    profile: str = ""  # of the MIG instance: 1g.18gb
    instance_uuids: tuple[str, ...] = ()  # of its MIG devices, one per compute instance

    @property
    def names(self) -> tuple[str, ...]:
        """Its names in device plugins and drivers: NVIDIA's plugin uses UUIDs, GKE's plugin and DRA minor numbers."""
        if self.instance is not None:
            return (*self.instance_uuids, f"nvidia{self.minor}/gi{self.instance}")
        return (self.uuid, f"nvidia{self.minor}", f"gpu-{self.minor}") if self.uuid else ()


class Gpu:
    """Reads a GPU or a MIG instance."""

    def __init__(self, device: NvmlDevice, handle: Any, parent: Gpu | None = None) -> None:
        self.device = device
        self.handle = handle
        self.parent = parent
        self.divided = False  # whether it has MIG instances, to which its processes belong
        self._lost = handle is None
        self.profiler = None if handle is None else _profiler(device, handle, parent)

    @property
    def lost(self) -> bool:
        """Whether it has fallen off the bus."""
        return self.parent.lost if self.parent else self._lost

    def read(self, readers: Iterable[Reader]) -> Values:
        """Reads metrics. A reader that fails does not affect the others."""
        values: Values = {}
        for reader in readers:
            found = self._call(reader, self.handle)
            if self.lost:
                return {}
            values.update(found or {})
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def profile(self) -> Values:
        """Reads the profiling counters since the previous call."""
        if self.profiler is None:
            return {}
        return self._call(self.profiler.read) or {}

    def pids(self) -> list[int]:
        """The compute processes on it."""
        if self.divided:
            return []
        found = self._call(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, self.handle)
        return [process.pid for process in found or ()]

    def close(self) -> None:
        """Frees its NVML objects."""
        if self.profiler is not None:
            self._call(self.profiler.close)
            self.profiler = None

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls NVML; None on an error. Also updates whether the GPU is lost."""
        if self.handle is None:
            return None
        root = self.parent or self
        try:
            answer = function(*arguments)
        except pynvml.NVMLError as error:
            root._lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST or root._lost
            return None
        root._lost = False
        return answer


class Nvml:
    """The NVML library and its GPUs."""

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
        """Lists the MIG instances again. Existing ones keep their counters."""
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
        """Closes the library."""
        for gpu in self.everything:
            gpu.close()
        pynvml.nvmlShutdown()


def address(handle: Any) -> int:
    """The address in a handle, which is the same for all handles of a GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


# -- listing GPUs -----------------------------------------------------------------------------------------------------


def _gpu(index: int) -> Gpu | None:
    """The GPU with an index; None if access is not permitted."""
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
    except pynvml.NVMLError:  # lost before the start: only its index is known
        return Gpu(NvmlDevice(index), None)
    return Gpu(device, handle)


def _minor(handle: Any) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetMinorNumber(handle))
    except pynvml.NVMLError:  # WSL has none
        return None


def _instances(gpu: Gpu) -> list[tuple[NvmlDevice, Any]]:
    """The MIG GPU instances. Compute instances of one GPU instance share its counters."""
    if gpu.handle is None:
        return []
    found: dict[int, tuple[NvmlDevice, Any]] = {}
    try:
        slots = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle)
    except pynvml.NVMLError:
        return []
    for slot in range(slots):
        try:
            handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, slot)
            number = pynvml.nvmlDeviceGetGpuInstanceId(handle)
            uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
        except pynvml.NVMLError:  # an empty slot
            continue
        device, first = found.get(number) or (gpu.device._replace(instance=number, profile=_profile(name)), handle)
        found[number] = device._replace(instance_uuids=(*device.instance_uuids, uuid)), first
    return list(found.values())


def _profile(name: str) -> str:
    """The profile of a GPU instance from the name of a MIG device: "NVIDIA H200 MIG 1c.3g.71gb" is in a 3g.71gb."""
    _, named, profile = name.rpartition(" MIG ")
    return profile.split("c.", 1)[-1] if named else ""


def _profiler(device: NvmlDevice, handle: Any, parent: Gpu | None) -> Profiler | None:
    """The profiling counters, which Hopper and later GPUs have."""
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


# -- reading metrics -------------------------------------------------------------------------------------------------


def _amount(raw: int, unit: int = 1) -> float:
    """Converts a number to a larger unit; NaN if NVML does not know it."""
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
    """Returns a reader for a counter of memory errors, since the driver was loaded or over the lifetime."""

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
# The metrics of a MIG instance. All others are of the whole GPU and are reported there.
INSTANCE: Sequence[Reader] = (_memory,)
