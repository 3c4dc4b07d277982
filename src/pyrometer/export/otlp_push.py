"""What a server pushes over OTLP, as bodies in protobuf: its metrics, and the spans of steps and of runs that are over.

Metrics are those of `/metrics`: the same names, labels and values. Counters are cumulative sums that began with this
process, so that whoever missed a push has lost nothing with the next. A span is pushed once: spans of a rank come in
the order of time, and up to when they were pushed is a mark that the store keeps.

Attributes of resources have the names of OpenTelemetry's conventions (`k8s.*`, `host.*`, `hw.*`) where there are any.
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

MOST_POINTS, MOST_SPANS = 2_000, 2_000  # of a body
MOST_AT_ONCE = 50_000  # spans of one round; the rest waits for the next
LOOK_BACK_MS = MS_PER_HOUR  # what comes later than that is not pushed
SETTLED_MS = 10_000  # after the end of a step: by then all of it has come
RUN_SETTLED_MS = 2 * MS_PER_MINUTE  # after the end of a run, which may begin again
MOST_RUNS = 20  # of one round
MARKS = "otlp_pushed"  # in the store
_NS_PER_MS = 1_000_000
_KINDS = ("Job", "CronJob", "StatefulSet", "Deployment", "DaemonSet", "ReplicaSet")  # that the conventions name

Rank = tuple[str, int, int]  # run, attempt, rank


# -- metrics ----------------------------------------------------------------------------------------------------------


def metric_bodies(families: Iterable[Metric], resource: Attributes, since_ms: int, now_ms: int) -> Iterator[bytes]:
    """Requests with a bounded number of points each. `since_ms` is when counters began at zero."""
    samples = (
        (sample.name, family.type == "counter", family.documentation, sample.labels, sample.value)
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    )
    for some in _pieces(samples, MOST_POINTS):
        request = ExportMetricsServiceRequest()
        of_resource = request.resource_metrics.add()
        of_resource.resource.attributes.extend(key_values(resource))
        scope = of_resource.scope_metrics.add()
        scope.scope.name, scope.scope.version = "pyrometer", __version__
        for (name, counts, meaning), points in groupby(some, key=lambda sample: sample[:3]):
            metric = scope.metrics.add(name=name, description=meaning)
            if counts:
                metric.sum.is_monotonic = True
                metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            into = metric.sum.data_points if counts else metric.gauge.data_points
            for *_, labels, value in points:
                point = NumberDataPoint(time_unix_nano=now_ms * _NS_PER_MS, as_double=value)
                if counts:
                    point.start_time_unix_nano = since_ms * _NS_PER_MS
                point.attributes.extend(key_values(labels))
                into.append(point)
        yield request.SerializeToString()


def _pieces(things: Iterable[Any], most: int) -> Iterator[list[Any]]:
    piece: list[Any] = []
    for thing in things:
        piece.append(thing)
        if len(piece) == most:
            yield piece
            piece = []
    if piece:
        yield piece


# -- what was pushed --------------------------------------------------------------------------------------------------


class Marks(NamedTuple):
    """Up to when spans were pushed: of each rank, and of each run as a whole."""

    since_ms: int  # nothing before it is pushed
    ranks: dict[Rank, int]
    runs: dict[str, int]

    @classmethod
    def read(cls, text: str | None, now_ms: int) -> Marks:
        """As the store keeps them. Without any, what happens from now on is pushed."""
        if text is None:
            return cls(now_ms, {}, {})
        kept = json.loads(text)
        ranks = {(run, attempt, rank): through_ms for run, attempt, rank, through_ms in kept["ranks"]}
        return cls(kept["since_ms"], ranks, kept["runs"])

    def text(self) -> str:
        """To be kept."""
        ranks = [[*rank, through_ms] for rank, through_ms in self.ranks.items()]
        return json.dumps({"since_ms": self.since_ms, "ranks": ranks, "runs": self.runs})

    def advanced(self, now_ms: int) -> Marks:
        """Without what is too old to be looked at again: so nothing is pushed twice, and there is an end of them."""
        since_ms = max(self.since_ms, now_ms - LOOK_BACK_MS)
        ranks = {rank: ms for rank, ms in self.ranks.items() if ms > since_ms}
        return Marks(since_ms, ranks, {run: ms for run, ms in self.runs.items() if ms > since_ms - LOOK_BACK_MS})


class Pushed(NamedTuple):
    """A body with spans, how many, and up to when they are of each rank."""

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
LIMIT $most
"""


def step_bodies(store: StoreReader, marks: Marks, now_ms: int) -> Iterator[Pushed]:
    """The spans of steps that were not pushed yet, the oldest first."""
    store.expose(["span"], marks.since_ms, now_ms)
    rows = _new_spans(store, marks, now_ms)
    if len(rows) == MOST_AT_ONCE:  # spans of one moment stay together: the mark is in milliseconds
        last_ms = rows[-1][3]
        rows = [row for row in rows if row[3] < last_ms] or rows
    resources = _resources(store, {row[0] for row in rows})
    for some in batched_by_moment(rows, MOST_SPANS):
        request = ExportTraceServiceRequest()
        by_rank: dict[Rank, list[tuple[Any, ...]]] = defaultdict(list)
        for row in some:
            by_rank[row[:3]].append(row)
        for rank, of_rank in by_rank.items():
            of_resource = request.resource_spans.add()
            of_resource.resource.attributes.extend(key_values(resources.get(rank) or _named(*rank)))
            scope = of_resource.scope_spans.add()
            scope.scope.name, scope.scope.version = "pyrometer", __version__
            for row in of_rank:
                _add_span(scope.spans.add(), row)
        yield Pushed(request.SerializeToString(), len(some), {rank: of[-1][3] for rank, of in by_rank.items()})


def batched_by_moment(rows: list[tuple[Any, ...]], most: int) -> Iterator[list[tuple[Any, ...]]]:
    """About so many at a time, and never the spans of one millisecond in two."""
    piece: list[tuple[Any, ...]] = []
    for _, moment in groupby(rows, key=lambda row: row[3]):
        piece += moment
        if len(piece) >= most:
            yield piece
            piece = []
    if piece:
        yield piece


def _new_spans(store: StoreReader, marks: Marks, now_ms: int) -> list[tuple[Any, ...]]:
    names = pa.schema([("run", pa.string()), ("attempt", pa.int16()), ("rank", pa.int32()), ("through_ms", pa.int64())])
    listed = [
        dict(zip(names.names, (*rank, through_ms), strict=True)) for rank, through_ms in sorted(marks.ranks.items())
    ]
    store.connection.register("otlp_mark", pa.Table.from_pylist(listed, schema=names))
    try:
        return store.connection.execute(
            _NEW_SPANS, {"since_ms": marks.since_ms, "until_ms": now_ms - SETTLED_MS, "most": MOST_AT_ONCE}
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


# -- who they are of --------------------------------------------------------------------------------------------------

_WHO = """
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
    rows = store.connection.execute(_WHO, {"runs": sorted(runs)}).fetchall()
    return {row[:3]: _resource(*row) for row in rows}


def _named(run: str, attempt: int, rank: int, experiment: str | None = None) -> dict[str, Any]:
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
    found = _named(run, attempt, rank, experiment)
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


# -- runs that are over -----------------------------------------------------------------------------------------------


def ended_runs(store: StoreReader, marks: Marks, now_ms: int) -> dict[str, int]:
    """Runs that ended and did not begin again, and were not pushed since: when they ended."""
    store.expose_all(["run"])
    rows = store.connection.execute(
        "SELECT run, max(ended_ms) FROM (FROM run QUALIFY row_number() OVER "
        "(PARTITION BY run, attempt, rank ORDER BY time_ms DESC) = 1) "
        "GROUP BY run HAVING count(*) FILTER (ended_ms IS NULL) = 0 AND max(ended_ms) BETWEEN ? AND ? ORDER BY 2, 1",
        [marks.since_ms, now_ms - RUN_SETTLED_MS],
    ).fetchall()
    return dict([row for row in rows if row[1] > marks.runs.get(row[0], 0)][:MOST_RUNS])


def run_body(trace: dict[str, Any], after_ms: int) -> bytes | None:
    """The life of a run, as `pyrometer trace RUN` answers it; only what began after a time. None: there is nothing."""
    spans = [span for span in trace["spans"] if span["start_ms"] > after_ms]
    if not spans:
        return None
    return trace_request({**trace, "spans": spans}).SerializeToString()
