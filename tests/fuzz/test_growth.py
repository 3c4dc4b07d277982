"""How much one sender can make a reader remember, or unpack: everything has an end, and the end is asserted."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from typing import Any

import cramjam
import pytest

from pyrometer.collect.gpu import dcgm, slot_watch
from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.otlp import requests
from pyrometer.collect.otlp.forms import OtlpError
from pyrometer.collect.otlp.messages import EventMessage, RankIdentity
from pyrometer.collect.prometheus import exposition, remote_write
from pyrometer.collect.prometheus.remote_write import RemoteWriteError, RemoteWriteReader
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.identify.runs import run_registry, saved_checkpoints
from pyrometer.identify.runs.rank_locations import RunContext
from tests.support import otlp_json
from tests.support.fuzz_targets import GOOD, NOW_MS
from tests.support.remote_write_bodies import body_of

MIB = 2**20


def peak_bytes(call: Callable[[], Any]) -> int:
    """The peak memory of a call, above the memory in use before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(call: Callable[[], Any], error: type[Exception]) -> Callable[[], None]:
    def calling() -> None:
        with pytest.raises(error):
            call()

    return calling


# -- bombs ------------------------------------------------------------------------------------------------------------


def test_gzip_is_not_unpacked_beyond_what_is_read():
    bomb = gzip.compress(bytes(256 * MIB), 1)
    assert peak_bytes(refused(lambda: requests.unpack(bomb, "gzip"), OtlpError)) < 2.5 * requests.MAX_BYTES
    twice = gzip.compress(bomb)  # what is inside is not looked at again
    assert peak_bytes(lambda: requests.unpack(twice, "gzip")) < 2 * requests.MAX_BYTES


@pytest.mark.parametrize("length", [2**26 + 1, 2**31, 2**32 - 1, 2**63, 2**69])
def test_snappy_that_says_it_is_large_is_not_unpacked(length):
    length_bytes, rest = b"", length
    while rest >= 0x80:
        length_bytes, rest = length_bytes + bytes([rest & 0x7F | 0x80]), rest >> 7
    body = length_bytes + bytes([rest]) + bytes(cramjam.snappy.compress_raw(b"x" * 1_000))[2:]
    assert peak_bytes(refused(lambda: RemoteWriteReader().read(body, NOW_MS), RemoteWriteError)) < MIB


def test_nothing_but_empty_series_takes_no_more_than_its_bytes(monkeypatch):
    monkeypatch.setattr(remote_write, "MAX_SERIES", 10_000)
    body = bytes(cramjam.snappy.compress_raw(b"\x0a\x00" * (8 * MIB)))
    assert peak_bytes(refused(lambda: RemoteWriteReader().read(body, NOW_MS), RemoteWriteError)) < 64 * MIB


@pytest.mark.parametrize(
    "text", [b"[" * MIB, b'{"a":' * MIB, b'{"resourceLogs":[' + b"{}," * (3 * MIB) + b"{}]}", b'"' * MIB]
)
def test_json_that_is_deep_or_many_takes_no_more_than_its_bytes(text):
    def read() -> None:
        try:
            requests.read("logs", text, is_json=True, now_ms=NOW_MS)
        except OtlpError:
            return

    assert peak_bytes(read) < 16 * len(text)


# -- labels without an end --------------------------------------------------------------------------------------------


def test_labels_of_remote_write_are_forgotten():
    reader = RemoteWriteReader(max_kept_bytes=MIB)

    def sent(first: int) -> None:
        for host in range(first, first + 20):
            labels = {"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "Hostname": f"{host}-" + "x" * 10_000}
            reader.read(body_of([(labels, [(NOW_MS, 1.0)])]), NOW_MS)

    sent(0)
    assert peak_bytes(lambda: [sent(first) for first in range(20, 1_000, 20)]) < 8 * MIB
    assert len(reader._addresses) < 200


def test_labels_and_names_of_an_exporter_are_forgotten():
    reader = exposition.ExpositionReader(dcgm.measure_of, dcgm.slot_address_of, max_cached=100)
    for first in range(0, 3_000, 300):
        lines = [GOOD.replace(b"good", b"host-%d" % host) for host in range(first, first + 300)]
        others = [b"some_metric_%d 1\n" % number for number in range(first, first + 300)]
        reader.read(b"".join([*lines, *others]))
    assert len(reader._blocks) <= 400
    assert len(reader._names) <= 400


def test_invented_machines_are_forgotten(monkeypatch):
    monkeypatch.setattr(slot_watch, "MAX_EXTRA_SLOTS", 100)
    monkeypatch.setattr(slot_watch, "MAX_SLOTS", 1_000)
    monkeypatch.setattr(dcgm, "MAX_PERCENT_HOSTS", 1_000)
    taking = Dcgm(lambda host: None, near_idle_power_w)
    measure = dcgm.measure_of(dcgm.DOUBTFUL)
    for first in range(0, 10_000, 500):
        places = [dcgm.slot_address_of({"gpu": "0", "Hostname": f"host-{host}"}) for host in range(first, first + 500)]
        taking.take([(measure, place, 50.0, NOW_MS + first) for place in places])
    assert len(taking._slots._known) <= 1_500
    assert len(taking._slots._seen_ms) <= 1_500
    assert len(taking._in_percent) <= 1_000


def test_invented_runs_and_checkpoints_are_forgotten(monkeypatch):
    monkeypatch.setattr(run_registry, "MAX_REMEMBERED", 200)
    monkeypatch.setattr(saved_checkpoints, "MAX_PATHS", 50)
    taking = run_registry.RunRegistry()
    for number in range(0, 2_000, 20):
        launches = [
            (
                RankIdentity(f"launch-{n}", host="h"),
                [EventMessage(NOW_MS + n, "checkpoint_saved", step=n, message=f"/{n}/" + "p" * 100)],
            )
            for n in range(number, number + 20)
        ]
        saves = [
            EventMessage(NOW_MS + n, "checkpoint_saved", step=n, message=f"/same/{n}")
            for n in range(number, number + 20)
        ]
        taking.take([*launches, (RankIdentity("one", run="one", host="h"), saves)], RunContext())
    assert sum(len(launch.ranks) for launch in taking._launches.values()) <= 220
    assert len(taking._attempts) <= 220
    assert max(len(paths) for paths in taking._checkpoints._saved.values()) <= 50


def test_long_texts_are_cut_before_they_are_kept():
    who = {"launch": "a", "rank": 0, "ranks": 1, "run": "r", "host": "h", "started_ms": NOW_MS - 1_000}
    stack = ("event", {"time_ms": NOW_MS - 500, "kind": "exception", "message": "x" * (4 * MIB)})
    name = ("metric", {"time_ms": NOW_MS - 500, "name": "n" * (4 * MIB), "value": 1.0})
    for signal, body in otlp_json.bodies([(who, [stack, name])]).items():
        received = requests.read(signal, body, is_json=True, now_ms=NOW_MS)
        assert len(repr(received.messages)) < 100_000
        assert received.body_bytes == len(body)
