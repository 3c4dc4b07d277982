"""What GPU samples alone say about a holder's time: one small history for each rule of the design."""

from __future__ import annotations

from typing import Any

from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from pyrometer.model.units import SHARE_WHOLE
from tests.support.histories import Scenario, at, hold, node, pod, samples, scenario, until, workload


def held(minutes: float, *records: Any) -> list[Any]:
    """A pod that has held the only slot since the beginning, for some minutes."""
    return [node(), until(at(minutes)), pod(), hold(), *records]


def held_twice(minutes: float, *records: Any) -> list[Any]:
    """A pod that has held two slots since the beginning, for some minutes."""
    return [node(count=2), until(at(minutes), count=2), pod(), hold(), hold(slot=1), *records]


@scenario
def test_startup_lasts_until_the_first_activity() -> Scenario:
    found = yield held(20, samples("idle", at(0), at(10)), samples("busy", at(10), at(20)))
    assert found.states() == {"startup": 10 * MINUTE, "active": 10 * MINUTE}


@scenario
def test_startup_lasts_thirty_minutes_at_most() -> Scenario:
    found = yield held(50, samples("idle", at(0), at(40)), samples("busy", at(40), at(50)))
    assert found.states() == {"startup": 30 * MINUTE, "starved": 10 * MINUTE, "active": 10 * MINUTE}


@scenario
def test_a_device_that_never_becomes_active_is_idle_after_startup() -> Scenario:
    found = yield held(60, samples("idle", at(0), at(60)))
    assert found.states() == {"startup": 30 * MINUTE, "idle_held": 30 * MINUTE}


@scenario
def test_startup_counts_from_the_start_of_the_container() -> Scenario:
    found = yield [node(), until(at(50)), pod(started=at(10)), hold(), samples("idle", at(0), at(50))]
    assert found.states() == {"startup": 40 * MINUTE, "starved": 10 * MINUTE}


@scenario
def test_a_short_gap_is_starved() -> Scenario:
    gap = [samples("busy", at(0), at(10)), samples("idle", at(10), at(24)), samples("busy", at(24), at(30))]
    found = yield held(30, *gap)
    assert found.states() == {"active": 16 * MINUTE, "starved": 14 * MINUTE}


@scenario
def test_a_long_gap_is_idle_from_its_beginning_across_an_hour() -> Scenario:
    gap = [samples("busy", at(0), at(50)), samples("idle", at(50), at(66)), samples("busy", at(66), at(70))]
    found = yield held(70, *gap)
    assert found.states() == {"active": 54 * MINUTE, "idle_held": 16 * MINUTE}


@scenario
def test_a_continuing_gap_becomes_idle_when_it_is_long() -> Scenario:
    busy = samples("busy", at(0), at(50))
    short, long = yield (
        held(62, busy, samples("idle", at(50), at(62))),
        held(180, busy, samples("idle", at(50), at(180))),
    )
    assert short.states() == {"active": 50 * MINUTE, "starved": 12 * MINUTE}
    assert long.states() == {"active": 50 * MINUTE, "idle_held": 130 * MINUTE}


@scenario
def test_a_kernel_that_spins_near_idle_power_is_a_hang() -> Scenario:
    powers = {70: "hang", 152: "hang", 153: "active", None: "active"}  # an H100 is near idle up to 152 W
    found = yield tuple(held(10, samples("spins", at(0), at(10), power_w=power_w)) for power_w in powers)
    assert [one.states() for one in found] == [{state: 10 * MINUTE} for state in powers.values()]


@scenario
def test_profiling_counters_of_zero_at_high_power_are_active() -> Scenario:
    found = yield held(10, samples("works", at(0), at(10)))
    assert found.states() == {"active": 10 * MINUTE}


@scenario
def test_utilization_alone_shows_activity() -> Scenario:
    found = yield held(10, samples("util", at(0), at(10)))
    assert found.states() == {"active": 10 * MINUTE}


@scenario
def test_a_sample_without_activity_counters_is_ignored() -> Scenario:
    found = yield held(10, samples("absent", at(0), at(10)))
    assert found.states() == {"unobserved": 10 * MINUTE}


@scenario
def test_a_sample_covers_sixty_seconds() -> Scenario:
    found = yield held(20, samples("busy", at(0), at(10)))
    assert found.states() == {"active": 630_000, "unobserved": 570_000}


@scenario
def test_a_next_sample_may_be_late_by_fifteen_seconds() -> Scenario:
    in_time, late = yield (
        held(24, samples("busy", at(0), at(25), every_ms=75_000)),
        held(19, samples("busy", at(0), at(19), every_ms=76_000)),
    )
    assert in_time.states() == {"active": 24 * MINUTE}
    assert late.states() == {"active": 15 * 60_000, "unobserved": 15 * 16_000}


@scenario
def test_irregular_samples_cover_the_time_until_the_next() -> Scenario:
    busy, again = samples("busy", at(0, 7), at(0, 8)), samples("busy", at(1, 33), at(2))
    found = yield held(2, busy, samples("idle", at(0, 48), at(0, 49)), again)
    assert found.states() == {"unobserved": 7_000, "active": 41_000 + 27_000, "starved": 45_000}


@scenario
def test_a_never_used_device_among_several_is_idle() -> Scenario:
    used = [samples("idle", at(0), at(2)), samples("busy", at(2), at(30))]
    found = yield held_twice(30, *used, samples("idle", at(0), at(30), slot=1))
    assert found.states(slot_index=0) == {"startup": 2 * MINUTE, "active": 28 * MINUTE}
    assert found.states(slot_index=1) == {"startup": 2 * MINUTE, "unused_device": 28 * MINUTE}


@scenario
def test_a_device_that_is_used_a_little_later_than_others_starts_up() -> Scenario:
    late = [samples("idle", at(0), at(10), slot=1), samples("busy", at(10), at(30), slot=1)]
    found = yield held_twice(30, samples("busy", at(2), at(30)), *late)
    assert found.states(slot_index=1) == {"startup": 10 * MINUTE, "active": 20 * MINUTE}


@scenario
def test_an_unused_device_of_a_pod_that_is_late_itself_was_idle_before() -> Scenario:
    used = [samples("idle", at(0), at(70)), samples("busy", at(70), at(120))]
    found = yield held_twice(120, *used, samples("idle", at(0), at(120), slot=1))
    idle = {"startup": 30 * MINUTE, "idle_held": 40 * MINUTE}
    assert found.states(slot_index=0) == idle | {"active": 50 * MINUTE}
    assert found.states(slot_index=1) == idle | {"unused_device": 50 * MINUTE}


@scenario
def test_a_serving_workload_is_in_state_infer() -> Scenario:
    serving = [workload(serves=True), pod(workload_uid="w"), hold()]
    found = yield [node(), until(at(10)), *serving, samples("busy", at(0), at(10))]
    assert found.states() == {"infer": 10 * MINUTE}


@scenario
def test_a_mig_instance_has_no_utilization() -> Scenario:
    own = [samples("mig_idle", at(0), at(4), instance=1), samples("mig_busy", at(4), at(10), instance=1)]
    found = yield [node(), until(at(10)), pod(), hold(instance=1, share=SHARE_WHOLE * 3 // 7), *own]
    assert found.states(pod_uid="p") == {"startup": 4 * 25_714, "active": 6 * 25_714}


@scenario
def test_a_mig_instance_is_judged_by_its_own_samples() -> Scenario:
    others = [samples("busy", at(0), at(10)), samples("busy", at(0), at(10), instance=1)]
    found = yield [node(), until(at(10)), pod(), hold(instance=0), *others, samples("idle", at(0), at(10), instance=0)]
    assert found.states() == {"startup": 10 * MINUTE}


@scenario
def test_a_time_sliced_device_counts_for_all_holders() -> Scenario:
    halves = [pod("a"), pod("b"), hold("a", share=SHARE_WHOLE // 2), hold("b", share=SHARE_WHOLE // 2)]
    found = yield [node(), until(at(10)), *halves, samples("busy", at(0), at(10))]
    assert found.states(pod_uid="a") == found.states(pod_uid="b") == {"active": 5 * MINUTE}


@scenario
def test_a_sample_of_the_holder_before_is_not_activity_of_the_next() -> Scenario:
    first = [pod("a", ended=at(10)), hold("a", to_ms=at(10)), samples("busy", at(0, 10), at(10))]
    second = [pod("b", started=at(10, 20)), hold("b", at(10))]
    then = [samples("idle", at(10, 10), at(15)), samples("busy", at(15, 10), at(20))]
    found = yield [node(), until(at(20)), *first, *second, *then]
    assert found.states(pod_uid="b") == {"startup": 310_000, "active": 290_000}


@scenario
def test_evidence_column_records_the_source() -> Scenario:
    found = yield [node(), until(at(10)), pod(), hold(to_ms=at(5)), samples("busy", at(0), at(3))]
    assert found.states(evidence=3, pod_uid="p") == {"active": 210_000}
    assert found.states(evidence=1, pod_uid="p") == {"unobserved": 90_000}
