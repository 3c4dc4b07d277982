"""Runs with their owners and their slots."""

from __future__ import annotations

from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.run_tables import open_runs
from tests.support.histories import BASE, at, folder, hold, pod, run, workload

WINDOW = TimeRange(BASE, at(60))


def test_listed_runs_have_the_names_of_their_workload() -> None:
    with folder() as store:
        store.append(
            [
                workload("w", team="nlp", experiment="e"),
                pod("p", workload_uid="w"),
                hold("p"),
                run(BASE),
                run(at(5), attempt=2),
            ]
        )
        open_runs(store, WINDOW)
        found = store.connection.execute(
            "SELECT run, team, experiment, attempts, started_ms FROM listed_run"
        ).fetchall()
        assert found == [("r", "nlp", "e", 2, BASE)]


def test_listed_runs_overlap_the_time_range() -> None:
    with folder() as store:
        store.append(
            [pod("p"), run(BASE, run="ended", ended_ms=at(10)), run(at(70), run="later"), run(at(20), run="in")]
        )
        open_runs(store, TimeRange(at(15), at(60)))
        assert store.connection.execute("SELECT run FROM listed_run").fetchall() == [("in",)]


def test_placed_runs_of_one_slot_follow_each_other() -> None:
    with folder() as store:
        store.append([pod("p"), run(BASE, run="a"), run(at(10), run="b"), run(BASE, run="c", slot_index=1)])
        open_runs(store, WINDOW)
        query = "SELECT run, is_first, next_ms, is_alone FROM placed_run ORDER BY run"
        assert store.connection.execute(query).fetchall() == [
            ("a", True, at(10), False),
            ("b", False, None, False),
            ("c", True, None, True),
        ]
