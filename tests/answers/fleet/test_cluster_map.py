"""Every GPU at one minute, and who waits for one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.build.ledger import build
from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange, TimeRangeError
from pyrometer.answers.fleet import cluster_map as cells
from pyrometer.model.records import Allocation, Event, Node, Pod, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.questions.registry import NotFoundError, question
from pyrometer.store import Store
from tests.support.clusters import HOUR, MINUTE, START_MS, all_ranks, at, cluster, job, run

Asking = Callable[..., dict[str, Any]]


@pytest.fixture
def ask_map(tmp_path: Path) -> Asking:
    """The cluster of some records at a minute."""

    def ask(records: list[Any], minute: float | None = None, **more: Any) -> dict[str, Any]:
        with Store(tmp_path, create=True) as store:
            store.append(records)
            covered = build(store, Settings(), now_ms=START_MS + 2 * HOUR)
            assert covered is not None
            window = TimeRange(covered.from_ms, covered.end_ms)
            at_ms = None if minute is None else at(minute)
            return cells.cluster(store, window, zone=UTC, at_ms=at_ms, **more)

    return ask


def flat(answer: dict[str, Any]) -> list[tuple[str, int, str, str | None, int]]:
    """Every cell with its node, state and holder in words."""
    return [
        (
            node["node"],
            slot,
            answer["states"][state],
            None if holder is None else answer["holders"][holder]["pod"],
            share,
        )
        for pool in answer["pools"]
        for node in pool["nodes"]
        for slot, state, holder, share in node["cells"]
    ]


def test_cluster_map_has_a_cell_per_gpu_with_state_and_holder(ask_map: Asking) -> None:
    records = [*cluster(nodes=3), *job(to_min=90), *run(ended_ms=at(90)), *all_ranks(0, 80, comm_ms=0, data_ms=0)]
    answer = ask_map(records, 30)
    assert (answer["at_ms"], answer["from"], answer["to"]) == (at(30), iso(START_MS, UTC), iso(at(120), UTC))
    assert answer["states"] == ["train", "free"]
    assert flat(answer) == [
        *((f"node-{n}", slot, "train", f"llama-{n}", 1000) for n in (0, 1) for slot in (0, 1)),
        *(("node-2", slot, "free", None, 1000) for slot in (0, 1)),
    ]
    assert answer["counts"] == {"train": 4 * MINUTE, "free": 2 * MINUTE}
    assert answer["holders"][0] == {
        "workload": {"uid": "llama", "kind": "PyTorchJob", "namespace": "ml", "name": "llama"},
        "experiment": "llama-sft",
        "team": "nlp",
        "pod": "llama-0",
        "namespace": "ml",
        "user": None,
        "pod_uid": "llama-0",
    }
    assert (answer["queue"], answer["queue_total"]) == ([], 0)


def test_cluster_map_without_a_time_is_the_newest_minute(ask_map: Asking) -> None:
    answer = ask_map([*cluster(), *job(to_min=90)])
    assert answer["at_ms"] == at(119)
    assert {cell[2] for cell in flat(answer)} == {"free"}


def test_cell_has_the_largest_part_of_the_minute_and_its_share(ask_map: Asking) -> None:
    pod = Pod(START_MS, "test", "p", "ml", "p", "Running", node_uid="n0", scheduled_ms=START_MS, started_ms=START_MS)
    holds = [
        Allocation(START_MS, "p", "n0", 0, START_MS, None, SHARE_WHOLE * 3 // 4, 0),
        Allocation(START_MS, "p", "n0", 1, at(10.25), None, SHARE_WHOLE),
    ]
    answer = ask_map([*cluster(nodes=1), pod, *holds], 10)
    assert [(slot, pod, share) for _, slot, _, pod, share in flat(answer)] == [(0, "p", 750), (1, "p", 750)]
    assert sum(answer["counts"].values()) == 2 * MINUTE
    assert answer["counts"]["free"] == MINUTE // 2


def test_nodes_are_sorted_in_natural_order(ask_map: Asking) -> None:
    named = [("b", "node-10"), ("b", "node-2"), ("a", "z"), (None, "node-1"), ("b", "node-02"), ("b", "node-²")]
    nodes = [
        Node(time_ms, "test", f"n{number}", name, 1, "Test GPU", pool=pool, instance_type=f"kind-{number}")
        for number, (pool, name) in enumerate(named)
        for time_ms in (START_MS, at(120) - 1)
    ]
    answer = ask_map(nodes)
    assert [(pool["pool"], [node["node"] for node in pool["nodes"]]) for pool in answer["pools"]] == [
        ("a", ["z"]),
        ("b", ["node-02", "node-2", "node-10", "node-²"]),
        (None, ["node-1"]),
    ]
    assert answer["pools"][0]["nodes"][0]["instance_type"] == "kind-2"


@given(st.lists(st.tuples(st.sampled_from(["gpu-", "node", ""]), st.integers(0, 10**20)), max_size=20))
def test_natural_order_compares_numbers_in_names(names: list[tuple[str, int]]) -> None:
    texts = sorted((f"{word}{number}" for word, number in names), key=cells._natural)
    assert texts == [f"{word}{number}" for word, number in sorted(names)]


# -- who waits --------------------------------------------------------------------------------------------------------


def waiting(name: str, created_min: float, **more: Any) -> list[Any]:
    """A pod that requests eight GPUs."""
    pod = Pod(
        at(created_min),
        "test",
        name,
        "ml",
        name,
        "Pending",
        name,
        created_ms=at(created_min),
        queue="train",
        gpu_share=8 * SHARE_WHOLE,
    )
    return [Workload(at(created_min), "test", name, "Job", "ml", name, team="nlp"), pod._replace(**more)]


def test_queue_lists_the_longest_waiting_pod_first_with_the_scheduler_message(ask_map: Asking) -> None:
    refusals = [
        Event(at(minute), "failed_scheduling", pod_uid="late", message=f"{number}/3 nodes are available")
        for number, minute in enumerate((65, 70))
    ]
    answer = ask_map([*cluster(), *waiting("late", 60), *waiting("early", 20), *refusals])
    assert [(row["pod"], row["waited_ms"], row["reason"]) for row in answer["queue"]] == [
        ("early", 100 * MINUTE, None),
        ("late", 60 * MINUTE, "1/3 nodes are available"),
    ]
    assert answer["queue_total"] == 2
    assert answer["queue"][0] == {
        "workload": {"uid": "early", "kind": "Job", "namespace": "ml", "name": "early"},
        "pod": "early",
        "pod_uid": "early",
        "namespace": "ml",
        "team": "nlp",
        "experiment": "early",
        "queue": "train",
        "gpus": 8.0,
        "waiting_since": iso(at(20), UTC),
        "waited_ms": 100 * MINUTE,
        "reason": None,
    }


@pytest.mark.parametrize(("minute", "waits"), [(19, False), (30, True), (39, False), (50, False)])
def test_pod_waits_until_scheduled_even_if_recorded_late(ask_map: Asking, minute: int, waits: bool) -> None:
    scheduled = waiting("a", 20, time_ms=at(80), phase="Running", scheduled_ms=at(40) - 1, started_ms=at(41))
    assert bool(ask_map([*cluster(), *scheduled], minute)["queue"]) is waits


@pytest.mark.parametrize(("minute", "since"), [(25, 20), (35, None), (60, 50)])
def test_requeued_job_waits_again(ask_map: Asking, minute: int, since: int | None) -> None:
    changes = [
        *waiting("queued/a/0", 20),
        *waiting("queued/a/0", 20, time_ms=at(30), ended_ms=at(30), phase="Succeeded"),
        *waiting("queued/a/0", 50),
    ]
    rows = ask_map([*cluster(), *changes], minute)["queue"]
    assert [row["waiting_since"] for row in rows] == ([] if since is None else [iso(at(since), UTC)])


def test_pod_without_a_gpu_request_is_not_in_the_queue(ask_map: Asking) -> None:
    assert ask_map([*cluster(), *waiting("a", 20, gpu_share=0), *waiting("b", 20, gpu_share=None)])["queue"] == []


def test_queue_is_limited_and_reports_its_total(ask_map: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_WAITING", cells._WAITING.replace(str(cells.MAX_WAITING), "2"))
    answer = ask_map([*cluster(), *(record for number in range(5) for record in waiting(f"p{number}", number))])
    assert ([row["pod"] for row in answer["queue"]], answer["queue_total"]) == (["p0", "p1"], 5)


# -- as a question ----------------------------------------------------------------------------------------------------


def test_cluster_map_time_accepts_all_time_formats(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *job()])
        covered = build(store, Settings(), now_ms=START_MS + 2 * HOUR)
        assert covered is not None
        moment = iso(at(10.5), ZoneInfo("Asia/Tokyo"))
        for parameters in (
            {"at": moment},
            {"at": moment[:16], "tz": "Asia/Tokyo"},
            {"since": iso(at(0), UTC), "until": iso(at(11), UTC)},
        ):
            assert question("cluster", parameters, Settings())(store, covered)["at_ms"] == at(10)
        with pytest.raises(NotFoundError, match="no data for 2026-11-14"):
            question("cluster", {"at": "2026-11-14"}, Settings())(store, covered)
        before = {"since": "2020-01-01", "until": "2020-01-02"}
        empty = question("cluster", before, Settings())(store, covered)
        assert (empty["at_ms"], empty["pools"], empty["from"]) == (None, [], "2020-01-01T00:00:00Z")
        with pytest.raises(NotFoundError, match="no data for this time range"):
            question("cluster", before | {"at": "2020-01-01 12:00"}, Settings())(store, covered)
        with pytest.raises(TimeRangeError, match="'soon' is not a time"):
            question("cluster", {"at": "soon"}, Settings())
