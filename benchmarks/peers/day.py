"""A simulated day of dcgm-exporter's samples: as a Prometheus would send them, and who held which GPU as Pyrometer
keeps it.

Five metrics of every GPU once a minute; nodes of eight; 85 % of the nodes are held, by jobs of one to eight nodes. Each
sample says its pod, and its workload too, which no exporter does by itself: so that no query has to join them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

MINUTES = 24 * 60
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SAMPLES_A_BODY = 10_000
SAMPLE_BYTES = 18  # tag, length, value, time stamp
METRICS = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_SM_ACTIVE",
)
MODEL = "NVIDIA H100 80GB HBM3"
SHARE_WHOLE = 2_520_000_000


class Node(NamedTuple):
    """A machine of eight GPUs, and the job that it is assigned to; None if it is free."""

    name: str
    job: str | None


def nodes_of(gpus: int) -> list[Node]:
    """The cluster. Jobs are placed on adjacent nodes, like schedulers do."""
    chance = np.random.default_rng(1)
    held = chance.random(gpus // 8) >= 0.15
    size = chance.integers(1, 9, gpus // 8)
    nodes: list[Node] = []
    job, left = 0, 0
    for number in range(gpus // 8):
        if not left:
            job, left = job + 1, int(size[number])
        left -= 1
        nodes.append(Node(f"node-{number:06}", f"job-{job:05}" if held[number] else None))
    return nodes


def values_of(nodes: list[Node], minute: int) -> np.ndarray:
    """A row of five values for every GPU, with the digits that exporters give."""
    chance = np.random.default_rng(1_000 + minute)
    gpus = 8 * len(nodes)
    held = np.repeat([node.job is not None for node in nodes], 8)
    fate = np.random.default_rng(2).random(gpus)
    stalls = (fate < 0.08) & ((minute // 10) % 3 == 0)
    busy = held & (fate >= 0.03) & ~stalls
    noise = chance.random((gpus, 5))
    low, wide = np.array([90.0, 640.0, 0.40, 0.23, 0.78]), np.array([9.0, 50.0, 0.05, 0.04, 0.07])
    values = np.where(busy[:, None], low + wide * noise, 0.0)
    values[:, 1] = np.where(busy, values[:, 1], 110 + 6 * noise[:, 1])
    for column, digits in enumerate((0, 3, 6, 6, 6)):
        values[:, column] = np.round(values[:, column], digits)
    return values


class Sender:
    """Bodies of remote write, minute by minute. Labels are written once; values and times are put in their place."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        series = [_labels(node, gpu, name) for node in nodes for gpu in range(8) for name in METRICS]
        pieces, places, cuts, at, since = [], [], [0], 0, 0
        for number, labels in enumerate(series):
            message = (
                b"\x0a" + _varint(len(labels) + SAMPLE_BYTES) + labels + b"\x12\x10\x09" + bytes(8) + b"\x10" + bytes(6)
            )
            pieces.append(message)
            at += len(message)
            places.append(at - 15)
            since += 1
            if since == SAMPLES_A_BODY or number == len(series) - 1:
                cuts.append(at)
                since = 0
        self._bytes = np.frombuffer(bytearray(b"".join(pieces)), dtype=np.uint8)
        self._values = np.array(places)[:, None] + np.arange(8)
        self._times = np.array(places)[:, None] + 9 + np.arange(6)
        self._cuts = list(pairwise(cuts))
        self._codec = pa.Codec("snappy")
        self.samples_a_minute = len(series)

    def bodies(self, minute: int, time_ms: int) -> Iterator[bytes]:
        """What is sent of one minute."""
        flat = np.ascontiguousarray(values_of(self.nodes, minute)).reshape(-1)
        self._bytes[self._values] = flat.view(np.uint8).reshape(-1, 8)
        self._bytes[self._times] = np.frombuffer(_varint(time_ms), dtype=np.uint8)
        for begin, end in self._cuts:
            yield self._codec.compress(self._bytes[begin:end].tobytes(), asbytes=True)


def recorded(name: str, values: dict[str, float], time_ms: int) -> bytes:
    """What a recording rule writes down, by workload."""
    parts = []
    for workload, value in values.items():
        labels = _label("__name__", name) + _label("workload", workload)
        sample = b"\x12\x10\x09" + struct.pack("<d", value) + b"\x10" + _varint(time_ms)
        parts.append(b"\x0a" + _varint(len(labels) + SAMPLE_BYTES) + labels + sample)
    return pa.Codec("snappy").compress(b"".join(parts), asbytes=True)


def _labels(node: Node, gpu: int, name: str) -> bytes:
    labels = {
        "DCGM_FI_DRIVER_VERSION": "580.105.08",
        "Hostname": node.name,
        "UUID": f"GPU-{node.name}-{gpu}",
        "__name__": name,
        "device": f"nvidia{gpu}",
        "gpu": str(gpu),
        "instance": f"{node.name}:9400",
        "job": "dcgm-exporter",
        "modelName": MODEL,
        "pci_bus_id": f"00000000:{gpu:02}:00.0",
    }
    if node.job is not None:
        labels |= {
            "container": "train",
            "namespace": "research",
            "pod": f"{node.job}-{node.name}",
            "workload": node.job,
        }
    return b"".join(_label(key, labels[key]) for key in sorted(labels))


def _label(name: str, value: str) -> bytes:
    pair = b"\x0a" + _varint(len(name)) + name.encode() + b"\x12" + _varint(len(value)) + value.encode()
    return b"\x0a" + _varint(len(pair)) + pair


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def objects(nodes: list[Node], from_ms: int) -> list[list[tuple]]:
    """Who held what, as a watch of Kubernetes would have written it."""
    from pyrometer.model import records

    machines = [
        records.Node(from_ms, "bench", f"host/{node.name}", node.name, 8, gpu_model=MODEL, pool="h100")
        for node in nodes
    ]
    seen_again = [machine._replace(time_ms=from_ms + DAY_MS - 1) for machine in machines]
    jobs = sorted({node.job for node in nodes if node.job is not None})
    workloads = [
        records.Workload(from_ms, "bench", job, "PyTorchJob", "research", job, team=f"team-{int(job[-2:]) % 12}")
        for job in jobs
    ]
    held = [node for node in nodes if node.job is not None]
    pods = [
        records.Pod(
            from_ms,
            "bench",
            f"{node.job}-{node.name}",
            "research",
            f"{node.job}-{node.name}",
            "Running",
            workload_uid=node.job,
            node_uid=f"host/{node.name}",
            scheduled_ms=from_ms,
            started_ms=from_ms,
        )
        for node in held
    ]
    holds = [
        records.Allocation(from_ms, f"{node.job}-{node.name}", f"host/{node.name}", gpu, from_ms, None, SHARE_WHOLE)
        for node in held
        for gpu in range(8)
    ]
    return [[*machines, *seen_again], workloads, pods, holds]
