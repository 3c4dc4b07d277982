"""Sharing the cost of free time: a team pays the same in every grouping, and nothing is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyrometer.account.build.ledger import build
from pyrometer.account.closing.charge_basis import basis_of
from pyrometer.account.closing.charges import charges
from pyrometer.account.closing.charges import groupings as charged_by
from pyrometer.account.closing.closing_months import close
from pyrometer.account.query.cost import CostQuestion, cost, pot_of
from pyrometer.account.query.names import open_names
from pyrometer.account.query.scope import only
from pyrometer.account.query.time_range import TimeRange, month_range
from pyrometer.model.records import GpuSample, LedgerRow, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, round_nested
from pyrometer.store import Store
from tests.support.effort import DETERMINISTIC, EFFORT
from tests.support.hand_ledgers import FIRST, ms_of, objects, random_day, random_days, write_days
from tests.support.histories import at, folder, hold, node, pod, until

WINDOW = month_range("2026-09", UTC)
BYS = (
    ("team",),
    ("team", "experiment"),
    ("team", "state"),
    ("day", "team", "node"),
    ("team", "workload", "gpu_model"),
    ("state",),
    ("hour", "team"),
)
Amounts = tuple[int, int]


def cost_by(
    store: Store, by: tuple[str, ...], how: str, team: str | None = None, window: TimeRange = WINDOW
) -> dict[str, Any]:
    """The answer of `cost --share-platform`, as questions ask for it."""
    open_names(store)
    basis = basis_of(store, window, by, UTC, team)
    pot = pot_of(store, CostQuestion(window, UTC, basis=basis), by, how)
    with only(store, team, None):
        open_names(store)
        return cost(store, window, by, zone=UTC, basis=basis, pot=pot)


def by_team(answer: dict[str, Any]) -> dict[str | None, Amounts]:
    found: dict[str | None, Amounts] = {}
    for row in answer["rows"]:
        ms, micro = found.get(row["team"], (0, 0))
        found[row["team"]] = (ms + row["gpu_ms"], micro + (row["usd_micro"] or 0))
    return found


@contextmanager
def a_month(seed: int) -> Iterator[Store]:
    chance = random.Random(seed)
    with folder() as store:
        store.append(objects(chance, ms_of(FIRST)))
        days = [day for day in random_days(chance, 1) if chance.random() < 0.9]
        write_days(store, {day: random_day(chance, day, chance.randrange(12)) for day in days})
        if chance.random() < 0.5:  # a closed month is shared in the same way
            try:
                close(store, Settings(), "2026-09", UTC, now_ms=WINDOW.to_ms + MS_PER_DAY, by="ann")
            except ValueError:  # nothing in it
                assert not cost_by(store, ("team",), "none")["rows"]
        yield store


@settings(max_examples=3 * EFFORT, derandomize=DETERMINISTIC, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**48), st.sampled_from(["even", "proportional"]))
def test_sharing_loses_nothing_and_is_the_same_in_every_grouping(seed: int, how: str) -> None:
    with a_month(seed) as store:
        alone = cost_by(store, ("team",), "none")
        whole = by_team(cost_by(store, ("team",), how))
        for by in BYS:
            answer = cost_by(store, by, how)
            for name in ("gpu_ms", "usd_micro", "unpriced_gpu_ms"):
                assert answer["total"][name] == alone["total"][name], (by, name)
                if name != "unpriced_gpu_ms":
                    assert sum(row[name] or 0 for row in answer["rows"]) == (alone["total"][name] or 0)
            if "team" in by:
                assert by_team(answer) == whole
        held = {row["team"] for row in cost_by(store, ("team", "workload"), "none")["rows"] if row["workload"]}
        if held:
            assert set(whole) <= held
            _each_pays_its_part(store, how, whole)


def _each_pays_its_part(store: Store, how: str, whole: dict[str | None, Amounts]) -> None:
    rows = cost_by(store, ("team", "workload", "state"), "none")["rows"]
    held: dict[str | None, list[int]] = {}
    free_ms = free_micro = 0
    for row in rows:
        if row["workload"]:
            of = held.setdefault(row["team"], [0, 0])
            of[0] += row["gpu_ms"]
            of[1] += row["usd_micro"] or 0
        else:
            free_ms, free_micro = free_ms + row["gpu_ms"], free_micro + (row["usd_micro"] or 0)
    money = sum(micro for _, micro in held.values())
    for team, (ms, micro) in held.items():
        if how == "even":
            part = Fraction(1, len(held))
        elif money:
            part = Fraction(micro, money)
        else:
            part = Fraction(ms, sum(one for one, _ in held.values()))
        if team not in whole:
            assert not part
            continue
        # what it held and what it pays for are rounded apart here, and their parts too
        assert abs(whole[team][1] - micro - part * free_micro) < len(rows) + 2
        assert abs(whole[team][0] - ms - part * free_ms) < 2 + free_ms * Fraction(len(rows), max(money, len(rows)))


@settings(max_examples=EFFORT, derandomize=DETERMINISTIC, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**48), st.sampled_from(["even", "proportional"]))
def test_a_team_sees_its_share_without_nodes_of_free_time(seed: int, how: str) -> None:
    with a_month(seed) as store:
        whole = by_team(cost_by(store, ("team",), how))
        for team, (ms, micro) in whole.items():
            if team in (None, "platform"):
                continue
            own = cost_by(store, ("team", "node", "state", "day"), how, team)
            assert {row["team"] for row in own["rows"]} <= {team}
            assert abs(own["total"]["gpu_ms"] - ms) <= 1
            assert abs((own["total"]["usd_micro"] or 0) - micro) <= 1
            theirs = cost_by(store, ("team", "node", "state", "day"), "none", team)["rows"]
            places = {(row["node"], row["state"]) for row in theirs}
            assert {(row["node"], row["state"]) for row in own["rows"]} <= {*places, (None, None)}


def test_sharing_methods_on_an_example() -> None:
    """Three teams of 1, 2 and 3 hours at a dollar, and free time for a dollar and a micro-dollar."""
    with folder() as store:
        chance = random.Random(0)
        day = ms_of(FIRST)
        store.append(objects(chance, day))
        rows = [
            LedgerRow(day + minute * 60_000, "n0", 0, pod, 1, "train", 1, 60_000_000, 60_000)
            for minute, pod in enumerate(["pod-0"] + ["pod-1"] * 2 + ["pod-2"] * 3)
        ]
        rows += [LedgerRow(day, "n1", 0, None, 1, "free", 1, 60_000_060, 60_000)]
        write_days(store, {FIRST: rows})
        store.append([_of(pod, team, day) for pod, team in (("pod-0", "a"), ("pod-1", "b"), ("pod-2", "c"))])
        owed = {
            how: {team: micro for team, (_, micro) in by_team(cost_by(store, ("team",), how)).items()}
            for how in ("none", "even", "proportional")
        }
    assert owed == {
        "none": {"a": 1_000_000, "b": 2_000_000, "c": 3_000_000, "platform": 1_000_001},
        "even": {"a": 1_333_334, "b": 2_333_334, "c": 3_333_333},
        "proportional": {"a": 1_166_667, "b": 2_333_334, "c": 3_500_000},
    }


@pytest.mark.parametrize("by", [("team",), ("team", "state", "hour")])
def test_shared_rows_include_energy(by: tuple[str, ...]) -> None:
    """An hour of which a pod has half: what the GPU drew in the other half is its team's, too."""
    with folder() as store:
        drawn = [GpuSample(at(minute), "n0", 0, energy_j=minute * 60_000, power_w=1000) for minute in range(61)]
        store.append([node(), until(at(60)), pod("a"), hold("a", at(0), at(30)), *drawn])
        build(store, Settings(), now_ms=at(61))
        window = TimeRange(at(0), at(60))
        everybody = cost_by(store, by, "even", window=window)["total"]
        own = cost_by(store, by, "even", "research", window)["total"]
        assert everybody["energy_wh"] == 1000
        assert own == everybody


def test_time_of_an_unknown_pod_is_not_counted_twice() -> None:
    """Its team is not known: it pays its part all the same."""
    with folder() as store:
        day = ms_of(FIRST)
        free = LedgerRow(day, "n1", 0, None, 1, "free", 1, 3_600_000, 60_000)
        store.append(objects(random.Random(0), day))
        write_days(store, {FIRST: [free, free._replace(node_uid="n0", pod_uid="unseen", state="startup")]})
        for by in (("team",), ("state",), ("team", "state")):
            answer = cost_by(store, by, "even")
            assert answer["total"]["gpu_ms"] == 120_000, by
        assert by_team(cost_by(store, ("team",), "even")) == {None: (120_000, 120_000)}


def _of(pod: str, team: str, time_ms: int) -> Any:
    return Workload(time_ms + 1, "here", f"job-{pod}", "Job", "ml", pod, team=team, experiment=team)


def test_charges_are_shared_at_their_prices_or_stay_with_the_platform() -> None:
    with folder() as store:
        day = ms_of(FIRST)
        store.append(objects(random.Random(0), day))
        free = LedgerRow(day, "n1", 0, None, 1, "free", 1, 3_600_000, 60_000)
        write_days(store, {FIRST: [free]})
        assert by_team(cost_by(store, ("team",), "even")) == {"platform": (60_000, 60_000)}
        write_days(store, {FIRST: [free, free._replace(node_uid="n0", pod_uid="pod-0", state="train")]})
        open_names(store)
        pot = pot_of(store, CostQuestion(WINDOW, UTC), charged_by(None), "even")
        answer = charges(store, WINDOW, zone=UTC, pot=pot)
        rows = [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]
        assert {(row["node"], row["gpu_ms"], row["usd_micro"]) for row in rows} == {
            ("node-n0", 60_000, 60_000),
            ("node-n1", 60_000, 60_000),
        }
        assert len({row["team"] for row in rows}) == 1


ROWS = st.lists(
    st.tuples(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), st.integers(-(10**12), 10**12)), max_size=20
)


@given(ROWS)
def test_nested_rows_add_up_to_their_group(rows: list[tuple[tuple[str, str], int]]) -> None:
    paths, exact = [path for path, _ in rows], [amount for _, amount in rows]
    unit = MS_PER_HOUR
    fine = round_nested(exact, paths, unit)
    names = list(dict.fromkeys(path[0] for path in paths))
    sums = [sum(amount for amount, path in zip(exact, paths, strict=True) if path[0] == name) for name in names]
    coarse = round_nested(sums, [(name,) for name in names], unit)
    for name, amount in zip(names, coarse, strict=True):
        assert sum(part for part, path in zip(fine, paths, strict=True) if path[0] == name) == amount
    assert sum(fine) == (2 * sum(exact) + unit) // (2 * unit)
    assert all(amount // unit <= part <= -(-amount // unit) for amount, part in zip(exact, fine, strict=True))


@pytest.mark.parametrize("order", [1, -1])
def test_equal_remainders_are_rounded_in_a_fixed_order(order: int) -> None:
    rows = [("b", 1), ("a", 1), ("c", 1)][::order]
    rounded = round_nested([amount for _, amount in rows], [(name,) for name, _ in rows], 2)
    assert dict(zip((name for name, _ in rows), rounded, strict=True)) == {"a": 1, "b": 1, "c": 0}
