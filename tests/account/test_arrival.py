"""The ledger is about the records, not about how they came: in any order, in any batches, twice, late, hot or sealed."""

from __future__ import annotations

import random
from typing import Any

from histories import (
    ONE_CHUNK,
    History,
    account,
    at,
    event,
    folder,
    hold,
    law,
    ledger,
    node,
    pod,
    rows_of,
    run,
    samples,
    until,
    window,
    windows,
    workload,
)

from pyrometer.model import events
from pyrometer.model.records import LedgerRow
from pyrometer.model.units import MS_PER_HOUR


def assert_same(found: list[LedgerRow], expected: list[LedgerRow]) -> None:
    """Compares ledgers; what differs is shown, not all that is the same."""
    extra = sorted(set(found) - set(expected), key=str)[:4]
    missing = sorted(set(expected) - set(found), key=str)[:4]
    assert (extra, missing) == ([], [])
    assert found == expected


@law(16)
def test_hours_can_be_built_in_any_grouping(history: History) -> None:
    hourly = ledger(*history.records, now_ms=history.now_ms, chunk_slot_minutes=1)
    together = ledger(*history.records, now_ms=history.now_ms, chunk_slot_minutes=ONE_CHUNK)
    assert_same(hourly.rows, together.rows)


@law(16)
def test_records_can_come_in_any_order_and_any_batches(history: History) -> None:
    chance = random.Random(len(history.records))
    late = list(history.records)
    chance.shuffle(late)
    with folder() as store:
        for batch in _batches(chance, late + chance.sample(late, len(late) // 3)):
            store.append(batch)
            if chance.random() < 0.3:
                store.seal()
            account(store, history.now_ms, chunk_slot_minutes=chance.choice((1, ONE_CHUNK)))
        found = rows_of(store)
    assert_same(found, ledger(*history.records, now_ms=history.now_ms).rows)


@law(12)
def test_a_ledger_that_grows_with_time_ends_as_one_that_is_built_at_the_end(history: History) -> None:
    chance = random.Random(len(history.records))
    in_time = sorted(history.records, key=lambda record: record.time_ms)
    with folder() as store:
        for batch in _batches(chance, in_time):
            store.append(batch)
            account(store, min(history.now_ms, max(record.time_ms for record in batch)))
            if chance.random() < 0.3:
                store.seal(batch[-1].time_ms)
        account(store, history.now_ms)
        found = rows_of(store)
    assert_same(found, ledger(*history.records, now_ms=history.now_ms).rows)


def _batches(chance: random.Random, records: list[Any]) -> list[list[Any]]:
    """The records in two or three batches."""
    cuts = sorted(chance.randint(0, len(records)) for _ in range(chance.choice((1, 2))))
    pieces = [records[i:j] for i, j in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    return [piece for piece in pieces if piece]


# -- what becomes known late --------------------------------------------------------------------------------------


def late(first: list[Any], then: list[Any]) -> tuple[list[LedgerRow], list[LedgerRow]]:
    """The ledger of records that came in two parts, and of the same at once."""
    with folder() as store:
        store.append(_flat(first))
        account(store, chunk_slot_minutes=1)
        store.append(_flat(then))
        account(store, chunk_slot_minutes=1)
        return rows_of(store), ledger(*first, *then, chunk_slot_minutes=1).rows


def _flat(records: list[Any]) -> list[Any]:
    return [one for record in records for one in (record if isinstance(record, list) else [record])]


def test_a_run_that_is_reported_after_its_end_changes_the_hours_after_it() -> None:
    known = [node(), until(at(180)), pod(), hold()]
    assert_same(*late(known, [run(at(5), first_step_ms=at(6), ended_ms=at(50), time_ms=at(50))]))


def test_a_run_that_is_reported_late_changes_the_hour_in_which_its_container_started() -> None:
    known = [node(), until(at(120)), pod(started=at(50)), hold(from_ms=at(50))]
    assert_same(*late(known, [run(at(65), first_step_ms=at(66))]))


def test_a_pod_whose_workload_becomes_known_late_waits_with_its_gang() -> None:
    gang = [node(count=2), until(at(60), count=2), workload(gang_pods=3), hold("a"), hold("b", slot=1)]
    known = [*gang, pod("a", workload_uid="w"), pod("b")]
    found, expected = late(known, [pod("b", workload_uid="w", time_ms=at(1))])
    assert_same(found, expected)
    assert {row.state for row in found} == {"gang_wait"}


def test_a_pod_whose_end_becomes_known_late_shortens_a_gap_of_the_hour_before() -> None:
    telemetry = [samples("busy", at(0), at(50)), samples("idle", at(50), at(75))]
    known = [node(), until(at(90)), pod(), hold(), telemetry[0], telemetry[1]]
    found, expected = late(known, [pod(ended=at(62), time_ms=at(63))])
    assert_same(found, expected)


def test_a_node_that_was_gone_for_an_hour_leaves_nothing_behind() -> None:
    telemetry = [samples("busy", at(0), at(40)), samples("idle", at(40), at(180))]
    known = [node(), until(at(180)), pod(), hold(), *telemetry]
    gone = [node(at(59), present=False), node(at(121))]
    assert_same(*late(known, gone))


def test_a_model_that_becomes_known_late_changes_what_counts_as_near_idle() -> None:
    edge = [
        sample._replace(power_w=151)  # near idle for an H100, not for a board that nobody knows
        for sample in samples("spins", at(0), at(60))
    ]
    known = [node(gpu_model=None), pod(), hold(), edge, until(at(120))._replace(gpu_model=None)]
    assert_same(*late(known, [node(at(90))]))


def test_events_that_come_late_change_what_was_restated_before() -> None:
    steps = windows(at(1), at(10))
    known = [node(), until(at(60)), pod(), hold(), run(at(0), first_step_ms=at(1)), steps, event(events.STUCK, at(10))]
    found, expected = late(known, [event(events.UNSTUCK, at(20))])
    assert_same(found, expected)
    assert sum(row.ms for row in found if row.state == "hang") == 10 * 60_000


def test_an_identity_that_becomes_known_late_is_restated_for_that_pod_alone() -> None:
    both = [pod("a"), pod("b"), hold("a", share=2_520_000_000 // 2), hold("b", share=2_520_000_000 // 2)]
    known = [node(), until(at(60)), *both, event(events.STUCK, at(10)), run(at(0), first_step_ms=at(1), pod_uid=None)]
    assert_same(*late(known, [run(at(0), first_step_ms=at(1), pod_uid="a", time_ms=at(2))]))


def test_a_window_of_two_hours_is_the_same_in_every_grouping() -> None:
    held = [node(), until(at(240)), pod(), hold(), run(at(0), first_step_ms=at(1))]
    records = [*held, window(at(30), at(150), evaluate_ms=120 * 60_000)]
    assert_same(ledger(*records, chunk_slot_minutes=1).rows, ledger(*records, chunk_slot_minutes=ONE_CHUNK).rows)


def test_a_hole_in_telemetry_is_the_same_in_every_grouping() -> None:
    telemetry = [samples("busy", at(0), at(50)), samples("idle", at(50), at(55)), samples("idle", at(125), at(130))]
    records = [node(), until(at(180)), pod(), hold(), *telemetry]
    assert_same(ledger(*records, chunk_slot_minutes=1).rows, ledger(*records, chunk_slot_minutes=ONE_CHUNK).rows)


def test_two_holds_of_a_pod_on_one_slot_are_the_same_in_every_grouping() -> None:
    held = [hold(to_ms=at(30)), hold(from_ms=at(130)), hold("other", at(40), at(120)), pod(started=None), pod("other")]
    telemetry = [samples("busy", at(0), at(20)), samples("busy", at(40), at(120)), samples("idle", at(130), at(180))]
    records = [node(), until(at(180)), *held, *telemetry, run(at(5), first_step_ms=at(6), ended_ms=at(20))]
    assert_same(ledger(*records, chunk_slot_minutes=1).rows, ledger(*records, chunk_slot_minutes=ONE_CHUNK).rows)


def test_instances_of_one_pod_are_told_apart_in_every_grouping() -> None:
    held = [pod(), hold(instance=0, share=360_000_000), hold(instance=1, share=360_000_000)]
    used = [samples("mig_busy", at(0), at(20), instance=0), samples("mig_idle", at(20), at(180), instance=0)]
    unused = samples("mig_idle", at(0), at(180), instance=1)
    records = [node(), until(at(180)), *held, *used, unused]
    assert_same(ledger(*records, chunk_slot_minutes=1).rows, ledger(*records, chunk_slot_minutes=ONE_CHUNK).rows)


def test_a_device_that_was_given_back_still_shows_that_its_pod_was_at_work() -> None:
    held = [pod(), hold(to_ms=at(40)), hold(slot=1)]
    telemetry = [samples("busy", at(5), at(40)), samples("idle", at(0), at(180), slot=1)]
    records = [node(count=2), until(at(180), count=2), *held, *telemetry]
    assert_same(ledger(*records, chunk_slot_minutes=1).rows, ledger(*records, chunk_slot_minutes=ONE_CHUNK).rows)


# -- only what is stale is built again ----------------------------------------------------------------------------


def _built(store: Any, records: list[Any], **options: Any) -> int:
    store.append(_flat(records))
    covered = account(store, chunk_slot_minutes=1, **options)
    assert covered is not None
    return covered.chunks_built


def test_a_store_that_has_not_changed_builds_nothing() -> None:
    records = [node(), until(at(240)), pod(), hold(), run(at(0), first_step_ms=at(1)), event(events.STUCK, at(10))]
    with folder() as store:
        assert _built(store, records) == 4
        assert _built(store, []) == 0
        assert _built(store, [records[0]]) == 0  # the same fact once more


def test_late_samples_build_only_the_hours_around_them_again() -> None:
    busy = samples("busy", at(0), at(6 * 60), every_ms=60_000)
    with folder() as store:
        assert _built(store, [node(), until(at(6 * 60)), pod(), hold(), busy]) == 6
        # its own hour; the one before, which looks ahead; the one after, if it is handed something else
        assert 1 <= _built(store, samples("busy", at(185, 7), at(186), every_ms=10_000)) <= 3


def test_a_pod_that_ended_shortens_its_hold() -> None:
    with folder() as store:
        assert _built(store, [node(), until(at(6 * 60)), pod(), hold()]) == 6
        assert _built(store, [pod(ended=at(270))]) == 2
        held = {row.minute_ms for row in rows_of(store) if row.pod_uid}
    assert max(held) == at(269)


def test_a_new_node_leaves_the_past_alone() -> None:
    with folder() as store:
        _built(store, [node(uid="m"), until(at(6 * 60), uid="m")])
        assert _built(store, [node(at(330), uid="a"), until(at(6 * 60), uid="a")]) <= 2


def test_a_price_that_changes_builds_only_the_hours_it_is_for() -> None:
    from pyrometer.model.records import Price

    with folder() as store:
        _built(store, [node(), until(at(6 * 60))])
        assert _built(store, [], prices=[Price(at(240), 1_000_000, at(240))]) == 2
        prices = {row.usd_micro_per_hour for row in rows_of(store) if row.minute_ms >= at(240)}
    assert prices == {1_000_000}


def test_hours_in_which_no_slot_is_left_are_dropped() -> None:
    with folder() as store:
        _built(store, [node(), until(at(240))])
        _built(store, [node(at(60), present=False), node(at(180))])
        assert {row.minute_ms // MS_PER_HOUR * MS_PER_HOUR for row in rows_of(store)} == {at(0), at(180)}
