"""`telemetry_lost`: found where a source stopped, silent where there never was one."""

from __future__ import annotations

from datetime import UTC
from random import Random

import pytest

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import GpuSample, Node, Price
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import at, cluster, event, explain, interval, job, minutes, pod, run, samples, steps

BUSY = {"gpu_util_permille": 900, "sm_active_permille": 700, "power_w": 500}
MINUTE = clusters.MINUTE


def sampled(node, *spans, slots=(0, 1), **values):
    return [s for slot in slots for span in spans for s in samples(node, slot, *span, **(values or BUSY))]


def only(answer):
    (finding,) = answer["findings"]
    assert finding["cause"] == "telemetry_lost"
    return finding


def test_healthy_night_has_no_lost_telemetry(tmp_path):
    records = [*cluster(), *job(), *sampled("n0", (0, 120)), *sampled("n1", (0, 120))]
    assert explain(tmp_path, records)["findings"] == []


def test_silent_node_has_lost_telemetry(tmp_path):
    records = [*cluster(), *job(), *sampled("n0", (0, 120)), *sampled("n1", (0, 30), (70, 120))]
    finding = only(explain(tmp_path, records))
    assert finding["culprit"] == {"node": "node-1"}
    assert (finding["workload"], finding["team"]) == (None, "platform")
    assert interval(finding) == minutes(29, 70)  # from the last sample to the next; it speaks for a minute
    assert finding["gpu_ms"] == 2 * 40 * MINUTE
    assert finding["usd_micro"] == 2 * 40 * 60_000
    assert finding["title"] == "node-1 sent no GPU telemetry for 41 min, since 20:29"
    assert finding["evidence"][0] == "GPU telemetry arrived every 1 min until 20:29 and resumed at 21:10"
    assert finding["evidence"][1] == "2 GPUs of llama-1 were held at the time"


def test_lost_telemetry_lasts_to_the_end_without_new_samples(tmp_path):
    records = [*cluster(), *job(), *sampled("n0", (0, 120)), *sampled("n1", (0, 30))]
    finding = only(explain(tmp_path, records))
    assert interval(finding) == minutes(29, 120)
    assert "came again" not in finding["evidence"][0]


def test_nodes_that_fall_silent_together_are_one_finding(tmp_path):
    records = [*cluster(), *job(), *sampled("n0", (0, 30), (70, 120)), *sampled("n1", (0, 31), (70, 120))]
    finding = only(explain(tmp_path, records))
    assert finding["culprit"] == {"nodes": ["node-0", "node-1"]}
    assert interval(finding) == minutes(29, 70)
    assert finding["gpu_ms"] == (2 * 40 + 2 * 39) * MINUTE
    assert finding["title"].startswith("node-0 and node-1 sent no GPU telemetry")


def test_nodes_that_fall_silent_at_different_times_are_two_findings(tmp_path):
    records = [*cluster(), *job(), *sampled("n0", (0, 30), (70, 120)), *sampled("n1", (0, 80))]
    found = explain(tmp_path, records)["findings"]
    assert [finding["culprit"] for finding in found] == [{"node": "node-0"}, {"node": "node-1"}]
    assert [interval(finding) for finding in found] == [minutes(29, 70), minutes(79, 120)]


def test_two_gaps_of_a_node_are_two_findings(tmp_path):
    records = [*cluster(), *job(), *sampled("n0", (0, 120)), *sampled("n1", (0, 20), (50, 60), (90, 120))]
    assert sorted(map(interval, explain(tmp_path, records)["findings"])) == [minutes(19, 50), minutes(59, 90)]


@pytest.mark.parametrize(("back_min", "lost"), [(33, False), (36, True)])
def test_short_gap_is_not_lost_telemetry(tmp_path, back_min, lost):
    settings = Settings(finding_min_usd_micro=0)
    records = [*cluster(), *job(), *sampled("n0", (0, 120)), *sampled("n1", (0, 30), (back_min, 120))]
    assert bool(explain(tmp_path, records, settings=settings)["findings"]) == lost


def test_node_without_any_telemetry_has_not_lost_it(tmp_path):
    answer = explain(tmp_path, [*cluster(), *job()])
    assert {row["state"] for row in answer["states"]} == {"unobserved"}
    assert answer["findings"] == []


def test_time_before_the_first_sample_is_not_lost_telemetry(tmp_path):
    records = [*cluster(), *job(), *sampled("n0", (0, 120)), *sampled("n1", (60, 120))]
    assert explain(tmp_path, records)["findings"] == []


def test_empty_samples_are_not_telemetry(tmp_path):
    silent = sampled("n1", (30, 70), temperature_c=40)
    records = [*cluster(), *job(), *sampled("n0", (0, 120)), *sampled("n1", (0, 30), (70, 120)), *silent]
    assert interval(only(explain(tmp_path, records))) == minutes(29, 70)


def test_rare_samples_are_not_lost_telemetry(tmp_path):
    rare = [
        GpuSample(at(minute), f"n{n}", slot, **BUSY) for n in (0, 1) for slot in (0, 1) for minute in range(0, 120, 8)
    ]
    answer = explain(tmp_path, [*cluster(), *job(), *rare])
    assert "unobserved" in {row["state"] for row in answer["states"]}
    assert answer["findings"] == []


def test_pod_with_reported_steps_is_observed(tmp_path):
    windows = [w for rank in range(4) for w in steps(rank, 0, 120, forward_ms=60_000)]
    records = [*cluster(), *job(), *run(), *windows, *sampled("n0", (0, 120)), *sampled("n1", (0, 30))]
    assert explain(tmp_path, records)["findings"] == []


def test_pod_that_starts_in_a_gap_is_claimed_from_its_start(tmp_path):
    records = [*cluster(), *pod("late", None, "n1", from_min=60), *sampled("n0", (0, 120)), *sampled("n1", (0, 30))]
    finding = only(explain(tmp_path, records))
    assert interval(finding) == minutes(60, 120)
    assert finding["gpu_ms"] == 2 * 60 * MINUTE


def test_free_gpus_in_a_gap_cost_nothing(tmp_path):
    records = [*cluster(), *job(pods=1), *sampled("n0", (0, 120)), *sampled("n1", (0, 30))]
    assert explain(tmp_path, records)["findings"] == []


def test_lost_telemetry_of_one_gpu_names_the_gpu(tmp_path):
    one = sampled("n1", (0, 120), slots=(0,)) + sampled("n1", (0, 30), slots=(1,))
    finding = only(explain(tmp_path, [*cluster(), *job(), *sampled("n0", (0, 120)), *one]))
    assert finding["culprit"] == {"node": "node-1", "gpu": 1}
    assert finding["gpu_ms"] == 90 * MINUTE


def test_node_that_is_not_ready_is_not_lost_telemetry(tmp_path):
    away = Node(at(31), "test", "n1", "node-1", 2, "Test GPU", pool="pool", ready=False)
    records = [*cluster(), away, *job(), *sampled("n0", (0, 120)), *sampled("n1", (0, 30))]
    assert explain(tmp_path, records)["findings"] == []


def test_silent_sdk_is_lost_telemetry(tmp_path):
    windows = [w for rank in range(4) for w in steps(rank, 0, 120 if rank < 2 else 50, forward_ms=60_000)]
    finding = only(explain(tmp_path, [*cluster(), *job(), *run(), *windows]))
    assert finding["culprit"] == {"node": "node-1"}
    assert interval(finding) == minutes(50, 120)
    assert finding["gpu_ms"] == 2 * 70 * MINUTE
    assert "sent no steps from the SDK for 1 h 10 min" in finding["title"]
    assert finding["confidence"] < 0.9


def test_silent_rank_with_hung_peers_is_not_lost_telemetry(tmp_path):
    windows = [w for rank in range(4) for w in steps(rank, 0, 50, forward_ms=60_000)]
    reports = [event("stuck", 50, rank) for rank in (0, 1, 2)]
    answer = explain(tmp_path, [*cluster(), *job(), *run(), *windows, *reports])
    assert {row["state"]: row["gpu_ms"] for row in answer["states"]} == {
        "train": 4 * 50 * MINUTE,
        "hang": 4 * 70 * MINUTE,
    }
    assert [finding["cause"] for finding in answer["findings"]] == ["hang"]


def test_silent_rank_with_active_peers_is_not_hung(tmp_path):
    windows = [w for rank in (1, 2) for w in steps(rank, 0, 120, forward_ms=60_000)]
    windows += [*steps(0, 0, 100, forward_ms=60_000), *steps(3, 0, 50, forward_ms=60_000)]
    answer = explain(tmp_path, [*cluster(), *job(), *run(), *windows, event("stuck", 100, 0)])
    states = {row["state"]: row["gpu_ms"] for row in answer["states"]}
    assert states["hang"] == 20 * MINUTE  # rank 0's own
    assert states["unobserved"] == 70 * MINUTE


def test_steps_of_another_pod_are_not_a_source_of_this_pod(tmp_path):
    windows = [w for rank in (0, 1) for w in steps(rank, 0, 30, forward_ms=60_000)]
    other = pod("other", None, "n0", from_min=31)
    records = [*cluster(), *job(pods=1, to_min=30), *run(ranks=2, ended_ms=at(30)), *windows, *other]
    assert explain(tmp_path, records)["findings"] == []


def test_lost_telemetry_without_prices_is_found(tmp_path):
    records = [r for r in cluster() if not isinstance(r, Price)]
    records += [*job(), *sampled("n0", (0, 120)), *sampled("n1", (0, 30))]
    finding = only(explain(tmp_path, records))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 2 * 90 * MINUTE)


@pytest.mark.parametrize(("from_min", "to_min"), [(200, 260), (300, 420)])
def test_lost_telemetry_before_the_time_range_is_found(tmp_path, from_min, to_min):
    records = [*cluster(hours=8), *job(), *sampled("n0", (0, 480)), *sampled("n1", (0, 30), (400, 480))]
    explain(tmp_path, records, hours=8)
    window = TimeRange(at(from_min), at(to_min))
    with Store(tmp_path) as store:
        finding = only(why(store, window, Settings(), zone=UTC))
    assert interval(finding) == minutes(from_min, min(to_min, 400))
    assert finding["gpu_ms"] == 2 * (min(to_min, 400) - from_min) * MINUTE


# -- what a source loses by chance, and what it does not -------------------------------------------------------------

GPUS, HOURS = 4, 4
GAPS = {"none": None, "node, 10 min": 10, "node, 1 h": 60, "GPU, 10 min": 10, "GPU, 1 h": 60}


def thinned(seed, node, every_s, lost, gap):
    """Samples of a node's GPUs without those lost by chance and those in a gap; and when the gap should be seen."""
    drawn = Random(f"{seed} {node} {every_s} {lost}")
    length_min = GAPS[gap]
    begins = at(30 + 10 * node + drawn.random()) if length_min else 0
    ends = begins + (length_min or 0) * MINUTE
    silent = range(GPUS) if gap.startswith("node") else range(1, 2)
    kept = []
    for slot in range(GPUS):
        offset = drawn.randrange(2000)
        for time_ms in range(at(0) + offset, at(60 * HOURS), every_s * 1000):
            in_gap = length_min and slot in silent and begins <= time_ms < ends
            if drawn.random() >= lost and not in_gap:
                kept.append(GpuSample(time_ms, f"n{node}", slot, **BUSY))
    own = [sample.time_ms for sample in kept if sample.slot_index in silent]
    last = max((ms for ms in own if ms < begins), default=None)
    return kept, (last, min(ms for ms in own if ms >= ends)) if length_min else None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("every_s", [15, 30, 60, 120])
def test_only_real_gaps_are_lost_telemetry(tmp_path, every_s, seed):
    """With none, a twentieth or a fifth of the samples lost; each of the planted gaps on a node of its own."""
    cases = [(lost, gap) for lost in (0, 0.05, 0.2) for gap in GAPS]
    records = cluster(hours=HOURS, nodes=len(cases), gpus=GPUS)
    planted = {}
    for node, (lost, gap) in enumerate(cases):
        kept, times = thinned(seed, node, every_s, lost, gap)
        records += [*pod(f"pod-{node}", None, f"n{node}", gpus=GPUS), *kept]
        if times:
            gpu = {"gpu": 1} if gap.startswith("GPU") else {}
            planted[f"node-{node}", gpu.get("gpu")] = (lost, gap, times)
    answer = explain(tmp_path, records, hours=HOURS, settings=Settings(finding_min_usd_micro=0))
    found = {
        (finding["culprit"]["node"], finding["culprit"].get("gpu")): interval(finding)
        for finding in answer["findings"]
        if finding["cause"] == "telemetry_lost"
    }
    assert len(found) == len(answer["findings"])
    assert found.keys() <= planted.keys()
    for place, (lost, gap, times) in planted.items():
        if place in found:
            assert found[place] == tuple(iso(ms, UTC) for ms in times)
        else:  # ten minutes of one GPU are then no more than what it loses now and then
            assert gap == "GPU, 10 min"
            assert (every_s, lost) in {(60, 0.2), (120, 0.05), (120, 0.2)}


@pytest.mark.parametrize("every_s", [15, 60, 120, 300])
def test_changed_sample_interval_is_not_a_gap(tmp_path, every_s):
    samples_of = [
        GpuSample(ms, f"n{node}", slot, **BUSY)
        for node in (0, 1)
        for slot in (0, 1)
        for ms in (*range(at(0), at(60), 15_000), *range(at(60), at(240), every_s * 1000))
    ]
    assert explain(tmp_path, [*cluster(hours=4), *job(), *samples_of], hours=4)["findings"] == []


def test_one_of_two_exporters_is_sufficient(tmp_path):
    doubled = sampled("n1", (0, 120)) + [s._replace(time_ms=s.time_ms + 20_000) for s in sampled("n1", (0, 30))]
    assert explain(tmp_path, [*cluster(), *job(), *sampled("n0", (0, 120)), *doubled])["findings"] == []


def test_missing_field_is_not_a_gap(tmp_path):
    some = sampled("n1", (0, 30)) + sampled("n1", (30, 120), sm_active_permille=700)
    assert explain(tmp_path, [*cluster(), *job(), *sampled("n0", (0, 120)), *some])["findings"] == []


def test_gpus_with_separate_gaps_are_two_findings(tmp_path):
    apart = sampled("n1", (0, 30), (70, 120), slots=(0,)) + sampled("n1", (0, 60), (100, 120), slots=(1,))
    found = explain(tmp_path, [*cluster(), *job(), *sampled("n0", (0, 120)), *apart])["findings"]
    assert sorted((interval(one), one["culprit"]["gpu"], one["gpu_ms"]) for one in found) == [
        (minutes(29, 70), 0, 40 * MINUTE),
        (minutes(59, 100), 1, 40 * MINUTE),
    ]


@pytest.mark.parametrize("every_s", [60, 120])
@pytest.mark.parametrize("back_min", [None, 100])
def test_lost_telemetry_begins_after_the_last_sample_at_any_interval(tmp_path, every_s, back_min):
    times = [*range(at(0), at(40), every_s * 1000)] + (
        [*range(at(back_min), at(120), every_s * 1000)] if back_min else []
    )
    samples_of = [GpuSample(ms, "n1", slot, **BUSY) for slot in (0, 1) for ms in times]
    usual = [GpuSample(ms, "n0", slot, **BUSY) for slot in (0, 1) for ms in range(at(0), at(120), every_s * 1000)]
    finding = only(explain(tmp_path, [*cluster(), *job(), *samples_of, *usual]))
    assert interval(finding) == minutes(40 - every_s / 60, back_min or 120)
