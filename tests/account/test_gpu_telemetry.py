"""What GPU samples alone say about a holder's time: one small history for each rule of the design."""

from __future__ import annotations

import pytest
from histories import at, hold, ledger, node, pod, samples, until, workload

from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from pyrometer.model.units import SHARE_WHOLE


def of_pod(minutes: float, *records: object, **of: object) -> dict[str, int]:
    """States of a pod that has held the only slot since the beginning, over some minutes."""
    found = ledger(node(), until(at(minutes)), pod(), hold(), *records, chunk_slot_minutes=1)
    return found.states(pod_uid="p", **of)


def test_startup_lasts_until_the_first_activity() -> None:
    found = of_pod(20, samples("idle", at(0), at(10)), samples("busy", at(10), at(20)))
    assert found == {"startup": 10 * MINUTE, "active": 10 * MINUTE}


def test_startup_lasts_thirty_minutes_at_most() -> None:
    found = of_pod(50, samples("idle", at(0), at(40)), samples("busy", at(40), at(50)))
    assert found == {"startup": 30 * MINUTE, "starved": 10 * MINUTE, "active": 10 * MINUTE}


def test_what_never_becomes_active_is_idle_after_startup() -> None:
    assert of_pod(60, samples("idle", at(0), at(60))) == {"startup": 30 * MINUTE, "idle_held": 30 * MINUTE}


def test_startup_counts_from_the_start_of_the_container() -> None:
    found = ledger(node(), until(at(50)), pod(started=at(10)), hold(), samples("idle", at(0), at(50)))
    assert found.states() == {"startup": 40 * MINUTE, "starved": 10 * MINUTE}


def test_a_short_gap_is_starved() -> None:
    gap = [samples("busy", at(0), at(10)), samples("idle", at(10), at(24)), samples("busy", at(24), at(30))]
    assert of_pod(30, *gap) == {"active": 16 * MINUTE, "starved": 14 * MINUTE}


def test_a_long_gap_is_idle_from_its_beginning_across_an_hour() -> None:
    gap = [samples("busy", at(0), at(50)), samples("idle", at(50), at(66)), samples("busy", at(66), at(70))]
    assert of_pod(70, *gap) == {"active": 54 * MINUTE, "idle_held": 16 * MINUTE}


def test_a_gap_that_goes_on_is_idle_once_it_is_long() -> None:
    gap = [samples("busy", at(0), at(50)), samples("idle", at(50), at(180))]
    assert of_pod(62, gap[0], samples("idle", at(50), at(62))) == {"active": 50 * MINUTE, "starved": 12 * MINUTE}
    assert of_pod(180, *gap) == {"active": 50 * MINUTE, "idle_held": 130 * MINUTE}


def test_a_kernel_that_spins_is_a_hang() -> None:
    assert of_pod(10, samples("spins", at(0), at(10))) == {"hang": 10 * MINUTE}


@pytest.mark.parametrize(("power_w", "state"), [(152, "hang"), (153, "active"), (None, "active")])
def test_a_kernel_spins_only_near_idle_power(power_w: int | None, state: str) -> None:
    assert of_pod(10, samples("spins", at(0), at(10), power_w=power_w)) == {state: 10 * MINUTE}


def test_profiling_counters_of_zero_at_high_power_are_active() -> None:
    assert of_pod(10, samples("works", at(0), at(10))) == {"active": 10 * MINUTE}


def test_utilisation_alone_is_enough() -> None:
    assert of_pod(10, samples("util", at(0), at(10))) == {"active": 10 * MINUTE}


def test_a_sample_without_a_word_on_activity_is_no_sample() -> None:
    assert of_pod(10, samples("absent", at(0), at(10))) == {"unobserved": 10 * MINUTE}


def test_a_sample_speaks_for_sixty_seconds() -> None:
    assert of_pod(20, samples("busy", at(0), at(10))) == {"active": 630_000, "unobserved": 570_000}


def test_a_next_sample_may_be_late_by_fifteen_seconds() -> None:
    assert of_pod(25, samples("busy", at(0), at(25), every_ms=75_000)) == {"active": 25 * MINUTE}
    late = of_pod(19, samples("busy", at(0), at(19), every_ms=76_000))
    assert late == {"active": 15 * 60_000, "unobserved": 15 * 16_000}


def test_samples_at_irregular_times_speak_until_the_next() -> None:
    uneven = [
        samples("busy", at(0, 7), at(0, 8)),
        samples("idle", at(0, 48), at(0, 49)),
        samples("busy", at(1, 33), at(2)),
    ]
    assert of_pod(2, *uneven) == {"unobserved": 7_000, "active": 41_000 + 27_000, "starved": 45_000}


def test_one_of_several_devices_that_is_never_used() -> None:
    used = [samples("idle", at(0), at(2)), samples("busy", at(2), at(30))]
    found = ledger(
        node(count=2), until(at(30), count=2), pod(), hold(), hold(slot=1), *used,
        samples("idle", at(0), at(30), slot=1),
    )  # fmt: skip
    assert found.states(slot_index=0) == {"startup": 2 * MINUTE, "active": 28 * MINUTE}
    assert found.states(slot_index=1) == {"startup": 2 * MINUTE, "unused_device": 28 * MINUTE}


def test_a_device_that_is_used_a_little_later_than_others_starts_up() -> None:
    late = [samples("idle", at(0), at(10), slot=1), samples("busy", at(10), at(30), slot=1)]
    found = ledger(
        node(count=2), until(at(30), count=2), pod(), hold(), hold(slot=1), samples("busy", at(2), at(30)), *late,
    )  # fmt: skip
    assert found.states(slot_index=1) == {"startup": 10 * MINUTE, "active": 20 * MINUTE}


def test_an_unused_device_of_a_pod_that_is_late_itself_was_idle_before() -> None:
    used = [samples("idle", at(0), at(70)), samples("busy", at(70), at(120))]
    found = ledger(
        node(count=2), until(at(120), count=2), pod(), hold(), hold(slot=1), *used,
        samples("idle", at(0), at(120), slot=1), chunk_slot_minutes=1,
    )  # fmt: skip
    assert found.states(slot_index=0) == {"startup": 30 * MINUTE, "idle_held": 40 * MINUTE, "active": 50 * MINUTE}
    assert found.states(slot_index=1) == {
        "startup": 30 * MINUTE,
        "idle_held": 40 * MINUTE,
        "unused_device": 50 * MINUTE,
    }


def test_a_workload_that_serves_infers() -> None:
    served = ledger(
        node(), until(at(10)), workload(serves=True), pod(workload_uid="w"), hold(), samples("busy", at(0), at(10))
    )
    assert served.states() == {"infer": 10 * MINUTE}


def test_a_mig_instance_has_no_utilisation() -> None:
    held = [node(), until(at(10)), pod(), hold(instance=1, share=SHARE_WHOLE * 3 // 7)]
    busy = ledger(*held, samples("mig_idle", at(0), at(4), instance=1), samples("mig_busy", at(4), at(10), instance=1))
    assert set(busy.states(pod_uid="p")) == {"startup", "active"}
    assert sum(busy.states(pod_uid="p").values()) == 10 * 25_714


def test_a_mig_instance_is_judged_by_its_own_samples() -> None:
    both = [
        samples("idle", at(0, 7), at(10), instance=0),
        samples("busy", at(0), at(10)),
        samples("busy", at(0), at(10), instance=1),
    ]
    found = ledger(node(), until(at(10)), pod(), hold(instance=0), *both)
    assert found.states(pod_uid="p")["startup"] >= 10 * MINUTE - 7_000
    assert "active" not in found.states(pod_uid="p", evidence=3) or found.states()["active"] <= 7_000


def test_a_device_that_is_shared_by_time_speaks_for_all() -> None:
    halves = [pod("a"), pod("b"), hold("a", share=SHARE_WHOLE // 2), hold("b", share=SHARE_WHOLE // 2)]
    found = ledger(node(), until(at(10)), *halves, samples("busy", at(0), at(10)))
    assert found.states(pod_uid="a") == found.states(pod_uid="b") == {"active": 5 * MINUTE}


def test_a_sample_of_the_holder_before_is_not_activity_of_the_next() -> None:
    first = [pod("a", ended=at(10)), hold("a", to_ms=at(10)), samples("busy", at(0, 10), at(10))]
    second = [pod("b", started=at(10, 20)), hold("b", at(10))]
    then = [samples("idle", at(10, 10), at(15)), samples("busy", at(15, 10), at(20))]
    found = ledger(node(), until(at(20)), *first, *second, *then)
    assert found.states(pod_uid="b") == {"startup": 310_000, "active": 290_000}


def test_evidence_says_what_was_known() -> None:
    found = ledger(node(), until(at(10)), pod(), hold(to_ms=at(5)), samples("busy", at(0), at(3)))
    assert found.states(evidence=3, pod_uid="p") == {"active": 210_000}
    assert found.states(evidence=1, pod_uid="p") == {"unobserved": 90_000}
