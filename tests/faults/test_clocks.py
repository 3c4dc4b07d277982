"""Clocks that jump: the server's by an hour or a day, forwards and back, and samples of the future and the past."""

from __future__ import annotations

import time

import pytest

from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR
from pyrometer.store import Store
from tests.support.crashing_process import Faults
from tests.support.fault_harness import (
    START_MS,
    Sender,
    ServerProcess,
    compare,
    deliveries,
    prepare_folder,
    read_folder,
    run_without_faults,
    scrape_deliveries,
)
from tests.support.metrics_page import samples


@pytest.fixture(scope="module")
def load():
    return deliveries(60, 10)


@pytest.fixture(scope="module")
def twin(tmp_path_factory, load):
    return run_without_faults(tmp_path_factory.mktemp("twin") / "data", load)


@pytest.mark.heavy
@pytest.mark.parametrize("jumps_ms", [(MS_PER_HOUR, 0), (-MS_PER_HOUR, 0), (MS_PER_DAY, -MS_PER_DAY), (-MS_PER_DAY,)])
def test_clock_jumps_do_not_change_the_ledger(tmp_path, load, twin, jumps_ms):
    clock = tmp_path / "clock"
    clock.write_text("0")
    folder = prepare_folder(tmp_path / "data")
    with ServerProcess(folder, faults=Faults(clock=str(clock))) as served:
        sender = Sender(load)
        for number, jump_ms in enumerate(jumps_ms, 1):
            assert sender.send(
                served.client, most=len(load) * number // (len(jumps_ms) + 1) - len(load) + len(sender.left)
            )
            clock.write_text(str(jump_ms))
            assert served.client.get("/api/v1/cost", params={"all": "1"}).status_code == 200
        assert sender.send(served.client)
        assert served.ready()["ready"]
    assert "Traceback" not in served.log
    assert compare(read_folder(folder), twin, sender.acknowledged).is_clean


def test_samples_from_the_future_and_distant_past_are_rejected_and_counted(tmp_path):
    """What is far ahead or a month old is left out and counted; what is a day old is taken; no end is moved by it."""
    folder = prepare_folder(tmp_path / "data")
    now_ms = time.time_ns() // 1_000_000
    future, past = scrape_deliveries(now_ms + 2 * MS_PER_HOUR, 0), scrape_deliveries(START_MS - 30 * MS_PER_DAY, 0)
    with ServerProcess(folder) as served:
        sender = Sender([*future, *past, *scrape_deliveries(START_MS, 0)])
        assert sender.send(served.client)
        counted = samples(served.client.get("/metrics").text)["pyrometer_remote_write_samples_total"]
        outcomes = {labels["outcome"]: value for labels, value in counted}
    assert "Traceback" not in served.log
    with Store(folder) as store:
        store.expose_all(["gpu_sample"])
        times = {time_ms for (time_ms,) in store.connection.execute("SELECT time_ms FROM gpu_sample").fetchall()}
        assert times == {START_MS}
    left_out = {outcome: count for outcome, count in outcomes.items() if outcome != "taken"}
    assert sum(left_out.values()) >= 2 * outcomes["taken"], outcomes
    found = read_folder(folder)
    assert found.wrong == []
    assert all(row[0] < START_MS + 2 * MS_PER_HOUR for row in found.ledger)
