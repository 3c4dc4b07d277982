"""Senders and sources that misbehave: everything twice, in any order, half a body, two servers, a flapping exporter."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pyrometer.store import Store
from tests.support.crashing_process import Faults
from tests.support.exporter_texts import Gpu, text_of
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
    return deliveries(60, 10)


@pytest.fixture(scope="module")
def twin(tmp_path_factory, load):
    return run_without_faults(tmp_path_factory.mktemp("twin") / "data", load)


def test_repeated_and_shuffled_deliveries_give_the_same_ledger(tmp_path, load, twin):
    folder = prepare_folder(tmp_path / "data")
    mixed = [*load, *load]
    random.Random(3).shuffle(mixed)
    with ServerProcess(folder) as served:
        sender = Sender(mixed)
        assert sender.send(served.client)
    assert compare(read_folder(folder), twin, sender.acknowledged).is_clean


def test_a_second_server_names_the_first_and_changes_nothing(tmp_path, load, twin):
    folder = prepare_folder(tmp_path / "data")
    with ServerProcess(folder) as first:
        sender = Sender(load)
        assert sender.send(first.client, most=5)
        second = ServerProcess(folder)
        assert not second.listens
        assert second.end() == 1
        assert f"in use by process {first.process.pid}" in second.log
        assert second.log.count("\n") == 1
        assert sender.send(first.client)
        address = json.loads((folder / "server.json").read_text())
        assert str(first.port) in json.dumps(address)
    assert compare(read_folder(folder), twin, sender.acknowledged).is_clean


@pytest.mark.parametrize("cut", [0.0, 0.5, 0.999])
def test_an_interrupted_body_is_discarded(tmp_path, load, cut):
    folder = prepare_folder(tmp_path / "data")
    with ServerProcess(folder) as served:
        for one in load[:4]:
            head = f"POST {one.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(one.body)}\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in one.headers.items())
            with socket.create_connection(("127.0.0.1", served.port)) as sending:
                sending.sendall(head.encode() + b"\r\n" + one.body[: int(len(one.body) * cut)])
        sender = Sender(load[4:6])
        assert sender.send(served.client)
    assert "Traceback" not in served.log
    found = read_folder(folder)
    assert set(found.keys) == sender.acknowledged
    assert found.wrong == []


class Flapping:
    """An exporter that answers, is slow, breaks off, or says 500, by turns; every answer has another counter."""

    def __init__(self) -> None:
        self.answered = 0
        turns = iter(range(10**6))
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                turn = next(turns) % 5
                body = text_of([Gpu(0, energy_mj=1e6 * (outer.answered + 1))])
                if turn == 3:
                    self.send_error(500)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if turn == 2:
                    self.wfile.write(body[: len(body) // 2])
                    self.connection.shutdown(socket.SHUT_RDWR)
                    outer.answered += 1  # the lines that came are good, and counted as cut short
                    return
                self.wfile.write(body)
                outer.answered += 1

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"

    def __enter__(self) -> Flapping:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def stored(served: ServerProcess) -> float:
    return samples(served.client.get("/metrics").text)["pyrometer_records_stored_total"][0][1]


@pytest.mark.heavy
def test_a_flapping_exporter_and_a_killed_server_duplicate_no_sample(tmp_path):
    quick = Faults(scrape_every_s=0.1)
    with Flapping() as exporter:
        for _ in range(3):
            served = ServerProcess(tmp_path / "data", "--scrape", exporter.url, faults=quick)
            assert served.listens
            ends_s = time.monotonic() + 30
            while stored(served) < 5:
                assert time.monotonic() < ends_s, (exporter.answered, served.ready(), served.log)
                time.sleep(0.02)
            served.kill()
            assert "Traceback" not in served.log
    with Store(tmp_path / "data") as store:
        store.expose_all(["gpu_sample"])
        rows = store.connection.execute("SELECT time_ms, node_uid, slot_index FROM gpu_sample").fetchall()
    assert len(rows) == len(set(rows))
    assert 3 <= len(rows) <= exporter.answered
