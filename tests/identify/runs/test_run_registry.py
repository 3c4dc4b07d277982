"""Ranks and their words: which run, which attempt, which pod, which device; in whatever order they come."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.collect.otlp import requests
from pyrometer.collect.otlp.messages import RankIdentity, RankMessages, RankStatus, WindowMessage
from pyrometer.identify.runs.rank_locations import RunContext
from pyrometer.identify.runs.run_registry import RunRegistry
from pyrometer.model.columns import SCHEMAS, schema_of
from pyrometer.model.records import Pod, Run, StepWindow
from pyrometer.serve.ingest.step_store import store_inbox
from pyrometer.store import Store
from tests.support import cpu_run, otlp_json

T0 = 1_790_000_000_000
KINDS = ("run", "step_window", "span", "batch", "metric", "event", "slot", "pod", "workload", "allocation")
# Objects change: the newest record of each counts, whenever it was written.
OBJECTS = {
    "run": ("run", "attempt", "rank"),
    "slot": ("node_uid", "slot_index"),
    "pod": ("pod_uid",),
    "workload": ("workload_uid",),
    "allocation": ("pod_uid", "node_uid", "slot_index", "from_ms"),
}


def received_from(parts: Iterable[otlp_json.Part]) -> list[RankMessages]:
    """What parts say, over the wire."""
    found: list[RankMessages] = []
    for signal, body in otlp_json.bodies(parts).items():
        received = requests.read(signal, body, is_json=True, now_ms=T0 + 10**9)
        assert not received.refused
        found += received.messages
    return found


def facts(records: Iterable[tuple[Any, ...]]) -> dict[str, set[Any]]:
    """What a store would say: each fact once, of objects the last word."""
    rows: dict[str, dict[Any, tuple[Any, ...]]] = {kind: {} for kind in KINDS}
    for record in records:
        schema = schema_of(type(record))
        named = record._asdict()
        if schema.name in OBJECTS:
            key = tuple(named[name] for name in OBJECTS[schema.name])
            before = rows[schema.name].get(key)
            if before is None or before[0] < record[0]:
                rows[schema.name][key] = record
        else:
            rows[schema.name].setdefault(tuple(named[name] for name in schema.key), record)
    return {kind: {repr(row[1:] if kind in OBJECTS else row) for row in found.values()} for kind, found in rows.items()}


def shortened(t0: int, *, ended: bool) -> list[tuple[dict[str, Any], otlp_json.Message]]:
    """The story with fewer messages; the last ones of the first attempt may be missing."""
    found = []
    for identity, messages in cpu_run.story(t0):
        often = 0
        for message in messages:
            often += message[0] in ("window", "metric", "span", "batch")
            if often and message[0] in ("window", "metric", "span", "batch") and often % 9 != 1:
                continue
            if not ended and identity["launch"] == cpu_run.FIRST and "ended_ms" in message[1]:
                continue
            found.append((identity, message))
    return found


def shuffled(seed: int, *, ended: bool, t0: int = T0) -> list[list[tuple[dict[str, Any], otlp_json.Message]]]:
    """Batches of the same messages: in any order, some again, cut anyhow; the first launch is seen first."""
    chance = Random(seed)
    words = shortened(t0, ended=ended)
    again = chance.choices(words, k=chance.randrange(20))
    chance.shuffle(words)
    words += again
    first = next(number for number, (identity, _) in enumerate(words) if identity["launch"] == cpu_run.FIRST)
    words.insert(0, words.pop(first))
    cuts = sorted(chance.sample(range(1, len(words)), chance.randrange(6)))
    return [words[a:b] for a, b in zip([0, *cuts], [*cuts, len(words)], strict=True)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), ended=st.booleans())
def test_records_do_not_depend_on_order_batches_or_repetition(seed: int, ended: bool) -> None:
    runs = RunRegistry()
    records: list[tuple[Any, ...]] = []
    for batch in shuffled(seed, ended=ended):
        records += runs.take(
            received_from((identity, [message]) for identity, message in batch), RunContext(), local=True
        ).records
    whole = (
        RunRegistry()
        .take(received_from((i, [m]) for i, m in shortened(T0, ended=ended)), RunContext(), local=True)
        .records
    )
    assert facts(records) == facts(whole)


def in_store(store: Store) -> dict[str, list[Any]]:
    store.expose_all(KINDS)
    found = {}
    for kind in KINDS:
        key = ", ".join(OBJECTS.get(kind, ()))
        newest = f"QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY time_ms DESC) = 1" if key else ""
        columns = ", ".join(name for name in SCHEMAS[kind].column_names if not key or name != "time_ms")
        rows = store.connection.execute(f"SELECT {columns} FROM (SELECT * FROM {kind} {newest}) ORDER BY ALL")
        found[kind] = [repr(row) for row in rows.fetchall()]
    return found


NOW = time.time_ns() // 1_000_000 - 7_200_000


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
@pytest.mark.heavy
def test_records_do_not_depend_on_restarts(seed: int) -> None:
    """Read back from the store: attempts, places, what was known of each rank."""
    contents = []
    for bodies in (shuffled(seed, ended=True, t0=NOW), [shortened(NOW, ended=True)]):
        with tempfile.TemporaryDirectory() as folder, Store(folder, create=True) as store:
            for number, batch in enumerate(bodies):
                otlp_json.put_in_inbox(
                    Path(folder), [(identity, [message]) for identity, message in batch], f"{number:03d}"
                )
                assert not store_inbox(store)
            contents.append(in_store(store))
    assert contents[0] == contents[1]
    assert len(contents[0]["run"]) == 4


# -- which run, which attempt -----------------------------------------------------------------------------------------


def rank(launch: str = "l1", number: int = 0, **more: Any) -> RankIdentity:
    known = {"host": "h", "started_ms": T0, "device": "cuda", "gpu_uuid": f"GPU-{number}", "gpu_index": number}
    return RankIdentity(launch, number, **(known | more))


STEP = WindowMessage(T0 + 1_000, T0 + 11_000, 0, 10)


def the(kind: type, records: Iterable[Any]) -> list[Any]:
    return [record for record in records if type(record) is kind]


def pod(uid: str = "p1", workload: str | None = "w1", **more: Any) -> Pod:
    return Pod(T0, "prod", uid, "ml", f"name-{uid}", "Running", workload, node_uid="n1", **more)


def test_run_is_named_by_program_then_workload_then_launch() -> None:
    known = RunContext(pods=[pod()])
    for who, name in (
        (rank(run="mine", pod_uid="p1"), "mine"),
        (rank(pod_uid="p1"), "w1"),
        (rank(), "l1"),
        (rank(pod_name="name-p1", namespace="ml"), "w1"),
        (rank(pod_name="name-p1", namespace="other"), "l1"),
    ):
        records = RunRegistry().take([(who, [STEP])], known).records
        assert {record.run for record in (*the(Run, records), *the(StepWindow, records))} == {name}


def test_restarted_launch_is_an_attempt_of_the_first() -> None:
    runs = RunRegistry()
    for number, (launch, first) in enumerate((("l1", None), ("l2", "l1"), ("l3", "l1"))):
        who = rank(launch, restart_of=first, started_ms=T0 + 1_000 * number)
        found = the(Run, runs.take([(who, [STEP])], RunContext()).records)  # and the end of the one before
        assert {(run.run, run.attempt) for run in found if run.launch == launch} == {("l1", number + 1)}
    known = RunContext(attempts=[("l1", 1, "l1"), ("l1", 2, "l2")])
    anew = RunRegistry()
    who = rank("l3", restart_of="l1")
    assert anew.missing_context([(who, [STEP])]).runs == {"l1"}
    (run,) = the(Run, anew.take([(who, [STEP])], known).records)
    assert (run.run, run.attempt) == ("l1", 3)


def test_launches_are_numbered_in_order_across_restarts() -> None:
    runs = RunRegistry()
    later = STEP._replace(time_ms=T0 + 900_000, to_ms=T0 + 910_000)
    together = [(rank("b", run="r", started_ms=T0 + 800_000), [later]), (rank("a", run="r"), [STEP])]
    records = the(Run, runs.take(together, RunContext()).records)
    assert {(run.launch, run.attempt) for run in records} == {("a", 1), ("b", 2)}
    known = RunContext(attempts=[("r", 1, "a"), ("r", 2, "b")])
    again = the(Run, RunRegistry().take([(rank("c", run="r"), [STEP])], known).records)
    assert [(run.launch, run.attempt) for run in again] == [("c", 3)]


def test_missing_context_has_the_launch_until_all_ranks_are_known() -> None:
    """A later attempt restored its ranks that had not ended; the rest is in the store."""
    before = Run(T0, "r", 1, 1, T0, launch="a", pod_uid="run:a:1", node_uid="host/h", slot_index=1)
    runs = RunRegistry()
    later = rank("b", run="r", started_ms=T0 + 800_000)
    status = [RankStatus(T0 + 800_000)]
    records = runs.take([(later, status)], RunContext(ranks=[before], attempts=[("r", 1, "a")])).records
    assert [(run.launch, run.outcome) for run in the(Run, records)] == [("b", None), ("a", "killed")]
    assert runs.missing_context([(rank("a", run="r"), [STEP])]).launches == {"a"}
    assert runs.missing_context([(later, status)]).launches == set()


def test_attempts_beyond_the_limit_are_counted_and_dropped() -> None:
    taken = RunRegistry().take([(rank("c", run="r"), [STEP])], RunContext(attempts=[("r", 2**15 - 1, "a")]))
    assert (taken.records, taken.unnumbered) == ([], 1)


# -- where ------------------------------------------------------------------------------------------------------------


# -- records ----------------------------------------------------------------------------------------------------------


def test_rank_records_accumulate_reported_fields() -> None:
    runs, who = RunRegistry(), rank(ranks=4)
    statuses = [
        RankStatus(T0 + 1_000),
        RankStatus(T0 + 2_000, first_step_ms=T0 + 1_900),
        RankStatus(T0 + 3_000, resumed_step=7),
        RankStatus(T0 + 9_000, ended_ms=T0 + 8_900, outcome="killed"),
        RankStatus(T0 + 4_000),
    ]
    records = [the(Run, runs.take([(who, [news])], RunContext()).records) for news in statuses]
    assert records[-1] == []  # nothing new
    assert [record.time_ms for (record,) in records[:-1]] == [T0 + 1_000, T0 + 2_000, T0 + 3_000, T0 + 9_000]
    (last,) = records[3]
    assert (last.started_ms, last.first_step_ms, last.ended_ms) == (T0, T0 + 1_900, T0 + 8_900)
    assert (last.outcome, last.resumed_step, last.ranks) == ("killed", 7, 4)
    # what comes late is in a record that is newer than all before; who failed knows better than who saw it vanish
    (late,) = the(
        Run, runs.take([(who, [RankStatus(T0 + 8_900, ended_ms=T0 + 8_900, outcome="failed")])], RunContext()).records
    )
    assert (late.time_ms, late.outcome, late.ended_ms) == (T0 + 9_001, "failed", T0 + 8_900)
