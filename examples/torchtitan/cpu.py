"""Makes torchtitan run without GPUs, so that the example runs anywhere. With GPUs it does nothing.

torchtitan 0.3.0 does not support CPUs: it gets its device from `torch.cuda`, its attention has no backward pass on a
CPU, and it adds gradients with NCCL only. It also sets timeouts with a function that PyTorch 2.13 does not have.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torchtitan.tools import utils

HAS_GPUS = torch.accelerator.is_available()

if not HAS_GPUS:  # before the rest of torchtitan is imported, which takes both from here
    utils.device_type = "cpu"
    utils.device_module = SimpleNamespace(
        set_device=lambda device: None,
        synchronize=lambda: None,
        current_device=lambda: 0,
        device_count=lambda: 1,
        get_device_name=lambda device: "CPU",
        get_device_properties=lambda device: SimpleNamespace(total_memory=2**34),
        memory_stats=lambda device: {},
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
    )

if not hasattr(torch.distributed, "set_timeout"):
    torch.distributed.set_timeout = lambda timeout, group=None: None  # type: ignore[attr-defined]


def fitted(spec: Any) -> Any:
    """A torchtitan model that a CPU can train."""
    if HAS_GPUS:
        return spec
    from torchtitan.models.common.attention import ScaledDotProductAttention

    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()

    def parallelize(*args: Any, **options: Any) -> Any:
        model = spec.parallelize_fn(*args, **options)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
        return model

    return replace(spec, parallelize_fn=parallelize)
