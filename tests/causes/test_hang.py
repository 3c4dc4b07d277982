"""`hang` with what the SDK tells: who is to blame, who waits, and where the culprit stood. All jobs share one night."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.causes._stacks import innermost
from pyrometer.model.records import Event, StepWindow
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import (
    HOUR,
    MINUTE,
    START_MS,
    at,
    cluster,
    explain,
    findings_of,
    interval,
    minutes,
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


def said(rank, phase, *, step=400, stack=None, minute=40.0, kind="stuck"):
    return (rank, minute, kind, step, phase, stack)


COMM = tuple(said(rank, "comm") for rank in range(4))

# What the ranks of each job said, by the job's name.
JOBS = {
    "reads": (said(0, "comm"), said(1, "comm"), said(2, "data", stack=READING, minute=39.99), said(3, "comm")),
    "an-earlier-step": (*COMM[:3], said(3, "optimizer", step=399)),
    "saves": (said(0, "checkpoint"), *COMM[1:]),
    "holds-the-interpreter": (said(0, "comm"), said(1, "forward", stack=HELD), *COMM[2:]),
    "stopped": (*COMM[:3], said(3, "comm", stack=STOPPED)),
    "silent": COMM[:3],
    "two-of-a-node": (said(0, "data"), said(1, "data"), *COMM[2:]),
    "two-of-two-nodes": (COMM[0], said(1, "data"), COMM[2], said(3, "data")),
    "nobody": COMM,
    "moves-again": (said(0, "data"), *COMM[1:], said(0, None, kind="unstuck", minute=50), said(2, "data", minute=52)),
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
def test_the_rank_that_the_others_wait_for(hangs, name, rank, phase, evidence):
    finding = hangs[name]
    place = {"rank": rank, "node": f"node-{2 * list(JOBS).index(name) + rank // 2}", "gpu": rank % 2}
    assert finding["culprit"] == place | ({"phase": phase} if phase else {})
    assert [line.replace(_hour(finding), "12:") for line in finding["evidence"]] == evidence
    assert finding["confidence"] == 0.95
    assert f"rank {rank}" in finding["suggestion"]


def _hour(finding):
    return f"{finding['from'][11:13]}:"


def test_of_several_that_are_equally_far_behind_none_is_to_blame_alone(hangs):
    node = f"node-{2 * list(JOBS).index('two-of-a-node')}"
    assert hangs["two-of-a-node"]["culprit"] == {"node": node}
    assert hangs["two-of-a-node"]["confidence"] < 0.95
    assert f"Check {node}." in hangs["two-of-a-node"]["suggestion"]
    apart = hangs["two-of-two-nodes"]
    assert apart["culprit"] is None
    assert apart["evidence"][0].startswith("ranks 1 and 3 made no progress after step 400 in data")
    assert apart["evidence"][1] == "ranks 1 and 3 in data; 2 others wait in gradient synchronization"


def test_where_all_stand_at_the_same_place_nobody_is_named(hangs):
    finding = hangs["nobody"]
    assert finding["culprit"] is None
    assert finding["evidence"] == ["4 ranks made no progress after step 400 in comm: none is behind the others"]
    assert "the stacks of its ranks" in finding["suggestion"]


def test_who_moves_again_is_not_it(hangs):
    finding = hangs["moves-again"]
    assert finding["culprit"]["rank"] == 2
    assert interval(finding) == minutes(40, 120)


@pytest.mark.parametrize("text", ["", "no stack (state D)", STOPPED, 'File "x", line y, in z'])
def test_a_stack_without_frames_has_no_lines(text):
    assert innermost(text) == []


def test_a_windows_path_is_short_too():
    assert innermost('  File "C:\\me\\work\\train.py", line 3, in <module>\n') == ["work/train.py:3 in <module>"]


def test_a_hang_that_goes_on_is_told_however_little_it_has_cost(tmp_path):
    """With a limit of a hundred dollars: the one that goes on, and not the one that is over."""
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
