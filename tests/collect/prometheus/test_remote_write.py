"""Remote write gives the same values as a scrape, in any number of pieces, and rejects other bodies."""

from __future__ import annotations

import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.collect.gpu.dcgm import Dcgm, measure_of, slot_address_of
from pyrometer.collect.prometheus import exposition, remote_write
from pyrometer.collect.prometheus.remote_write import (
    NO_DEVICE,
    NO_VALUE,
    OTHER,
    WRONG_TIME,
    RemoteWriteError,
    RemoteWriteReader,
    RemoteWriteTooLargeError,
)
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import GpuSample
from tests.support.exporter_texts import VERSIONS, Gpu, text_of
from tests.support.remote_write_bodies import STALE, USEFUL, WriteRequest, body_of, packed, series_of

NOW_MS = 1_794_700_000_000
NODE_A = [Gpu(0, pod="train-0"), Gpu(1, power_w=None, xid=79), Gpu(2, instance=3)]
NODE_B = [Gpu(0, host="node-b", gpu_util=100, sm_active=0, graphics=0, tensor=0, dram=0)]  # lost counters


def records(samples):
    """The records of values, in one order."""
    return sorted(map(repr, Dcgm(lambda host: None, near_idle_power_w).take(list(samples)).records))


def read(body, now_ms=NOW_MS):
    return RemoteWriteReader().read(body, now_ms)


def varint(number):
    """A number as protobuf and snappy write it."""
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def taken(body):
    """How many values there are in it, if it is one; whatever else goes wrong is a mistake."""
    try:
        return len(read(body).samples)
    except RemoteWriteError:
        return 0


@pytest.mark.parametrize("version", VERSIONS)
def test_remote_write_equals_scrape(version):
    scraped = exposition.ExpositionReader(measure_of, slot_address_of).read(text_of(NODE_A + NODE_B, version)).samples
    received = read(body_of(series_of(NODE_A + NODE_B, NOW_MS, version)))
    assert received.left_out[OTHER] == 4
    assert len(received.samples) == len(scraped)
    assert records(received.samples) == records([(*sample[:3], NOW_MS) for sample in scraped])


def test_remote_write_skips_metadata_exemplars_and_histograms():
    request = WriteRequest()
    for labels, samples in series_of(NODE_B, NOW_MS):
        one = request.timeseries.add()
        for name, value in labels.items():
            one.labels.add(name=name, value=value)
        one.exemplars.add(value=1.0, timestamp=NOW_MS).labels.add(name="trace_id", value="abc")
        one.histograms.add(count_int=5, sum=1.5, timestamp=NOW_MS)
        for time_ms, value in samples:
            one.samples.add(value=value, timestamp=time_ms)
    request.metadata.add(metric_family_name="DCGM_FI_DEV_GPU_TEMP", help="temperature")
    whole = read(packed(request.SerializeToString()))
    assert records(whole.samples) == records(read(body_of(series_of(NODE_B, NOW_MS))).samples)


def test_remote_write_counts_skipped_samples_by_reason():
    temperature = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "hostname": "node-a"}
    times = (NOW_MS, NOW_MS - remote_write.MAX_BEHIND_MS - 1, NOW_MS + remote_write.MAX_AHEAD_MS + 1, -1, 2**62)
    received = read(
        body_of(
            [
                ({"__name__": "up", "job": "dcgm"}, [(NOW_MS, 1.0), (NOW_MS + 1, 1.0)]),
                ({"gpu": "0", "hostname": "node-a"}, [(NOW_MS, 1.0)]),
                (temperature | {"gpu": "x"}, [(NOW_MS, 41.0)]),
                (temperature | {"note": "x" * remote_write.MAX_LABEL_BYTES}, [(NOW_MS, 41.0)]),
                (temperature, [(NOW_MS, STALE), (NOW_MS, float("nan"))]),
                (temperature, [(time_ms, 41.0) for time_ms in times]),
            ]
        )
    )
    assert received.left_out == {OTHER: 3, NO_DEVICE: 2, NO_VALUE: 2, WRONG_TIME: 4}
    assert [sample[2:] for sample in received.samples] == [(41.0, NOW_MS)]


def labels_of(name, more, pod, gpu, host):
    return {"__name__": name, **more, **({"pod": pod} if pod else {}), "gpu": gpu, "node": host}


LABELS = st.builds(
    labels_of,
    st.sampled_from(["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_XID_ERRORS", "up"]),
    st.dictionaries(st.sampled_from(["a", "\x12\x10"]), st.sampled_from(["", "\x12\x10" * 9, "z" * 130]), max_size=1),
    st.sampled_from([None, "train-0"]),
    st.sampled_from(["0", "1", "x"]),
    st.sampled_from(["node-a", "node-bb", "x"]),  # the last one, of seven bytes: before a zero it looks like a sample
)
VALUES = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 41.5, 300_000.0, STALE, float("nan"), float("inf"), -1.0]), st.floats()
)
TIMES = st.one_of(st.integers(NOW_MS - 60_000, NOW_MS), st.sampled_from([0, 1, -1, 2**34, 2**35, 2**42, 2**62]))
SERIES = st.tuples(
    LABELS,
    st.lists(st.tuples(TIMES, VALUES), min_size=1, max_size=3) | st.tuples(st.tuples(TIMES, VALUES)),
    st.sampled_from(["usual", "usual", "usual", "time first", "exemplar", "empty"]),
    st.booleans(),
)


def message(*fields):
    """A message of such fields: number and bytes, a number, or a value of 8 bytes."""
    out = b""
    for number, field in fields:
        if isinstance(field, float):
            out += bytes([number << 3 | 1]) + struct.pack("<d", field)
        elif isinstance(field, int):
            out += bytes([number << 3]) + varint(field % 2**64)
        else:
            out += bytes([number << 3 | 2]) + varint(len(field)) + field
    return out


def series_in_form(labels, samples, form, samples_first):
    """A TimeSeries as a sender may write it: protobuf leaves the order open, and what is zero may be left out."""
    names = [(1, message((1, name.encode()), (2, value.encode()))) for name, value in labels.items()]
    if form == "empty":
        shown = [(2, b"")]
    elif form == "time first":
        shown = [(2, message((2, time_ms), (1, value))) for time_ms, value in samples]
    else:
        shown = [(2, message(*([(1, value)] if value != 0 else []), (2, time_ms))) for time_ms, value in samples]
    if form == "exemplar":
        shown.append((3, message((2, 1.0))))
    return 1, message(*shown, *names) if samples_first else message(*names, *shown)


def contents(received):
    """The contents of a body, in one order."""
    return sorted((measure, repr(place), value, t) for measure, place, value, t in received.samples), received.left_out


@given(st.lists(st.lists(SERIES, max_size=8), min_size=1, max_size=4))
def test_remote_write_fast_path_equals_general_path(bodies):
    """A reader that knows series from earlier bodies gives the same values as a new one, for any series."""
    quick = RemoteWriteReader()
    for series in [*bodies, *bodies[::-1], *(one[::-1] for one in bodies)]:
        general = RemoteWriteReader()
        body = message(*(series_in_form(*one) for one in series), (3, b"metadata"))
        plain = message(*(series_in_form(*one[:3], True) for one in series))
        assert contents(quick.read(packed(body), NOW_MS)) == contents(general.read(packed(plain), NOW_MS))
        assert not general._series


def test_remote_write_reads_known_series_on_fast_path(monkeypatch):
    reader = RemoteWriteReader()
    for number in range(3):
        body = body_of(series_of(NODE_A, NOW_MS + number))
        assert len(reader.read(body, NOW_MS).samples) == USEFUL * len(NODE_A)
        monkeypatch.setattr(reader, "_one_by_one", None)
        if number:  # from then on none is looked up, but for the first one of a body
            monkeypatch.setattr(remote_write, "_labels", None)


@given(st.data())
def test_sample_table_equals_records(data):
    series = series_of(data.draw(st.permutations(NODE_A + NODE_B)), NOW_MS)
    values = read(body_of(data.draw(st.lists(st.sampled_from(series), min_size=1)))).samples
    table, others = Dcgm(lambda host: None, near_idle_power_w).take_table(values)
    rows = [GpuSample(*row.values()) for row in table.to_pylist()]
    assert table.schema == SCHEMAS["gpu_sample"].arrow()
    assert sorted(map(repr, [*rows, *others])) == records(values)


def test_labels_are_interpreted_once():
    reader = RemoteWriteReader()
    first = reader.read(body_of(series_of(NODE_A, NOW_MS)), NOW_MS).samples
    again = reader.read(body_of(series_of(NODE_A, NOW_MS + 1000)), NOW_MS).samples
    assert len(first) == USEFUL * len(NODE_A)
    assert {id(sample[1]) for sample in again} == {id(sample[1]) for sample in first}
    assert len({id(sample[1]) for sample in first}) == len(NODE_A)


def test_remote_write_label_cache_is_bounded():
    reader = RemoteWriteReader(max_kept_bytes=20_000)
    for number in range(100):
        body = body_of(series_of([Gpu(0, pod=f"train-{number}")], NOW_MS))
        assert len(reader.read(body, NOW_MS).samples) == USEFUL
        assert len(reader._addresses) < 20


class TestNoBody:
    BODY = body_of(series_of(NODE_A, NOW_MS))

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\xff" * 20,
            b"hello",
            BODY[:-1],
            BODY[: len(BODY) // 2],
            packed(BODY),
            packed(b"\x0a\x05ab"),
            packed(b"\x08\x01"),
            packed(b"\x0b\x0c"),
            packed(b"\x0a\x02\x0a\x7f"),
            packed(WriteRequest(timeseries=[{"labels": [{"name": "a"}]}]).SerializeToString()[:-1]),
        ],
        ids=range(11),
    )
    def test_other_body_is_rejected(self, body):
        with pytest.raises(RemoteWriteError, match=r"The body of \d+ bytes is not a WriteRequest"):
            read(body)

    def test_label_that_is_not_utf8_is_rejected(self):
        name = b"\x0a\x08__name__\x12\x14DCGM_FI_DEV_GPU_TEMP"
        text = b"\x0a\x03gpu\x12\x02\xff\xfe"
        series = b"".join(b"\x0a" + varint(len(label)) + label for label in (name, text))
        with pytest.raises(RemoteWriteError):
            read(packed(b"\x0a" + varint(len(series)) + series))

    def test_empty_body_has_no_samples(self):
        assert list(read(packed(b"")).samples) == []

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (varint(2**32) + b"\xfe\x01\x00" * 1000, "has 4294967296 bytes unpacked; the limit is 64 MiB"),
            (bytes(remote_write.MAX_PACKED_BYTES + 1), "larger than 16 MiB"),
            (packed(b"\x0a\x00" * (remote_write.MAX_SERIES + 1)), "more than 250000 samples"),
            (packed(b"\x0a\x80\x80\x40" + b"\x12\x00" * 2**19), "more than 250000 samples"),
            (packed(b"\x0a\x80\x80\x80\x01" + b"\x12\x00" * 2**20), "A series has 2097152 bytes"),
        ],
        ids=["a header of 4 GiB", "17 MiB", "series", "samples", "one series"],
    )
    def test_oversized_body_is_not_unpacked(self, body, words):
        with pytest.raises(RemoteWriteTooLargeError, match=words):
            read(body)

    @given(st.binary(max_size=200))
    def test_any_bytes_are_read_or_rejected(self, body):
        assert [taken(one) for one in (body, packed(body), varint(len(body)) + body)] == [0, 0, 0]

    @given(st.data())
    def test_any_damaged_body_is_read_or_rejected(self, data):
        series = series_of([Gpu(0)], NOW_MS)[:3]
        body = bytearray(cramjam.snappy.decompress_raw(body_of(series)))
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        assert taken(packed(bytes(body))) <= len(series)


@pytest.mark.parametrize("bad", [b"\x0a\xff", b"\x12\x01\x09", b"\x0a\x04\x0a\x02\xff\xff", b"\xff" * 20])
def test_malformed_series_does_not_affect_others(bad):
    """Malformed bytes, and a label that is not UTF-8."""
    good = bytes(cramjam.snappy.decompress_raw(body_of(series_of(NODE_A, NOW_MS))))
    measure = body_of([({"__name__": "DCGM_FI_DEV_GPU_TEMP"}, [(NOW_MS, 1.0)])])
    named = bytes(cramjam.snappy.decompress_raw(measure))[2:]  # without the key and the length of the series
    series = b"\x0a" + varint(len(named + bad)) + named + bad
    received = read(packed(good + series + good))
    assert len(received.samples) == 2 * len(read(packed(good)).samples)
    assert received.left_out["malformed"] == 1
    with pytest.raises(RemoteWriteError):
        read(packed(series))
