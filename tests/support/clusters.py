"""A small cluster for tests of explanations: two nodes of two GPUs, one four-rank job, built record by record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any, cast

from pyrometer.account.build.ledger import build
from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import (
    Allocation,
    Event,
    GpuSample,
    Node,
    NodeSample,
    Pod,
    Price,
    Run,
    StepWindow,
    Workload,
)
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store

START_MS = 1_794_600_000_000  # a whole hour
MINUTE = 60_000
HOUR = 3_600_000
PRICE_USD_MICRO = 3_600_000  # a dollar for a thousand GPU-seconds


def at(minutes: float) -> int:
    """The time that is this many minutes after the start."""
    return START_MS + round(minutes * MINUTE)


def cluster(hours: int = 2, nodes: int = 2, gpus: int = 2) -> list[Any]:
    """Nodes that exist all the time, at one price."""
    records: list[Any] = [Price(START_MS, PRICE_USD_MICRO, START_MS - HOUR)]
    for number in range(nodes):
        for time_ms in (START_MS, START_MS + hours * HOUR - 1):
            records.append(Node(time_ms, "test", f"n{number}", f"node-{number}", gpus, "Test GPU", pool="pool"))
    return records


def job(
    name: str = "llama", *, pods: int = 2, gpus: int = 2, from_min: float = 0, to_min: float | None = None, **more: Any
) -> list[Any]:
    """A workload with one pod per node. Each pod holds all GPUs of its node."""
    records: list[Any] = [
        Workload(START_MS, "test", name, "PyTorchJob", "ml", name, team="nlp", experiment=f"{name}-sft", **more)
    ]
    for number in range(pods):
        records += pod(f"{name}-{number}", name, f"n{number}", gpus=gpus, from_min=from_min, to_min=to_min)
    return records


def pod(
    name: str, workload: str, node: str, *, gpus: int = 2, from_min: float = 0, to_min: float | None = None, **more: Any
) -> list[Any]:
    """A pod that holds the first GPUs of a node."""
    from_ms, to_ms = at(from_min), None if to_min is None else at(to_min)
    return [
        Pod(
            to_ms or from_ms,
            "test",
            name,
            "ml",
            name,
            "Running" if to_ms is None else "Succeeded",
            workload_uid=workload,
            node_uid=node,
            scheduled_ms=from_ms,
            started_ms=from_ms,
            ended_ms=to_ms,
            **more,
        ),
        *(Allocation(to_ms or from_ms, name, node, index, from_ms, to_ms, SHARE_WHOLE) for index in range(gpus)),
    ]


def place(rank: int) -> dict[str, Any]:
    """The location of a rank of a job of two pods with two GPUs."""
    return {"node_uid": f"n{rank // 2}", "slot_index": rank % 2, "pod_uid": f"llama-{rank // 2}"}


def run(ranks: int = 4, attempt: int = 1, started_min: float = 0, **more: Any) -> list[Run]:
    """The ranks of one attempt, whose first step ends at once."""
    started_ms = at(started_min)
    return [
        Run(
            started_ms,
            "run",
            attempt,
            rank,
            started_ms,
            ranks=ranks,
            workload_uid="llama",
            first_step_ms=started_ms,
            **place(rank),
            **more,
        )
        for rank in range(ranks)
    ]


def steps(
    rank: int, from_min: float, to_min: float, *, attempt: int = 1, first_step: int | None = None, **amounts: Any
) -> list[StepWindow]:
    """One window per minute, 100 steps each."""
    first = round(from_min * 100) if first_step is None else first_step
    return [
        StepWindow(
            at(minute),
            at(minute + 1),
            "run",
            attempt,
            rank,
            first_step=first + 100 * number,
            steps=100,
            **place(rank),
            **amounts,
        )
        for number, minute in enumerate(range(round(from_min), round(to_min)))
    ]


def samples(node: str, slot: int, from_min: float, to_min: float, **values: int) -> list[GpuSample]:
    """One sample per minute."""
    return [GpuSample(at(minute), node, slot, **values) for minute in range(round(from_min), round(to_min))]


def node_samples(node: int, from_min: float, to_min: float, **values: int) -> list[NodeSample]:
    """One sample of a node exporter per minute."""
    return [NodeSample(at(minute), f"n{node}", **values) for minute in range(round(from_min), round(to_min))]


# Milliseconds by phase in a minute of steps that do not wait for data.
NORMAL_STEP_MS = {"data_ms": 300, "forward_ms": 20_000, "backward_ms": 30_000, "comm_ms": 1_500, "optimizer_ms": 5_000}


def all_ranks(from_min: float, to_min: float, **more: Any) -> list[StepWindow]:
    """Windows of all four ranks with normal phases."""
    return [window for rank in range(4) for window in steps(rank, from_min, to_min, **(NORMAL_STEP_MS | more))]


def two_ranks_per_node(
    name: str, nodes: Iterable[int], run: str | None = None
) -> Iterator[tuple[int, dict[str, Any], list[Any]]]:
    """A job with two GPUs per node from the start: each rank, its location and the records that describe it."""
    nodes = tuple(nodes)
    for number, node in enumerate(nodes):
        pod_name, uid = f"{name}-{number}", f"n{node}"
        for gpu in range(2):
            place = {"node_uid": uid, "slot_index": gpu, "pod_uid": pod_name}
            yield (
                2 * number + gpu,
                place,
                [
                    Workload(START_MS, "test", name, "PyTorchJob", "ml", name, team="nlp"),
                    Pod(
                        START_MS,
                        "test",
                        pod_name,
                        "ml",
                        pod_name,
                        "Running",
                        workload_uid=name,
                        node_uid=uid,
                        scheduled_ms=START_MS,
                        started_ms=START_MS,
                    ),
                    Allocation(START_MS, pod_name, uid, gpu, START_MS, None, SHARE_WHOLE),
                    Run(
                        START_MS,
                        run or name,
                        1,
                        2 * number + gpu,
                        START_MS,
                        ranks=2 * len(nodes),
                        workload_uid=name,
                        first_step_ms=START_MS,
                        **place,
                    ),
                ],
            )


def minutes(from_min: float, to_min: float) -> tuple[str, str]:
    """Two times in the format of answers."""
    return iso(at(from_min), UTC), iso(at(to_min), UTC)


def interval(finding: dict[str, Any]) -> tuple[str, str]:
    """The start and the end of a finding."""
    return finding["from"], finding["to"]


def findings_of(cause: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The findings of a cause."""
    return [finding for finding in answer["findings"] if finding["cause"] == cause]


def only_finding(cause: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The one finding of a cause."""
    (finding,) = findings_of(cause, answer)
    return finding


def sole_finding(answer: dict[str, Any]) -> dict[str, Any]:
    """The only finding of an answer; fails if there are several."""
    (finding,) = answer["findings"]
    return cast("dict[str, Any]", finding)


def event(kind: str, minute: float, rank: int, *, attempt: int = 1, **more: Any) -> Event:
    """An event of a rank."""
    return Event(at(minute), kind, run="run", attempt=attempt, rank=rank, **more)


def shifted(records: list[Any], by_ms: int) -> list[Any]:
    """The same records, `by_ms` later."""

    def later(row: Any) -> Any:
        times = {
            name: value + by_ms
            for name, value in row._asdict().items()
            if name.endswith("_ms") and isinstance(value, int) and value > 10**12
        }
        return row._replace(**times)

    return [later(row) for row in records]


def explain(
    folder: Path, records: Iterable[Any], *, hours: int = 2, settings: Settings | None = None
) -> dict[str, Any]:
    """The answer of `why` about these records."""
    settings = settings or Settings()
    with Store(folder, create=True) as store:
        store.append(list(records))
        build(store, settings, now_ms=START_MS + hours * HOUR)
        return why(store, TimeRange(START_MS, START_MS + hours * HOUR), settings, zone=UTC)
