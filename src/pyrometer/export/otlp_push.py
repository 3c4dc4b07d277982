"""The protobuf bodies that a server pushes over OTLP: its metrics, and the spans of steps and of ended runs.

Metrics have the names, labels and values of `/metrics`. Counters are cumulative since the start of this process, so a
missed push loses nothing. Each span is pushed once: the spans of a rank are pushed in the order of time, and the store
keeps the time of the last pushed span.

Attributes of resources use the names of the OpenTelemetry conventions (`k8s.*`, `host.*`, `hw.*`) if they exist.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, NumberDataPoint
from prometheus_client.core import Metric

from pyrometer import __version__
from pyrometer.export.trace_otlp import Attributes, key_values, trace_request
from pyrometer.model.records import OWN_POD
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import StoreReader

MAX_BODY_POINTS, MAX_BODY_SPANS = 2_000, 2_000
MAX_ROUND_SPANS = 50_000  # per round; the others wait for the next round
MAX_SPAN_AGE_MS = MS_PER_HOUR  # older spans are not pushed
SETTLED_MS = 10_000  # after the end of a step: all of its spans have arrived by then
RUN_SETTLED_MS = 2 * MS_PER_MINUTE  # after the end of a run, which may start again
MAX_ROUND_RUNS = 20  # per round
PUSH_MARKS_KEY = "otlp_pushed"  # in the store
_NS_PER_MS = 1_000_000
_KINDS = (
    "Job",
    "CronJob",
    "StatefulSet",
    "Deployment",
    "DaemonSet",
    "ReplicaSet",
)  # with attributes in the OpenTelemetry conventions

Rank = tuple[str, int, int]  # run, attempt, rank


# -- metrics ----------------------------------------------------------------------------------------------------------


def metric_bodies(families: Iterable[Metric], resource: Attributes, since_ms: int, now_ms: int) -> Iterator[bytes]:
    """Metrics as requests with a limited number of points. `since_ms` is when the counters started at zero."""
    samples = (
        (sample.name, family.type == "counter", family.documentation, sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    )
    for chunk in _chunks(samples, MAX_BODY_POINTS):
        request = ExportMetricsServiceRequest()
        resource_entry = request.resource_metrics.add()
        resource_entry.resource.attributes.extend(key_values(resource))
        scope = resource_entry.scope_metrics.add()
        scope.scope.name, scope.scope.version = "pyrometer", __version__
        for (name, is_counter, description), points in groupby(chunk, key=lambda sample: sample[:3]):
            metric = scope.metrics.add(name=name, description=description)
            if is_counter:
                metric.sum.is_monotonic = True
                metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            into = metric.sum.data_points if is_counter else metric.gauge.data_points
            for *_, labels, value in points:
                point = NumberDataPoint(time_unix_nano=now_ms * _NS_PER_MS, as_double=value)
                if is_counter:
                    point.start_time_unix_nano = since_ms * _NS_PER_MS
                point.attributes.extend(key_values(labels))
                into.append(point)
        yield request.SerializeToString()


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


# -- progress of the push ---------------------------------------------------------------------------------------------


class PushMarks(NamedTuple):
    """The times up to which the spans of each rank and of each whole run were pushed."""

    since_ms: int  # earlier spans are not pushed
    ranks: dict[Rank, int]
    runs: dict[str, int]

    @classmethod
    def read(cls, text: str | None, now_ms: int) -> PushMarks:
        """Parses the text from the store. Without a text, spans from now on are pushed."""
        if text is None:
            return cls(now_ms, {}, {})
        kept = json.loads(text)
        ranks = {(run, attempt, rank): through_ms for run, attempt, rank, through_ms in kept["ranks"]}
        return cls(kept["since_ms"], ranks, kept["runs"])

    def text(self) -> str:
        """The marks as text for the store."""
        ranks = [[*rank, through_ms] for rank, through_ms in self.ranks.items()]
        return json.dumps({"since_ms": self.since_ms, "ranks": ranks, "runs": self.runs})

    def advanced(self, now_ms: int) -> PushMarks:
        """The marks without those of old spans, so that their number is limited and no span is pushed twice."""
        since_ms = max(self.since_ms, now_ms - MAX_SPAN_AGE_MS)
        ranks = {rank: ms for rank, ms in self.ranks.items() if ms > since_ms}
        return PushMarks(since_ms, ranks, {run: ms for run, ms in self.runs.items() if ms > since_ms - MAX_SPAN_AGE_MS})


class SpanBatch(NamedTuple):
    """A body with spans, their number, and the time of the last span of each rank."""

    body: bytes
    spans: int
    ranks: dict[Rank, int]


# -- spans of steps ---------------------------------------------------------------------------------------------------

_NEW_SPANS = """
WITH ended AS (
    SELECT *, max(time_ms + duration_us // 1000) OVER (PARTITION BY run, attempt, rank, step) AS ended_ms
    FROM span WHERE time_ms > $since_ms
)
SELECT run, attempt, rank, time_ms, trace_id, span_id, parent_id, name, duration_us, step, attributes_json,
       coalesce(after_us, 0) AS after_us
FROM ended LEFT JOIN otlp_mark USING (run, attempt, rank)
WHERE ended_ms < $until_ms AND time_ms > coalesce(through_ms, 0)
ORDER BY time_ms, run, attempt, rank, after_us, duration_us DESC
LIMIT $max_spans
"""


def step_bodies(store: StoreReader, marks: PushMarks, now_ms: int) -> Iterator[SpanBatch]:
    """The spans of steps that were not pushed yet, oldest first."""
    store.expose(["span"], marks.since_ms, now_ms)
    rows = _new_spans(store, marks, now_ms)
    if len(rows) == MAX_ROUND_SPANS:  # spans of one millisecond stay together, because marks have that resolution
        last_ms = rows[-1][3]
        rows = [row for row in rows if row[3] < last_ms] or rows
    resources = _resources(store, {row[0] for row in rows})
    for batch in batched_by_moment(rows, MAX_BODY_SPANS):
        request = ExportTraceServiceRequest()
        by_rank: dict[Rank, list[tuple[Any, ...]]] = defaultdict(list)
        for row in batch:
            by_rank[row[:3]].append(row)
        for rank, rank_rows in by_rank.items():
            resource_entry = request.resource_spans.add()
            resource_entry.resource.attributes.extend(key_values(resources.get(rank) or _rank_attributes(*rank)))
            scope = resource_entry.scope_spans.add()
            scope.scope.name, scope.scope.version = "pyrometer", __version__
            for row in rank_rows:
                _add_span(scope.spans.add(), row)
        yield SpanBatch(
            request.SerializeToString(), len(batch), {rank: rank_rows[-1][3] for rank, rank_rows in by_rank.items()}
        )


def batched_by_moment(rows: list[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    """Batches of about `size` rows. Spans of one millisecond are never split."""
    batch: list[tuple[Any, ...]] = []
    for _, moment in groupby(rows, key=lambda row: row[3]):
        batch += moment
        if len(batch) >= size:
            yield batch
            batch = []
    if batch:
        yield batch


def _new_spans(store: StoreReader, marks: PushMarks, now_ms: int) -> list[tuple[Any, ...]]:
    names = pa.schema([("run", pa.string()), ("attempt", pa.int16()), ("rank", pa.int32()), ("through_ms", pa.int64())])
    listed = [
        dict(zip(names.names, (*rank, through_ms), strict=True)) for rank, through_ms in sorted(marks.ranks.items())
    ]
    store.connection.register("otlp_mark", pa.Table.from_pylist(listed, schema=names))
    try:
        return store.connection.execute(
            _NEW_SPANS, {"since_ms": marks.since_ms, "until_ms": now_ms - SETTLED_MS, "max_spans": MAX_ROUND_SPANS}
        ).fetchall()
    finally:
        store.connection.unregister("otlp_mark")


def _add_span(span: Any, row: tuple[Any, ...]) -> None:
    _, attempt, _, time_ms, trace_id, span_id, parent_id, name, duration_us, step, attributes_json, after_us = row
    start_ns = time_ms * _NS_PER_MS + after_us * 1000
    span.trace_id, span.span_id = bytes.fromhex(trace_id), bytes.fromhex(span_id)
    if parent_id:
        span.parent_span_id = bytes.fromhex(parent_id)
    span.name, span.kind = name, span.SPAN_KIND_INTERNAL
    span.start_time_unix_nano, span.end_time_unix_nano = start_ns, start_ns + duration_us * 1000
    own = {"pyrometer.step": step, "pyrometer.attempt": attempt}
    span.attributes.extend(key_values(own | (json.loads(attributes_json) if attributes_json else {})))


# -- resources of ranks -----------------------------------------------------------------------------------------------

_RANK_RESOURCES = """
WITH of_run AS (
    SELECT * FROM run WHERE run IN (SELECT unnest($runs))
    QUALIFY row_number() OVER (PARTITION BY run, attempt, rank ORDER BY time_ms DESC) = 1
),
pods AS (SELECT pod_uid, arg_max(namespace, time_ms) AS namespace, arg_max(name, time_ms) AS name FROM pod GROUP BY 1),
nodes AS (SELECT node_uid, arg_max(name, time_ms) AS name FROM node GROUP BY 1),
slots AS (
    SELECT node_uid, slot_index, arg_max(uuid, time_ms) AS uuid, arg_max(gpu_model, time_ms) AS gpu_model
    FROM slot GROUP BY 1, 2
),
workloads AS (
    SELECT workload_uid, arg_max(kind, time_ms) AS kind, arg_max(name, time_ms) AS name FROM workload GROUP BY 1
)
SELECT run, attempt, rank, experiment, cluster, r.pod_uid, p.namespace, p.name, r.node_uid, n.name, slot_index, uuid,
       gpu_model, w.kind, w.name, r.workload_uid
FROM of_run r LEFT JOIN pods p USING (pod_uid) LEFT JOIN nodes n USING (node_uid)
LEFT JOIN slots s USING (node_uid, slot_index) LEFT JOIN workloads w USING (workload_uid)
"""


def _resources(store: StoreReader, runs: set[str]) -> dict[Rank, Attributes]:
    if not runs:
        return {}
    store.expose_all(["run", "pod", "node", "slot", "workload"])
    rows = store.connection.execute(_RANK_RESOURCES, {"runs": sorted(runs)}).fetchall()
    return {row[:3]: _resource(*row) for row in rows}


def _rank_attributes(run: str, attempt: int, rank: int, experiment: str | None = None) -> dict[str, Any]:
    return {
        "service.name": experiment or "training",
        "service.instance.id": f"{run}/{attempt}/{rank}",
        "pyrometer.run": run,
        "pyrometer.rank": rank,
        "pyrometer.experiment": experiment,
    }


def _resource(
    run: str,
    attempt: int,
    rank: int,
    experiment: str | None,
    cluster: str | None,
    pod_uid: str | None,
    namespace: str | None,
    pod: str | None,
    node_uid: str | None,
    node: str | None,
    index: int | None,
    uuid: str | None,
    model: str | None,
    kind: str | None,
    workload: str | None,
    workload_uid: str | None,
) -> dict[str, Any]:
    found = _rank_attributes(run, attempt, rank, experiment)
    in_kubernetes = bool(pod_uid) and not str(pod_uid).startswith(OWN_POD)
    if in_kubernetes:
        found |= {
            "k8s.cluster.name": cluster,
            "k8s.namespace.name": namespace,
            "k8s.pod.uid": pod_uid,
            "k8s.pod.name": pod,
            "k8s.node.name": node,
            "k8s.node.uid": node_uid if node else None,
        }
        if kind in _KINDS:
            found |= {f"k8s.{kind.lower()}.name": workload, f"k8s.{kind.lower()}.uid": workload_uid}
    found["host.name"] = node or (node_uid or "").removeprefix("host/") or None
    if uuid and uuid.startswith(("GPU-", "MIG-")):
        found |= {"hw.id": uuid, "hw.type": "gpu", "hw.name": f"GPU {index}", "hw.model": model}
    return found


# -- ended runs -------------------------------------------------------------------------------------------------------


def ended_runs(store: StoreReader, marks: PushMarks, now_ms: int) -> dict[str, int]:
    """The ends of runs that ended, did not start again, and were not pushed since."""
    store.expose_all(["run"])
    rows = store.connection.execute(
        "SELECT run, max(ended_ms) FROM (FROM run QUALIFY row_number() OVER "
        "(PARTITION BY run, attempt, rank ORDER BY time_ms DESC) = 1) "
        "GROUP BY run HAVING count(*) FILTER (ended_ms IS NULL) = 0 AND max(ended_ms) BETWEEN ? AND ? ORDER BY 2, 1",
        [marks.since_ms, now_ms - RUN_SETTLED_MS],
    ).fetchall()
    return dict([row for row in rows if row[1] > marks.runs.get(row[0], 0)][:MAX_ROUND_RUNS])


def run_body(trace: dict[str, Any], after_ms: int) -> bytes | None:
    """The lifecycle of a run, like the answer of `pyrometer trace RUN`, from a time on. None: it has no new spans."""
    spans = [span for span in trace["spans"] if span["start_ms"] > after_ms]
    if not spans:
        return None
    return trace_request({**trace, "spans": spans}).SerializeToString()
