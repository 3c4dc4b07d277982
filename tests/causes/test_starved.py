"""`starved`: gaps in the work of GPUs that recur, as telemetry alone shows them."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import GpuSample, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import MINUTE, START_MS, at, cluster, explain, job, minutes, pod

IDLE = {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 110}
BUSY = {"gpu_util_permille": 900, "sm_active_permille": 700, "power_w": 500}


def watched(idle, *, nodes=(0,), gpus=2, to_min=120):
    """A sample a minute; `idle` says of a minute whether nothing works in it."""
    return [
        GpuSample(at(minute), f"n{node}", gpu, **(IDLE if minute and idle(minute) else BUSY))
        for node in nodes
        for gpu in range(gpus)
        for minute in range(to_min)
    ]


def recurring(from_min, to_min, every=5, long=2):
    return lambda minute: from_min <= minute < to_min and (minute - from_min) % every < long


def only(answer):
    (finding,) = answer["findings"]
    assert finding["cause"] == "starved"
    return finding


def test_recurring_gaps_are_one_starved_finding(tmp_path):
    finding = only(explain(tmp_path, [*cluster(nodes=1), *job(pods=1), *watched(recurring(30, 90))]))
    assert (finding["from"], finding["to"]) == minutes(30, 87)  # the last of twelve gaps ends
    assert finding["gpu_ms"] == 2 * 12 * 2 * MINUTE
    assert finding["usd_micro"] == finding["gpu_ms"]
    assert finding["culprit"] is None
    assert finding["evidence"] == ["its GPUs were busy 58% of the time", "about 12 gaps of 2 min on each of 2 GPUs"]


@pytest.mark.parametrize("idle", [recurring(1, 120, every=40, long=1), recurring(10, 14, long=4), recurring(0, 0)])
def test_few_pauses_are_not_starved(tmp_path, idle):
    assert explain(tmp_path, [*cluster(nodes=1), *job(pods=1), *watched(idle)])["findings"] == []


def test_sparse_pauses_do_not_extend_a_starved_finding(tmp_path):
    """A save every 25 minutes all the time, and half an hour of gaps."""
    dense = recurring(61, 91, every=3, long=1)
    finding = only(explain(tmp_path, [*cluster(nodes=1), *job(pods=1), *watched(lambda m: m % 25 == 20 or dense(m))]))
    assert (finding["from"], finding["to"]) == minutes(61, 96)  # one save is near enough to belong to it


def test_long_pauses_that_recur_slowly_are_starved(tmp_path):
    finding = only(explain(tmp_path, [*cluster(nodes=1), *job(pods=1), *watched(recurring(20, 120, every=25, long=6))]))
    assert (finding["from"], finding["to"]) == minutes(20, 101)
    assert "about 4 gaps of 6 min on each of 2 GPUs" in finding["evidence"]


@pytest.mark.parametrize(("kind", "serves"), [("Notebook", False), ("Deployment", True)])
def test_interactive_or_serving_workload_is_not_starved(tmp_path, kind, serves):
    other = [Workload(START_MS, "test", "nb", kind, "ml", "nb", team="cv", serves=serves), *pod("nb-0", "nb", "n1")]
    records = [*cluster(), *other, *watched(recurring(30, 90), nodes=(1,))]
    assert explain(tmp_path, records)["findings"] == []


def test_starved_workloads_are_separate_findings(tmp_path):
    other = [Workload(START_MS, "test", "nb", "Job", "ml", "nb", team="cv"), *pod("nb-0", "nb", "n1")]
    records = [*cluster(), *job(pods=1), *other, *watched(recurring(30, 90), nodes=(0, 1))]
    found = explain(tmp_path, records)["findings"]
    assert sorted(f["workload"]["name"] for f in found) == ["llama", "nb"]


def test_two_starved_periods_are_two_findings(tmp_path):
    first, second = recurring(5, 35, every=3), recurring(85, 115, every=3)
    found = explain(tmp_path, [*cluster(nodes=1), *job(pods=1), *watched(lambda m: first(m) or second(m))])["findings"]
    assert sorted((f["from"], f["to"]) for f in found) == [minutes(5, 34), minutes(85, 114)]


def test_starved_is_cut_at_the_time_range(tmp_path):
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(nodes=1), *job(pods=1), *watched(recurring(30, 90))])
        build(store, Settings(), now_ms=at(120))
        finding = only(why(store, TimeRange(at(50), at(120)), Settings(), zone=UTC))
    assert (finding["from"], finding["to"]) == minutes(50, 87)


def test_starved_without_prices_has_no_cost(tmp_path):
    records = [r for r in cluster(nodes=1) if not isinstance(r, Price)]
    finding = only(explain(tmp_path, [*records, *job(pods=1), *watched(recurring(30, 90))]))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 2 * 24 * MINUTE)


def test_starved_needs_telemetry(tmp_path):
    causes = {f["cause"] for f in explain(tmp_path, [*cluster(nodes=1), *job(pods=1)])["findings"]}
    assert "starved" not in causes
