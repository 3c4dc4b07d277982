"""Runs of trackers: which run or workload each is, and its records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.collect.trackers.common import RunLocation, TrackedPoint, TrackedRun, is_curve, location_of
from pyrometer.identify.runs.tracker_runs import Join, Joiner, TrackerContext
from pyrometer.model.records import Allocation, Event, Metric, Pod, Run, Workload
from tests.support.clusters import at, pod, run

WORKLOADS = [Workload(at(0), "test", uid, "PyTorchJob", "ml", uid) for uid in ("llama", "bert")]


def known(*records, **more) -> TrackerContext:
    kinds = {Pod: [], Allocation: [], Run: []}
    for record in records:
        kinds[type(record)].append(record)
    newest_ms = more.pop("newest_ms", at(600))
    return TrackerContext(
        runs=kinds[Run], pods=kinds[Pod], holds=kinds[Allocation], workloads=WORKLOADS, newest_ms=newest_ms, **more
    )


def tracked(from_min=1, to_min=30.0, *, tracker="mlflow", run_id="abc", **where) -> TrackedRun:
    ended_ms = None if to_min is None else at(to_min)
    outcome = None if to_min is None else "succeeded"
    return TrackedRun(
        tracker, run_id, "bold-carp", "sft", at(from_min), ended_ms, outcome, RunLocation(**where), "words"
    )


GANG = [*pod("llama-0", "llama", "n0"), *pod("llama-1", "llama", "n1")]


@pytest.mark.parametrize(
    ("where", "how"),
    [
        ({"pod_uid": "llama-0"}, "pod"),
        ({"pod_name": "llama-1", "namespace": "ml"}, "pod"),
        ({"host": "llama-0"}, "pod"),  # as in Kubernetes
        ({"workload": "llama"}, "tag"),
        ({"workload": "ml/llama"}, "tag"),
        ({"workload": "PyTorchJob ml/llama"}, "tag"),  # as a stamp has it
        ({"host": "node-0"}, "host"),
    ],
)
def test_tracked_run_has_all_gpus_of_its_workload(where, how):
    joiner = Joiner(known(*GANG, nodes={"n0": "node-0", "n1": "node-1"}))
    one = tracked(**where)
    join = joiner.join(one)
    assert (join.how, join.run) == (how, None)
    records = joiner.records(one, join, [TrackedPoint(at(2), "loss", 0.5, 7)], ())
    runs = [record for record in records if isinstance(record, Run)]
    assert [(r.rank, r.pod_uid, r.node_uid, r.slot_index, r.ranks) for r in runs] == [
        (2 * node + index, f"llama-{node}", f"n{node}", index, 4) for node in (0, 1) for index in (0, 1)
    ]
    assert {(r.workload_uid, r.source, r.outcome, r.experiment) for r in runs} == {
        ("llama", "mlflow", "succeeded", None)
    }
    assert [r for r in records if isinstance(r, Metric)] == [
        Metric(at(2), "abc", 1, 0, "loss", 0.5, 7, source="mlflow")
    ]


def test_join_by_process_comes_first_and_records_nothing_twice():
    joiner = Joiner(known(*GANG, *run(launch="1a2b"), reported={("mlflow_run", "abc"): "run"}))
    points = [TrackedPoint(at(2), "loss", 0.5, 7), TrackedPoint(at(40), "f1", 0.9, 7)]
    one = tracked(pod_uid="elsewhere")
    join = joiner.join(one)
    assert join == Join("process", run="run")
    # the SDK's own metrics are stored already; those of an evaluation are not
    assert joiner.records(one, join, points, (), has={"loss"}) == [
        Metric(at(40), "run", 1, 0, "f1", 0.9, 7, source="mlflow")
    ]
    assert joiner.records(tracked(to_min=None), join, points, (), has={"loss"}) == []  # it may only be late


@pytest.mark.parametrize("where", [{"launch": "1a2b"}, {"run": "run"}, {"host": "llama-0"}, {"workload": "llama"}])
def test_join_by_launch_is_the_run_of_the_sdk(where):
    joiner = Joiner(known(*GANG, *run(launch="1a2b")))
    one = tracked(**where)
    join = joiner.join(one)
    assert (join.run, join.pods) == ("run", ())
    found_events = [record for record in joiner.records(one, join, [], ()) if isinstance(record, Event)]
    assert [(event.kind, event.run, event.reason) for event in found_events] in ([], [("mlflow_run", "run", "abc")])


def test_ambiguous_join_names_all_candidates():
    both = [*pod("llama-0", "llama", "n0", gpus=1), *pod("bert-0", "bert", "n0", gpus=1)]
    joiner = Joiner(known(*both, nodes={"n0": "node-0"}))
    one = tracked(host="node-0")
    join = joiner.join(one)
    assert join == Join(candidates=("ml/bert", "ml/llama"))
    (written,) = (record for record in joiner.records(one, join, [], ()) if isinstance(record, Run))
    assert (written.slot_index, written.workload_uid, written.experiment) == (None, None, "sft")


@pytest.mark.parametrize(
    ("from_min", "joined"), [(1, True), (-4, True), (-30, False), (59, True), (61, False)]
)  # clocks differ by minutes, not by hours
def test_join_by_host_needs_a_live_pod(from_min, joined):
    joiner = Joiner(known(*pod("llama-0", "llama", "n0", to_min=60)))
    assert bool(joiner.join(tracked(from_min, from_min + 0.5, host="llama-0")).pods) is joined


def test_join_by_reused_name_is_the_workload_at_that_time():
    again = Workload(at(0), "test", "uid-2", "PyTorchJob", "ml", "llama")
    elsewhere = Workload(at(0), "test", "uid-3", "PyTorchJob", "other", "llama")
    pods = [*pod("llama-0", "llama", "n0", to_min=60), *pod("b-0", "uid-2", "n0", from_min=100)]
    joiner = Joiner(known(*pods)._replace(workloads=[*WORKLOADS, again, elsewhere]))
    assert [one.pod_uid for one in joiner.join(tracked(workload="llama")).pods] == ["llama-0"]
    assert [one.pod_uid for one in joiner.join(tracked(110, 130, workload="llama")).pods] == ["b-0"]
    assert joiner.join(tracked(70, 80, workload="llama")) == Join()
    pods = [*pod("b-0", "uid-2", "n0"), *pod("c-0", "uid-3", "n1")]
    joiner = Joiner(known(*pods)._replace(workloads=[again, elsewhere]))
    assert len(joiner.join(tracked(workload="llama")).candidates) == 2
    assert [one.pod_uid for one in joiner.join(tracked(workload="llama", namespace="other")).pods] == ["c-0"]


def test_join_by_truncated_host_name_is_ambiguous():
    long = "a" * 63
    pods = [*pod(f"{long}-0", "llama", "n0"), *pod(f"{long}-1", "bert", "n1")]
    joiner = Joiner(known(*pods))
    assert joiner.join(tracked(host=long)).candidates
    assert [one.workload_uid for one in joiner.join(tracked(pod_name=f"{long}-1")).pods] == ["bert"]


def test_run_without_a_place_is_not_joined():
    joiner = Joiner(known(*GANG))
    assert joiner.join(tracked()) == joiner.join(tracked(host="a-laptop")) == Join()


def test_rereading_records_only_the_end():
    joiner = Joiner(known(*GANG))
    going_on, over = tracked(to_min=None, host="llama-0"), tracked(host="llama-0")
    join = joiner.join(going_on)
    first = [r for r in joiner.records(going_on, join, [], ()) if isinstance(r, Run)]
    assert joiner.records(going_on, join, [], first) == []
    second = [r for r in joiner.records(over, join, [], first) if isinstance(r, Run)]
    assert [r.time_ms for r in second] == [r.time_ms + 1 for r in first]
    assert {(r.ended_ms, r.outcome) for r in second} == {(at(30), "succeeded")}


def test_second_attempt_of_a_workload_is_one_of_the_run():
    attempts = [
        *pod("llama-0", "llama", "n0", gpus=1, to_min=10),
        *pod("llama-1", "llama", "n1", gpus=1, from_min=12, attempt=2),
    ]
    joiner = Joiner(known(*attempts))
    one = tracked(host="llama-0")
    points = [TrackedPoint(at(minute), "loss", 0.5, minute) for minute in (5, 20)]
    records = joiner.records(one, joiner.join(one), points, ())
    runs = [(r.attempt, r.started_ms, r.ended_ms, r.outcome) for r in records if isinstance(r, Run)]
    assert runs == [(1, at(1), at(10), None), (2, at(12), at(30), "succeeded")]
    assert [(m.attempt, m.step) for m in records if isinstance(m, Metric)] == [(1, 5), (2, 20)]


def test_run_in_an_empty_folder_gets_the_gpus_of_its_machine():
    joiner = Joiner(known(newest_ms=None))
    one = tracked(host="box", gpus=2, gpu_model="NVIDIA H100 80GB HBM3")
    records = joiner.records(one, joiner.join(one), [], ())
    holds = [record for record in records if isinstance(record, Allocation)]
    assert [(h.node_uid, h.slot_index, h.from_ms, h.to_ms, h.source) for h in holds] == [
        ("host/box", index, at(1), at(30), "mlflow") for index in (0, 1)
    ]
    bare = tracked(host="box")
    (hold,) = (r for r in joiner.records(bare, joiner.join(bare), [], ()) if isinstance(r, Allocation))
    assert hold.node_uid == "cpu:box:abc:0"


def test_join_reads_all_tags_of_a_place():
    where = location_of({"POD_NAME": "a", "k8s.pod.name": "b", "pyrometer.launch": "c", "host": ""}, host="d")
    assert (where.pod_name, where.launch, where.host) == ("b", "c", "d")
    assert str(where) == "launch c, pod_name b, host d"
    assert str(RunLocation()) == "no location"


def test_own_and_system_metrics_are_not_curves():
    names = ("loss", "pyrometer/usd", "system/gpu_0_power", "system.cpu", "_step", "x" * 201, "")
    assert [name for name in names if is_curve(name)] == ["loss"]


@given(st.data())
def test_tracked_run_gets_only_gpus_its_workload_held(data):
    spans = data.draw(
        st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50), st.sampled_from(["llama", "bert"])), max_size=6)
    )
    pods = [
        record
        for number, (begin, length, owner) in enumerate(spans)
        for record in pod(f"{owner}-{number}", owner, f"n{number}", from_min=begin, to_min=begin + length)
    ]
    joiner = Joiner(known(*pods))
    begin, length = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 60))
    one = tracked(begin, begin + length, workload=data.draw(st.sampled_from(["llama", "bert"])))
    join = joiner.join(one)
    runs = [r for r in joiner.records(one, join, [], ()) if isinstance(r, Run) and r.slot_index is not None]
    holds = {(h.pod_uid, h.node_uid, h.slot_index): h for h in pods if isinstance(h, Allocation)}
    for record in runs:
        hold = holds[record.pod_uid, record.node_uid, record.slot_index]
        assert record.workload_uid == one.where.workload
        assert hold.from_ms <= record.started_ms <= one.ended_ms
        assert hold.to_ms > one.started_ms
    assert len({(r.node_uid, r.slot_index) for r in runs}) == len(runs)
    assert len({(r.attempt, r.rank) for r in runs}) == len(runs)
