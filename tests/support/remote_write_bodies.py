"""Bodies as a Prometheus sends them by remote write: the whole of its messages, packed by another snappy than ours."""

from __future__ import annotations

import struct

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tests.support.exporter_texts import OLD, VERSIONS, labels_of

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]  # of a series that has ended
BLANK = 9223372036854775794.0

# prometheus/prompb: message → field, number, type. What ends in [] is repeated.
MESSAGES = {
    "Label": [("name", 1, "string"), ("value", 2, "string")],
    "Sample": [("value", 1, "double"), ("timestamp", 2, "int64")],
    "Exemplar": [("labels", 1, "Label[]"), ("value", 2, "double"), ("timestamp", 3, "int64")],
    "Histogram": [("count_int", 1, "uint64"), ("sum", 3, "double"), ("timestamp", 15, "int64")],
    "TimeSeries": [
        ("labels", 1, "Label[]"),
        ("samples", 2, "Sample[]"),
        ("exemplars", 3, "Exemplar[]"),
        ("histograms", 4, "Histogram[]"),
    ],
    "MetricMetadata": [("metric_family_name", 2, "string"), ("help", 4, "string")],
    "WriteRequest": [("timeseries", 1, "TimeSeries[]"), ("metadata", 3, "MetricMetadata[]")],
}


def _classes():
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="remote.proto", package="sent", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            repeated, kind = kind.endswith("[]"), kind.removesuffix("[]")
            added = message.field.add(name=field_name, number=number)
            added.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if kind in MESSAGES:
                added.type, added.type_name = field.TYPE_MESSAGE, f".sent.{kind}"
            else:
                added.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"sent.{name}")) for name in MESSAGES}


CLASSES = _classes()
WriteRequest = CLASSES["WriteRequest"]


def packed(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


def body_of(series) -> bytes:
    """A body of series: labels with the name among them, and pairs of time and value."""
    request = WriteRequest()
    for labels, samples in series:
        one = request.timeseries.add()
        for name, value in sorted(labels.items()):
            one.labels.add(name=name, value=value)
        for time_ms, value in samples:
            one.samples.add(value=value, timestamp=time_ms)
    return packed(request.SerializeToString())


def series_of(gpus, time_ms, version="4.9", target=None):
    """What an exporter's text of these GPUs is in Prometheus, one sample a series."""
    target = {"job": "dcgm", "instance": "10.0.0.7:9400"} if target is None else target
    return [
        (
            {"__name__": name, **labels_of(gpu, version), **target},
            [(time_ms, BLANK if measured(gpu) is None else measured(gpu))],
        )
        for name, measured in VERSIONS[version][0].items()
        for gpu in gpus
    ]


USEFUL = len(OLD) - 1  # metrics of an exporter that are read
