"""What goes over the wire, read by OpenTelemetry's own classes."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.train.run.identity import resource
from pyrometer.train.ship.otlp_json import BODY_BYTES, REDACTIONS, Bodies
from tests.support.otel_conventions import convention_names
from tests.support.otlp_server import logs, plain, points, spans

WHO = {
    "run": "r",
    "launch": "ab12",
    "experiment": "sft",
    "rank": 3,
    "ranks": 8,
    "local_rank": 3,
    "pid": 77,
    "host": "node-1",
    "started_ms": 1_790_000_000_000,
    "pod_uid": "u-1",
    "pod_name": "train-3",
    "namespace": "ml",
    "device": "cuda",
    "gpu_uuid": "GPU-1",
    "gpu_index": 3,
    "gpu_model": "NVIDIA H200",
}
AT_MS = 1_790_000_001_234


def sent(messages, *, who=WHO, redact=(), **options):
    bodies = Bodies(redact, version="9.9", **options)
    return [(f"/v1/{signal}", gzip.compress(body)) for signal, body in bodies.of([(who, messages)])]


def test_identity_becomes_resource_attributes():
    ((resource, _),) = logs(sent([("run", {"time_ms": AT_MS})]))
    assert resource == {
        "service.name": "sft",
        "service.instance.id": "ab12/3",
        "host.name": "node-1",
        "process.pid": 77,
        "k8s.pod.uid": "u-1",
        "k8s.pod.name": "train-3",
        "k8s.namespace.name": "ml",
        "pyrometer.run": "r",
        "pyrometer.launch": "ab12",
        "pyrometer.experiment": "sft",
        "pyrometer.rank": 3,
        "pyrometer.ranks": 8,
        "pyrometer.local_rank": 3,
        "pyrometer.started_ms": 1_790_000_000_000,
        "pyrometer.device": "cuda",
        "pyrometer.gpu_uuid": "GPU-1",
        "pyrometer.gpu_index": 3,
        "pyrometer.gpu_model": "NVIDIA H200",
        "hw.id": "GPU-1",
        "hw.type": "gpu",
        "hw.name": "GPU 3",
        "hw.model": "NVIDIA H200",
    }


def test_otel_resource_attributes_are_added_and_the_sdk_wins():
    message = (
        "k8s.cluster.name=lab,k8s.job.name=sft%2C1,service.name=theirs,host.name=theirs,color=red,k8s.x=,k8s.pod.uid"
    )
    described = resource({"OTEL_RESOURCE_ATTRIBUTES": message})
    assert described == {
        "k8s.cluster.name": "lab",
        "k8s.job.name": "sft,1",
        "service.name": "theirs",
        "host.name": "theirs",
    }
    ((sent_as, _),) = logs(sent([("run", {"time_ms": AT_MS})], who=WHO | {"resource": described, "node_name": "n-1"}))
    assert (sent_as["k8s.cluster.name"], sent_as["k8s.job.name"], sent_as["k8s.node.name"]) == ("lab", "sft,1", "n-1")
    assert (sent_as["service.name"], sent_as["host.name"]) == ("sft", "node-1")
    ((unnamed, _),) = logs(
        sent([("run", {"time_ms": AT_MS})], who={"launch": "a", "rank": 0, "resource": {"service.name": "theirs"}})
    )
    assert unnamed["service.name"] == "theirs"


def test_resource_attribute_names_follow_the_conventions():
    """Every attribute that is not in our own namespace is one that OpenTelemetry lists."""
    ((resource_, _),) = logs(sent([("run", {"time_ms": AT_MS})], who=WHO | {"node_name": "n-1"}))
    ours = {name for name in resource_ if name.startswith("pyrometer.")}
    assert set(resource_) - ours <= convention_names()
    assert {"k8s.node.name", "hw.id", "hw.type", "hw.name", "hw.model"} <= set(resource_)


def test_window_becomes_a_log_record_with_its_columns():
    message = {
        "time_ms": AT_MS,
        "to_ms": AT_MS + 10_000,
        "first_step": 100,
        "steps": 20,
        "data_ms": 0,
        "step_p50_us": 500_000,
    }
    ((_, record),) = logs(sent([("window", message)]))
    assert record.time_unix_nano == AT_MS * 1_000_000
    assert (record.event_name, record.severity_text, record.severity_number) == ("pyrometer.window", "INFO", 9)
    assert record.body.string_value == "20 steps from step 100 took 10.0 s."
    assert plain(record.attributes) == {
        "event.name": "pyrometer.window",
        "pyrometer.to_ms": AT_MS + 10_000,
        "pyrometer.first_step": 100,
        "pyrometer.steps": 20,
        "pyrometer.data_ms": 0,
        "pyrometer.step_p50_us": 500_000,
    }


def test_step_lengths_are_one_text():
    message = {"time_ms": AT_MS, "to_ms": AT_MS + 10_000, "steps": 20, "step_lengths": [500_000, 19, 700_000, 1]}
    ((_, record),) = logs(sent([("window", message)]))
    assert plain(record.attributes)["pyrometer.step_lengths"] == "[500000,19,700000,1]"


def test_samples_of_a_batch_are_one_text():
    message = {
        "time_ms": AT_MS,
        "loader": 0,
        "epoch": 1,
        "send_index": 7,
        "micro_batch": 0,
        "step": 9,
        "samples": [5, "a/ü"],
    }
    ((_, record),) = logs(sent([("batch", message)]))
    assert json.loads(plain(record.attributes)["pyrometer.samples"]) == [5, "a/ü"]
    assert record.body.string_value == "Batch 7: 2 samples, used by step 9."


@pytest.mark.parametrize(
    ("kind", "severity"),
    [("checkpoint_saved", 9), ("stuck", 13), ("nonfinite_loss", 13), ("exception", 17), ("out_of_memory", 17)],
)
def test_event_severity_depends_on_its_kind(kind, severity):
    ((_, record),) = logs(sent([("event", {"time_ms": AT_MS, "kind": kind, "step": 4, "reason": "forward"})]))
    assert record.severity_number == severity
    assert record.body.string_value == f"{kind} at step 4: forward."


def test_span_keeps_its_ids_and_nanoseconds():
    message = {
        "start_ns": AT_MS * 1_000_000 + 1,
        "duration_ns": 1_234_567,
        "name": "forward",
        "trace_id": "0a" * 16,
        "span_id": "0b" * 8,
        "parent_id": "0c" * 8,
        "step": 4,
        "attributes": {"pyrometer.batch": "0/1/2", "fused": True},
    }
    ((_, span),) = spans(sent([("span", message)]))
    assert (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()) == ("0a" * 16, "0b" * 8, "0c" * 8)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (AT_MS * 10**6 + 1, AT_MS * 10**6 + 1_234_568)
    assert (span.name, span.kind) == ("forward", 1)
    assert plain(span.attributes) == {"pyrometer.step": 4, "pyrometer.batch": "0/1/2", "fused": True}


@given(value=st.floats(allow_nan=True, allow_infinity=True))
def test_metric_keeps_its_exact_value(value):
    ((_, name, point),) = points(sent([("metric", {"time_ms": AT_MS, "name": "loss", "value": value, "step": 5})]))
    assert name == "loss"
    assert point.as_double == value or (math.isnan(value) and math.isnan(point.as_double))
    assert plain(point.attributes) == {"pyrometer.step": 5}


def test_metric_has_its_source_and_covered_steps():
    covers = {"source": "transformers", "first_step": 30, "last_step": 39}
    message = {"time_ms": AT_MS, "name": "loss", "value": 0.5, "step": 40, "goal": "min", **covers}
    ((_, _, point),) = points(sent([("metric", message)]))
    expected = {"step": 40, "goal": "min", **covers}
    assert plain(point.attributes) == {f"pyrometer.{name}": value for name, value in expected.items()}


def test_gpu_samples_have_the_form_of_dcgm_exporter():
    message = {
        "time_ms": AT_MS,
        "gpu_index": 1,
        "gpu_uuid": "GPU-9",
        "gpu_model": "NVIDIA H200",
        "DCGM_FI_DEV_GPU_UTIL": 97.0,
    }
    ((resource, name, point),) = points(sent([("gpu", message)], who={"host": "box"}))
    assert (resource, name, point.as_double) == (
        {"service.name": "training", "host.name": "box"},
        "DCGM_FI_DEV_GPU_UTIL",
        97.0,
    )
    assert plain(point.attributes) == {"UUID": "GPU-9", "gpu": "1", "modelName": "NVIDIA H200", "Hostname": "box"}


def test_invalid_messages_are_skipped():
    bodies = Bodies()
    good = ("event", {"time_ms": AT_MS, "kind": "stuck"})
    bad = [
        ("event", {}),
        ("nonsense", {}),
        ("metric", {"time_ms": AT_MS, "name": "x", "value": "many"}),
        ("window", {}),
    ]
    taken = [(f"/v1/{signal}", gzip.compress(body)) for signal, body in bodies.of([(WHO, [*bad, good])])]
    assert bodies.unreadable == len(bad)
    assert len(logs(taken)) == 1


def test_invalid_and_long_texts_are_shortened():
    message = {"time_ms": AT_MS, "kind": "exception", "message": "\ud800" + "x" * 200_000, "step": 2**70}
    ((_, record),) = logs(sent([("event", message)]))
    attributes = plain(record.attributes)
    assert attributes["pyrometer.message"].startswith("?xxx")
    assert len(attributes["pyrometer.message"]) < 70_000
    assert attributes["pyrometer.step"] == str(2**70)


@given(sizes=st.lists(st.integers(0, 400), max_size=60))
def test_bodies_are_split_without_loss(sizes):
    messages = [("event", {"time_ms": n, "kind": "k", "message": "x" * size}) for n, size in enumerate(sizes)]
    bodies = [body for _, body in Bodies(limit_bytes=4000).of([(WHO, messages)])]
    assert all(len(body) < 6000 for body in bodies)
    taken = [("/v1/logs", gzip.compress(body)) for body in bodies]
    assert [record.time_unix_nano // 10**6 for _, record in logs(taken)] == list(range(len(sizes)))


def test_body_has_at_most_one_mebibyte():
    message = ("event", {"time_ms": 1, "kind": "k", "message": "x" * 10_000})
    bodies = [body for _, body in Bodies().of([(WHO, [message] * 500)])]
    assert max(map(len, bodies)) <= BODY_BYTES + 1000
    assert len(bodies) == pytest.approx(500 * 10_200 / BODY_BYTES, abs=1)


# -- redaction --------------------------------------------------------------------------------------------------------

STACK = (
    'Timeout (0:01:00)!\nThread 0x1 (most recent call first):\n  File "/home/ada/secret/train.py", line 3 in forward'
)
MESSAGES = [
    ("event", {"time_ms": 1, "kind": "stuck", "reason": "forward", "message": STACK}),
    ("event", {"time_ms": 1, "kind": "exception", "reason": "ValueError", "message": "patient 4711 in s3://b/ada.csv"}),
    ("event", {"time_ms": 1, "kind": "checkpoint_saved", "message": "~/secret/7.pt"}),
    ("batch", {"time_ms": 1, "send_index": 1, "dataset": "/data/ada", "samples": ["/data/ada/4711.png", 8]}),
    (
        "span",
        {
            "start_ns": 1,
            "duration_ns": 1,
            "name": "s",
            "trace_id": "a" * 32,
            "span_id": "b" * 16,
            "attributes": {"exception.message": "patient 4711", "file": "../secret/x", "ratio": "3/4", "unit": "a / b"},
        },
    ),
]


def text_of(redact):
    return "".join(gzip.decompress(body).decode() for _, body in sent(MESSAGES, redact=redact))


def test_nothing_is_redacted_by_default():
    assert all(word in text_of(()) for word in ("train.py", "patient 4711 in", "7.pt", "4711.png", "../secret/x"))


def test_stacks_are_redacted():
    assert "train.py" not in text_of(("stacks",))
    assert '"redacted"' in text_of(("stacks",))
    assert "patient 4711 in" in text_of(("stacks",))


def test_exceptions_are_redacted():
    assert "patient" not in text_of(("exceptions",))
    assert "ValueError" in text_of(("exceptions",))


def test_redacted_samples_leave_only_their_count():
    assert "4711.png" not in text_of(("samples",))
    record = next(r for _, r in logs(sent(MESSAGES, redact=("samples",))) if r.event_name == "pyrometer.batch")
    assert plain(record.attributes)["pyrometer.sample_count"] == 2
    assert record.body.string_value == "Batch 1: 2 samples."


def test_paths_are_redacted_wherever_they_are():
    text = text_of(("paths",))
    assert not [word for word in ("ada", "secret", "train.py", "7.pt", "s3:") if word in text]
    assert 'File \\"redacted\\", line 3 in forward' in text
    assert "patient 4711 in redacted" in text
    assert "3/4" in text
    assert "a / b" in text


def test_all_redactions_can_be_combined():
    text = text_of(REDACTIONS)
    assert not [word for word in ("ada", "secret", "4711", "train.py") if word in text]


def test_huge_batch_leaves_only_its_sample_count():
    message = {"time_ms": 1, "loader": 0, "send_index": 1, "samples": ["x" * 100] * 11_000}
    ((_, record),) = logs(sent([("batch", message)]))
    assert plain(record.attributes)["pyrometer.sample_count"] == 11_000
    assert "pyrometer.samples" not in plain(record.attributes)
