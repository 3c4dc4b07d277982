"""Findings open once and close once under one ID, even if a moving window cuts them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from datetime import UTC
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.account.query.answer_json import iso
from pyrometer.act.finding_lifecycle import FindingTracker, ms_of
from pyrometer.findings.continuity import MAX_GAP_MS, named, until_ms
from pyrometer.findings.proposals import Proposal
from pyrometer.model.records import Finding
from pyrometer.model.settings import Settings
from pyrometer.questions.parameters import DEFAULT_LAST
from pyrometer.serve.core import Core
from pyrometer.serve.main import Services, build_services
from pyrometer.simulate.night import simulate
from pyrometer.simulate.replay import replay
from pyrometer.store import Store
from tests.support import clusters
from tests.support.effort import THOROUGH
from tests.support.made_findings import FindingHistory, finding

MINUTE = 60_000
BEGIN_MS = clusters.START_MS
WINDOW_MS = 60 * MINUTE


class Episode(NamedTuple):
    """A true waste episode."""

    cause: str
    owner: str | None
    node: str | None
    from_ms: int
    to_ms: int


@st.composite
def histories(draw: st.DrawFn) -> list[Episode]:
    """Episodes of some owners, separated by more than the gap that one finding may have."""
    found = []
    for owner in ("llama", "ranker", None):
        node = draw(st.sampled_from(("n0", None))) if owner else "n1"
        time_ms = BEGIN_MS + draw(st.integers(0, 60)) * MINUTE
        for _ in range(draw(st.integers(0, 2))):
            to_ms = time_ms + draw(st.integers(2, 120)) * MINUTE + draw(st.integers(0, MINUTE))
            found.append(Episode(draw(st.sampled_from(("hang", "idle_held"))), owner, node, time_ms, to_ms))
            time_ms = to_ms + draw(st.integers(25, 60)) * MINUTE
    return found


@st.composite
def proposed(draw: st.DrawFn, episodes: list[Episode], end_ms: int, missing: set[int]) -> dict[int, Proposal]:
    """The proposals of detectors at a time, clipped to the window, with uncertain edges."""
    from_ms, seen = end_ms - WINDOW_MS, {}
    for number, one in enumerate(episodes):
        begin, over = max(one.from_ms, from_ms), min(one.to_ms, end_ms)
        if over - begin < 2 * MINUTE:
            continue
        if number not in missing and draw(st.integers(0, 9)) == 0:
            missing.add(number)  # for once it is not worth notifying
            continue
        missing.discard(number)
        begin += draw(st.integers(0, 20_000)) if one.from_ms > from_ms else 0
        culprit = {"node": one.node} if one.node and (one.owner is None or draw(st.booleans())) else None
        seen[number] = Proposal(one.cause, one.owner, begin, over, ("hang",), (), "hung", (), "", culprit)
    return seen


def answer(proposals: list[Proposal], names: list[str], end_ms: int) -> dict[str, Any]:
    findings = [
        {
            "id": name,
            "cause": one.cause,
            "owner_uid": one.owner_uid,
            "culprit": one.culprit,
            "gpu_ms": 1,
            "usd_micro": None,
            "ended": False,
            "from": iso(one.from_ms, UTC),
            "to": iso(one.to_ms, UTC),
        }
        for one, name in zip(proposals, names, strict=True)
    ]
    return {"window": {"to": iso(end_ms, UTC)}, "findings": findings}


@settings(max_examples=40 if THOROUGH else 12)
@given(histories(), st.data())
def test_each_episode_is_one_finding_that_opens_and_closes_once(episodes: list[Episode], data: st.DataObject):
    written: dict[str, Finding] = {}
    names = defaultdict(set)
    opened, closed = Counter(), Counter()
    lives = FindingTracker()
    missing: set[int] = set()
    end_ms = BEGIN_MS
    last_ms = max((one.to_ms for one in episodes), default=BEGIN_MS) + 2 * MAX_GAP_MS
    while end_ms < last_ms:
        end_ms += data.draw(st.integers(2, 4)) * MINUTE
        seen = data.draw(proposed(episodes, end_ms, missing))
        if data.draw(st.integers(0, 20)) == 0:  # the server starts again
            lives = FindingTracker(written.values(), lives.looked_ms)
        found = [name.id for name in named(list(seen.values()), written.values(), lives.looked_ms)]
        assert len(set(found)) == len(found)
        for number, name in zip(seen, found, strict=True):
            names[number].add(name)
        answered = answer(list(seen.values()), found, end_ms)
        for one in lives.look(answered):
            opened[one.finding_id] += one.finding_id not in written
            closed[one.finding_id] += one.over_ms is not None
            written[one.finding_id] = one
        assert lives.look(answered) == []  # nothing new, nothing to write
    assert all(len(ids) == 1 for ids in names.values())
    assert len(set().union(*names.values())) == len(names)  # and no two episodes share one
    assert set(opened) == set(closed) == set().union(*names.values())
    assert set(opened.values()) | set(closed.values()) <= {1}


intervals = st.tuples(st.integers(0, 300), st.integers(1, 120)).map(
    lambda drawn: (BEGIN_MS + drawn[0] * MINUTE, BEGIN_MS + sum(drawn) * MINUTE)
)
nodes = st.sampled_from((None, "n0", "n1"))


@given(
    st.lists(st.tuples(intervals, nodes), max_size=6),
    st.lists(st.tuples(intervals, nodes, st.booleans()), max_size=6),
    st.integers(0, 420),
)
def test_finding_ids_are_unique_and_independent_of_order(proposed, before, looked_min):
    looked_ms = BEGIN_MS + looked_min * MINUTE
    proposals = [
        Proposal("hang", "llama", from_ms, to_ms, (), (), f"{number}", (), "", {"node": node} if node else None)
        for number, ((from_ms, to_ms), node) in enumerate(proposed)
    ]
    known = [
        Finding(
            to_ms,
            f"id{number}",
            "hang",
            "llama",
            from_ms,
            to_ms,
            to_ms,
            to_ms if over else None,
            culprit_json=f'{{"node": "{node}"}}' if node else None,
        )
        for number, ((from_ms, to_ms), node, over) in enumerate(before)
    ]
    names = named(proposals, known, looked_ms)
    assert len({name.id for name in names}) == len(proposals)
    for proposal, name in zip(proposals, names, strict=True):
        one = next((one for one in known if one.finding_id == name.id), None)
        assert (one is None) == (name.seen_ms is None)
        if one is not None:
            assert proposal.from_ms <= until_ms(one, looked_ms) + MAX_GAP_MS
            assert proposal.to_ms >= one.from_ms - MAX_GAP_MS
    assert sorted(named(proposals, reversed(known), looked_ms)) == sorted(names)


def test_equal_findings_get_two_ids_without_a_history() -> None:
    alike = Proposal("hang", "llama", BEGIN_MS, BEGIN_MS + MINUTE, (), (), "", (), "")
    first, second = named([alike, alike], [], 0)
    assert first.id != second.id
    assert named([alike], [], 0) == [first]


MOMENTS = 5


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The findings of a server during a simulated night, with a window of one hour and a restart each time."""
    folder: Path = tmp_path_factory.mktemp("night")
    results: dict[str, Any] = {"answers": []}

    async def look(server: Services) -> None:
        await server.findings.find()
        results["answers"].append(await server.answering.ask("why", {}))

    with pytest.MonkeyPatch.context() as patch, Store(folder / "night", create=True) as night:
        patch.setitem(DEFAULT_LAST, "why", "1h")
        results["truth"] = simulate(night, "hang", seed=4, hours=4)["findings"]
        hangs = [(ms_of(one["from"]), ms_of(one["to"])) for one in results["truth"]]
        from_ms, to_ms = min(hangs)[0], max(to_ms for _, to_ms in hangs)
        replayed_ms = 0
        for moment in range(1, MOMENTS):
            until_ms = from_ms + (to_ms + 2 * MAX_GAP_MS - from_ms) * moment // (MOMENTS - 1)
            with Store(folder / "live", create=True) as store:
                replay(night, store, replayed_ms, until_ms)
                replayed_ms = until_ms
                asyncio.run(look(build_services(Core(store, Settings()), open_to_all=True)))
                store.expose_all(["finding"])
                rows = store.connection.execute("FROM finding ORDER BY time_ms").fetchall()
                results["written"] = [Finding(*row) for row in rows]
    return results


@pytest.mark.heavy
def test_hang_keeps_its_id_while_the_window_moves(looked: dict[str, Any]) -> None:
    names, begun = defaultdict(set), defaultdict(set)
    for answered in looked["answers"]:
        for hang in clusters.findings_of("hang", answered):
            names[hang["workload"]["name"]].add(hang["id"])
            begun[hang["workload"]["name"]].add(hang["from"])
    assert {len(ids) for ids in names.values()} == {1}
    assert len(names) == 2
    assert max(map(len, begun.values())) > 2  # one began before the window, which moves
    assert {hang["seen"] is None for hang in clusters.findings_of("hang", looked["answers"][-1])} == {False}


@pytest.mark.heavy
def test_finding_is_stored_at_its_start_and_end_with_its_total_cost(looked: dict[str, Any]) -> None:
    lives = defaultdict(list)
    for one in looked["written"]:
        lives[one.finding_id].append(one)
    hangs = {life[0].owner_uid: life for life in lives.values() if life[0].cause == "hang"}
    assert sorted(map(len, hangs.values())) == [1, 3]  # one ended before the first look
    opened, over, summed_up = max(hangs.values(), key=len)
    assert (opened.over_ms, over.over_ms, summed_up.over_ms) == (None, over.time_ms, over.time_ms)
    assert opened.seen_ms == over.seen_ms == summed_up.seen_ms == opened.time_ms
    assert opened.from_ms == over.from_ms == summed_up.from_ms
    truth = {
        one["workload"]["uid"]: one["gpu_ms"] for one in clusters.findings_of("hang", {"findings": looked["truth"]})
    }
    for owner, life in hangs.items():  # the total cost, although each window had at most one hour
        assert abs(life[-1].gpu_ms - truth[owner]) < 0.05 * truth[owner]
    assert max(truth.values()) > 1.2 * over.gpu_ms
    assert all(len(life) <= 3 for life in lives.values())


def test_intermittent_finding_stays_open():
    """A crash loop whose attempts live for a quarter of an hour: it is reported once, not at every crash."""
    seen = FindingHistory()
    for at_min in range(30, 150, 15):
        crash = finding(cause="crash_loop", to=at_min)
        for minute in (at_min, at_min + 14):
            (life,) = seen.look(minute, crash)
            assert not life.is_over
    (life,) = seen.look(150 + 61)
    assert life.is_over
