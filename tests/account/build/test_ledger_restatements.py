"""Later evidence about the past changes states, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pyrometer.model import events
from pyrometer.model.records import Event, LedgerRow, Run, StepWindow
from pyrometer.model.units import MS_PER_MINUTE as MINUTE
from tests.support.histories import (
    History,
    Scenario,
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
    scenario,
    until,
    window,
    windows,
)


def _paid(rows: list[LedgerRow]) -> Counter[tuple[Any, ...]]:
    """Who pays how much for what: all of a row but its state, its attempt and its evidence."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        if row.pod_uid is not None:
            found[row.node_uid, row.slot_index, row.minute_ms, row.pod_uid, row.usd_micro_per_hour] += row.ms
    return found


def _without_evidence(record: Any) -> Any:
    if isinstance(record, Event):
        return record._replace(kind="without meaning")
    return record._replace(resumed_step=None) if isinstance(record, Run) else record


@law(1)
@pytest.mark.heavy
def test_restatements_preserve_time_and_money(history: History) -> None:
    restated = ledger(*history.records, now_ms=history.now_ms).rows
    plain = ledger(*map(_without_evidence, history.records), now_ms=history.now_ms).rows
    assert _paid(restated) == _paid(plain)
    assert {row.state for row in plain} & {"lost_work", "diverged"} == set()
    resumed = {(r.run, r.attempt) for r in history.records if isinstance(r, Run) and r.resumed_step is not None}
    stepped = [w for w in history.records if isinstance(w, StepWindow) and w.steps > 0 and w.to_ms > w.time_ms]
    for row in restated:
        if row.state == "lost_work":
            lost = [
                w
                for w in stepped
                if (w.node_uid, w.slot_index, w.attempt) == (row.node_uid, row.slot_index, row.attempt)
            ]
            assert any(run == w.run and attempt > w.attempt for w in lost for run, attempt in resumed)
            assert row.ms <= _covered(row.minute_ms, lost)


def _covered(minute_ms: int, lost: list[StepWindow]) -> int:
    """How much of a minute there were windows with steps."""
    cover = sorted((max(w.time_ms, minute_ms), min(w.to_ms, minute_ms + MINUTE)) for w in lost)
    total, until_ms = 0, minute_ms
    for from_ms, to_ms in cover:
        total += max(0, to_ms - max(from_ms, until_ms))
        until_ms = max(until_ms, to_ms)
    return total


CLUSTER = [node(), until(at(60)), pod(), hold()]
FIRST = [run(at(0), first_step_ms=at(0), ended_ms=at(30), time_ms=at(30)), windows(at(0), at(30), MINUTE)]  # 300 steps


def _second(resumed_step: int | None, **more: Any) -> list[Any]:
    steps = windows(at(40), at(60), MINUTE, step=resumed_step or 0, attempt=2)
    return [run(at(35), attempt=2, first_step_ms=at(40), resumed_step=resumed_step, **more), steps]


@scenario
def test_steps_are_lost_only_once_a_later_attempt_resumed_before_them() -> Scenario:
    cases = {(): 0, (None,): 0, (300,): 0, (200,): 10}
    found = yield tuple([*CLUSTER, *FIRST, *(_second(*resumed) if resumed else [])] for resumed in cases)
    assert [one.states().get("lost_work", 0) for one in found] == [minutes * MINUTE for minutes in cases.values()]


@scenario
def test_the_first_lost_step_of_a_window_is_placed_in_proportion() -> Scenario:
    found = yield [*CLUSTER, *FIRST, *_second(293)]
    assert found.states(state="lost_work") == {"lost_work": 42_000}


@scenario
def test_lost_steps_depend_on_all_later_resumes() -> Scenario:
    second = run(at(35), attempt=2, ended_ms=at(45), time_ms=at(45))
    found = yield [*CLUSTER, *FIRST, second, run(at(50), attempt=3, first_step_ms=at(55), resumed_step=250)]
    assert found.states(attempt=1)["lost_work"] == 5 * MINUTE


@scenario
def test_only_steps_are_lost() -> Scenario:
    saved = window(at(10), at(10, 0.9), checkpoint_ms=900)
    steps = [windows(at(0), at(10), MINUTE), saved, windows(at(10, 0.9), at(20), MINUTE, step=100)]
    found = yield [*CLUSTER, run(at(0), first_step_ms=at(0), ended_ms=at(20), time_ms=at(20)), *steps, *_second(0)]
    lost = found.states(attempt=1)
    assert (lost.get("checkpoint"), lost["lost_work"]) == (900, 20 * MINUTE - 900)


@scenario
def test_a_hang_begins_where_the_last_step_ended() -> Scenario:
    steps = [run(at(0), first_step_ms=at(0)), windows(at(0), at(20, 10))]
    found = yield [*CLUSTER, *steps, event(events.STUCK, at(20, 10))]
    assert found.states() == {"train": at(20, 10) - at(0), "hang": at(60) - at(20, 10)}


@scenario
def test_a_short_pause_is_not_a_hang() -> Scenario:
    steps = [run(at(0), first_step_ms=at(0)), windows(at(0), at(60))]
    found = yield [*CLUSTER, *steps, event(events.STUCK, at(20)), event(events.UNSTUCK, at(20, 59))]
    assert found.states() == {"train": 60 * MINUTE}


@scenario
def test_a_hang_ends_with_its_run() -> Scenario:
    died = [run(at(0), first_step_ms=at(0), ended_ms=at(20, 10), time_ms=at(21)), windows(at(0), at(20))]
    found = yield [*CLUSTER, *died, event(events.STUCK, at(20)), event(events.UNSTUCK, at(50))]
    assert "hang" not in found.states()  # ten seconds are too short


@scenario
def test_training_on_after_the_loss_became_nonfinite_is_diverged_to_the_end() -> Scenario:
    steps = [run(at(0), first_step_ms=at(0), ended_ms=at(50), time_ms=at(50)), windows(at(0), at(50))]
    found = yield [*CLUSTER, *steps, event(events.NONFINITE_LOSS, at(20))]
    assert found.states() == {"train": 20 * MINUTE, "diverged": 30 * MINUTE, "idle_held": 10 * MINUTE}


def test_an_outdated_restatement_is_retracted() -> None:
    steps = [run(at(0), first_step_ms=at(0)), windows(at(0), at(60))]
    with folder() as store:
        store.append([*CLUSTER, steps[0], *steps[1], event(events.STUCK, at(20))])
        account(store)
        assert {row.state for row in rows_of(store)} == {"train", "hang"}
        store.append([event(events.UNSTUCK, at(20, 30))])
        account(store)
        assert {row.state for row in rows_of(store)} == {"train"}
        covered = account(store)
        assert covered is not None
        assert covered.chunks_built == 0


def test_a_restatement_can_be_taken_back_and_made_again() -> None:
    first = [run(at(0), first_step_ms=at(0), ended_ms=at(30), time_ms=at(30)), *windows(at(0), at(30), MINUTE)]
    lost = []
    with folder() as store:
        store.append([*CLUSTER, *first])
        for seen, resumed in enumerate((200, 300, 200, 250)):
            store.append([run(at(35), attempt=2, first_step_ms=at(40), resumed_step=resumed, time_ms=at(40 + seen))])
            account(store)
            lost.append(sum(row.ms for row in rows_of(store) if row.state == "lost_work") // MINUTE)
    assert lost == [10, 0, 10, 5]
