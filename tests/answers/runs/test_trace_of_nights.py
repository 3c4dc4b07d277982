"""Traces of a simulated night: the reported late rank is the one that was made late."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.lifecycle import trace_run
from pyrometer.answers.runs.lineage import lineage_of_step, open_run
from pyrometer.answers.runs.trace import trace_step
from pyrometer.cli import main
from pyrometer.store import Store

EVER = TimeRange(0, 2**62)


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    folder = tmp_path_factory.mktemp("night") / "data"
    with pytest.raises(SystemExit):
        main(["simulate", "straggler", "--seed", "3", "--gpus", "80", "--hours", "4", "--out", str(folder)])
    return folder


def test_trace_of_a_night_names_the_slowed_rank(night):
    truth = json.loads((night / "truth.json").read_text())
    planted = [one for one in truth["findings"] if one["cause"] == "straggler"]
    assert planted
    seen = 0
    with Store(night) as store:
        for one in planted:
            run, culprit = one["workload"]["uid"], one["culprit"]["rank"]
            from_ms, to_ms = (datetime.fromisoformat(one[edge]).timestamp() * 1000 for edge in ("from", "to"))
            open_run(store, run, EVER)
            steps = store.connection.execute(
                "SELECT DISTINCT step FROM span WHERE run = ? AND time_ms > ? AND time_ms < ? - 60000 ORDER BY step",
                [run, from_ms, to_ms],
            ).fetchall()
            for (step,) in steps:
                answer = trace_step(store, run, step, EVER, zone=UTC)
                assert answer["waited_for"]["rank"] == answer["critical_path"][0]["rank"] == culprit
                seen += 1
    assert seen


def test_every_run_of_a_night_has_a_lifecycle_and_data_of_traced_steps(night):
    with Store(night) as store:
        store.expose_all(["run"])
        runs = [row[0] for row in store.connection.execute("SELECT DISTINCT run FROM run ORDER BY run").fetchall()]
        for run in runs[:12]:
            life = trace_run(store, run, EVER, zone=UTC)
            assert life["attempts"]
            newest = life["traced"]["newest"]
            if newest is not None:
                answer = lineage_of_step(store, run, newest["step"], EVER, zone=UTC, attempt=newest["attempt"])
                assert {update["rank"] for update in answer["updates"]} == set(range(newest["ranks"]))
                assert all(update["samples"] for update in answer["updates"])
