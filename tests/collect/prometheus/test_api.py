"""The client for Prometheus."""

from __future__ import annotations

import msgspec
import pytest

from pyrometer.collect.prometheus.api import Prometheus, QueryTooLargeError, _numbers, _seconds, without_password
from pyrometer.collect.source import SourceError


def test_without_password_removes_credentials():
    assert without_password("https://me:secret@host:9090/prefix/") == "https://host:9090/prefix"


def test_without_password_rejects_other_urls():
    with pytest.raises(SourceError, match="is not the URL of a Prometheus"):
        without_password("nowhere")


def test_numbers_parse_times_and_values():
    times_ms, values = _numbers(msgspec.Raw(b'[[1700000000.5,"0.25"],[1700000001,"NaN"],[-1,"3"]]'))
    assert times_ms.tolist() == [1_700_000_000_500, 1_700_000_001_000]
    assert values[0] == 0.25
    assert values[1] != values[1]


def test_seconds_keep_milliseconds():
    assert _seconds(1_700_000_000_005) == "1700000000.005"


def test_refusal_of_large_query_is_query_too_large_error():
    refusal = Prometheus("http://127.0.0.1:9090")._refusal
    assert isinstance(refusal(422, b'{"error": "query processing would load too many samples"}'), QueryTooLargeError)
    assert "token" in str(refusal(401, b""))
    assert str(refusal(400, b'{"error": "parse\\nerror"}')).endswith("answers HTTP 400: parse error.")
