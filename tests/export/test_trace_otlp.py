"""Traces as OTLP: resources, IDs and attributes."""

from __future__ import annotations

from pyrometer.export.trace_otlp import key_values, otlp_trace, trace_request


def test_otlp_attributes_beyond_64_bits_are_text():
    (number, text) = key_values({"a": 2**80, "b": "\ud800", "c": None})
    assert number.value.string_value == str(2**80)
    assert text.value.string_value == "?"


TRACE = {
    "run": "llama",
    "step": 7,
    "attempt": 1,
    "trace_id": "0" * 31 + "1",
    "spans": [
        {
            "rank": rank,
            "name": name,
            "span_id": f"{number:016x}",
            "parent_id": parent,
            "start_ms": 1000.5,
            "duration_ms": 2.25,
            "attributes": {"loss": 0.5, "ok": True},
        }
        for number, (rank, name, parent) in enumerate(
            [(1, "step", None), (0, "step", None), (0, "forward", f"{1:016x}"), (None, "run", None)], 1
        )
    ],
}


def test_trace_request_has_one_resource_per_rank():
    request = trace_request(TRACE)
    resources = [
        {one.key: one.value.string_value or one.value.int_value for one in of.resource.attributes}
        for of in request.resource_spans
    ]
    assert [one.get("pyrometer.rank") for one in resources] == [None, 0, 1]
    assert resources[2]["service.instance.id"] == "llama/1"
    assert [len(of.scope_spans[0].spans) for of in request.resource_spans] == [1, 2, 1]


def test_trace_request_keeps_times_and_attributes():
    span = trace_request(TRACE).resource_spans[1].scope_spans[0].spans[1]
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_000_500_000, 1_002_750_000)
    attributes = {one.key: one.value for one in span.attributes}
    assert attributes["pyrometer.step"].int_value == 7
    assert attributes["loss"].double_value == 0.5
    assert attributes["ok"].bool_value is True


def test_otlp_json_has_hexadecimal_ids():
    spans = otlp_trace(TRACE)["resourceSpans"][1]["scopeSpans"][0]["spans"]
    assert {one["traceId"] for one in spans} == {"0" * 31 + "1"}
    assert spans[1]["parentSpanId"] == f"{1:016x}"
    assert "parentSpanId" not in spans[0]


def test_otlp_json_of_an_empty_trace_has_no_resources():
    assert otlp_trace({**TRACE, "spans": []}) == {"resourceSpans": []}
