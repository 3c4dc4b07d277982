"""Protobuf and JSON forms of OTLP."""

from __future__ import annotations

import msgspec
import pytest

from pyrometer.collect.otlp.forms import (
    FORMS,
    OtlpTooLargeError,
    float_of,
    int_of,
    json_resources,
    own_namespace,
    resource_attributes,
)
from pyrometer.collect.otlp.messages import RejectedMessageError


def test_int_of_reads_numbers_and_strings():
    assert (int_of(5), int_of("9007199254740993"), int_of(None), int_of("1" * 21)) == (5, 9007199254740993, -1, -1)
    with pytest.raises(RejectedMessageError):
        int_of("five")


def test_float_of_reads_special_values():
    assert float_of("Infinity") == float("inf")
    with pytest.raises(RejectedMessageError):
        float_of("five")


def test_own_namespace_strips_prefix():
    assert own_namespace({"pyrometer.rank": 1, "host.name": "a"}) == {"rank": 1}


def test_resource_attributes_reads_scalars():
    raw = msgspec.Raw(b'{"attributes": [{"key": "a", "value": {"intValue": "7"}}, {"key": "b", "value": null}]}')
    assert resource_attributes(raw) == {"a": 7}


def test_json_resources_rejects_too_many_objects(monkeypatch):
    monkeypatch.setattr("pyrometer.collect.otlp.forms.MAX_OBJECTS", 2)
    with pytest.raises(OtlpTooLargeError, match="more than 2 objects"):
        list(json_resources(FORMS["logs"], b"{{{"))
