"""The ledger is about the records, not about how they came: in any order, in any batches, twice, late, hot, sealed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pyrometer.model import events
from pyrometer.model.records import Allocation, Price, Run
from pyrometer.model.units import MS_PER_HOUR, SHARE_WHOLE
from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from tests.support.histories import (
    ONE_CHUNK,
    History,
    Ledger,
    account,
    at,
    energy_of,
    event,
    flat,
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
    with_prefix,
    workload,
)


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """Compares ledgers; what differs is shown, not all that is the same."""
    extra = sorted(set(found) - set(expected), key=str)[:4]
    missing = sorted(set(expected) - set(found), key=str)[:4]
    assert (extra, missing) == ([], [])
    assert found == expected


Built = tuple[list[Any], list[Any]]  # the ledger's rows, and the energy's


@law(1)
@pytest.mark.heavy
def test_the_ledger_does_not_depend_on_the_order_of_arrival(history: History) -> None:
    whole = ledger(*history.records, now_ms=history.now_ms, chunk_slot_minutes=ONE_CHUNK)
    for found, energy in (
        _built_hour_by_hour(history),
        _in_any_order_and_any_batches(history),
        _growing_with_time(history),
        _with_a_tracker_that_tells_of_it(history),
    ):
        assert_same(found, whole.rows)
        assert_same(energy, whole.energy)


def _built_hour_by_hour(history: History) -> Built:
    hourly = ledger(*history.records, now_ms=history.now_ms, chunk_slot_minutes=1)
    return hourly.rows, hourly.energy


def _with_a_tracker_that_tells_of_it(history: History) -> Built:
    """Its runs began and ended anywhere in what was held: that says nothing of what the GPUs did."""
    holds = [record for record in history.records if isinstance(record, Allocation)]
    observations = [
        Run(
            hold.time_ms,
            "of-a-tracker",
            1,
            rank,
            hold.from_ms,
            pod_uid=hold.pod_uid,
            node_uid=hold.node_uid,
            slot_index=hold.slot_index,
            ended_ms=hold.from_ms + rank % 7 * MINUTE,
            outcome="failed",
            source="mlflow",
        )
        for rank, hold in enumerate(holds)
    ]
    found = ledger(*history.records, *observations, now_ms=history.now_ms, chunk_slot_minutes=ONE_CHUNK)
    return found.rows, found.energy


def _in_any_order_and_any_batches(history: History) -> Built:
    chance = random.Random(len(history.records))
    late = list(history.records)
    chance.shuffle(late)
    with folder() as store:
        for batch in _batches(chance, late + chance.sample(late, len(late) // 3)):
            store.append(batch)
            if chance.random() < 0.3:
                store.seal()
            account(store, history.now_ms, chunk_slot_minutes=chance.choice((1, ONE_CHUNK)))
        return rows_of(store), energy_of(store)


def _growing_with_time(history: History) -> Built:
    chance = random.Random(len(history.records))
    in_time = sorted(history.records, key=lambda record: record.time_ms)
    with folder() as store:
        for batch in _batches(chance, in_time):
            store.append(batch)
            account(store, min(history.now_ms, max(record.time_ms for record in batch)))
            if chance.random() < 0.3:
                store.seal(batch[-1].time_ms)
        account(store, history.now_ms)
        return rows_of(store), energy_of(store)


def _batches(chance: random.Random, records: list[Any]) -> list[list[Any]]:
    """The records in two or three batches."""
    cuts = sorted(chance.randint(0, len(records)) for _ in range(chance.choice((1, 2))))
    pieces = [records[i:j] for i, j in zip([0, *cuts], [*cuts, len(records)], strict=True)]
    return [piece for piece in pieces if piece]


# -- hours -------------------------------------------------------------------------------------------------------

HELD = [pod(), hold()]
SEVENTH = SHARE_WHOLE // 7
ACROSS_HOURS: dict[str, list[Any]] = {
    "a window of two hours": [*HELD, run(at(0), first_step_ms=at(1)), window(at(30), at(150), evaluate_ms=7_200_000)],
    "a window in a window": [
        *HELD,
        run(at(0), first_step_ms=at(1)),
        window(at(5), at(65), steps=1),
        window(at(10), at(11), steps=1),
    ],
    "a hole in telemetry": [
        *HELD,
        samples("busy", at(0), at(50)),
        samples("idle", at(50), at(55)),
        samples("idle", at(125), at(130)),
    ],
    "activity after a hole": [
        *HELD,
        samples("busy", at(0), at(50)),
        samples("idle", at(50), at(55)),
        samples("busy", at(125), at(130)),
    ],
    "two holds of a pod": [
        pod(started=None),
        hold(to_ms=at(30)),
        hold(from_ms=at(130)),
        hold("other", at(40), at(120)),
        run(at(5), first_step_ms=at(6), ended_ms=at(20)),
        samples("busy", at(0), at(20)),
        samples("busy", at(40), at(120)),
        samples("idle", at(130), at(180)),
    ],
    "two instances of a pod": [
        pod(),
        hold(instance=0, share=SEVENTH),
        hold(instance=1, share=SEVENTH),
        samples("mig_busy", at(0), at(20), instance=0),
        samples("mig_idle", at(20), at(180), instance=0),
        samples("mig_idle", at(0), at(180), instance=1),
    ],
    "a device and one of its instances": [
        pod(),
        hold(instance=0, share=SEVENTH),
        samples("busy", at(58, 49), at(70), every_ms=60_000),
        samples("mig_idle", at(20), at(180), instance=0),
    ],
    "a device that was given back": [
        pod(),
        hold(to_ms=at(40)),
        hold(slot=1),
        samples("busy", at(5), at(40)),
        samples("idle", at(0), at(180), slot=1),
    ],
    "an unused device whose pod is late": [
        pod(),
        hold(),
        hold(slot=1),
        samples("idle", at(0), at(65)),
        samples("busy", at(65), at(180)),
        samples("idle", at(0), at(180), slot=1),
    ],
}


@pytest.mark.heavy
def test_states_across_hours_do_not_depend_on_chunks() -> None:
    records = [
        with_prefix(f"{name}/", record)
        for name, case in ACROSS_HOURS.items()
        for record in flat([node(count=2), until(at(240), count=2), *case])
    ]
    hourly, together = (ledger(records, chunk_slot_minutes=size).rows for size in (1, ONE_CHUNK))
    differs = {row.node_uid for row in set(hourly) ^ set(together)}
    assert differs == set()


# -- what becomes known late --------------------------------------------------------------------------------------


def late(known: list[Any], then: list[Any]) -> Ledger:
    """The ledger of records that came in two parts, with a ledger in between."""
    with folder() as store:
        for batch in (known, then):
            store.append(flat(batch))
            covered = account(store, chunk_slot_minutes=1)
        return Ledger(rows_of(store), covered)


def test_a_run_that_is_reported_after_its_end_changes_the_hours_after_it() -> None:
    known = [node(), until(at(120)), *HELD]
    found = late(known, [run(at(5), first_step_ms=at(6), ended_ms=at(50), time_ms=at(50))])
    assert found.states() == {"startup": 6 * MINUTE, "unobserved": 44 * MINUTE, "idle_held": 70 * MINUTE}


def test_a_run_that_is_reported_late_changes_the_hour_in_which_its_container_started() -> None:
    known = [node(), until(at(120)), pod(started=at(50)), hold(from_ms=at(50))]
    found = late(known, [run(at(65), first_step_ms=at(66))])
    assert found.states() == {"free": 50 * MINUTE, "startup": 16 * MINUTE, "unobserved": 54 * MINUTE}


def test_a_pod_whose_workload_becomes_known_late_waits_with_its_gang() -> None:
    gang = [node(count=2), until(at(60), count=2), workload(gang_pods=3), hold("a"), hold("b", slot=1)]
    found = late([*gang, pod("a", workload_uid="w"), pod("b")], [pod("b", workload_uid="w", time_ms=at(1))])
    assert found.states() == {"gang_wait": 120 * MINUTE}


def test_a_pod_whose_end_becomes_known_late_shortens_a_gap_of_the_hour_before() -> None:
    telemetry = [samples("busy", at(0), at(50)), samples("idle", at(50), at(75))]
    found = late([node(), until(at(90)), *HELD, *telemetry], [pod(ended=at(62), time_ms=at(63))])
    assert found.states(pod_uid="p") == {"active": 50 * MINUTE, "starved": 12 * MINUTE}


def test_a_late_gpu_model_changes_the_near_idle_power() -> None:
    edge = samples("spins", at(0), at(60), power_w=151)  # near idle for an H100, not for an unknown board
    known = [node(gpu_model=None), *HELD, edge, until(at(120))._replace(gpu_model=None)]
    assert late(known, [node(at(90))]).states(minute_ms=at(30)) == {"hang": MINUTE}


def test_late_events_change_earlier_restatements() -> None:
    steps = [run(at(0), first_step_ms=at(0)), windows(at(0), at(10), MINUTE)]
    found = late([node(), until(at(60)), *HELD, *steps, event(events.STUCK, at(10))], [event(events.UNSTUCK, at(20))])
    assert found.states() == {"train": 10 * MINUTE, "hang": 10 * MINUTE, "unobserved": 40 * MINUTE}


def test_a_late_identity_is_restated_for_its_pod_only() -> None:
    both = [pod("a"), pod("b"), hold("a", share=SHARE_WHOLE // 2), hold("b", share=SHARE_WHOLE // 2)]
    without_pod = run(at(0), first_step_ms=at(0), pod_uid=None)
    known = [node(), until(at(60)), *both, without_pod, event(events.STUCK, at(10))]
    found = late(known, [run(at(0), first_step_ms=at(0), pod_uid="a", time_ms=at(2))])
    assert found.states(pod_uid="a") == {"unobserved": 5 * MINUTE, "hang": 25 * MINUTE}
    assert found.states(pod_uid="b") == {"unobserved": 30 * MINUTE}


# -- only what is stale is built again ----------------------------------------------------------------------------


def _built(store: Any, records: list[Any], **options: Any) -> int:
    store.append(flat(records))
    covered = account(store, chunk_slot_minutes=1, **options)
    assert covered is not None
    return covered.chunks_built


def test_build_of_an_unchanged_store_builds_no_chunk() -> None:
    records = [node(), until(at(240)), pod(), hold(), run(at(0), first_step_ms=at(1)), event(events.STUCK, at(10))]
    with folder() as store:
        assert _built(store, records) == 4
        assert _built(store, []) == 0
        assert _built(store, [records[0]]) == 0  # the same fact once more


@pytest.mark.heavy
def test_late_samples_build_only_the_hours_around_them_again() -> None:
    busy = samples("busy", at(0), at(4 * 60), every_ms=60_000)
    with folder() as store:
        assert _built(store, [node(), until(at(4 * 60)), pod(), hold(), busy]) == 4
        # its own hour; the one before, which looks ahead; the one after, if it is handed something else
        assert 1 <= _built(store, samples("busy", at(65, 7), at(66), every_ms=10_000)) <= 3


def test_a_pod_that_ended_shortens_its_hold() -> None:
    with folder() as store:
        assert _built(store, [node(), until(at(4 * 60)), pod(), hold()]) == 4
        assert _built(store, [pod(ended=at(150))]) == 2
        held = {row.minute_ms for row in rows_of(store) if row.pod_uid}
    assert max(held) == at(149)


def test_a_new_node_leaves_the_past_alone() -> None:
    with folder() as store:
        _built(store, [node(uid="m"), until(at(4 * 60), uid="m")])
        assert _built(store, [node(at(210), uid="a"), until(at(4 * 60), uid="a")]) <= 2


def test_a_price_that_changes_builds_only_the_hours_it_is_for() -> None:
    with folder() as store:
        _built(store, [node(), until(at(4 * 60))])
        assert _built(store, [], prices=[Price(at(120), 1_000_000, at(120))]) == 2
        prices = {row.usd_micro_per_hour for row in rows_of(store) if row.minute_ms >= at(120)}
    assert prices == {1_000_000}


def test_hours_in_which_no_slot_is_left_are_dropped() -> None:
    with folder() as store:
        _built(store, [node(), until(at(240))])
        _built(store, [node(at(60), present=False), node(at(180))])
        assert {row.minute_ms // MS_PER_HOUR * MS_PER_HOUR for row in rows_of(store)} == {at(0), at(180)}
