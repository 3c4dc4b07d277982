"""`slow_checkpoint`: what lies beyond a run's usual save, or beyond the fleet's usual share."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Price, StepWindow
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import MINUTE, START_MS, at, cluster, event, explain, minutes, two_ranks_per_node

NONE: dict[int, float] = {}


def saves_at(times, took_s):
    """Seconds that a save takes, by the minute at which it begins."""
    return dict.fromkeys(times, took_s)


def trains(name, saves, *, nodes=(0, 1), of_rank=lambda rank, minute, took_s: took_s, hours=2, run=None):
    """A job of two GPUs per node with windows of a minute; a save is a window without steps."""
    run = run or name
    records = []
    for rank, place, there in two_ranks_per_node(name, nodes, run):
        records += there
        now = START_MS
        while now < at(60 * hours):
            minute = (now - START_MS) // MINUTE
            if minute in saves and now == at(minute):
                to_ms = now + round(1000 * of_rank(rank, minute, saves[minute]))
                records.append(StepWindow(now, to_ms, run, 1, rank, checkpoint_ms=to_ms - now, **place))
                now = to_ms
            to_ms = min((now // MINUTE + 1) * MINUTE, at(60 * hours))
            records.append(StepWindow(now, to_ms, run, 1, rank, first_step=100 * minute, steps=100, **place))
            now = to_ms
    return records


def only(answer):
    (finding,) = answer["findings"]
    assert finding["cause"] == "slow_checkpoint"
    return finding


USUAL = saves_at(range(5, 120, 10), 20)


def test_saves_that_become_slow_are_a_slow_checkpoint(tmp_path):
    finding = only(explain(tmp_path, [*cluster(), *trains("llama", USUAL | saves_at((45, 55, 65), 200))]))
    assert (finding["from"], finding["to"]) == minutes(45, 65 + 200 / 60)
    assert finding["gpu_ms"] == 4 * 3 * 180_000
    assert finding["usd_micro"] == finding["gpu_ms"]
    assert finding["culprit"] is None
    assert finding["evidence"][0] == "3 saves blocked it for 3 min 20 s each, usually 20 s"


@pytest.mark.parametrize(
    "saves",
    [
        USUAL,
        {minute: 20 + minute * 7919 % 9 for minute in USUAL},  # they differ
        {minute: 10 + minute * 7919 % 31 for minute in USUAL},  # by much
        USUAL | saves_at((5,), 45),  # the first
        USUAL | saves_at((55, 65), 70),  # chance makes two in a row
        USUAL | saves_at((5, 35, 65, 95), 90),  # every third is a large one
        NONE,
    ],
)
def test_usual_saves_are_not_slow(tmp_path, saves):
    assert explain(tmp_path, [*cluster(), *trains("llama", saves)])["findings"] == []


def test_two_far_slower_saves_in_a_row_are_slow(tmp_path):
    saves = USUAL | saves_at((55, 65), 150)
    finding = only(explain(tmp_path, [*cluster(), *trains("llama", saves)]))
    assert (finding["from"], finding["to"]) == minutes(55, 65 + 150 / 60)


def test_two_slower_saves_of_a_run_with_long_saves_are_slow(tmp_path):
    """Not five times as long, but minutes longer each."""
    saves = saves_at(range(5, 60, 6), 60) | saves_at((70, 78), 230)
    finding = only(explain(tmp_path, [*cluster(), *trains("llama", saves)]))
    assert (finding["from"], finding["to"]) == minutes(70, 78 + 230 / 60)
    assert finding["what_if"]["detected"] == finding["to"]  # the second one was sufficient


def test_one_very_long_save_is_slow(tmp_path):
    finding = only(explain(tmp_path, [*cluster(), *trains("llama", USUAL | {45: 540.0})]))
    assert (finding["from"], finding["to"]) == minutes(45, 54)
    assert finding["gpu_ms"] == pytest.approx(4 * 520_000, rel=0.001)
    assert "took 9 min to save a checkpoint" in finding["title"]


@pytest.mark.parametrize("usual", [(15, 35), (35, 95), (85, 105), (15, 35, 95, 105)])
def test_one_slow_save_of_few_is_slow(tmp_path, usual):
    finding = only(explain(tmp_path, [*cluster(), *trains("llama", saves_at(usual, 20) | {55: 540.0})]))
    assert (finding["from"], finding["to"]) == minutes(55, 64)


def test_usual_save_between_slow_ones_does_not_split_the_finding(tmp_path):
    saves = USUAL | saves_at((35, 45, 65, 75), 200)
    finding = only(explain(tmp_path, [*cluster(), *trains("llama", saves)]))
    assert (finding["from"], finding["to"]) == minutes(35, 75 + 200 / 60)
    assert finding["gpu_ms"] == pytest.approx(4 * 4 * 180_000, rel=0.01)


def test_two_series_of_slow_saves_are_two_findings(tmp_path):
    saves = USUAL | saves_at((15, 25), 200) | saves_at((85, 95), 200)
    found = explain(tmp_path, [*cluster(), *trains("llama", saves)])["findings"]
    assert sorted(f["from"] for f in found) == [minutes(15, 0)[0], minutes(85, 0)[0]]


def test_slow_checkpoint_names_its_node(tmp_path):
    slow = saves_at((45, 55, 65), 200)
    records = trains("llama", USUAL | slow, of_rank=lambda r, minute, s: s if r > 1 or minute not in slow else 25)
    finding = only(explain(tmp_path, [*cluster(), *records]))
    assert finding["culprit"] == {"node": "node-1"}
    assert "only the ranks on node-1" in finding["evidence"][1]
    assert "node-1" in finding["suggestion"]


def test_node_that_always_saves_more_is_not_the_culprit(tmp_path):
    records = trains("llama", USUAL | saves_at((45, 55, 65), 200), of_rank=lambda r, _, s: s if r > 1 else s / 3)
    assert only(explain(tmp_path, [*cluster(), *records]))["culprit"] is None


def test_slow_checkpoint_reports_the_write_speed(tmp_path):
    saved = [event("checkpoint_saved", 58, 0, step=5500, duration_ms=200_000, message="saved 80 GiB")]
    records = trains("llama", USUAL | saves_at((45, 55, 65), 200), run="run")
    finding = only(explain(tmp_path, [*cluster(), *records, *saved]))
    assert finding["evidence"][1] == "80 GiB per save, 410 MiB/s"


def test_slow_saves_inside_windows_with_steps_are_found(tmp_path):
    records = [
        r._replace(checkpoint_ms=(50_000 if at(40) <= r.time_ms < at(80) else 2_000) * (r.time_ms // MINUTE % 4 == 0))
        if isinstance(r, StepWindow)
        else r
        for r in trains("llama", NONE)
    ]
    finding = only(explain(tmp_path, [*cluster(), *records]))
    assert finding["evidence"][0] == "10 saves blocked it for 50 s each, usually 2 s"
    assert finding["gpu_ms"] == 4 * 10 * 48_000
    slow = [r.time_ms for r in records if isinstance(r, StepWindow) and r.checkpoint_ms == 50_000]
    assert (finding["from"], finding["to"]) == (iso(min(slow), UTC), iso(max(slow) + MINUTE, UTC))


class TestAlwaysSlow:
    def fleet(self, took_s=5, number=4):
        return [
            record
            for i in range(number)
            for record in trains(f"job-{i}", saves_at(range(5, 120, 10), took_s), nodes=(2 + 2 * i, 3 + 2 * i))
        ]

    def test_saves_are_compared_with_the_fleet(self, tmp_path):
        slow = trains("llama", saves_at(range(5, 120, 10), 90))
        finding = only(explain(tmp_path, [*cluster(nodes=10), *self.fleet(), *slow]))
        assert finding["workload"]["name"] == "llama"
        assert (finding["from"], finding["to"]) == minutes(5, 116.5)
        assert "spent 15% of its time saving checkpoints" in finding["title"]
        assert finding["evidence"] == ["12 saves of 1 min 30 s each", "the median of 4 other runs is 0.8%"]
        assert finding["gpu_ms"] == pytest.approx(4 * 12 * 84_000, rel=0.03)

    def test_long_saves_of_the_whole_fleet_are_usual(self, tmp_path):
        slow = trains("llama", saves_at(range(5, 120, 10), 90))
        assert explain(tmp_path, [*cluster(nodes=10), *self.fleet(took_s=60), *slow])["findings"] == []

    @pytest.mark.parametrize(("took_s", "found"), [(90, False), (180, True)])
    def test_long_saves_without_a_fleet_are_slow_only_if_extreme(self, tmp_path, took_s, found):
        answer = explain(tmp_path, [*cluster(), *trains("llama", saves_at(range(5, 120, 10), took_s))])
        assert [f["cause"] for f in answer["findings"]] == ["slow_checkpoint"] * found


def test_concurrent_slow_checkpoints_suggest_shared_storage(tmp_path):
    saves = USUAL | saves_at((45, 55, 65), 200)
    found = explain(tmp_path, [*cluster(nodes=4), *trains("a", saves), *trains("b", saves, nodes=(2, 3))])["findings"]
    assert sorted(f["workload"]["name"] for f in found) == ["a", "b"]
    assert all(f["evidence"][-1].startswith("1 other run saved slowly at the same time") for f in found)


def test_slow_checkpoint_is_cut_at_the_time_range(tmp_path):
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *trains("llama", USUAL | saves_at((45, 55, 65), 200))])
        build(store, Settings(), now_ms=at(120))
        finding = only(why(store, TimeRange(at(46), at(120)), Settings(), zone=UTC))
    assert (finding["from"], finding["to"]) == minutes(46, 65 + 200 / 60)
    assert finding["gpu_ms"] == pytest.approx(4 * (2 * 180_000 + 126_000), rel=0.001)


def test_slow_checkpoint_without_prices_has_no_cost(tmp_path):
    records = [r for r in cluster() if not isinstance(r, Price)]
    finding = only(explain(tmp_path, [*records, *trains("llama", USUAL | saves_at((45, 55, 65), 200))]))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 4 * 3 * 180_000)
