"""The ledger of runs by minute."""

from __future__ import annotations

from pyrometer.account.query.time_range import TimeRange
from pyrometer.account.relations.run_minutes import open_run_minutes, open_shared_minutes
from pyrometer.account.relations.run_tables import open_runs
from pyrometer.model.units import MS_PER_MINUTE
from tests.support.histories import BASE, account, at, folder, hold, node, pod, run, until

WINDOW = TimeRange(BASE, at(20))


def test_time_of_a_pod_belongs_to_the_run_that_started_last() -> None:
    with folder() as store:
        store.append([node(), until(at(20)), pod("p"), hold("p"), run(at(2), run="a"), run(at(10), run="b")])
        account(store)
        open_runs(store, WINDOW)
        open_run_minutes(store, WINDOW, 5, ["a", "b"])
        query = "SELECT run, sum(ms), sum(ms_price) FROM {} GROUP BY run ORDER BY run"
        half = 10 * MS_PER_MINUTE
        expected = [("a", half, 5 * half), ("b", half, 5 * half)]
        assert store.connection.execute(query.format("run_minute")).fetchall() == expected
        open_shared_minutes(store, WINDOW, 5)
        assert store.connection.execute(query.format("shared_minute")).fetchall() == expected
        open_run_minutes(store, WINDOW, None, ["b"])
        assert store.connection.execute("SELECT DISTINCT run FROM run_minute").fetchall() == [("b",)]
