"""OTLP bodies: both forms are equivalent, the real exporter is understood, and invalid parts do not affect others."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.collect.otlp import forms, requests
from pyrometer.collect.otlp.forms import OtlpError, OtlpTooLargeError
from pyrometer.collect.otlp.messages import (
    MAX_TEXT_CHARS,
    BatchMessage,
    EventMessage,
    MetricMessage,
    RankStatus,
    SpanMessage,
    WindowMessage,
)
from pyrometer.collect.otlp.readers import OtlpBody
from tests.support import cpu_run, otlp_json

T0 = 1_790_000_000_000
NOW = T0 + 86_400_000
WHO = cpu_run.identity(cpu_run.FIRST, 0, T0)


def read(signal: str, request: Any, *, form: str = "json") -> OtlpBody:
    body = json.dumps(request).encode() if form == "json" else otlp_json.as_protobuf(signal, request)
    return requests.read(signal, body, is_json=form == "json", now_ms=NOW)


def logs(*records: Any, who: dict[str, Any] = WHO) -> dict[str, Any]:
    """A request with these records; messages of the contract are written as such."""
    written = [otlp_json.record(*one) if isinstance(one, tuple) else one for one in records]
    return {"resourceLogs": [{"resource": otlp_json.resource(who), "scopeLogs": [{"logRecords": written}]}]}


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_otlp_run_is_read_in_both_forms(form: str) -> None:
    found: Counter[type] = Counter()
    for signal, request in otlp_json.requests(cpu_run.story(T0)).items():
        received = read(signal, request, form=form)
        assert not received.refused
        assert not received.left_out
        assert {who.rank for who, _ in received.messages} <= {0, 1}
        for who, messages in received.messages:
            assert (who.run, who.host, who.started_ms is not None) == (cpu_run.RUN, cpu_run.HOST, True)
            found.update(map(type, messages))
    assert found == {
        RankStatus: 12,
        WindowMessage: 100,
        MetricMessage: 50,
        SpanMessage: 60,
        BatchMessage: 10,
        EventMessage: 12,
    }


@settings(max_examples=10)
@given(seed=st.randoms(use_true_random=False), size=st.integers(1, 40))
def test_otlp_read_tolerates_collector_processing(seed: Any, size: int) -> None:
    """What its batch processor, its retries and `k8sattributes` do: the messages and their rank stay the same."""
    added = otlp_json.attributes({"k8s.cluster.name": "lab", "k8s.deployment.name": "x", "k8s.pod.start_time": "2026"})
    for signal, request in otlp_json.requests(cpu_run.story(T0)).items():
        (resources,), records = request, otlp_json.LISTS[signal]
        scopes = next(name for name in request[resources][0] if name.startswith("scope"))
        single = [
            (of["resource"]["attributes"] + added, record)
            for of in request[resources]
            for scope in of[scopes]
            for record in scope[records]
        ]
        sent = single + seed.choices(single, k=len(single) // 4)
        seed.shuffle(sent)
        found = Counter()
        for start in range(0, len(sent), size):
            grouped: dict[str, Any] = {}
            for attributes, record in sent[start : start + size]:
                of = grouped.setdefault(
                    repr(attributes), {"resource": {"attributes": attributes}, scopes: [{records: []}]}
                )
                of[scopes][0][records].append(record)
            received = read(signal, {resources: list(grouped.values())}, form="protobuf")
            assert not received.refused
            assert not received.left_out
            found.update(repr((who, message)) for who, messages in received.messages for message in messages)
            found.update(repr((value, at)) for _, _, value, at in received.samples)
        whole = read(signal, request)
        expected = {repr((who, message)) for who, messages in whole.messages for message in messages}
        assert set(found) == expected | {repr((value, at)) for _, _, value, at in whole.samples}


def test_otlp_json_equals_protobuf() -> None:
    for signal, request in otlp_json.requests(cpu_run.story(T0)).items():
        from_json, from_protobuf = (
            read(signal, request, form=form)._replace(body_bytes=0) for form in ("json", "protobuf")
        )
        assert repr(from_json) == repr(from_protobuf)


def test_otlp_of_real_exporter_is_read() -> None:
    """What its SDK makes of spans, logs and gauges, as it puts it on the wire."""
    from opentelemetry._logs import LogRecord
    from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    resource = Resource({"pyrometer.launch": "l", "pyrometer.rank": 3, "host.name": "h"})
    spans = InMemorySpanExporter()
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with provider.get_tracer("t").start_as_current_span("step", attributes={"pyrometer.step": 7, "note": "x"}):
        pass
    body = encode_spans(spans.get_finished_spans()).SerializeToString()
    far = 2**43
    ((who, [piece]),) = requests.read("traces", body, is_json=False, now_ms=far).messages
    assert (who.rank, who.host, piece.name, piece.step, piece.attributes_json) == (3, "h", "step", 7, '{"note":"x"}')
    assert (len(piece.trace_id), len(piece.span_id), piece.parent_id) == (32, 16, None)

    kept = InMemoryLogRecordExporter()
    logger = LoggerProvider(resource=resource)
    logger.add_log_record_processor(SimpleLogRecordProcessor(kept))
    record = LogRecord(
        timestamp=T0 * 1_000_000,
        body="a sentence",
        event_name="pyrometer.event",
        attributes={"pyrometer.kind": "exception", "pyrometer.reason": "ValueError", "pyrometer.step": 4},
    )
    logger.get_logger("t").emit(record)
    body = encode_logs(kept.get_finished_logs()).SerializeToString()
    ((_, [event]),) = requests.read("logs", body, is_json=False, now_ms=far).messages
    assert event == EventMessage(T0, "exception", step=4, reason="ValueError")

    memory = InMemoryMetricReader()
    meter = MeterProvider([memory], resource=resource).get_meter("t")
    meter.create_gauge("loss").set(0.25, {"pyrometer.step": 9})
    meter.create_gauge("DCGM_FI_DEV_GPU_UTIL").set(80, {"gpu": "1", "UUID": "GPU-1"})
    meter.create_histogram("other").record(1)
    body = encode_metrics(memory.get_metrics_data()).SerializeToString()
    received = requests.read("metrics", body, is_json=False, now_ms=far)
    (value,) = (value for _, values in received.messages for value in values if value.name == "loss")  # it adds its own
    assert (value.value, value.step) == (0.25, 9)
    ((_, place, number, _),) = received.samples
    assert (place.hosts, place.slot_index, place.uuid, number) == (("h",), 1, "GPU-1", 80.0)


class TestLiberal:
    def test_otlp_numbers_may_be_strings(self) -> None:
        kind, values = otlp_json.window(T0, 5)
        record = otlp_json.record(kind, values)
        record["timeUnixNano"] = int(record["timeUnixNano"])
        for attribute in record["attributes"]:
            if "intValue" in attribute["value"]:
                attribute["value"] = {"intValue": int(attribute["value"]["intValue"])}
        assert repr(read("logs", logs(record)).messages) == repr(read("logs", logs((kind, values))).messages)

    def test_otlp_null_and_unknown_fields_are_absent(self) -> None:
        record = otlp_json.record("run", {"time_ms": T0}) | {"flags": 1, "attributes2": [1], "traceId": None}
        record["attributes"] += [{"key": "x", "value": None}, {"key": "y", "value": {"arrayValue": {"values": []}}}]
        request = logs(record) | {"more": {}}
        request["resourceLogs"][0]["scopeLogs"] += [{}, {"logRecords": None}]
        ((_, [news]),) = read("logs", request).messages
        assert news == RankStatus(T0)
        for empty in ({}, {"resourceLogs": None}, {"resourceLogs": []}, {"resourceLogs": [{}]}):
            assert read("logs", empty).size == 0

    def test_otlp_event_name_may_be_field_or_attribute(self) -> None:
        record = otlp_json.record("run", {"time_ms": T0})
        without = {key: value for key, value in record.items() if key != "eventName"}
        other = record | {"attributes": []}
        assert read("logs", logs(without, other)).size == 2

    def test_otlp_nan_and_infinities_are_read(self) -> None:
        values = [math.nan, math.inf, -math.inf, 0.5]
        metrics = [otlp_json.gauge("loss", T0, value, {"pyrometer.step": 1}) for value in values]
        request = {"resourceMetrics": [{"resource": otlp_json.resource(WHO), "scopeMetrics": [{"metrics": metrics}]}]}
        for form in ("json", "protobuf"):
            ((_, values),) = read("metrics", request, form=form).messages
            assert [repr(value.value) for value in values] == ["nan", "inf", "-inf", "0.5"]

    @pytest.mark.parametrize("form", ["json", "protobuf"])
    def test_otlp_metrics_with_and_without_steps_are_read(self, form: str) -> None:
        """Senders of earlier versions say neither the source nor the steps."""
        new = {"pyrometer.step": 40, "pyrometer.source": "transformers", "pyrometer.first_step": 30}
        new["pyrometer.last_step"] = 39
        metrics = [otlp_json.gauge("loss", T0, 0.5, about) for about in ({"pyrometer.step": 7}, new)]
        request = {"resourceMetrics": [{"resource": otlp_json.resource(WHO), "scopeMetrics": [{"metrics": metrics}]}]}
        ((_, values),) = read("metrics", request, form=form).messages
        assert values == [
            MetricMessage(T0, "loss", 0.5, 7),
            MetricMessage(T0, "loss", 0.5, 40, None, "transformers", 30, 39),
        ]


def test_otlp_records_of_other_senders_are_skipped() -> None:
    other = {"service.name": "shop"}
    record = {"timeUnixNano": otlp_json.ns(T0), "body": {"stringValue": "hello"}}
    received = read(
        "logs",
        {
            "resourceLogs": [
                {
                    "resource": {"attributes": otlp_json.attributes(other)},
                    "scopeLogs": [{"logRecords": [record, record]}],
                }
            ]
        },
    )
    assert (received.size, received.refused, received.left_out) == (0, Counter(), Counter(foreign=2))
    ours = read("logs", logs(record, ("run", {"time_ms": T0})))
    assert (ours.size, ours.refused, ours.left_out) == (1, Counter(), Counter(foreign=1))


def test_otlp_gpu_samples_need_no_rank() -> None:
    labels = {"UUID": "GPU-1", "gpu": "0", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "node-a"}
    points = [
        ("DCGM_FI_DEV_GPU_UTIL", 55.0, labels),
        ("DCGM_FI_DEV_POWER_USAGE", 300.0, labels),
        ("DCGM_FI_DEV_POWER_USAGE", math.nan, labels),
        ("DCGM_FI_DEV_GPU_UTIL", 1.0, {}),
        ("up", 1.0, {}),
    ]
    metrics = [otlp_json.gauge(name, T0, value, about) for name, value, about in points]
    received = read("metrics", {"resourceMetrics": [{"scopeMetrics": [{"metrics": metrics}]}]})
    assert [(value, at) for _, _, value, at in received.samples] == [(55.0, T0), (300.0, T0)]
    assert len({place for _, place, _, _ in received.samples}) == 1
    assert received.left_out == {"no value": 1, "no device": 1, "foreign": 1}


def test_otlp_hardware_conventions_become_gpu_samples() -> None:
    """`hw.gpu.*` of any sender: a device by its number, on the node that Kubernetes knows."""
    gpu = {"hw.id": "GPU-1", "hw.type": "gpu", "hw.name": "GPU 3", "hw.model": "NVIDIA H100 80GB HBM3"}
    points = [
        ("hw.gpu.utilization", 0.55, gpu | {"hw.gpu.task": "general"}),
        ("hw.gpu.utilization", 0.99, gpu | {"hw.gpu.task": "encoder"}),
        ("hw.gpu.memory.usage", 2.0**30, gpu),
        ("hw.power", 300.0, gpu),
        ("hw.power", 900.0, {"hw.id": "psu-1", "hw.type": "power_supply"}),
        ("hw.gpu.utilization", 0.5, {"hw.id": "GPU-9"}),  # its index is unknown
    ]
    metrics = [otlp_json.gauge(name, T0, value, about) for name, value, about in points]
    of_node = {"k8s.node.name": "node-a", "host.name": "exporter-7x2"}
    resource = {"attributes": [{"key": key, "value": {"stringValue": value}} for key, value in of_node.items()]}
    request = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]}
    received = read("metrics", request)
    assert [value for _, _, value, _ in received.samples] == [pytest.approx(55.0), 2.0**30, 300.0]
    assert {(place.hosts[0], place.slot_index, place.uuid) for _, place, _, _ in received.samples} == {
        ("node-a", 3, "GPU-1")
    }
    assert received.left_out == {"foreign": 2, "no device": 1}


def test_otlp_kubernetes_node_name_takes_precedence() -> None:
    request = logs(GOOD)
    attributes = request["resourceLogs"][0]["resource"]["attributes"]
    attributes += [{"key": "k8s.node.name", "value": {"stringValue": "gpu-node-7"}}]
    (((who, _),), *_) = read("logs", request)
    assert who.host == "gpu-node-7"


GOOD = ("run", {"time_ms": T0})
WRONG: list[tuple[Any, str]] = [
    (("window", {"time_ms": T0, "to_ms": T0 - 1}), "wrong time"),
    (("window", {"time_ms": T0}), "wrong value"),
    (("window", {"time_ms": T0, "to_ms": T0 + 1, "data_ms": -1}), "wrong value"),
    (("window", {"time_ms": T0, "to_ms": T0 + 1, "steps": 2**31}), "wrong value"),
    (("window", {"time_ms": T0, "to_ms": T0 + 1, "flops": 1.5}), "wrong value"),
    (("window", {"time_ms": T0, "to_ms": T0 + 1, "tokens": "many"}), "wrong value"),
    *(
        (("window", {"time_ms": T0, "to_ms": T0 + 1, "steps": 3, "step_lengths": text}), reason)
        for text, reason in (
            ("[9,3,9]", "wrong value"),
            ("[9,2]", "wrong value"),
            ("[0,3]", "wrong value"),
            ("[9,4,9,-1]", "wrong value"),
            ("[18446744073709551615,3]", "wrong value"),
            ("[9.5,3]", "wrong value"),
            ("{}", "wrong value"),
            ("nonsense", "wrong value"),
            (7, "wrong value"),
            ("[" + "9,1," * 2**14 + "9,3]", "too long"),
        )
    ),
    (("run", {"time_ms": 1}), "wrong time"),
    (("run", {"time_ms": NOW * 2}), "wrong time"),
    (("run", {"time_ms": T0, "ended_ms": 5}), "wrong time"),
    (("run", {"time_ms": T0, "outcome": "splendid"}), "wrong value"),
    (("event", {"time_ms": T0}), "wrong value"),
    (("event", {"time_ms": T0, "kind": "k" * 2000}), "too long"),
    (("event", {"time_ms": T0, "kind": True}), "wrong value"),
    (("batch", {"time_ms": T0, "loader": 0, "epoch": 0, "send_index": 1, "samples": {"a": 1}}), "wrong value"),
    (("batch", {"time_ms": T0, "loader": 2**15, "epoch": 0, "send_index": 1, "samples": []}), "wrong value"),
    (("batch", {"time_ms": T0, "loader": 0, "epoch": 0, "send_index": 1, "samples": ["x" * 2**20]}), "too long"),
]


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_otlp_window_has_step_lengths(form: str) -> None:
    values = {"time_ms": T0, "to_ms": T0 + 1000, "steps": 20, "step_lengths": "[40000,19,90000,1]"}
    ((_, (window,)),) = read("logs", logs(("window", values)), form=form).messages
    assert isinstance(window, WindowMessage)
    assert window.step_lengths == (40_000, 19, 90_000, 1)


@pytest.mark.parametrize("form", ["json", "protobuf"])
@pytest.mark.parametrize(("wrong", "reason"), WRONG)
def test_otlp_invalid_record_is_counted_and_others_kept(wrong: Any, reason: str, form: str) -> None:
    received = read("logs", logs(GOOD, wrong, GOOD), form=form)
    assert (received.size, received.refused) == (2, Counter({reason: 1}))


MALFORMED: list[Any] = [
    {"timeUnixNano": {}},
    {"attributes": 7},
    {"attributes": [7]},
    7,
    None,
    [],
    "text",
    {"eventName": 5},
    {"attributes": [{"key": "k", "value": {"intValue": [1]}}]},
]


@pytest.mark.parametrize("bad", MALFORMED)
def test_otlp_malformed_record_is_counted_and_others_kept(bad: Any) -> None:
    received = read("logs", logs(GOOD, bad, GOOD))
    assert (received.size, received.refused) == (2, Counter(malformed=1))


def test_otlp_malformed_resource_does_not_affect_others() -> None:
    good = logs(GOOD)["resourceLogs"]
    for bad in (7, {"resource": 7}, {"resource": {"attributes": {}}}, {"scopeLogs": 7}, {"scopeLogs": [7]}):
        received = read("logs", {"resourceLogs": [*good, bad, *good]})
        assert (received.size, received.refused) == (2, Counter(malformed=1))
    for key, value, reason in (
        ("rank", -1, "wrong value"),
        ("run", "r" * 2000, "too long"),
        ("ranks", 2**31, "wrong value"),
    ):
        refused = read("logs", {"resourceLogs": [*good, *logs(GOOD, GOOD, who=WHO | {key: value})["resourceLogs"]]})
        assert (refused.size, refused.refused) == (1, Counter({reason: 2}))


def test_otlp_malformed_protobuf_record_does_not_affect_others() -> None:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    request = ExportLogsServiceRequest.FromString(otlp_json.as_protobuf("logs", logs(GOOD, GOOD, GOOD)))
    good = request.resource_logs[0].scope_logs[0].log_records[1].SerializeToString()
    body = request.SerializeToString()
    at = body.index(good, body.index(good) + 1)
    broken = body[:at] + b"\xff" * len(good) + body[at + len(good) :]
    received = requests.read("logs", broken, is_json=False, now_ms=NOW)
    assert (received.size, received.refused) == (2, Counter(malformed=1))


@pytest.mark.parametrize("bad", [rb'"\ud83d"', rb'"\udc00\ud800"', b'"\xff"', b"1" * 5_000, b"1e400"])
def test_otlp_malformed_value_does_not_affect_others(bad: bytes) -> None:
    """A text that was cut in the middle of a character, as JavaScript and Python write it; bytes that are not UTF-8."""
    about = otlp_json.record("event", {"time_ms": NOW - 1000, "kind": "odd", "message": "BAD"})
    body = json.dumps(logs(GOOD, about, GOOD)).encode().replace(b'"BAD"', bad)
    received = requests.read("logs", body, is_json=True, now_ms=NOW)
    assert received.size + received.refused.total() == 3
    assert received.size >= 2


def test_otlp_valid_escapes_are_unchanged() -> None:
    about = otlp_json.record("event", {"time_ms": NOW - 1000, "kind": "odd", "message": "😀 \\ud83d \ud83d"})
    received = requests.read("logs", json.dumps(logs(about)).encode(), is_json=True, now_ms=NOW)
    assert [one.message for _, messages in received.messages for one in messages] == ["😀 \\ud83d \ufffd"]


def test_otlp_long_text_is_truncated() -> None:
    event = ("event", {"time_ms": T0, "kind": "stuck", "message": "x" * (MAX_TEXT_CHARS + 7)})
    ((_, [happened]),) = read("logs", logs(event)).messages
    assert len(happened.message) == MAX_TEXT_CHARS


def test_otlp_invalid_spans_are_rejected() -> None:
    good = {"start_ns": T0 * 10**6, "duration_ns": 1, "name": "n", "trace_id": "a" * 32, "span_id": "b" * 16}
    bad = [
        good | {"trace_id": "a" * 30},
        good | {"span_id": "x" * 16},
        good | {"duration_ns": -(10**4)},
        good | {"attributes": {f"a{n}": 1 for n in range(65)}},
        good | {"attributes": {"a": "x" * 5000}},
    ]
    spans = [otlp_json.span(one) for one in (*bad, good | {"trace_id": "A" * 32})]
    request = {"resourceSpans": [{"resource": otlp_json.resource(WHO), "scopeSpans": [{"spans": spans}]}]}
    received = read("traces", request)
    ((_, [piece]),) = received.messages
    assert (piece.trace_id, received.refused) == ("a" * 32, Counter({"wrong value": 3, "too long": 2}))


class TestTooMuch:
    def test_oversized_body_is_not_unpacked(self) -> None:
        bomb = gzip.compress(bytes(requests.MAX_BYTES + 1))
        assert len(bomb) < 100_000
        with pytest.raises(OtlpTooLargeError, match="more than 64 MiB unpacked"):
            requests.unpack(bomb, "gzip")
        with pytest.raises(OtlpTooLargeError, match="larger than 16 MiB"):
            requests.unpack(bytes(requests.MAX_PACKED_BYTES + 1), "")
        for broken in (b"nonsense", gzip.compress(b"whole")[:-9], b""):
            with pytest.raises(OtlpError, match="is not gzip"):
                requests.unpack(broken or b"\x1f\x8b", "gzip")

    def test_otlp_rejects_too_many_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(forms, "MAX_OBJECTS", 100)
        monkeypatch.setattr(forms, "MAX_PARTS", 100)
        with pytest.raises(OtlpTooLargeError, match="more than 100 objects"):
            read("logs", logs(*[{}] * 200))
        with pytest.raises(OtlpTooLargeError, match="more than 100 parts"):
            read("logs", logs(*[{}] * 200), form="protobuf")

    def test_otlp_rejects_too_many_or_large_resources(self) -> None:
        with pytest.raises(OtlpTooLargeError, match="more than 262144 parts"):
            requests.read("logs", b"\x0a\x00" * (2**18 + 1), is_json=False, now_ms=NOW)
        who = WHO | {"experiment": "x" * 2**16}
        with pytest.raises(OtlpTooLargeError, match=r"A resource has \d+ bytes; the limit is 64 KiB"):
            read("logs", logs(GOOD, who=who), form="protobuf")

    def test_otlp_rejects_deeply_nested_json(self) -> None:
        deep = b"[" * 200_000 + b"]" * 200_000
        with pytest.raises(OtlpError, match="not an OTLP export request of logs in JSON"):
            requests.read("logs", b'{"resourceLogs":' + deep + b"}", is_json=True, now_ms=NOW)
        body = json.dumps(logs(GOOD, "deep", GOOD)).encode().replace(b'"deep"', b'{"body":' + deep + b"}")
        with pytest.raises(OtlpError):
            requests.read("logs", body, is_json=True, now_ms=NOW)


KEYS = [
    *("resourceLogs", "scopeLogs", "logRecords", "eventName", "resource", "attributes", "key", "value", "timeUnixNano"),
    *("resourceMetrics", "scopeMetrics", "metrics", "name", "gauge", "dataPoints", "asDouble", "asInt", "flags"),
    *("resourceSpans", "scopeSpans", "spans", "traceId", "startTimeUnixNano", "intValue", "doubleValue", "stringValue"),
]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=30,
)


@settings(max_examples=200, deadline=None)
@given(signal=st.sampled_from(requests.SIGNALS), request=ANY, body=st.binary(max_size=60))
def test_any_otlp_body_is_read_or_rejected(signal: str, request: Any, body: bytes) -> None:
    for given_body, is_json in ((json.dumps(request).encode(), True), (body, False), (body, True)):
        with suppress(OtlpError):
            assert requests.read(signal, given_body, is_json=is_json, now_ms=NOW).size == 0
