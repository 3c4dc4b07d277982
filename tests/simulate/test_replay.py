"""A replayed night: every record arrives once, in order."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.score import truth_window
from pyrometer.answers.why import why
from pyrometer.model.settings import Settings
from pyrometer.simulate.night import simulate
from pyrometer.simulate.replay import replay
from pyrometer.store import Store


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """A night of a small cluster with its ledger."""
    with Store(tmp_path_factory.mktemp("night") / "data", create=True) as store:
        truth = simulate(store, "hang", seed=4, hours=4)
        build(store, Settings(), now_ms=truth_window(truth).to_ms)
        yield store, truth


@pytest.mark.heavy
def test_replay_copies_every_record_once_in_order_of_arrival(night, tmp_path):
    store, truth = night
    window = truth_window(truth)
    half_ms = (window.from_ms + window.to_ms) // 2
    with Store(tmp_path / "live", create=True) as live:
        replay(store, live, window.from_ms - 10**12, half_ms)
        live.expose_all(["gpu_sample", "step_window", "event"])
        for kind, arrival in (("gpu_sample", "time_ms"), ("step_window", "to_ms"), ("event", "time_ms")):
            assert live.connection.execute(f"SELECT max({arrival}) FROM {kind}").fetchone()[0] <= half_ms
        build(live, Settings(), now_ms=half_ms)
        replay(store, live, half_ms, window.to_ms + 10**9)
        build(live, Settings(), now_ms=window.to_ms)
        answers = [why(each, TimeRange(*window), Settings(), zone=UTC) for each in (store, live)]
    assert answers[0]["states"] == answers[1]["states"]
    assert answers[0]["findings"] == answers[1]["findings"]
