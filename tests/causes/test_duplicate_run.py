"""`duplicate_run`: the same training twice is found; a retry, a resume and another seed are not."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Event, Metric, Price, Run, StepWindow, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import at, cluster, explain, interval, minutes, pod

MINUTE = clusters.MINUTE


def training(
    name, node, *, digest="d1", from_min=0, ended_min=None, outcome=None, run=None, workload=None, attempt=1, **more
):
    """A workload of one pod with two GPUs, and its run: one window per minute until it ends."""
    owner, run = workload or name, run or f"run-{name}"
    place = {"node_uid": node, "pod_uid": f"{name}-0"}
    records = [
        Workload(clusters.START_MS, "test", owner, "PyTorchJob", "ml", owner, team="nlp", experiment="sft"),
        *pod(f"{name}-0", owner, node, from_min=from_min, to_min=ended_min),
    ]
    for rank in (0, 1):
        where = place | {"slot_index": rank}
        ended = None if ended_min is None else at(ended_min)
        records += [
            Run(
                at(ended_min or from_min),
                run,
                attempt,
                rank,
                at(from_min),
                ranks=2,
                workload_uid=owner,
                first_step_ms=at(from_min),
                ended_ms=ended,
                outcome=outcome,
                **where,
                **more,
            ),
            *(
                StepWindow(at(m), at(m + 1), run, attempt, rank, first_step=100 * m, steps=100, **where)
                for m in range(from_min, 120 if ended_min is None else ended_min)
            ),
        ]
        if digest is not None:
            records.append(Event(at(from_min), "configured", run=run, attempt=attempt, rank=rank, reason=digest))
    return records


def only(answer):
    (finding,) = answer["findings"]
    assert finding["cause"] == "duplicate_run"
    return finding


def test_later_of_two_equal_runs_is_the_duplicate(tmp_path):
    finding = only(explain(tmp_path, [*cluster(), *training("one", "n0"), *training("two", "n1", from_min=20)]))
    assert finding["workload"]["uid"] == "two"
    assert finding["culprit"] == {"run": "run-one"}
    assert interval(finding) == minutes(20, 120)
    assert finding["gpu_ms"] == 2 * 100 * MINUTE
    assert finding["usd_micro"] == 2 * 100 * 60_000
    assert finding["title"] == "two trained the same as one for 1 h 40 min, from 20:20"
    assert finding["evidence"] == [
        "runs run-two and run-one have the same configuration, dataset and seed",
        "one started at 20:00 and is still running",
    ]


@pytest.mark.parametrize("digest", ["d2", None, ""])
def test_run_with_another_or_no_configuration_is_not_a_duplicate(tmp_path, digest):
    records = [*training("one", "n0", digest=digest and "d1"), *training("two", "n1", digest=digest, from_min=20)]
    assert explain(tmp_path, [*cluster(), *records])["findings"] == []


def test_run_after_a_successful_equal_run_is_a_duplicate(tmp_path):
    done = training("one", "n0", ended_min=30, outcome="succeeded")
    finding = only(explain(tmp_path, [*cluster(), *done, *training("two", "n1", from_min=40)]))
    assert interval(finding) == minutes(40, 120)
    assert finding["evidence"][1] == "one started at 20:00 and succeeded at 20:30"


@pytest.mark.parametrize("outcome", ["failed", "killed", None])
def test_run_after_a_failed_equal_run_is_not_a_duplicate(tmp_path, outcome):
    failed = training("one", "n0", ended_min=30, outcome=outcome)
    assert explain(tmp_path, [*cluster(), *failed, *training("two", "n1", from_min=40)])["findings"] == []


def test_duplicate_ends_when_the_earlier_run_fails(tmp_path):
    failed = training("one", "n0", ended_min=70, outcome="failed")
    finding = only(explain(tmp_path, [*cluster(), *failed, *training("two", "n1", from_min=20)]))
    assert interval(finding) == minutes(20, 70)
    assert finding["gpu_ms"] == 2 * 50 * MINUTE


def test_another_attempt_of_a_run_is_not_a_duplicate(tmp_path):
    first = training("one", "n0", ended_min=30, outcome="succeeded", run="run")
    again = training("two", "n1", from_min=40, run="run", attempt=2)
    assert explain(tmp_path, [*cluster(), *first, *again])["findings"] == []


def test_another_run_of_the_same_workload_is_not_a_duplicate(tmp_path):
    first = training("one", "n0", workload="both")
    assert (
        explain(tmp_path, [*cluster(), *first, *training("two", "n1", workload="both", from_min=40)])["findings"] == []
    )


def test_run_that_resumes_from_a_checkpoint_is_not_a_duplicate(tmp_path):
    first = training("one", "n0", ended_min=30, outcome="succeeded")
    on = training("two", "n1", from_min=40, resumed_step=3000)
    assert explain(tmp_path, [*cluster(), *first, *on])["findings"] == []


def test_three_equal_runs_have_two_duplicates(tmp_path):
    records = [
        *cluster(nodes=3),
        *training("one", "n0", ended_min=10, outcome="failed"),
        *training("two", "n1", from_min=20),
        *training("three", "n2", from_min=30),
    ]
    finding = only(explain(tmp_path, records))
    assert (finding["workload"]["uid"], finding["culprit"]) == ("three", {"run": "run-two"})


def test_two_pairs_of_equal_runs_have_two_duplicates(tmp_path):
    records = [
        *cluster(nodes=4),
        *training("a", "n0"),
        *training("b", "n1", from_min=20),
        *training("c", "n2", digest="d2"),
        *training("d", "n3", digest="d2", from_min=30),
    ]
    found = {finding["workload"]["uid"]: finding["culprit"] for finding in explain(tmp_path, records)["findings"]}
    assert found == {"b": {"run": "run-a"}, "d": {"run": "run-c"}}


def test_run_without_steps_is_not_a_duplicate(tmp_path):
    records = [*cluster(), *training("one", "n0"), *training("two", "n1", from_min=20)]
    records = [r for r in records if not (isinstance(r, StepWindow) and r.run == "run-two")]
    assert "duplicate_run" not in {finding["cause"] for finding in explain(tmp_path, records)["findings"]}


@pytest.mark.parametrize(("from_min", "to_min"), [(0, 60), (50, 100), (60, 120)])
def test_duplicate_run_is_cut_at_the_time_range(tmp_path, from_min, to_min):
    explain(tmp_path, [*cluster(), *training("one", "n0"), *training("two", "n1", from_min=20)])
    with Store(tmp_path) as store:
        finding = only(why(store, TimeRange(at(from_min), at(to_min)), Settings(), zone=UTC))
    assert interval(finding) == minutes(max(20, from_min), to_min)
    assert finding["gpu_ms"] == 2 * (to_min - max(20, from_min)) * MINUTE


def test_duplicate_run_is_not_found_before_its_start(tmp_path):
    explain(tmp_path, [*cluster(), *training("one", "n0"), *training("two", "n1", from_min=70)])
    with Store(tmp_path) as store:
        assert why(store, TimeRange(at(0), at(60)), Settings(), zone=UTC)["findings"] == []


def test_duplicate_run_without_prices_is_found(tmp_path):
    records = [r for r in cluster() if not isinstance(r, Price)]
    finding = only(explain(tmp_path, [*records, *training("one", "n0"), *training("two", "n1", from_min=20)]))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 2 * 100 * MINUTE)


def losses(name, *values):
    return [
        Metric(at(20) + step, f"run-{name}", 1, 0, "train/loss", value, step, "min")
        for step, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ((3.0, 2.5, 2.2), "their first 3 losses are identical"),
        ((3.0, 2.5, 2.2011), "their first 3 losses differ by at most 0.05%"),
        ((3.0, 2.7, 2.6), None),  # something unrecorded was different
    ],
)
def test_duplicate_run_is_confirmed_or_ruled_out_by_its_losses(tmp_path, values, sentence):
    records = [*training("one", "n0"), *training("two", "n1", from_min=20), *losses("one", 3.0, 2.5, 2.2)]
    answer = explain(tmp_path, [*cluster(), *records, *losses("two", *values)])
    assert [finding["evidence"][1] for finding in answer["findings"]] == ([sentence] if sentence else [])
