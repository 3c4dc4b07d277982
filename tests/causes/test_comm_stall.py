"""`comm_stall`: what lies beyond the communication that a run, or runs of its size, usually have."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Price, Run, StepWindow
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import MINUTE, at, cluster, explain, minutes, two_ranks_per_node


def trains(name, comm, *, nodes=(0, 1), hours=2, steps=lambda minute: 100):
    """A job of two GPUs per node; `comm` returns the milliseconds of communication in a minute of a rank."""
    records = []
    for rank, place, there in two_ranks_per_node(name, nodes):
        records += there
        records += [
            StepWindow(
                at(minute),
                at(minute + 1),
                name,
                1,
                rank,
                first_step=1000 * minute,
                steps=steps(minute),
                comm_ms=comm(minute),
                **place,
            )
            for minute in range(60 * hours)
        ]
    return records


def between(from_min, to_min, high, low):
    """Noisy by a second either way, as communication is."""
    return lambda minute: (high if from_min <= minute < to_min else low) + (minute * 7919 % 2001 - 1000)


def only(answer):
    (finding,) = answer["findings"]
    assert finding["cause"] == "comm_stall"
    return finding


def test_comm_stall_is_the_rise_over_the_usual_share_of_the_run(tmp_path):
    finding = only(explain(tmp_path, [*cluster(), *trains("llama", lambda m: 24_000 if 30 <= m < 70 else 6_000)]))
    assert (finding["from"], finding["to"]) == minutes(30, 70)
    # 54 s of computing go with 6 s of communication: 36 s with 4 s; the other 20 of 24 s are the excess
    assert finding["gpu_ms"] == 4 * 40 * 24_000 * 833 // 1000
    assert finding["usd_micro"] == finding["gpu_ms"]
    assert finding["culprit"] is None
    assert finding["evidence"][0] == "all ranks spent 40% of their step time in communication, 10% at other times"
    assert finding["evidence"][1].startswith("4 GPUs on 2 nodes")


def test_steps_with_less_computing_are_not_a_comm_stall(tmp_path):
    """From then on a step takes 276 ms instead of 600: of its 60 ms of communication none is longer."""
    comm, steps = (lambda m: 6_000 if m < 40 else 13_040), (lambda m: 100 if m < 40 else 217)
    assert explain(tmp_path / "less", [*cluster(), *trains("llama", comm, steps=steps)])["findings"] == []
    assert only(explain(tmp_path / "slow", [*cluster(), *trains("llama", comm)]))


@pytest.mark.parametrize("comm", [3_000, 6_000, 15_000])
def test_noise_is_not_a_comm_stall(tmp_path, comm):
    assert explain(tmp_path, [*cluster(), *trains("llama", between(0, 0, 0, comm))])["findings"] == []


def test_run_with_varying_communication_has_no_comm_stall(tmp_path):
    varies = [3_000, 9_000, 5_000, 14_000, 4_000, 11_000, 7_000]
    assert explain(tmp_path, [*cluster(), *trains("llama", lambda minute: varies[minute * 5 % 7])])["findings"] == []


@pytest.mark.parametrize(("from_min", "to_min"), [(0, 40), (80, 120), (5, 115)])
def test_comm_stall_is_found_with_a_baseline_before_or_after_only(tmp_path, from_min, to_min):
    finding = only(explain(tmp_path, [*cluster(), *trains("llama", between(from_min, to_min, 18_000, 5_000))]))
    assert (finding["from"], finding["to"]) == minutes(from_min, to_min)


def test_long_small_rise_is_a_comm_stall(tmp_path):
    """Steps take a fifth longer: 10% of communication become a quarter."""
    finding = only(explain(tmp_path, [*cluster(), *trains("llama", between(40, 80, 15_000, 6_000))]))
    assert (finding["from"], finding["to"]) == minutes(40, 80)
    assert finding["gpu_ms"] == pytest.approx(4 * 40 * 10_000, rel=0.03)  # 45 s of computing go with 5 s


def test_short_rise_is_not_a_comm_stall(tmp_path):
    assert explain(tmp_path, [*cluster(), *trains("llama", between(40, 43, 40_000, 6_000))])["findings"] == []


def test_comm_stall_is_cut_at_the_time_range(tmp_path):
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *trains("llama", between(30, 70, 24_000, 6_000))])
        build(store, Settings(), now_ms=at(120))
        finding = only(why(store, TimeRange(at(50), at(120)), Settings(), zone=UTC))
    assert (finding["from"], finding["to"]) == minutes(50, 70)


class TestHighAllTheTime:
    def fleet(self, number=4):
        return [
            record
            for i in range(number)
            for record in trains(f"job-{i}", between(0, 0, 0, 5_000 + 500 * i), nodes=(2 + 2 * i, 3 + 2 * i))
        ]

    def test_comm_stall_is_measured_against_runs_of_the_same_size(self, tmp_path):
        records = [*cluster(nodes=10), *self.fleet(), *trains("llama", between(0, 0, 0, 18_000))]
        finding = only(explain(tmp_path, records))
        assert finding["workload"]["name"] == "llama"
        assert (finding["from"], finding["to"]) == minutes(0, 120)
        assert "% in 4 other runs of 4 ranks" in finding["evidence"][0]
        assert 4 * 120 * 12_000 < finding["gpu_ms"] < 4 * 120 * 15_000
        assert finding["confidence"] < 0.9

    def test_slightly_more_communication_than_peers_is_usual(self, tmp_path):
        records = [*cluster(nodes=10), *self.fleet(), *trains("llama", between(0, 0, 0, 9_500))]
        assert explain(tmp_path, records)["findings"] == []

    def test_constant_communication_without_peers_is_not_a_comm_stall(self, tmp_path):
        answer = explain(tmp_path, [*cluster(), *trains("llama", between(0, 0, 0, 36_000))])
        assert answer["findings"] == []
        assert {"state": "comm_stall"}.items() <= answer["unexplained"][0].items()


def test_comm_stall_of_a_single_node_names_the_node(tmp_path):
    finding = only(explain(tmp_path, [*cluster(nodes=1), *trains("llama", between(30, 90, 24_000, 6_000), nodes=(0,))]))
    assert finding["culprit"] == {"node": "node-0"}
    assert "links between the GPUs of node-0" in finding["suggestion"]


def test_concurrent_comm_stalls_of_two_runs_are_two_findings(tmp_path):
    slow = between(30, 70, 24_000, 6_000)
    records = [*cluster(nodes=4), *trains("llama", slow), *trains("qwen", slow, nodes=(2, 3))]
    found = explain(tmp_path, records)["findings"]
    assert sorted(f["workload"]["name"] for f in found) == ["llama", "qwen"]
    assert {f["from"] for f in found} == {minutes(30, 70)[0]}


def test_two_rises_of_a_run_are_two_findings(tmp_path):
    twice = [*cluster(), *trains("llama", lambda m: 24_000 if 10 <= m < 40 or 80 <= m < 100 else 6_000)]
    found = explain(tmp_path, twice)["findings"]
    assert sorted((f["from"], f["to"]) for f in found) == [minutes(10, 40), minutes(80, 100)]


def test_comm_stall_is_found_despite_missing_data(tmp_path):
    records = [
        r._replace(data_ms=20_000) if isinstance(r, StepWindow) and at(50) <= r.time_ms < at(90) else r
        for r in trains("llama", lambda m: 8_000 if 50 <= m < 90 else 12_000)  # the same share of what is left
    ]
    assert [f["cause"] for f in explain(tmp_path, [*cluster(), *records])["findings"]] == ["data_stall"]


def test_comm_stall_without_prices_has_no_cost(tmp_path):
    records = [r for r in cluster() if not isinstance(r, Price)]
    finding = only(explain(tmp_path, [*records, *trains("llama", between(30, 70, 24_000, 6_000))]))
    assert finding["usd_micro"] is None
    assert finding["gpu_ms"] > 4 * 40 * 15_000


def test_run_of_one_rank_has_no_comm_stall(tmp_path):
    records = [r for r in trains("llama", between(30, 70, 40_000, 0), nodes=(0,)) if getattr(r, "slot_index", 0) == 0]
    records = [r._replace(ranks=1) if isinstance(r, Run) else r for r in records]
    assert explain(tmp_path, [*cluster(), *records])["findings"] == []


def test_comm_stall_is_found_in_partial_minutes(tmp_path):
    records = trains("llama", lambda m: 24_000 if 30 <= m < 70 else 6_000)
    moved = [
        r._replace(time_ms=r.time_ms + 20_000, to_ms=r.to_ms + 20_000) if isinstance(r, StepWindow) else r
        for r in records
    ]
    finding = only(explain(tmp_path, [*cluster(), *moved]))
    assert finding["gpu_ms"] == pytest.approx(4 * 40 * 20_000, rel=0.05)
    assert finding["gpu_ms"] <= 4 * 40 * 24_000 + 4 * MINUTE
