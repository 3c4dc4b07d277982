"""OTLP/HTTP export requests, as protobuf or JSON: bodies in, messages and samples out."""

from __future__ import annotations

import gzip
import io
import zlib
from collections import Counter

import msgspec
from google.protobuf.message import DecodeError

from pyrometer.collect.otlp.forms import FORMS, OtlpError, OtlpTooLargeError, json_resources, protobuf_resources
from pyrometer.collect.otlp.metric_readers import MetricReader
from pyrometer.collect.otlp.readers import LogReader, OtlpBody, SignalReader, TraceReader
from pyrometer.model.units import MS_PER_HOUR

SIGNALS = ("logs", "traces", "metrics")
MAX_PACKED_BYTES = 16 * 2**20
MAX_BYTES = 64 * 2**20  # 20,000 windows of steps
MAX_AHEAD_MS = MS_PER_HOUR  # times that are further ahead come from a wrong clock
_READERS: dict[str, type[SignalReader]] = {"logs": LogReader, "traces": TraceReader, "metrics": MetricReader}


def unpack(packed: bytes, encoding: str) -> bytes:
    """Decodes the Content-Encoding of a body. A body that exceeds the limit is not unpacked to its end."""
    if len(packed) > MAX_PACKED_BYTES:
        raise OtlpTooLargeError(f"The body is larger than {MAX_PACKED_BYTES >> 20} MiB. Send less at a time.")
    if encoding != "gzip":
        return packed
    try:
        unpack = zlib.decompressobj(wbits=31)
        body = unpack.decompress(packed, MAX_BYTES + 1)
        if not unpack.eof or unpack.unused_data:  # several members, trailing bytes, too large, or cut off
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
                body = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error):
        raise OtlpError(f"The body of {len(packed)} bytes is not gzip, as its Content-Encoding says.") from None
    if len(body) > MAX_BYTES:
        raise OtlpTooLargeError(f"The body has more than {MAX_BYTES >> 20} MiB unpacked. Send less at a time.")
    return body


def read(signal: str, body: bytes, *, is_json: bool, now_ms: int) -> OtlpBody:
    """Reads an export request of a signal."""
    found = OtlpBody([], [], Counter(), Counter(), len(body))
    reader = _READERS[signal](found, now_ms + MAX_AHEAD_MS)
    try:
        for attributes, records in (json_resources if is_json else protobuf_resources)(FORMS[signal], body):
            reader.take(attributes, records)
    except (msgspec.MsgspecError, DecodeError, ValueError, RecursionError, UnicodeError):
        form = "JSON" if is_json else "protobuf"
        raise OtlpError(f"The body of {len(body)} bytes is not an OTLP export request of {signal} in {form}.") from None
    return found
