"""Which attempt of its workload a pod belongs to: its time decides, and not the order in which pods are seen."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.identify.kubernetes.attempts import Attempts
from pyrometer.model.records import Node, Pod, Workload
from tests.support.watched_cluster import T0, WatchedCluster, node, owner, pod

JOB = owner("PyTorchJob", "llama", "kubeflow.org")
PODS, GENERATIONS = 4, 3
LATER_MS = T0 + 10_000_000


class Life(NamedTuple):
    """A pod of a generation: names are such that lists may have them in any order."""

    name: str
    generation: int
    start_ms: int
    end_ms: int | None

    def running(self) -> Any:
        return pod(self.name, 1, start_ms=self.start_ms)

    def now(self) -> Any:
        if self.end_ms is None:
            return self.running()
        return pod(self.name, 1, start_ms=self.start_ms, phase="Failed", end_ms=self.end_ms, code=1)


def attempts(watched: WatchedCluster) -> dict[str, int]:
    return {record.name: record.attempt for record in watched.newest(Pod)}


def listed(watched: WatchedCluster, lives: list[Life]) -> None:
    """A list after the fact."""
    watched.now_ms = LATER_MS
    for life in lives:
        watched.see(life.now(), chain=(JOB,))


def over(generation: int, pods: int = PODS, seconds: int = 60) -> list[Life]:
    start_ms = T0 + generation * 100_000
    return [Life(f"p{generation}-{n}", generation, start_ms, start_ms + seconds * 1_000) for n in range(pods)]


class TestGangsThatEndedUnseen:
    @pytest.mark.parametrize("order", [1, -1])
    def test_pods_of_a_gang_are_one_attempt(self, order: int) -> None:
        lives = [life for generation in range(3) for life in over(generation)]
        watched = WatchedCluster(node())
        listed(watched, lives[::order])
        assert attempts(watched) == {life.name: life.generation + 1 for life in lives}

    def test_pods_that_end_in_the_second_of_their_start_are_one_attempt(self) -> None:
        watched = WatchedCluster(node())
        listed(watched, over(0, seconds=0))
        assert set(attempts(watched).values()) == {1}

    def test_hung_pod_belongs_to_the_attempt_of_its_crashed_peers(self) -> None:
        crashed = over(0)
        watched = WatchedCluster(node())
        listed(watched, [*crashed[:3], crashed[3]._replace(end_ms=None)])
        assert set(attempts(watched).values()) == {1}

    def test_replaced_member_belongs_to_the_attempt_of_its_gang(self) -> None:
        first, *rest = over(0)
        early = first._replace(end_ms=first.start_ms + 10_000)
        again = Life("again", 0, first.start_ms + 15_000, first.end_ms)
        watched = WatchedCluster(node())
        listed(watched, [early, again, *rest])  # nothing overlaps both when they are seen
        assert set(attempts(watched).values()) == {1}

    def test_new_gang_listed_before_the_end_of_the_old_one_is_the_next_attempt(self) -> None:
        old, new = over(0), over(1)
        watched = WatchedCluster(node())
        for life in old:
            watched.see(life.running(), chain=(JOB,))
        listed(watched, [*new, *old])
        assert attempts(watched) == {life.name: life.generation + 1 for life in [*old, *new]}

    def test_gang_that_vanished_unseen_ends_its_attempt(self) -> None:
        old, new = over(0), over(1)
        watched = WatchedCluster(node())
        for life in old:
            watched.see(life.running(), chain=(JOB,))
        last_live_ms = watched.now_ms
        listed(watched, new)
        for life in old:  # reported after the whole list
            watched.now_ms = last_live_ms - 1_000
            gone = life.running()
            gone.spec, gone.status = type(gone.spec)(), type(gone.status)()
            watched.see(gone, gone=True, vanished=True)
        assert attempts(watched) == {life.name: life.generation + 1 for life in [*old, *new]}

    def test_node_with_a_fast_clock_does_not_change_attempts(self) -> None:
        """It was seen to be over before the next one was created."""
        watched = WatchedCluster(node())
        watched.see(pod("a", phase="Failed", end_ms=T0 + 500_000, code=1), chain=(JOB,))
        watched.see(pod("b", start_ms=watched.now_ms), chain=(JOB,))
        assert attempts(watched) == {"a": 1, "b": 2}

    def test_pod_replaced_in_the_second_of_its_creation_stays_in_its_attempt(self) -> None:
        watched = WatchedCluster(node())
        watched.see(pod("a"), chain=(JOB,), after_s=0)
        watched.see(pod("a", phase="Failed", end_ms=T0, code=1), chain=(JOB,), after_s=0)
        watched.see(pod("b"), chain=(JOB,), after_s=0)
        assert attempts(watched) == {"a": 1, "b": 2}

    def test_concurrent_members_stay_in_one_attempt(self) -> None:
        watched = WatchedCluster(node())
        watched.see(pod("a"), chain=(JOB,), after_s=0)
        watched.see(pod("b"), chain=(JOB,), after_s=0)
        watched.see(pod("a", phase="Failed", end_ms=T0, code=1), chain=(JOB,), after_s=0)
        assert attempts(watched) == {"a": 1, "b": 1}

    def test_stated_attempt_of_a_pod_is_used(self) -> None:
        jobset = owner("JobSet", "sim", "jobset.x-k8s.io")
        watched = WatchedCluster(node())
        watched.now_ms = LATER_MS
        for generation in (2, 0, 1):
            for life in over(generation, seconds=150):  # they overlap: old pods end while new ones begin
                seen = life.now()
                seen.metadata.labels = {"jobset.sigs.k8s.io/restart-attempt": str(generation)}
                watched.see(seen, chain=(jobset,))
        assert attempts(watched) == {f"p{g}-{n}": g + 1 for g in range(3) for n in range(PODS)}


class TestAfterARestartOfTheCollector:
    def resumed(self, before: WatchedCluster) -> WatchedCluster:
        after = WatchedCluster()
        after.cluster.resume(before.newest(Node), before.newest(Pod), [], before.newest(Workload), [])
        after.see(node())
        return after

    def test_gangs_during_a_restart_are_separate_attempts(self) -> None:
        before = WatchedCluster(node())
        for life in over(0):
            before.see(life.running(), chain=(JOB,))
        after = self.resumed(before)
        lives = [*over(2), *over(0), *over(1)]
        listed(after, lives)
        assert attempts(after) == {life.name: life.generation + 1 for life in lives}

    def test_stored_attempts_do_not_change_after_a_restart(self) -> None:
        """An older version counted each pod of a gang as an attempt."""
        before = WatchedCluster(node())
        listed(before, over(1))
        stored = [record._replace(attempt=number) for number, record in enumerate(before.newest(Pod), 1)]
        after = WatchedCluster()
        after.cluster.resume(before.newest(Node), stored, [], before.newest(Workload), [])
        listed(after, [*over(0), *over(1), *over(2)])
        found = attempts(after)
        assert {found[life.name] for life in over(0)} == {1}
        assert {found[life.name] for life in over(2)} == {5}
        assert not {life.name for life in over(1)} & {
            record.name for record in after.records if isinstance(record, Pod) and record.attempt != found[record.name]
        }

    def test_forgotten_attempts_are_not_counted_again(self) -> None:
        watched = WatchedCluster(node())
        listed(watched, over(0))
        for life in over(0):
            watched.see(life.now(), gone=True, chain=(JOB,))
        watched.cluster.tick(LATER_MS + 10 * 3_600_000)
        listed(watched, [*over(2), *over(1)])
        assert {life.name: attempts(watched)[life.name] for life in [*over(1), *over(2)]} == {
            life.name: life.generation + 1 for life in [*over(1), *over(2)]
        }


@st.composite
def histories(draw: st.DrawFn, *, at_once: bool = False) -> list[Life]:
    """Gangs one after the other. Every pod of a gang overlaps another pod of that gang; `at_once`: all others."""
    lives: list[Life] = []
    at_s = 0
    for generation in range(draw(st.integers(1, GENERATIONS))):
        pods = draw(st.integers(1, PODS))
        starts, ends = [at_s], [at_s + draw(st.integers(1, 30))]
        for _ in range(pods - 1):
            starts.append(draw(st.integers(at_s, min(ends) - 1 if at_once else max(ends) - 1)))
            ends.append(max(starts if at_once else starts[-1:]) + draw(st.integers(1, 30)))
        names = draw(st.permutations([f"{letter}{generation}" for letter in "abcd"[:pods]]))
        lives += [
            Life(name, generation, T0 + start_s * 1_000, T0 + end_s * 1_000)
            for name, start_s, end_s in zip(names, starts, ends, strict=True)
        ]
        at_s = max(ends) + draw(st.integers(0, 30))
    if draw(st.booleans()):  # the last one still runs
        last = max(life.generation for life in lives)
        lives = [life._replace(end_ms=None) if life.generation == last else life for life in lives]
    return lives


@given(histories(), st.data())
def test_attempt_number_is_that_of_its_gang(lives: list[Life], data: st.DataObject) -> None:
    """Some is watched live, until the connection is lost; then everything is listed, in any order, perhaps twice."""
    watched = WatchedCluster(node(gpus=100))
    lost_ms = T0 + 1_000 * data.draw(st.integers(-1, 120))
    changes = [(life.start_ms, life.name, life.running()) for life in lives]
    changes += [(life.end_ms, life.name, life.now()) for life in lives if life.end_ms is not None]
    live = data.draw(st.permutations(sorted(changes, key=lambda each: each[:2]))) if data.draw(st.booleans()) else None
    for at_ms, _, seen in sorted(changes, key=lambda each: each[0]) if live is None else live:
        if at_ms < lost_ms:
            watched.now_ms = max(watched.now_ms, at_ms)
            watched.see(msgspec.convert(msgspec.to_builtins(seen), type(seen)), after_s=0, chain=(JOB,))
    for _ in range(data.draw(st.integers(1, 2))):
        listed(watched, data.draw(st.permutations(lives)))
    assert attempts(watched) == {life.name: life.generation + 1 for life in lives}


@given(histories(at_once=True), st.data())
def test_unseen_pods_add_no_attempts(lives: list[Life], data: st.DataObject) -> None:
    """Pods of a gang that existed at the same time are one attempt, whichever of them are seen."""
    seen = [life for life in lives if data.draw(st.booleans())]
    watched = WatchedCluster(node(gpus=100))
    listed(watched, data.draw(st.permutations(seen)))
    order = sorted({life.generation for life in seen})
    assert attempts(watched) == {life.name: order.index(life.generation) + 1 for life in seen}


@given(histories(), st.data())
def test_forgetting_and_resuming_keep_attempt_numbers(lives: list[Life], data: st.DataObject) -> None:
    counted = Attempts()
    resumed_lives = data.draw(st.permutations(lives))
    for life in resumed_lives:
        counted.add(life.name, life.start_ms, life.end_ms)
    numbers = {life.name: counted.of(life.name) for life in lives}
    again = Attempts()
    again.resume((life.name, life.start_ms, life.end_ms, numbers[life.name]) for life in resumed_lives)
    assert {life.name: again.of(life.name) for life in lives} == numbers
    ended = [life for life in lives if life.end_ms is not None]
    for life in data.draw(st.permutations(ended)) if ended else ():
        counted.forget(life.name)
    assert {life.name: counted.of(life.name) for life in lives if life.end_ms is None} == {
        life.name: numbers[life.name] for life in lives if life.end_ms is None
    }
    next_ms = max(life.end_ms or life.start_ms for life in lives) + 60_000
    counted.add("next", next_ms, None)
    assert counted.of("next") == max(numbers.values()) + (not any(life.end_ms is None for life in lives))
