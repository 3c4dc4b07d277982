"""A full disk: the server acknowledges only what is stored, reports the problem, and continues when there is room.

A limit on the size of files replaces a full disk: it can be set and lifted for a process from outside. A test that may
mount file systems uses a real one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import httpx2 as httpx
import pytest

from pyrometer.store.data_folder import DATABASE
from tests.support.crashing_process import Faults
from tests.support.fault_harness import (
    Sender,
    ServerProcess,
    compare,
    deliveries,
    prepare_folder,
    read_folder,
    run_without_faults,
)
from tests.support.metrics_page import samples


@pytest.fixture(scope="module")
def load():
    return deliveries(60, 5)


@pytest.fixture(scope="module")
def twin(tmp_path_factory, load):
    return run_without_faults(tmp_path_factory.mktemp("twin") / "data", load)


def limit(served: ServerProcess, max_file_bytes: int) -> None:
    resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (max_file_bytes, resource.RLIM_INFINITY))


def until(served: ServerProcess, holds, within_s: float = 20.0) -> None:
    """Asks until it is so: nothing tells from outside."""
    ends_s = time.monotonic() + within_s
    while not holds(served.ready()):
        assert time.monotonic() < ends_s, (served.ready(), served.log[-3000:])
        time.sleep(0.05)


def halves(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.tmp") if path.is_file()]


def test_a_server_on_a_full_disk_refuses_and_continues_with_room(tmp_path, load, twin):
    folder = prepare_folder(tmp_path / "data")
    with ServerProcess(folder) as served:
        sender = Sender(load)
        assert sender.send(served.client, most=20)
        limit(served, 0)
        assert not sender.send(served.client)
        assert not sender.send(served.client)
        assert sender.answers[503] == 2
        ready = served.ready()
        assert ready["ready"]  # it answers, and what was known is known
        assert "The disk cannot be written, and senders get 503: File too large." in ready["shortcomings"]
        assert served.log.count("The disk cannot be written") == 1
        metrics = samples(served.client.get("/metrics").text)
        assert metrics["pyrometer_disk_failures_total"][0][1] >= 2
        assert halves(folder / "inbox") == []
        limit(served, resource.RLIM_INFINITY)
        assert sender.send(served.client)
        until(served, lambda ready: ready["shortcomings"] == [])
        assert "it works again" in served.log
        assert "Traceback" not in served.log
    counts = compare(read_folder(folder), twin, sender.acknowledged)
    assert counts.is_clean
    assert counts.acknowledged == len(set().union(*(one.rows for one in load)))
    assert halves(folder) == []


def test_a_database_is_reopened_after_a_full_disk(tmp_path, load, twin):
    """DuckDB ends itself when it cannot write its WAL into its file; whoever sent something must not notice."""
    folder = prepare_folder(tmp_path / "data")
    with ServerProcess(folder, faults=Faults(checkpoint_bytes=20_000)) as served:
        sender = Sender(load)
        assert sender.send(served.client, most=10)
        limit(served, (folder / DATABASE).stat().st_size + 100_000)  # its file grows by blocks of 256 KiB
        sender.send(served.client)
        until(served, lambda ready: ready["shortcomings"])
        limit(served, resource.RLIM_INFINITY)
        assert sender.send(served.client)
        until(served, lambda ready: ready["shortcomings"] == [])
        answer = served.client.get("/api/v1/cost", params={"all": "1"})
        assert answer.status_code == 200, answer.text
        assert "Traceback" not in served.log
    assert compare(read_folder(folder), twin, sender.acknowledged).is_clean


@pytest.fixture
def small_disk(tmp_path):
    """A disk of its own, of 16 MB."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small disk: run as root to enable it")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs leave to mount a small disk (a privileged container)")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(b"x" * 4096):
            pass


@pytest.mark.heavy
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_real_full_or_read_only_disk(small_disk, load, twin, fault):
    folder = prepare_folder(small_disk / "data")
    filler = small_disk / "filler"
    with ServerProcess(folder) as served:
        sender = Sender(load)
        assert sender.send(served.client, most=20)
        if fault == "full":
            fill(filler)
        else:
            # a tmpfs becomes read-only only without writers: the folder of bodies is covered instead
            inbox = folder / "inbox"
            subprocess.run(["mount", "--bind", inbox, inbox], check=True)
            subprocess.run(["mount", "-o", "remount,ro,bind", inbox], check=True)
        assert not sender.send(served.client)
        assert sender.answers[503] == 1
        assert any("The disk cannot be written" in text for text in served.ready()["shortcomings"])
        assert served.client.get("/api/v1/cost", params={"all": "1"}).status_code in (200, 503)
        if fault == "full":
            filler.unlink()
        else:
            subprocess.run(["umount", inbox], check=True)
        assert sender.send(served.client)
        until(served, lambda ready: ready["shortcomings"] == [])
        assert "Traceback" not in served.log
    assert compare(read_folder(folder), twin, sender.acknowledged).is_clean


def test_a_read_only_folder_is_reported_in_one_sentence(tmp_path):
    taken = tmp_path / "file"
    taken.write_text("")
    served = ServerProcess(taken / "data")
    assert not served.listens
    assert served.end() == 1
    assert served.log.count("\n") == 1
    assert "cannot become a data folder" in served.log
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{served.port}/healthz")
