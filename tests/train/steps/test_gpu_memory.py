"""GPU memory in step windows, and the event when it has run out."""

from __future__ import annotations

from types import SimpleNamespace

from pyrometer.train.run.outbox import Outbox
from pyrometer.train.run.step_numbers import StepNumbers
from pyrometer.train.steps.gpu_memory import GpuMemory, report_out_of_memory
from pyrometer.train.steps.ring import Ring

MIB = 1 << 20


def test_fields_are_the_peak_when_it_rises_and_the_current_use_otherwise():
    stats = {
        "allocated_bytes.all.peak": 8 * MIB,
        "allocated_bytes.all.current": 2 * MIB,
        "reserved_bytes.all.current": 9 * MIB,
    }
    memory = GpuMemory(SimpleNamespace(cuda=SimpleNamespace(memory_stats=lambda index: stats)), 0)
    assert memory.fields() == {"memory_peak_mib": 8, "memory_reserved_mib": 9}
    assert memory.fields() == {"memory_peak_mib": 2, "memory_reserved_mib": 9}
    stats["allocated_bytes.all.peak"] = 10 * MIB
    assert memory.fields()["memory_peak_mib"] == 10


def test_out_of_memory_is_reported_once_per_process_with_sizes():
    observers: list = []
    outbox = Outbox()
    steps = StepNumbers(Ring.in_memory(), outbox, None)
    rank = SimpleNamespace(outbox=outbox, steps=steps, recorder=SimpleNamespace(count=7))
    hooks = SimpleNamespace(rank=rank, observes_memory=False)
    torch = SimpleNamespace(_C=SimpleNamespace(_cuda_attach_out_of_memory_observer=observers.append))
    for _ in range(2):
        report_out_of_memory(torch, hooks)
    (observer,) = observers
    observer(1, 20 * MIB, 70 * MIB, 5 * MIB)
    hooks.rank = None
    observer(1, 1, 1, 1)
    ((kind, event),) = outbox.take()
    assert (kind, event["kind"], event["step"]) == ("event", "out_of_memory", 7)
    assert event["message"] == "20 MiB requested on device 1, 70 MiB allocated, 5 MiB free"
