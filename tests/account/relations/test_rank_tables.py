"""The newest record of every rank."""

from __future__ import annotations

from pyrometer.account.query.names import open_names
from pyrometer.account.relations.rank_tables import TRAINER, add_controller_runs, open_ranks, runs_without_steps
from pyrometer.model.records import Metric
from tests.support.histories import BASE, at, folder, hold, pod, run, workload


def test_ranks_have_their_newest_record() -> None:
    with folder() as store:
        store.append(
            [run(BASE), run(BASE, time_ms=at(5), outcome="failed"), run(BASE, time_ms=at(90), outcome="killed")]
        )
        open_ranks(store, at(60))
        assert store.connection.execute("SELECT run, outcome FROM the_run").fetchall() == [("r", "failed")]


def test_tracked_runs_are_added_on_request() -> None:
    with folder() as store:
        store.append([run(BASE, run="tracked", source="mlflow"), run(BASE, run="own")])
        open_ranks(store, at(60))
        assert store.connection.execute("SELECT run FROM the_run").fetchall() == [("own",)]
        open_ranks(store, at(60), tracked=True)
        assert {name for (name,) in store.connection.execute("SELECT run FROM the_run").fetchall()} == {
            "own",
            "tracked",
        }
        assert runs_without_steps(store) == {"tracked"}


def test_controller_runs_have_one_rank_per_gpu() -> None:
    with folder() as store:
        store.append(
            [
                workload("w"),
                pod("p", workload_uid="w"),
                hold("p"),
                hold("p", slot=1),
                Metric(at(1), "w", 1, 0, "progress", 1.0),
            ]
        )
        open_names(store)
        store.expose_all(["metric"])
        open_ranks(store, at(60))
        add_controller_runs(store)
        found = store.connection.execute("SELECT run, rank, ranks, framework FROM the_run ORDER BY rank").fetchall()
        assert found == [("w", 0, 2, TRAINER), ("w", 1, 2, TRAINER)]
        assert runs_without_steps(store) == {"w"}
