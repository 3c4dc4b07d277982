"""Public scheduler traces: GPU allocations of pods, without nodes and telemetry.

Each allocated GPU becomes a slot that exists while it is allocated, so the capacity equals the allocations.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyrometer.collect.source import Delivery, SourceError, error_text
from pyrometer.model.records import Allocation, Pod, Workload
from pyrometer.model.units import MS_PER_SECOND, SHARE_WHOLE, share_parts

ROWS_PER_DELIVERY = 5_000
MAX_GPUS = 10_000
MAX_DURATION_MS = 10**12


class OpenbTrace:
    """Alibaba's 2023 GPU cluster (openb): 8,152 pods with fractions of a GPU.

    Its clock starts at zero: taken as 2023-01-01 UTC.
    """

    START_MS = 1_672_531_200_000

    def __init__(self, path: Path) -> None:
        self.path = path / "openb_pod_list_default.csv" if path.is_dir() else path
        self.counts: Counter[str] = Counter()

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Pods, each its own workload."""
        needed = (
            "name",
            "num_gpu",
            "gpu_milli",
            "qos",
            "pod_phase",
            "creation_time",
            "deletion_time",
            "scheduled_time",
        )
        for delivery in _in_deliveries(self.path, needed, self._records):
            yield delivery

    def _records(self, row: dict[str, str]) -> list[tuple[Any, ...]]:
        gpus, created_ms = int(row["num_gpu"]), self._ms(row["creation_time"])
        if gpus == 0:
            self.counts["pods without a GPU"] += 1
            return []
        scheduled_ms, ended_ms = self._ms(row["scheduled_time"]), self._ms(row["deletion_time"])
        if scheduled_ms is None:
            self.counts["GPU pods never scheduled"] += 1
        share = share_parts(int(row["gpu_milli"]) / 1000) if gpus == 1 else SHARE_WHOLE
        pod = Pod(
            time_ms=ended_ms or scheduled_ms or created_ms or self.START_MS,
            cluster="openb",
            pod_uid=row["name"],
            namespace="openb",
            name=row["name"],
            phase=row["pod_phase"],
            workload_uid=row["name"],
            queue=row["qos"],
            created_ms=created_ms,
            scheduled_ms=scheduled_ms,
            started_ms=scheduled_ms,
            ended_ms=ended_ms,
            gpu_share=gpus * share,
        )
        workload = Workload(
            time_ms=pod.time_ms,
            cluster="openb",
            workload_uid=row["name"],
            kind="Pod",
            namespace="openb",
            name=row["name"],
            queue=row["qos"],
            team=row["qos"],
            team_rule="queue",
            experiment="openb",
            experiment_rule="trace",
            created_ms=created_ms,
        )
        return [pod, workload, *_holds(pod, gpus, share)]

    def _ms(self, seconds: str) -> int | None:
        return self.START_MS + int(seconds) * MS_PER_SECOND if seconds else None


class PhillyTrace:
    """Microsoft's Philly, autumn 2017: 82,247 jobs of 15 virtual clusters."""

    def __init__(self, path: Path) -> None:
        self.path = path / "philly.csv" if path.is_dir() else path
        self.counts: Counter[str] = Counter()
        self._jobs = 0

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Jobs, each one pod."""
        for delivery in _in_deliveries(self.path, ("timestamp", "duration", "num_gpus", "cluster"), self._records):
            yield delivery

    def _records(self, row: dict[str, str]) -> list[tuple[Any, ...]]:
        self._jobs += 1
        name = f"philly-{self._jobs:06d}"
        started = datetime.fromisoformat(row["timestamp"]).replace(tzinfo=UTC)
        from_ms = round(started.timestamp()) * MS_PER_SECOND
        to_ms = from_ms + round(float(row["duration"]) * MS_PER_SECOND)
        gpus = int(row["num_gpus"])
        pod = Pod(
            time_ms=to_ms,
            cluster="philly",
            pod_uid=name,
            namespace=row["cluster"],
            name=name,
            phase="Unknown",
            workload_uid=name,
            queue=row["cluster"],
            created_ms=from_ms,
            scheduled_ms=from_ms,
            started_ms=from_ms,
            ended_ms=to_ms,
            gpu_share=gpus * SHARE_WHOLE,
        )
        workload = Workload(
            time_ms=to_ms,
            cluster="philly",
            workload_uid=name,
            kind="Job",
            namespace=row["cluster"],
            name=name,
            queue=row["cluster"],
            team=row["cluster"],
            team_rule="queue",
            experiment="philly",
            experiment_rule="trace",
            created_ms=from_ms,
        )
        return [pod, workload, *_holds(pod, gpus, SHARE_WHOLE)]


def _holds(pod: Pod, gpus: int, share: int) -> Iterator[Allocation]:
    if not 0 <= gpus <= MAX_GPUS:
        raise ValueError(f"{gpus} is not a number of GPUs of one pod")
    if pod.scheduled_ms is not None and pod.ended_ms is not None:
        if not 0 <= pod.ended_ms - pod.scheduled_ms <= MAX_DURATION_MS:
            raise ValueError("it ends before it begins, or after decades")
        for index in range(gpus):
            yield Allocation(
                time_ms=pod.time_ms,
                pod_uid=pod.pod_uid,
                node_uid=pod.pod_uid,
                slot_index=index,
                from_ms=pod.scheduled_ms,
                to_ms=pod.ended_ms,
                share=share,
                source="trace",
            )


def _in_deliveries(path: Path, needed: tuple[str, ...], records: Any) -> Iterator[Delivery]:
    """Reads a CSV file row by row; an error names the file and the line."""
    try:
        size = max(path.stat().st_size, 1)
        stream = path.open(newline="", encoding="utf-8")
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read: {error.strerror}. Name the trace's CSV file or its folder."
        ) from None
    with stream:
        reader = csv.DictReader(stream)
        batch: list[tuple[Any, ...]] = []
        read = 0
        try:
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise SourceError(f"{path} has no column {missing[0]!r}: is it the right file?")
            for row in reader:
                if None in row.values():
                    raise ValueError("it has fewer values than the file has columns")
                read += sum(len(value) + 1 for value in row.values())
                batch += records(row)
                if len(batch) >= ROWS_PER_DELIVERY:
                    yield Delivery(batch, read / size)
                    batch = []
        except (TypeError, ValueError, OverflowError, csv.Error) as error:
            raise SourceError(f"{path}, line {max(reader.line_num, 1)}: {error_text(error)}.") from None
        yield Delivery(batch, 1.0)
