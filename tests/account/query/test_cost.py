"""Cost answers: rows that add up to their total."""

from __future__ import annotations

import random
from datetime import UTC

from pyrometer.account.query.cost import AMOUNTS, cost, rounded_rows
from pyrometer.account.query.names import open_names
from pyrometer.account.query.sums import Sum
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR
from tests.support.hand_ledgers import FIRST, ms_of, objects, random_day, write_days
from tests.support.histories import folder

DAY = TimeRange(ms_of(FIRST), ms_of(FIRST) + MS_PER_DAY)


def test_rounded_rows_of_a_team_add_up_to_the_row_of_the_team() -> None:
    third = MS_PER_HOUR // 3
    by_workload = [Sum((team, str(number), None), 1, third, 0) for team in "ab" for number in range(4)]
    by_team = [Sum((team, None), 4, 4 * third, 0) for team in "ab"]
    rows, _, _ = rounded_rows(by_workload, ("team", "pod"))
    whole, _, _ = rounded_rows(by_team, ("team",))
    for row in whole:
        assert row.usd_micro == sum(one.usd_micro or 0 for one in rows if one.key[0] == row.key[0])


def test_rounded_rows_separate_adjustments_from_the_ledger() -> None:
    groups = [Sum(("a", None), 10, 10 * MS_PER_HOUR, 0), Sum(("a", "2026-10"), -4, -4 * MS_PER_HOUR, 0)]
    rows, total, parts = rounded_rows(groups, ("team",))
    assert [row.adjusts for row in rows] == [None, "2026-10"]
    assert (total["gpu_ms"], parts["ledger"]["gpu_ms"], parts["adjustments"]["gpu_ms"]) == (6, 10, -4)


def test_cost_rows_add_up_to_the_total() -> None:
    chance = random.Random(3)
    with folder() as store:
        store.append(objects(chance, ms_of(FIRST)))
        write_days(store, {FIRST: random_day(chance, FIRST, 30)})
        open_names(store)
        answer = cost(store, DAY, ["team", "node"], zone=UTC)
    assert answer["by"] == ["team", "node"]
    assert set(AMOUNTS) < set(answer["rows"][0])
    for name in ("gpu_ms", "usd_micro"):
        assert sum(row[name] or 0 for row in answer["rows"]) == answer["total"][name]
    assert answer["books"] is None


def test_cost_of_an_empty_range_has_no_rows() -> None:
    with folder() as store:
        open_names(store)
        answer = cost(store, DAY, ["team"], zone=UTC)
    assert answer["rows"] == []
    assert answer["total"]["gpu_ms"] == 0
