"""`hang` with what the SDK tells: who is to blame, who waits, and where the culprit stood. All jobs share one night."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Event, StepWindow
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import (
    HOUR,
    MINUTE,
    START_MS,
    all_ranks,
    at,
    cluster,
    event,
    explain,
    findings_of,
    interval,
    job,
    minutes,
    run,
    samples,
    sole_finding,
    two_ranks_per_node,
)

# As `traceback` and as `faulthandler` write it.
READING = """  File "/home/ada/train.py", line 31, in main
    for batch in loader:
  File "/usr/lib/python3/site-packages/torch/utils/data/dataloader.py", line 711, in __next__
    data = self._next_data()
  File "/home/ada/shards.py", line 88, in read
    return file.read()
"""
HELD = """Timeout (0:01:01)!
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
Thread 0x00007f00 (most recent call first):
  File "/home/ada/kernels.py", line 12 in launch
  File "/home/ada/train.py", line 40 in main
"""
STOPPED = "stopped by a signal (state T)"


def report(rank, phase, *, step=400, stack=None, minute=40.0, kind="stuck"):
    return (rank, minute, kind, step, phase, stack)


COMM = tuple(report(rank, "comm") for rank in range(4))

# The reports of the ranks of each job, by the job's name.
JOBS = {
    "reads": (report(0, "comm"), report(1, "comm"), report(2, "data", stack=READING, minute=39.99), report(3, "comm")),
    "an-earlier-step": (*COMM[:3], report(3, "optimizer", step=399)),
    "saves": (report(0, "checkpoint"), *COMM[1:]),
    "holds-the-interpreter": (report(0, "comm"), report(1, "forward", stack=HELD), *COMM[2:]),
    "stopped": (*COMM[:3], report(3, "comm", stack=STOPPED)),
    "silent": COMM[:3],
    "two-of-a-node": (report(0, "data"), report(1, "data"), *COMM[2:]),
    "two-of-two-nodes": (COMM[0], report(1, "data"), COMM[2], report(3, "data")),
    "nobody": COMM,
    "moves-again": (
        report(0, "data"),
        *COMM[1:],
        report(0, None, kind="unstuck", minute=50),
        report(2, "data", minute=52),
    ),
}


@pytest.fixture(scope="module")
def hangs(tmp_path_factory):
    """The finding of each job."""
    records = cluster(nodes=2 * len(JOBS))
    for number, (name, reports) in enumerate(JOBS.items()):
        for rank, place, there in two_ranks_per_node(name, (2 * number, 2 * number + 1)):
            records += there
            records.append(StepWindow(at(0), at(39.9), name, 1, rank, first_step=1, steps=400, **place))
        records += [
            Event(at(minute), kind, run=name, attempt=1, rank=rank, step=step, reason=phase, message=stack)
            for rank, minute, kind, step, phase, stack in reports
        ]
    with Store(tmp_path_factory.mktemp("hangs") / "data", create=True) as store:
        store.append(records)
        build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        answer = why(store, TimeRange(START_MS, START_MS + 2 * HOUR), Settings(), zone=UTC)
    return {finding["workload"]["name"]: finding for finding in findings_of("hang", answer)}


@pytest.mark.parametrize(
    ("name", "rank", "phase", "evidence"),
    [
        (
            "reads",
            2,
            "data",
            [
                "rank 2 made no progress after step 400 in data, from 12:39",
                "rank 2 in data; 3 others wait in gradient synchronization",
                "it was at ada/shards.py:88 in read",
                "called by data/dataloader.py:711 in __next__",
                "called by ada/train.py:31 in main",
            ],
        ),
        (
            "an-earlier-step",
            3,
            "optimizer",
            [
                "rank 3 made no progress after step 399 in optimizer, from 12:40",
                "rank 3 in optimizer; 3 others wait in gradient synchronization",
            ],
        ),
        (
            "saves",
            0,
            "checkpoint",
            [
                "rank 0 made no progress after step 400 in checkpoint, from 12:40",
                "rank 0 in checkpoint; 3 others wait in gradient synchronization",
            ],
        ),
        (
            "holds-the-interpreter",
            1,
            "forward",
            [
                "rank 1 made no progress after step 400 in forward, from 12:40",
                "rank 1 in forward; 3 others wait in gradient synchronization",
                "it was at ada/kernels.py:12 in launch",
                "called by ada/train.py:40 in main",
            ],
        ),
        (
            "stopped",
            3,
            "comm",
            [
                "rank 3 made no progress after step 400 in comm, from 12:40",
                "rank 3 waits in gradient synchronization; 3 others wait in gradient synchronization",
                f"it was {STOPPED}",
            ],
        ),
        (
            "silent",
            3,
            None,
            ["rank 3 stopped reporting while 3 other ranks continued", "3 others wait in gradient synchronization"],
        ),
    ],
)
def test_hang_names_the_rank_that_the_others_wait_for(hangs, name, rank, phase, evidence):
    finding = hangs[name]
    place = {"rank": rank, "node": f"node-{2 * list(JOBS).index(name) + rank // 2}", "gpu": rank % 2}
    assert finding["culprit"] == place | ({"phase": phase} if phase else {})
    assert [line.replace(_hour(finding), "12:") for line in finding["evidence"]] == evidence
    assert finding["confidence"] == 0.95
    assert f"rank {rank}" in finding["suggestion"]


def _hour(finding):
    return f"{finding['from'][11:13]}:"


def test_hang_names_all_ranks_that_are_equally_far_behind(hangs):
    node = f"node-{2 * list(JOBS).index('two-of-a-node')}"
    assert hangs["two-of-a-node"]["culprit"] == {"node": node}
    assert hangs["two-of-a-node"]["confidence"] < 0.95
    assert f"Check {node}." in hangs["two-of-a-node"]["suggestion"]
    apart = hangs["two-of-two-nodes"]
    assert apart["culprit"] is None
    assert apart["evidence"][0].startswith("ranks 1 and 3 made no progress after step 400 in data")
    assert apart["evidence"][1] == "ranks 1 and 3 in data; 2 others wait in gradient synchronization"


def test_hang_of_equal_ranks_has_no_culprit(hangs):
    finding = hangs["nobody"]
    assert finding["culprit"] is None
    assert finding["evidence"] == ["4 ranks made no progress after step 400 in comm: none is behind the others"]
    assert "the stacks of its ranks" in finding["suggestion"]


def test_rank_that_continues_is_not_the_culprit_of_a_hang(hangs):
    finding = hangs["moves-again"]
    assert finding["culprit"]["rank"] == 2
    assert interval(finding) == minutes(40, 120)


def test_ongoing_hang_is_reported_at_any_cost(tmp_path):
    """With a limit of a hundred dollars: the ongoing one, and not the one that ended."""
    records = cluster(nodes=4)
    for number, (name, from_min, to_min) in enumerate((("goes-on", 110, None), ("over", 60, 70))):
        for rank, place, there in two_ranks_per_node(name, (2 * number, 2 * number + 1)):
            records += there
            records.append(StepWindow(at(0), at(from_min), name, 1, rank, first_step=1, steps=400, **place))
            records.append(Event(at(from_min), "stuck", run=name, attempt=1, rank=rank, step=400, reason="comm"))
            if to_min is not None:
                records.append(Event(at(to_min), "unstuck", run=name, attempt=1, rank=rank, step=400))
                records.append(StepWindow(at(to_min), at(120), name, 1, rank, first_step=401, steps=400, **place))
    answer = explain(tmp_path, records, settings=Settings(finding_min_usd_micro=100_000_000))
    assert [one["workload"]["name"] for one in answer["findings"]] == ["goes-on"]
    assert {row["state"]: row["gpu_ms"] for row in answer["states"]}["hang"] == 4 * (10 + 10) * MINUTE


class TestHang:
    def records(self, reports):
        before = all_ranks(0, 40)
        return [*cluster(), *job(), *run(), *before, *reports]

    def test_hang_names_the_rank_with_the_lowest_step(self, tmp_path):
        reports = [event("stuck", 40, rank, step=3999 - (rank == 2), reason="backward") for rank in range(4)]
        finding = sole_finding(explain(tmp_path, self.records(reports)))
        assert finding["cause"] == "hang"
        assert finding["culprit"] == {"rank": 2, "node": "node-1", "gpu": 0, "phase": "backward"}
        assert interval(finding) == minutes(40, 120)
        assert finding["gpu_ms"] == 4 * 80 * clusters.MINUTE
        assert finding["usd_micro"] == 4 * 80 * 60_000  # 4 GPUs for 80 minutes at 0.06 dollars per minute
        assert "after step 3,998 in backward" in finding["evidence"][0]
        assert finding["what_if"] == {
            "detected": minutes(41, 0)[0],
            "detect_s": 60.0,  # the hang's limit: it is reported at any cost
            "saved_gpu_ms": 4 * 79 * clusters.MINUTE,
            "saved_usd_micro": 4 * 79 * 60_000,
            "saved_usd": 18.96,
            "sentence": "Caught at 20:41, it would have cost $0.24 instead of $19.",
        }

    def test_hang_names_the_rank_that_stopped_reporting(self, tmp_path):
        reports = [event("stuck", 40, rank, step=3999) for rank in (0, 1, 2)]
        finding = sole_finding(explain(tmp_path, self.records(reports)))
        assert finding["culprit"]["rank"] == 3
        assert "rank 3 stopped reporting" in finding["evidence"][0]

    def test_hang_ends_when_progress_continues(self, tmp_path):
        reports = [event("stuck", 40, r, step=3999) for r in range(4)] + [event("unstuck", 55.5, r) for r in range(4)]
        again = all_ranks(56, 120)
        finding = sole_finding(explain(tmp_path, [*self.records(reports), *again]))
        assert interval(finding) == minutes(40, 55.5)
        assert finding["gpu_ms"] == 4 * 15.5 * clusters.MINUTE

    def test_hang_with_a_spinning_kernel_is_found_without_the_sdk(self, tmp_path):
        busy = {"gpu_util_permille": 930, "sm_active_permille": 820, "power_w": 674}
        spins = {"gpu_util_permille": 1000, "sm_active_permille": 8, "tensor_active_permille": 0, "power_w": 125}
        telemetry = [
            sample
            for number in range(4)
            for sample in samples(f"n{number // 2}", number % 2, 0, 50, **busy)
            + samples(f"n{number // 2}", number % 2, 50, 120, **spins)
        ]
        finding = sole_finding(explain(tmp_path, [*cluster(), *job(), *telemetry]))
        assert (finding["cause"], interval(finding)) == ("hang", minutes(50, 120))
        assert finding["what_if"]["saved_gpu_ms"] == 4 * 69 * clusters.MINUTE
        assert "a spinning kernel" in finding["evidence"][0]
