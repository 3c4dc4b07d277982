"""`preempted` on a small cluster: what was lost by it, and what it took to start again."""

from __future__ import annotations

from datetime import UTC
from functools import partial

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Event, Pod, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import (
    MINUTE,
    all_ranks,
    at,
    cluster,
    event,
    explain,
    interval,
    job,
    minutes,
    pod,
    run,
    samples,
)

BUSY = {"gpu_util_permille": 930, "sm_active_permille": 820, "power_w": 674}
IDLE = {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 110}


found = partial(clusters.findings_of, "preempted")
only = partial(clusters.only_finding, "preempted")


def evicted(minute, name="llama-0", **more):
    return Event(at(minute), "preempted", pod_uid=name, message="preempted by ml/big-0", **more)


def second(started_min, first_step_min, resumed_step, to_min=120):
    """The attempt after it, in pods of its own."""
    pods = [p for n in (0, 1) for p in pod(f"again-{n}", "llama", f"n{n}", from_min=started_min, attempt=2)]
    ranks = run(attempt=2, started_min=started_min + 1, resumed_step=resumed_step)
    windows = all_ranks(first_step_min, to_min, attempt=2, first_step=resumed_step)
    ranks = [r._replace(first_step_ms=at(first_step_min)) for r in ranks]
    return [*pods, *(r._replace(pod_uid=f"again-{r.rank // 2}") for r in (*ranks, *windows))]


def night(*evictions, resumed_step=4000, saved_min=40):
    """Preempted at minute 50, at step 5,000; back at minute 60, with its first step done at minute 68."""
    return [
        *cluster(),
        *job(to_min=50),
        *run(ended_ms=at(50), outcome="killed"),
        *all_ranks(0, 50),
        event("checkpoint_saved", saved_min, 0, step=saved_min * 100),
        *second(60, 68, resumed_step),
        *evictions,
    ]


def test_preempted_claims_lost_work_and_the_next_startup(tmp_path):
    (finding,) = explain(tmp_path, night(evicted(50), evicted(50, "llama-1")))["findings"]
    assert finding["cause"] == "preempted"
    assert interval(finding) == minutes(40, 68)
    assert finding["gpu_ms"] == 4 * (10 + 8) * MINUTE
    assert finding["usd_micro"] == 4 * 18 * 60_000
    assert finding["culprit"] is None
    assert "was preempted at 20:50 and lost 10 min of work" in finding["title"]
    assert finding["evidence"] == [
        "2 of its 2 pods were evicted: preempted by ml/big-0",
        "its last checkpoint was 10 min old",
        "its next attempt started at 21:00 and took 8 min to start",
    ]


def test_preempted_without_lost_steps_begins_with_the_eviction(tmp_path):
    finding = only(explain(tmp_path, night(evicted(50), resumed_step=5000, saved_min=50)))
    assert interval(finding) == minutes(50, 68)
    assert finding["gpu_ms"] == 4 * 8 * MINUTE
    assert "had to start again" in finding["title"]
    assert finding["evidence"][0].startswith("1 of its 2 pods")


@pytest.mark.parametrize("reason", ["Preempted", "Evicted"])
def test_preempted_is_found_by_the_reason_of_a_pods_end(tmp_path, reason):
    records = [
        r._replace(reason=reason, phase="Failed") if isinstance(r, Pod) and r.name == "llama-0" else r for r in night()
    ]
    finding = only(explain(tmp_path, records))
    assert interval(finding) == minutes(40, 68)
    assert finding["evidence"][0] == "1 of its 2 pods were evicted"


def test_restart_for_another_reason_is_not_preempted(tmp_path):
    answer = explain(tmp_path, night())
    assert [f["cause"] for f in answer["findings"]] == ["lost_work"]


def test_eviction_of_another_attempt_is_not_preempted(tmp_path):
    finding = only(explain(tmp_path, night(evicted(50), evicted(119.5, "again-0"))))
    assert interval(finding) == minutes(40, 68)


def test_two_preemptions_are_two_findings(tmp_path):
    first = night(evicted(50), evicted(80, "again-0"))
    first = [
        r._replace(ended_ms=at(80), time_ms=at(80)) if isinstance(r, Pod) and r.name.startswith("again") else r
        for r in first
    ]
    first = [r for r in first if not (hasattr(r, "copy_ms") and r.attempt == 2 and r.to_ms > at(80))]
    pods = [p for n in (0, 1) for p in pod(f"third-{n}", "llama", f"n{n}", from_min=90, attempt=3)]
    ranks = [r._replace(first_step_ms=at(95)) for r in run(attempt=3, started_min=91, resumed_step=4700)]
    windows = all_ranks(95, 120, attempt=3, first_step=4700)
    third = [*pods, *(r._replace(pod_uid=f"third-{r.rank // 2}") for r in (*ranks, *windows))]
    findings = found(explain(tmp_path, [*first, *third]))
    assert sorted(interval(f) for f in findings) == [minutes(40, 68), minutes(75, 95)]
    assert sum(f["gpu_ms"] for f in findings) == 4 * (10 + 8 + 5 + 5) * MINUTE


def test_preemptions_of_two_workloads_are_two_findings(tmp_path):
    other = [
        *(r._replace(node_uid="n2", name="node-2") for r in cluster(nodes=1) if hasattr(r, "gpu_count")),
        Workload(at(0), "test", "bert", "PyTorchJob", "ml", "bert", team="nlp"),
        *pod("bert-0", "bert", "n2", to_min=50),
        *[r._replace(started_ms=at(75)) if isinstance(r, Pod) else r for r in pod("bert-1", "bert", "n2", from_min=55)],
        evicted(50, "bert-0"),
    ]
    findings = found(explain(tmp_path, [*night(evicted(50)), *other]))
    spent = {f["workload"]["name"]: f["gpu_ms"] for f in findings}
    assert spent == {"llama": 4 * 18 * MINUTE, "bert": 2 * 20 * MINUTE}


def test_preempted_without_the_sdk_ends_with_the_first_activity(tmp_path):
    records = [
        *cluster(),
        *job(to_min=50),
        *[p for n in (0, 1) for p in pod(f"again-{n}", "llama", f"n{n}", from_min=60, attempt=2)],
        evicted(50),
        *[s for n in range(4) for s in samples(f"n{n // 2}", n % 2, 0, 50, **BUSY)],
        *[s for n in range(4) for s in samples(f"n{n // 2}", n % 2, 60, 72, **IDLE)],
        *[s for n in range(4) for s in samples(f"n{n // 2}", n % 2, 72, 120, **BUSY)],
    ]
    finding = only(explain(tmp_path, records))
    assert interval(finding) == minutes(50, 72)
    assert finding["gpu_ms"] == 4 * 12 * MINUTE


def test_preempted_without_a_next_attempt_is_not_reported(tmp_path):
    records = [*cluster(), *job(to_min=50), *run(ended_ms=at(50)), *all_ranks(0, 50), evicted(50)]
    assert found(explain(tmp_path, records)) == []


def test_preempted_is_cut_at_the_time_range(tmp_path):
    with Store(tmp_path, create=True) as store:
        store.append(night(evicted(50)))
        build(store, Settings(), now_ms=at(120))
        finding = only(why(store, TimeRange(at(45), at(64)), Settings(), zone=UTC))
        assert interval(finding) == minutes(45, 64)
        assert finding["gpu_ms"] == 4 * (5 + 4) * MINUTE
        assert found(why(store, TimeRange(at(70), at(120)), Settings(), zone=UTC)) == []


def test_preempted_without_prices_has_no_cost(tmp_path):
    finding = only(explain(tmp_path, [r for r in night(evicted(50)) if not isinstance(r, Price)]))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 4 * 18 * MINUTE)
