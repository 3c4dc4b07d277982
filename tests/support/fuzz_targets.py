"""Fuzz targets: one function for each reader of bytes from outside, which accepts arbitrary bytes.

A target returns when the reader keeps its promise: it read the bytes or refused them with its declared error, the
records fit the store, reading them again gives the same result, and valid neighbors in the same body were not lost.
Otherwise it raises. `make test` replays the kept inputs and mangles them (`test_bytes.py`), and `make fuzz` searches
for new ones, guided by coverage (`tools/fuzz.py`).
"""

from __future__ import annotations

import io
import math
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from struct import pack, unpack_from
from typing import Any

import pyarrow as pa

from pyrometer.cli.settings_files import read_settings
from pyrometer.collect.gpu import dcgm
from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.nodes import node_exporter
from pyrometer.collect.nodes.node_exporter import NodeExporters
from pyrometer.collect.otlp import requests
from pyrometer.collect.otlp.forms import OtlpError
from pyrometer.collect.prometheus import exposition, remote_write
from pyrometer.collect.prometheus import protobuf_wire as wire
from pyrometer.collect.prometheus.exposition import ScrapeError
from pyrometer.collect.prometheus.remote_write import RemoteWriteError
from pyrometer.collect.source import SourceError
from pyrometer.collect.trackers import wandb
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.identify.gpus.price_book import PriceError, read_entries
from pyrometer.identify.runs import run_registry
from pyrometer.identify.runs.rank_locations import RunContext
from pyrometer.model.columns import schema_of
from pyrometer.model.settings import SettingError, Settings

NOW_MS = 1_794_700_000_000
CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus"
GOOD = b'DCGM_FI_DEV_GPU_TEMP{gpu="7",Hostname="good"} 55\n'


def check_storable(records: Iterable[tuple[Any, ...]]) -> None:
    """Checks that the values of records fit their columns."""
    by_kind = defaultdict(list)
    for record in records:
        by_kind[type(record)].append(record)
    for kind, rows in by_kind.items():
        schema_of(kind).table(rows)


def plain(value: Any) -> str:
    """A comparable form of a value, in which NaN equals NaN."""
    return repr(value)


# -- metrics text -----------------------------------------------------------------------------------------------------


def exposition_gpus(text: bytes) -> None:
    """Metrics text of dcgm-exporter."""
    reader = exposition.ExpositionReader(dcgm.measure_of, dcgm.slot_address_of)
    try:
        first = reader.read(text)
    except ScrapeError:
        return
    again = reader.read(text)
    assert [(m, v, t) for m, _, v, t in map(_comparable, first.samples)] == [
        (m, v, t) for m, _, v, t in map(_comparable, again.samples)
    ]
    check_storable(
        Dcgm(lambda host: None, near_idle_power_w).take([(m, p, v, NOW_MS) for m, p, v, _ in first.samples]).records
    )


def _comparable(sample: tuple[Any, Any, float, int | None]) -> tuple[Any, Any, str, int | None]:
    measure, place, value, time_ms = sample
    assert time_ms is None or isinstance(time_ms, int)
    return measure, place, plain(value + 0.0), time_ms  # the official parser makes 0 of -0


def exposition_neighbors(text: bytes) -> None:
    """Lines before and after an unreadable part are read, unless the whole answer is not text."""
    reader = exposition.ExpositionReader(dcgm.measure_of, dcgm.slot_address_of)
    samples = reader.read(GOOD + text.replace(b"# EOF", b"") + b"\n" + GOOD).samples
    assert sum(place.hosts == ("good",) and value == 55 for _, place, value, _ in samples) >= 2


def exposition_machines(text: bytes) -> None:
    """Metrics text of node_exporter, at two times."""
    reader = exposition.ExpositionReader(
        node_exporter.measure_of, lambda labels: node_exporter.machine_part_of(labels, address="a")
    )
    machines = NodeExporters(lambda name: None)
    for number in range(2):
        try:
            read = reader.read(text)
        except ScrapeError:
            return
        check_storable(machines.take([(m, p, v, NOW_MS + number * 60_000) for m, p, v, _ in read.samples]))
    check_storable(machines.rest())


# -- remote write -----------------------------------------------------------------------------------------------------


def remote_write_packed(body: bytes) -> None:
    """A body as received."""
    reader = remote_write.RemoteWriteReader()
    try:
        read = reader.read(body, NOW_MS)
    except RemoteWriteError:
        return
    assert plain([s[2:] for s in read.samples]) == plain([s[2:] for s in reader.read(body, NOW_MS).samples])
    check_storable(Dcgm(lambda host: None, near_idle_power_w).take(read.samples).records)


def remote_write_unpacked(body: bytes) -> None:
    """The content of a snappy body, which few mutations leave valid."""
    remote_write_packed(pa.Codec("snappy").compress(body, asbytes=True))


def protobuf_wire(body: bytes) -> None:
    """One level of protobuf: the fields are in the body, and the same after writing and reading them again."""
    try:
        found = list(wire.messages(body))
    except ValueError:
        return
    again = b"".join(_varint(number << 3 | 2) + _varint(len(field)) + field for number, field in found)
    assert len(again) <= len(body)
    assert list(wire.messages(again)) == found


def _varint(number: int) -> bytes:
    out = b""
    while number >= 0x80:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


# -- OTLP -------------------------------------------------------------------------------------------------------------


def _otlp(body: bytes, *, is_json: bool) -> None:
    """The first byte selects the signal."""
    signal = requests.SIGNALS[body[0] % len(requests.SIGNALS)] if body else "logs"
    try:
        received = requests.read(signal, body[1:], is_json=is_json, now_ms=NOW_MS)
    except OtlpError:
        return
    assert min((*received.refused.values(), *received.left_out.values()), default=0) >= 0
    records = Dcgm(lambda host: None, near_idle_power_w).take(received.samples).records
    taken = run_registry.RunRegistry().take(received.messages, RunContext(), local=True, patient=False)
    check_storable([*records, *taken.records])


def otlp_protobuf(body: bytes) -> None:
    """OTLP as protobuf."""
    _otlp(body, is_json=False)


def otlp_json(body: bytes) -> None:
    """OTLP as JSON."""
    _otlp(body, is_json=True)


def otlp_gzip(body: bytes) -> None:
    """A body behind its Content-Encoding."""
    with suppress(OtlpError):
        assert len(requests.unpack(body, "gzip")) <= requests.MAX_BYTES


# -- files ------------------------------------------------------------------------------------------------------------


def _in_file(content: bytes, name: str, read: Callable[[Path], Any]) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        read(path)


def _is_short(error: Exception) -> None:
    assert 0 < len(str(error)) < 10_000
    assert "\n" not in str(error)


MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def settings_yaml(content: bytes) -> None:
    """A folder's settings."""

    def read(path: Path) -> None:
        try:
            settings = read_settings({}, path.parent)
        except SettingError as error:
            _is_short(error)
            return
        for value, default in zip(settings, Settings(), strict=True):
            assert type(value) is type(default)
            assert not isinstance(value, int) or 0 <= value < 2**63
            assert not isinstance(value, float) or math.isfinite(value)

    _in_file(content, "settings.yaml", read)


def price_book(content: bytes) -> None:
    """A price book."""

    def read(path: Path) -> None:
        try:
            check_storable(entry.price for entry in read_entries(path))
        except PriceError as error:
            _is_short(error)

    _in_file(content, "prices.yaml", read)


class _File(io.BytesIO):
    name = "run-x.wandb"


def wandb_file(content: bytes) -> None:
    """A run file of the Weights & Biases client."""
    try:
        list(wandb.records(_File(content)))
    except SourceError:
        return

    def read(path: Path) -> None:
        try:
            for run, points, left_out in wandb.read(path.parent, lambda done, all_: None):
                assert left_out >= 0
                assert len(plain(run)) < 10_000_000
                assert all(isinstance(point.value, float) for point in points)
        except SourceError:
            pass

    _in_file(content, "run-x.wandb", read)


def wandb_records(content: bytes) -> None:
    """The same with valid checksums. Each record follows two bytes with its length."""
    file, at = pack("<4sHB", b":W&B", 0xBEE1, 0), 0
    while at + 2 <= len(content):
        (length,) = unpack_from("<H", content, at)
        body, at = content[at + 2 : at + 2 + length], at + 2 + length
        file += pack("<IHB", zlib.crc32(body, zlib.crc32(b"\x01")), len(body), 1) + body
    if len(file) < wandb.BLOCK:
        wandb_file(file)


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one
    for one in (
        exposition_gpus,
        exposition_neighbors,
        exposition_machines,
        remote_write_packed,
        remote_write_unpacked,
        protobuf_wire,
        otlp_protobuf,
        otlp_json,
        otlp_gzip,
        settings_yaml,
        price_book,
        wandb_file,
        wandb_records,
    )
}
