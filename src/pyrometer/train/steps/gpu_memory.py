"""The memory of this rank's GPU: how much PyTorch's allocator uses, and when it has run out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyrometer.train.hooks.hook_installer import Hooks


class GpuMemory:
    """Reads the allocator's statistics. Never resets its peak, because the program may read it too."""

    def __init__(self, torch: Any, gpu_index: int) -> None:
        self._torch = torch
        self._gpu_index = gpu_index
        self._peak_bytes = 0

    def fields(self) -> dict[str, int]:
        """Memory as a step window shows it: the peak if it has risen, else the current use."""
        stats = self._torch.cuda.memory_stats(self._gpu_index)
        peak_bytes = stats.get("allocated_bytes.all.peak", 0)
        has_risen = peak_bytes > self._peak_bytes
        used_bytes = peak_bytes if has_risen else stats.get("allocated_bytes.all.current", 0)
        self._peak_bytes = peak_bytes
        return {
            "memory_peak_mib": used_bytes >> 20,
            "memory_reserved_mib": stats.get("reserved_bytes.all.current", 0) >> 20,
        }


def report_out_of_memory(torch: Any, hooks: Hooks) -> None:
    """Reports when a GPU has no memory left, also where the program catches the error and continues."""
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)

    def ran_out(device: int, requested: int, allocated: int, free: int) -> None:
        rank = hooks.rank
        if rank is not None:
            message = (
                f"{requested >> 20} MiB requested on device {device}, "
                f"{allocated >> 20} MiB allocated, {free >> 20} MiB free"
            )
            rank.outbox.event("out_of_memory", step=rank.steps.number(rank.recorder.count), message=message)

    if attach is not None and not hooks.observes_memory:
        hooks.observes_memory = True
        attach(ran_out)
