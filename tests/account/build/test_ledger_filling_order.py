"""Which state has a millisecond that several could have: intervals first, in their order, then amounts, in theirs."""

from __future__ import annotations

from typing import Any

import pytest

from pyrometer.model import events
from pyrometer.model.records import Slot
from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from tests.support.histories import (
    Scenario,
    at,
    event,
    hold,
    ledger,
    node,
    pod,
    run,
    samples,
    scenario,
    until,
    window,
    windows,
    workload,
)

HELD = [pod(), hold()]
ALIVE = [*HELD, run(at(0), first_step_ms=at(0))]


# -- the platform's time ------------------------------------------------------------------------------------------


@scenario
def test_a_healthy_slot_without_a_holder_is_free() -> Scenario:
    found = yield [node(), until(at(10))]
    assert found.states() == {"free": 10 * MINUTE}


@scenario
def test_a_cordoned_node_without_a_holder_is_unhealthy() -> Scenario:
    def cordoned(**change: bool) -> list[Any]:
        return [node(), node(at(5, 30), **change), node(at(9, 59), **change)]

    found = yield cordoned(schedulable=False), cordoned(ready=False), [*cordoned(schedulable=False), *HELD]
    assert found[0].states() == found[1].states() == {"free": 330_000, "unhealthy": 270_000}
    assert found[2].states() == {"unobserved": 10 * MINUTE}  # its holder pays


@scenario
def test_a_broken_device_is_charged_to_the_platform() -> Scenario:
    broken = [Slot(at(4), "n0", 0, healthy=False, reason="XID 79"), Slot(at(7), "n0", 0)]
    found = yield [node(), until(at(10)), *HELD, *broken]
    assert found.states(pod_uid="p") == {"unobserved": 7 * MINUTE}
    assert found.states(pod_uid=None) == {"unhealthy": 3 * MINUTE}


@scenario
def test_a_missing_device_is_unhealthy() -> Scenario:
    found = yield [node(count=2), node(at(4), count=1), until(at(10), count=1)]
    assert found.states(slot_index=0) == {"free": 10 * MINUTE}
    assert found.states(slot_index=1) == {"free": 4 * MINUTE, "unhealthy": 6 * MINUTE}


@scenario
def test_a_device_exists_from_the_minute_of_its_first_observation() -> Scenario:
    found = yield [node(at(0, 20), count=0), node(at(3, 30), count=2), until(at(10), count=2)]
    assert found.states() == {"free": 2 * 7 * MINUTE}


@scenario
def test_a_removed_node_exists_to_the_end_of_the_minute() -> Scenario:
    found = yield [node(), node(at(5, 30), present=False), node(uid="m"), until(at(10), uid="m"), *HELD]
    assert found.states(node_uid="n0") == {"unobserved": 6 * MINUTE}


@scenario
def test_a_node_removed_and_added_within_a_minute_exists_throughout() -> Scenario:
    restless = [node(at(2, 10), present=False), node(at(2, 20)), node(at(2, 30), count=2), until(at(10), count=2)]
    found = yield [node(), *restless]
    assert found.states(slot_index=0) == {"free": 10 * MINUTE}
    assert found.states(slot_index=1) == {"free": 8 * MINUTE}


@scenario
def test_a_slot_without_a_node_exists_for_its_lifetime() -> Scenario:
    life = Slot(at(0), "laptop", 0, from_ms=at(2, 30), to_ms=at(7, 15))
    found = yield [life, until(at(10)), hold(node_uid="laptop", to_ms=at(4))]
    assert found.states(node_uid="laptop") == {"unobserved": 90_000, "free": 195_000}


@scenario
def test_a_broken_slot_without_a_node_continues_to_exist() -> Scenario:
    life = [Slot(at(0), "laptop", 0, from_ms=at(2), to_ms=at(7)), Slot(at(4), "laptop", 0, healthy=False)]
    found = yield [*life, until(at(10))]
    assert found.states(node_uid="laptop") == {"free": 2 * MINUTE, "unhealthy": 3 * MINUTE}


@scenario
def test_a_slot_known_from_holds_has_no_free_time() -> Scenario:
    holds = [hold(node_uid="x", from_ms=at(1), to_ms=at(3)), hold("q", node_uid="x", from_ms=at(5), to_ms=at(6))]
    found, broken = yield [*holds, until(at(10))], [*holds, until(at(10)), Slot(at(2), "x", 0, healthy=False)]
    assert found.states(node_uid="x") == {"unobserved": 3 * MINUTE}
    assert broken.states(node_uid="x") == {"unobserved": MINUTE, "unhealthy": 2 * MINUTE}


# -- the time of a holder, by interval ----------------------------------------------------------------------------


def gang(*members: Any) -> list[Any]:
    return [node(count=2), until(at(20), count=2), workload(gang_pods=2), *members]


@scenario
def test_the_first_of_a_gang_waits_for_the_last() -> Scenario:
    first = [pod("a", workload_uid="w"), hold("a")]
    found = yield gang(*first, pod("b", workload_uid="w", started=at(10)), hold("b", at(10), slot=1))
    assert found.states(pod_uid="a") == {"gang_wait": 10 * MINUTE, "unobserved": 10 * MINUTE}
    assert found.states(pod_uid="b") == {"unobserved": 10 * MINUTE}


@scenario
def test_a_member_that_failed_is_missing_and_one_that_succeeded_is_not() -> Scenario:
    members = [pod("a", workload_uid="w"), hold("a"), hold("b", slot=1)]
    failed, succeeded = yield (
        gang(*members, pod("b", workload_uid="w", ended=at(12), phase="Failed")),
        gang(*members, pod("b", workload_uid="w", ended=at(12), phase="Succeeded")),
    )
    assert failed.states(pod_uid="a") == {"unobserved": 12 * MINUTE, "gang_wait": 8 * MINUTE}
    assert succeeded.states(pod_uid="a") == {"unobserved": 20 * MINUTE}


@scenario
def test_a_job_that_is_scaled_up_did_not_wait_before() -> Scenario:
    members = [pod("a", workload_uid="w"), hold("a"), pod("b", workload_uid="w"), hold("b", slot=1)]
    late = [pod("c", workload_uid="w", started=at(15)), hold("c", at(15), slot=2)]
    up, down = yield (
        [
            node(count=3),
            until(at(20), count=3),
            *members,
            *late,
            workload(gang_pods=2),
            workload(time_ms=at(10), gang_pods=3),
        ],
        [node(count=3), until(at(20), count=3), *members, workload(gang_pods=3), workload(time_ms=at(10), gang_pods=2)],
    )
    assert up.states(pod_uid="a") == {"unobserved": 15 * MINUTE, "gang_wait": 5 * MINUTE}
    assert down.states(pod_uid="a") == {"unobserved": 20 * MINUTE}


@scenario
def test_attempts_of_a_gang_do_not_wait_for_each_other() -> Scenario:
    first = [pod("a", workload_uid="w", attempt=1), hold("a")]
    found = yield gang(*first, pod("b", workload_uid="w", attempt=2), hold("b", slot=1))
    assert found.states(pod_uid="a") == found.states(pod_uid="b") == {"gang_wait": 20 * MINUTE}


@scenario
def test_startup_lasts_until_the_containers_run() -> Scenario:
    found = yield [node(), until(at(10)), pod(started=at(3)), hold()]
    assert found.states() == {"startup": 3 * MINUTE, "unobserved": 7 * MINUTE}


@scenario
def test_a_pod_whose_containers_never_ran_starts_up_all_the_time() -> Scenario:
    pending = pod(started=None, phase="Pending")
    failed = pod(started=None, phase="Failed", ended=at(10), time_ms=at(9), reason="Evicted")
    found = yield [node(), until(at(10)), pending, hold()], [node(), until(at(10)), failed, hold()]
    assert [one.states() for one in found] == [{"startup": 10 * MINUTE}] * 2


@scenario
def test_startup_lasts_until_the_end_of_the_first_step() -> Scenario:
    trained = [run(at(2), first_step_ms=at(5)), windows(at(5), at(10), data_ms=1_000)]
    found = yield [node(), until(at(10)), pod(started=at(1)), hold(), *trained, samples("busy", at(1), at(10))]
    assert found.states() == {"startup": 5 * MINUTE, "data_stall": 30_000, "train": 270_000}


@scenario
def test_a_pod_is_idle_after_the_end_of_its_run() -> Scenario:
    over = run(at(0), first_step_ms=at(1), ended_ms=at(6), time_ms=at(6))
    found = yield [node(), until(at(10)), *HELD, over, windows(at(1), at(6)), samples("busy", at(0), at(10))]
    assert found.states() == {"startup": MINUTE, "train": 5 * MINUTE, "idle_held": 4 * MINUTE}


@scenario
def test_a_pod_with_two_concurrent_runs_is_idle_after_both_end() -> Scenario:
    long = run(at(0), first_step_ms=at(0), ended_ms=at(8), time_ms=at(8))
    short = run(at(1), run="evaluation", first_step_ms=at(1), ended_ms=at(3), time_ms=at(3))
    found = yield [node(), until(at(10)), *HELD, long, short, windows(at(0), at(8))]
    assert found.states() == {"train": 8 * MINUTE, "idle_held": 2 * MINUTE}


@scenario
def test_a_next_attempt_in_the_same_pod_ends_idle_time() -> Scenario:
    first = run(at(0), first_step_ms=at(1), ended_ms=at(4), time_ms=at(4))
    second = run(at(6), attempt=2, first_step_ms=at(7))
    steps = [windows(at(1), at(4)), windows(at(7), at(10), attempt=2)]
    found = yield [node(), until(at(10)), *HELD, first, second, *steps]
    assert found.states(attempt=1) == {"startup": MINUTE, "train": 3 * MINUTE, "idle_held": 2 * MINUTE}
    assert found.states(attempt=2) == {"startup": MINUTE, "train": 3 * MINUTE}


@scenario
def test_overlapping_intervals_follow_the_filling_order() -> Scenario:
    missing = [workload(gang_pods=2), pod("b", workload_uid="w", started=at(10)), hold("b", at(10), slot=1)]
    stuck_events = [
        event(events.STUCK, at(8)),
        event(events.UNSTUCK, at(20)),
        event(events.LOOP_ENDED, at(18)),
        event(events.LOOP_RESUMED, at(25)),
        event(events.NONFINITE_LOSS, at(15)),
        event(events.FINITE_LOSS, at(40)),
    ]
    trained = [run(at(0), first_step_ms=at(12)), windows(at(12), at(60), step=100)]
    again = run(at(50), attempt=2, resumed_step=100, first_step_ms=at(50), slot_index=1, pod_uid="b")
    cluster = [node(count=2), until(at(60), count=2), pod(workload_uid="w"), hold(), samples("spins", at(0), at(60))]
    found = yield [*cluster, *missing, *trained, *stuck_events, again]
    minutes = {"gang_wait": 10, "startup": 2, "hang": 8, "idle_held": 5, "diverged": 15, "lost_work": 20}
    assert found.states(pod_uid="p") == {state: count * MINUTE for state, count in minutes.items()}


@scenario
def test_divergence_applies_to_all_ranks_and_a_hang_to_its_rank() -> Scenario:
    ranks = [run(at(0), first_step_ms=at(0)), run(at(0), rank=1, slot_index=1, first_step_ms=at(0))]
    steps = [windows(at(0), at(10)), windows(at(0), at(10), rank=1, slot_index=1)]
    cluster = [node(count=2), until(at(10), count=2), *HELD, hold(slot=1), *ranks, *steps]
    stuck, diverged = yield (
        [*cluster, event(events.STUCK, at(4), rank=1)],
        [*cluster, event(events.NONFINITE_LOSS, at(4), rank=1)],
    )
    assert stuck.states(slot_index=0) == {"train": 10 * MINUTE}
    assert stuck.states(slot_index=1) == {"train": 4 * MINUTE, "hang": 6 * MINUTE}
    for slot in (0, 1):
        assert diverged.states(slot_index=slot) == {"train": 4 * MINUTE, "diverged": 6 * MINUTE}


# -- the time of a holder, by amount ------------------------------------------------------------------------------


def stepped(*folds: Any, minutes: int = 1) -> list[Any]:
    return [node(), until(at(minutes)), *ALIVE, *folds]


@scenario
def test_time_outside_of_amounts_is_train() -> Scenario:
    amounts = {"checkpoint_ms": 1_000, "data_ms": 2_000, "comm_ms": 3_000, "evaluate_ms": 4_000}
    found = yield stepped(window(at(0), at(1), first_step=0, steps=10, **amounts))
    expected = {"checkpoint": 1_000, "data_stall": 2_000, "comm_stall": 3_000, "evaluate": 4_000, "train": 50_000}
    assert found.states() == expected


@scenario
def test_amounts_larger_than_the_window_are_cut_in_the_filling_order() -> Scenario:
    amounts = {"checkpoint_ms": 30_000, "data_ms": 20_000, "comm_ms": 20_000, "evaluate_ms": 10_000}
    found = yield stepped(window(at(0), at(1), first_step=0, steps=10, **amounts))
    assert found.states() == {"checkpoint": 30_000, "data_stall": 20_000, "comm_stall": 10_000}


@scenario
def test_communication_above_the_minimum_of_ranks_is_straggler_time() -> Scenario:
    ranks = []
    for rank, comm_ms in enumerate((20_000, 5_000, 9_000)):
        on = {"rank": rank, "slot_index": rank}
        ranks += [hold(slot=rank), run(at(0), first_step_ms=at(0), **on)]
        ranks += [window(at(0), at(1), first_step=0, steps=10, comm_ms=comm_ms, **on)]
    found = yield [node(count=3), until(at(1), count=3), pod(), *ranks]
    assert found.states(slot_index=0) == {"straggler_wait": 15_000, "comm_stall": 5_000, "train": 40_000}
    assert found.states(slot_index=1) == {"comm_stall": 5_000, "train": 55_000}
    assert found.states(slot_index=2) == {"straggler_wait": 4_000, "comm_stall": 5_000, "train": 51_000}


@scenario
def test_a_window_without_steps_has_only_its_amounts() -> Scenario:
    between = [window(at(0), at(1), evaluate_ms=60_000), window(at(1), at(2), checkpoint_ms=45_000)]
    found = yield stepped(*between, minutes=2)
    assert found.states() == {"evaluate": 60_000, "checkpoint": 45_000, "train": 15_000}


@scenario
def test_a_later_window_ends_the_one_before_it_and_amounts_are_scaled() -> Scenario:
    first = window(at(0), at(1), first_step=0, steps=10, data_ms=20_000)
    found = yield stepped(first, window(at(0, 30), at(1), first_step=10, steps=10))
    assert found.states() == {"data_stall": 10_000, "train": 50_000}


@scenario
def test_a_window_is_divided_among_the_minutes_it_covers() -> Scenario:
    found = yield stepped(window(at(0, 30), at(1, 30), first_step=0, steps=1, data_ms=30_000), minutes=2)
    for minute in (0, 1):
        expected = {"unobserved": 30_000, "data_stall": 15_000, "train": 15_000}
        assert found.states(minute_ms=at(minute)) == expected


@scenario
def test_negative_amounts_count_as_zero() -> Scenario:
    found = yield tuple(
        stepped(window(at(0), at(1), first_step=0, steps=1, **{name: -5}))
        for name in ("checkpoint_ms", "data_ms", "comm_ms", "evaluate_ms")
    )
    assert [one.states() for one in found] == [{"train": MINUTE}] * 4


@scenario
def test_empty_and_reversed_windows_are_ignored() -> Scenario:
    found = yield tuple(
        stepped(window(at(0), to_ms, first_step=0, steps=1, data_ms=10)) for to_ms in (at(0), at(0) - 7)
    )
    assert [one.states() for one in found] == [{"unobserved": MINUTE}] * 2


@scenario
def test_steps_are_better_evidence_than_samples() -> Scenario:
    found = yield stepped(windows(at(0), at(1)), samples("idle", at(0), at(2)), minutes=2)
    assert found.states(evidence=7) == {"train": MINUTE}
    assert found.states(evidence=3) == {"startup": MINUTE}


# -- where the ledger ends ----------------------------------------------------------------------------------------


def test_the_ledger_ends_with_the_newest_minute() -> None:
    found = ledger(node(), node(at(7, 1)))
    assert found.covered is not None
    assert (found.covered.from_ms, found.covered.end_ms) == (at(0), at(8))


@pytest.mark.parametrize("ahead", [at(5, 31), at(6), at(400)])
def test_records_from_the_future_do_not_count(ahead: int) -> None:
    future = [node(ahead, count=4, ready=False), pod(time_ms=ahead, ended=at(1)), Slot(ahead, "n0", 0, healthy=False)]
    found = ledger(node(), node(at(5, 29)), *HELD, *future, samples("busy", ahead, ahead + 1), now_ms=at(5, 30))
    assert found.states() == {"unobserved": 6 * MINUTE}


def test_an_empty_store_has_no_ledger() -> None:
    assert ledger().covered is None
    assert ledger(pod(), workload()).rows == []
