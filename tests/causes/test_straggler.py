"""`straggler` on short runs: two windows of ten steps are enough to name the rank and its phase. All share a night."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.causes.straggler import _SlowRank, _suggestion
from pyrometer.model.records import StepWindow
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import (
    HOUR,
    NORMAL_STEP_MS,
    START_MS,
    all_ranks,
    at,
    cluster,
    explain,
    findings_of,
    interval,
    job,
    minutes,
    only_finding,
    run,
    steps,
    two_ranks_per_node,
)

STEPS = 10  # a window
DELAY_MS = 50  # a step
USUAL = {"data_ms": 3, "copy_ms": 4, "forward_ms": 40, "backward_ms": 70, "comm_ms": 8, "optimizer_ms": 15}
PHASES = ("data", "copy", "forward", "backward", "garbage")
EVERYTHING = Settings(finding_min_ms=0, finding_min_usd_micro=0)


def windows(run, rank, place, late, phase, *, delay_ms=DELAY_MS):
    """Two windows of a rank whose peers wait for another one, or who is that one."""
    step = dict(USUAL)
    if rank != late:
        step["comm_ms"] += delay_ms
    elif phase == "garbage":  # it happens while something else runs
        step |= {"garbage_ms": delay_ms, "forward_ms": step["forward_ms"] + delay_ms}
    elif phase:
        step[f"{phase}_ms"] = step.get(f"{phase}_ms", 0) + delay_ms
    length_ms = STEPS * (sum(USUAL.values()) + delay_ms)
    noise = (7 * rank) % 5  # milliseconds: no two ranks are alike
    for number in range(2):
        begin_ms = at(5) + number * length_ms + rank  # clocks disagree a little
        yield StepWindow(
            begin_ms,
            begin_ms + length_ms,
            run,
            1,
            rank,
            first_step=1 + number * STEPS,
            steps=STEPS,
            **{name: ms * STEPS + noise for name, ms in step.items()},
            **place,
        )


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """A job of two and one of four ranks for each phase, one in which all are alike, one whose last rank saves."""
    jobs = [(f"{phase}-{2 * nodes}", phase, nodes) for nodes in (1, 2) for phase in PHASES] + [("alike", None, 2)]
    jobs += [("saves", "checkpoint", 2)]
    records = cluster(nodes=sum(nodes for *_, nodes in jobs))
    first = 0
    for name, phase, nodes in jobs:
        late = 2 * nodes - 1 if phase else None
        for rank, place, there in two_ranks_per_node(name, range(first, first + nodes)):
            records += there
            records += windows(name, rank, place, late, phase, delay_ms=DELAY_MS if phase else 0)
        first += nodes
    with Store(tmp_path_factory.mktemp("short") / "data", create=True) as store:
        store.append(records)
        build(store, EVERYTHING, now_ms=START_MS + 2 * HOUR)
        return why(store, TimeRange(START_MS, START_MS + 2 * HOUR), EVERYTHING, zone=UTC)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("phase", PHASES)
def test_straggler_in_twenty_steps_has_rank_and_phase(answer, phase, ranks):
    (finding,) = [f for f in findings_of("straggler", answer) if f["workload"]["name"] == f"{phase}-{ranks}"]
    assert finding["culprit"]["rank"] == ranks - 1
    assert finding["culprit"]["phase"] == phase
    assert finding["gpu_ms"] == pytest.approx((ranks - 1) * 2 * STEPS * DELAY_MS, rel=0.02)
    assert f"its gradients were ready {DELAY_MS} ms per step later than theirs" in finding["evidence"]


def test_equal_ranks_have_no_straggler(answer):
    assert "alike" not in {f["workload"]["name"] for f in findings_of("straggler", answer)}


def test_rank_that_saves_for_all_is_not_a_straggler(answer):
    assert [one for one in answer["findings"] if one["workload"]["name"] == "saves"] == []


@pytest.mark.parametrize(("to_min", "goes_on"), [(None, True), (119.9, False)])
def test_straggler_is_ongoing_until_the_job_ends(tmp_path, to_min, goes_on):
    records = [*cluster(), *job(to_min=to_min), *run()]
    for rank in range(4):
        waits = {"comm_ms": 100 if rank == 3 else 20_000, "forward_ms": 40_000 if rank == 3 else 20_000}
        records += steps(rank, 60, 119, **waits)
        records += [window._replace(to_ms=at(119.9)) for window in steps(rank, 119, 120, **waits)]
    assert only_finding("straggler", explain(tmp_path, records))["ongoing"] == goes_on


def test_suggestion_for_a_rank_without_a_gpu_does_not_mention_one():
    on_gpu, on_cpu = (_suggestion(1, "laptop", _SlowRank(node, 0, "forward", 30)) for node in ("n0", "cpu:laptop:x:1"))
    assert "clocks" in on_gpu
    assert "GPU" not in on_cpu


class TestStraggler:
    @pytest.mark.parametrize("phase", ["forward", "backward", "copy", "garbage", "data"])
    def test_straggler_names_the_slow_rank_and_its_phase(self, tmp_path, phase):
        slow = NORMAL_STEP_MS | {f"{phase}_ms": NORMAL_STEP_MS.get(f"{phase}_ms", 0) + 5_000, "comm_ms": 1_500}
        waiting = NORMAL_STEP_MS | {"comm_ms": 6_500}
        windows = [w for rank in range(4) for w in steps(rank, 20, 100, **(slow if rank == 3 else waiting))]
        records = [*cluster(), *job(), *run(), *all_ranks(0, 20), *windows, *all_ranks(100, 120)]
        found = {finding["cause"]: finding for finding in explain(tmp_path, records)["findings"]}
        assert set(found) == {"straggler"}
        culprit = found["straggler"]["culprit"]
        assert culprit == {"rank": 3, "node": "node-1", "gpu": 1, "phase": phase}
        assert interval(found["straggler"]) == minutes(20, 100)
        assert found["straggler"]["gpu_ms"] == 3 * 80 * 5_000

    def test_equal_waiting_is_comm_stall_and_not_a_straggler(self, tmp_path):
        answer = explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120, comm_ms=9_000)])
        assert answer["findings"] == []
        states = {row["state"]: row["gpu_ms"] for row in answer["states"]}
        assert states["comm_stall"] == 4 * 120 * 9_000
        assert "straggler_wait" not in states
