"""OTLP push, read with OpenTelemetry's own messages: metrics like /metrics, and each span once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from pyrometer.export import otlp_push
from pyrometer.export.otlp_push import (
    MAX_SPAN_AGE_MS,
    SETTLED_MS,
    PushMarks,
    ended_runs,
    metric_bodies,
    run_body,
    step_bodies,
)
from pyrometer.model.records import Node, Pod, Run, Slot, Span, Workload
from pyrometer.store import Store
from tests.support.otel_conventions import convention_names
from tests.support.otlp_receiver import plain

NOW = 1_790_000_000_000


def families(count: int):
    seconds = CounterMetricFamily("pyrometer_gpu_seconds", "by state", labels=["state", "team"])
    for number in range(count):
        seconds.add_metric(["train", f"team {number}"], float(number))
    ready = GaugeMetricFamily("pyrometer_ready", "is it")
    ready.add_metric([], 1.0)
    return [seconds, ready]


@pytest.mark.parametrize("most", [1, 3, 7, 2_000])
def test_metric_bodies_have_the_names_and_values_of_the_metrics_page(most, monkeypatch):
    monkeypatch.setattr(otlp_push, "MAX_BODY_POINTS", most)
    bodies = list(metric_bodies(families(7), {"service.name": "pyrometer"}, NOW - 5_000, NOW))
    assert len(bodies) == -(-8 // most)
    values = {}
    for body in bodies:
        (of_resource,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
        assert plain(of_resource.resource.attributes) == {"service.name": "pyrometer"}
        for metric in of_resource.scope_metrics[0].metrics:
            counts = metric.WhichOneof("data") == "sum"
            assert counts == metric.name.endswith("_total")
            if counts:
                assert (metric.sum.is_monotonic, metric.sum.aggregation_temporality) == (True, 2)
            for point in (metric.sum if counts else metric.gauge).data_points:
                assert point.time_unix_nano == NOW * 10**6
                assert point.start_time_unix_nano == ((NOW - 5_000) * 10**6 if counts else 0)
                key = (metric.name, plain(point.attributes).get("team"))
                assert key not in values
                values[key] = point.as_double
    assert values == {
        ("pyrometer_ready", None): 1.0,
        **{("pyrometer_gpu_seconds_total", f"team {number}"): float(number) for number in range(7)},
    }


def spans_of(rank: int, step: int, begin_ms: int, lasts_ms: int = 40) -> list[Span]:
    """A step of a rank with two phases. The first phase starts in the same millisecond."""

    def one(number: int, name: str, start_ms: int, ms: int, parent: str | None) -> Span:
        return Span(
            start_ms,
            f"{step:032x}",
            f"{rank:04x}{step:08x}{number:04x}",
            name,
            ms * 1000,
            "r",
            1,
            rank,
            step,
            parent,
            '{"pyrometer.x":1}' if parent is None else None,
            3 * number,
        )

    whole = one(0, "step", begin_ms, lasts_ms, None)
    half = lasts_ms // 2
    return [
        whole,
        one(1, "forward", begin_ms, half, whole.span_id),
        one(2, "backward", begin_ms + half, half, whole.span_id),
    ]


def pushed(store: Store, marks: PushMarks, now_ms: int) -> tuple[list[str], PushMarks]:
    """The spans that one round pushes, and the marks that the store returns after it."""
    ids = []
    marks = marks.advanced(now_ms)
    for one in step_bodies(store, marks, now_ms):
        found = [
            span.span_id.hex()
            for of in ExportTraceServiceRequest.FromString(one.body).resource_spans
            for span in of.scope_spans[0].spans
        ]
        assert len(found) == one.spans
        ids += found
        marks = marks._replace(ranks=marks.ranks | one.ranks)
    return ids, PushMarks.read(marks.text(), now_ms)


@settings(max_examples=8)
@given(
    rounds=st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=4), min_size=1, max_size=5),
    most=st.sampled_from([4, 10, 50_000]),
    body=st.sampled_from([1, 5, 2_000]),
)
def test_each_span_is_pushed_once_even_from_late_ranks(tmp_path_factory, rounds, most, body):
    """Each rank sends its steps in order. One rank may be far behind the others."""
    with pytest.MonkeyPatch.context() as patch, Store(tmp_path_factory.mktemp("s"), create=True) as store:
        patch.setattr(otlp_push, "MAX_ROUND_SPANS", most)
        patch.setattr(otlp_push, "MAX_BODY_SPANS", body)
        marks, sent, stored = PushMarks(NOW, {}, {}), Counter(), []
        done = Counter()
        for number, some in enumerate(rounds):
            for rank, steps in some:
                for _ in range(steps):
                    done[rank] += 1
                    new = spans_of(rank, done[rank], NOW + 100 * done[rank])
                    store.append(new)
                    stored += [span.span_id for span in new]
            ids, marks = pushed(store, marks, NOW + 60_000 + number)
            sent.update(ids)
        while ids := pushed(store, marks, NOW + 70_000)[0]:  # the rest, as much at a time as may be
            marks = pushed(store, marks, NOW + 70_000)[1]
            sent.update(ids)
        assert sent == Counter(stored)


def test_only_complete_steps_since_the_start_are_pushed(tmp_path: Path):
    with Store(tmp_path, create=True) as store:
        store.append(spans_of(0, 1, NOW - MAX_SPAN_AGE_MS))
        store.append(spans_of(0, 2, NOW + 1, lasts_ms=600_000))
        marks = PushMarks.read(None, NOW)
        assert pushed(store, marks, NOW + 600_000 + SETTLED_MS)[0] == []
        ids, marks = pushed(store, marks, NOW + 600_002 + SETTLED_MS)
        assert sorted(ids) == [f"000000000002000{number}" for number in range(3)]
        assert pushed(store, marks, NOW + 2 * MAX_SPAN_AGE_MS) == ([], PushMarks(NOW + MAX_SPAN_AGE_MS, {}, {}))


def test_resources_follow_the_opentelemetry_conventions(tmp_path: Path):
    with Store(tmp_path, create=True) as store:
        store.append(spans_of(0, 1, NOW + 1))
        store.append(
            [
                Run(
                    NOW,
                    "r",
                    1,
                    0,
                    NOW,
                    launch="l",
                    cluster="lab",
                    experiment="sft",
                    workload_uid="w",
                    pod_uid="u",
                    node_uid="n",
                    slot_index=3,
                ),
                Pod(NOW, "lab", "u", "ml", "sft-0", "Running", workload_uid="w", node_uid="n"),
                Node(NOW, "lab", "n", "gpu-7", 8),
                Slot(NOW, "n", 3, "GPU-1", "NVIDIA H100"),
                Workload(NOW, "lab", "w", "Job", "ml", "sft"),
            ]
        )
        (one,) = step_bodies(store, PushMarks(NOW, {}, {}), NOW + 60_000)
        (of_resource,) = ExportTraceServiceRequest.FromString(one.body).resource_spans
        resource = plain(of_resource.resource.attributes)
        step, forward, _ = of_resource.scope_spans[0].spans
    assert resource == {
        "service.name": "sft",
        "service.instance.id": "r/1/0",
        "pyrometer.run": "r",
        "pyrometer.rank": 0,
        "pyrometer.experiment": "sft",
        "k8s.cluster.name": "lab",
        "k8s.namespace.name": "ml",
        "k8s.pod.uid": "u",
        "k8s.pod.name": "sft-0",
        "k8s.node.name": "gpu-7",
        "k8s.node.uid": "n",
        "k8s.job.name": "sft",
        "k8s.job.uid": "w",
        "host.name": "gpu-7",
        "hw.id": "GPU-1",
        "hw.type": "gpu",
        "hw.name": "GPU 3",
        "hw.model": "NVIDIA H100",
    }
    assert {name for name in resource if not name.startswith("pyrometer.")} <= convention_names()
    assert plain(step.attributes) == {"pyrometer.step": 1, "pyrometer.attempt": 1, "pyrometer.x": 1}
    assert forward.parent_span_id == step.span_id
    assert forward.start_time_unix_nano - step.start_time_unix_nano == 3_000


def test_run_is_pushed_once_after_its_final_end(tmp_path: Path):
    def rank(number: int, attempt: int, ended_ms: int | None) -> Run:
        return Run(NOW + attempt, "r", attempt, number, NOW, ended_ms=ended_ms, outcome=ended_ms and "succeeded")

    late = NOW + 10 * 60_000
    with Store(tmp_path, create=True) as store:
        marks = PushMarks(NOW, {}, {})
        store.append([rank(0, 1, NOW + 5), rank(1, 1, None)])
        assert ended_runs(store, marks, late) == {}
        store.append([rank(1, 1, NOW + 7)._replace(time_ms=NOW + 9)])
        assert ended_runs(store, marks, NOW + 8) == {}  # it may begin again
        assert ended_runs(store, marks, late) == {"r": NOW + 7}
        marks = marks._replace(runs={"r": NOW + 7})
        assert ended_runs(store, marks, late) == {}
        store.append([rank(0, 2, NOW + 90), rank(1, 2, NOW + 91)])
        assert ended_runs(store, marks, late) == {"r": NOW + 91}
    span = {
        "rank": None,
        "span_id": "0" * 15 + "1",
        "parent_id": None,
        "name": "run",
        "duration_ms": 2.0,
        "attributes": {},
    }
    trace = {
        "run": "r",
        "trace_id": "0" * 31 + "1",
        "spans": [{**span, "start_ms": NOW}, {**span, "start_ms": NOW + 80, "name": "again"}],
    }
    body = run_body(trace, NOW + 7)
    (of_resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert [(one.name, one.trace_id.hex()) for one in of_resource.scope_spans[0].spans] == [("again", "0" * 31 + "1")]
    assert run_body(trace, NOW + 80) is None
