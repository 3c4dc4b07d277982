"""The energy of holders: all that the counter counted, nothing unmeasured, and the same in every grouping."""

from __future__ import annotations

import random
from datetime import UTC
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.account.query.cost import cost
from pyrometer.account.query.energy import EnergyUse, Site, Tariff, energy_in, energy_rows, energy_total, tariff_of
from pyrometer.account.query.groupings import GROUPINGS
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.ledger_by_cause import with_causes
from pyrometer.causes.registry import DETECTORS
from pyrometer.model.records import GpuSample
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_QUARTER, SHARE_WHOLE
from tests.support.effort import DETERMINISTIC, EFFORT
from tests.support.histories import (
    ONE_CHUNK,
    UNLISTED,
    Ledger,
    Scenario,
    account,
    at,
    folder,
    hold,
    ledger,
    node,
    pod,
    samples,
    scenario,
    until,
)

HOUR_J = 3_600_000  # a kilowatt for an hour


def counted(*readings: tuple[float, int | None], **more: Any) -> list[GpuSample]:
    """Readings of a counter: minutes and joules."""
    return [GpuSample(at(minute), "n0", 0, energy_j=joules, **more) for minute, joules in readings]


def steady(from_min: int, to_min: int, watts: int, start_j: int = 0, **more: Any) -> list[GpuSample]:
    """A counter that is read once a minute, both ends included."""
    return counted(*((m, start_j + (m - from_min) * 60 * watts) for m in range(from_min, to_min + 1)), **more)


def joules(found: Ledger, pod_uid: str | None = "", **of: Any) -> float:
    """The energy of a holder, or of all holders."""
    rows = [row for row in found.energy if pod_uid == "" or row.pod_uid == pod_uid]
    return sum(row.energy_mj for row in rows if all(getattr(row, name) == value for name, value in of.items())) / 1000


# -- the law ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=DETERMINISTIC, max_examples=3 * EFFORT)
@given(st.integers(0, 2**32))
@pytest.mark.heavy
def test_the_sum_over_holders_is_the_increase_of_the_counter(seed: int) -> None:
    """Whoever held the slot, in whatever parts, whenever they changed and however irregularly it was read."""
    chance = random.Random(seed)
    records: list[Any] = [node(), until(at(150))]
    for name in "abcdef"[: chance.randint(0, 6)]:
        from_ms = at(chance.randint(0, 140), chance.choice((0, 7, 59.999)))
        to_ms = chance.choice((None, from_ms + chance.randint(1, 6_000_000)))
        records.append(hold(name, from_ms, to_ms, share=chance.choice((SHARE_WHOLE, SHARE_WHOLE // 7, 1, 7))))
    time_ms, counter = at(chance.randint(0, 20)), chance.randint(0, 10**9)
    first_j = counter
    while time_ms < at(150):
        power = chance.choice((None, 0, 90, 700))
        records.append(GpuSample(time_ms, "n0", 0, energy_j=counter, power_w=power))
        step_ms = chance.choice((500, 29_999, 60_000, 61_234, MS_PER_QUARTER))
        time_ms, last_j, counter = time_ms + step_ms, counter, counter + chance.randint(0, 3 * step_ms // 1000)
    hourly, together = (ledger(records, chunk_slot_minutes=size).energy for size in (1, ONE_CHUNK))
    assert hourly == together
    assert sum(row.energy_mj for row in together) == 1000 * (last_j - first_j)
    assert all(row.energy_mj >= 0 and row.ms >= 0 and row.estimated_ms == 0 for row in together)


@settings(deadline=None, derandomize=True)
@given(
    st.lists(st.builds(EnergyUse, st.integers(0, 10**15), st.integers(1, 10**9)), min_size=1, max_size=12),
    st.fractions(0, 2, max_denominator=1000),
    st.fractions(0, 1000, max_denominator=10),
)
def test_rows_add_up_in_every_unit(drawn: list[EnergyUse], price: Fraction, carbon: Fraction) -> None:
    tariff = Tariff(price, carbon, Fraction("1.3"))
    whole = EnergyUse(sum(one.mj for one in drawn), sum(one.gpu_ms for one in drawn))
    rows, total = energy_rows([Site(tariff, drawn, whole)]), energy_total(whole, tariff)
    for unit in ("energy_wh", "energy_usd_micro", "co2e_g"):
        assert sum(row[unit] for row in rows) == total[unit]
    assert abs(total["energy_wh"] - whole.mj / 3_600_000) <= 0.5
    assert abs(total["co2e_g"] - whole.mj / 3.6e9 * 1.3 * float(carbon)) <= 0.51


# -- by counter -------------------------------------------------------------------------------------------------------


@scenario
def test_a_holder_has_the_energy_of_its_time() -> Scenario:
    """A kilowatt while the pod is there, a hundred watts before and after: to the reading, not to the quarter."""
    idle, busy = {"power_w": 100}, {"power_w": 1000}
    found = yield [
        node(),
        until(at(60)),
        hold("a", at(20), at(33)),
        steady(0, 20, 100, **idle)[:-1],
        steady(20, 33, 1000, 120_000, **busy)[:-1],
        steady(33, 59, 100, 900_000, **idle),
    ]
    assert joules(found) == 900_000 + 26 * 6_000
    assert joules(found, "a") == pytest.approx(780_000, rel=0.01)
    assert joules(found, None) == pytest.approx(120_000 + 26 * 6_000, rel=0.05)


@scenario
def test_without_power_readings_a_quarter_follows_time() -> Scenario:
    found = yield [node(), until(at(15)), hold("a", at(5), at(10)), steady(0, 14, 600)]
    assert joules(found, "a", time_ms=at(0)) == 5 * 60 * 600
    assert joules(found, None) == 9 * 60 * 600


@scenario
def test_energy_is_split_among_sharing_holders() -> Scenario:
    found = yield [
        node(),
        until(at(15)),
        hold("a", share=SHARE_WHOLE // 2),
        hold("b", share=SHARE_WHOLE // 4),
        steady(0, 14, 1000),
    ]
    assert [joules(found, pod) for pod in ("a", "b", None)] == [420_000, 210_000, 210_000]
    assert sum(row.ms for row in found.energy) == 14 * 60_000


@scenario
def test_readings_of_an_instance_are_not_those_of_the_device() -> Scenario:
    found = yield [node(), until(at(15)), hold("a", instance=0), steady(0, 14, 500, instance=0)]
    assert found.energy == []


@scenario
def test_a_counter_reset_leaves_its_quarter_unknown() -> Scenario:
    before, after = steady(0, 20, 1000, 5_000_000), steady(21, 59, 1000, 10)
    found = yield [node(), until(at(60)), before, after]
    assert joules(found, time_ms=at(0)) == 14 * 60_000  # up to its last reading
    assert joules(found, time_ms=at(15)) == 0
    assert joules(found) == (14 + 29) * 60_000


@scenario
def test_mean_power_replaces_a_counter_after_a_reset() -> Scenario:
    before, after = steady(0, 20, 1000, 5_000_000, power_w=900), steady(21, 59, 1000, 10, power_w=900)
    found = yield [node(), until(at(60)), before, after]
    assert joules(found, time_ms=at(15)) == 15 * 60 * 900
    assert {row.time_ms: row.estimated_ms for row in found.energy} == {
        at(0): 60_000,
        at(15): 900_000,
        at(30): 0,
        at(45): 0,
    }


@scenario
def test_a_replaced_device_adds_no_energy() -> Scenario:
    found = yield [node(), until(at(60)), steady(0, 20, 100, 5_000), steady(21, 59, 100, 900_000_000)]
    assert joules(found, time_ms=at(15)) == 0
    assert joules(found) == (14 + 29) * 6_000


@scenario
def test_energy_is_unknown_in_gaps_longer_than_a_quarter_hour() -> Scenario:
    found = yield (
        [node(), until(at(60)), counted((1, 0), (14, 6_000), (29, 30_000), (44, 60_000))],
        [node(), until(at(60)), counted((1, 0), (14, 6_000), (29.1, 30_000), (44, 60_000))],
    )
    assert [joules(one) for one in found] == [60_000, 36_000]
    assert [sum(row.ms for row in one.energy) for one in found] == [43 * 60_000, 27.9 * 60_000]


# -- by power ---------------------------------------------------------------------------------------------------------


@scenario
def test_without_a_counter_power_is_integrated_and_marked_as_estimated() -> Scenario:
    found = yield [node(), until(at(30)), hold("a"), samples("busy", at(0), at(30), 60_000)]
    assert joules(found, "a") == 29 * 60 * 600
    assert sum(row.estimated_ms for row in found.energy) == sum(row.ms for row in found.energy) == 29 * 60_000


@scenario
def test_one_reading_or_none_gives_no_energy() -> Scenario:
    found = yield (
        [node(), until(at(30)), counted((3, 5_000), power_w=300)],
        [node(), until(at(30)), counted((3, None), (4, None))],
        [node(), until(at(30)), counted((3, None), (4, None), power_w=-5)],
    )
    assert [one.energy for one in found] == [[], [], []]


# -- asked ------------------------------------------------------------------------------------------------------------

DAY = [
    node(count=2, gpu_model=UNLISTED),
    until(at(120), count=2),
    hold("a", at(10), at(50)),
    hold("b", at(50), at(117)),
    pod("a"),
    pod("b"),
    steady(0, 119, 1000, power_w=1000),
]


def test_energy_adds_up_in_any_grouping_and_time_range() -> None:
    with folder() as store:
        store.append([record for one in DAY for record in (one if isinstance(one, list) else [one])])
        covered = account(store)
        assert covered is not None
        open_names(store)
        everything = TimeRange(covered.from_ms, covered.end_ms)
        whole = energy_in(store, *everything)
        assert whole == EnergyUse(119 * 60_000_000, 119 * 60_000, 0)
        for by in GROUPINGS:
            source = (
                {"ledger": with_causes(store, everything, Settings(), UTC, detectors=DETECTORS)}
                if by == "cause"
                else {}
            )
            answer = cost(store, everything, [by], zone=UTC, **source)
            assert sum(row["energy_wh"] or 0 for row in answer["rows"]) == answer["total"]["energy_wh"] == 1983
            assert answer["total"]["kwh"] == 1.983
            assert (answer["total"]["energy_usd_micro"], answer["total"]["co2e_g"]) == (None, None)
        cuts = [at(0), at(7), at(15), at(31), at(52), at(53), at(120)]
        pieces = [energy_in(store, *edge) for edge in pairwise(cuts)]
        assert [sum(amounts) for amounts in zip(*pieces, strict=True)] == list(whole)
        free = 10 * 60_000_000 * (3 + 8) // (10 + 15)  # divided like the free time of both GPUs
        assert pieces[1].mj == free + 5 * 60_000_000
        half = cost(store, TimeRange(at(40), at(55)), ["pod"], zone=UTC)
        assert {row["pod"]: row["energy_wh"] for row in half["rows"]} == {None: None, "a": 167, "b": 83}


def test_rows_with_unknown_energy_are_marked() -> None:
    with folder() as store:
        store.append([node(), until(at(60)), hold("a", at(0), at(30)), *samples("util", at(0), at(60))])
        covered = account(store)
        assert covered is not None
        open_names(store)
        answer = cost(store, TimeRange(at(0), at(60)), ["team"], zone=UTC, tariff=Tariff(Fraction(1), Fraction(1)))
    for row in (*answer["rows"], answer["total"]):
        assert {row[unit] for unit in ("energy_wh", "kwh", "energy_usd_micro", "energy_usd", "co2e_g")} == {None}
    assert answer["total"]["energy_gpu_ms"] == 0


def test_site_energy_includes_pue_and_its_cost_is_exact() -> None:
    tariff = tariff_of(Settings(energy_usd_per_kwh=0.11, carbon_g_per_kwh=380, pue=1.3))
    kilowatt_hour = EnergyUse(HOUR_J * 1000, 1)
    assert energy_total(kilowatt_hour, tariff) == {
        "energy_wh": 1000,
        "kwh": 1.0,
        "energy_usd_micro": 143_000,
        "energy_usd": 0.14,
        "co2e_g": 494,
        "energy_gpu_ms": 1,
        "energy_estimated_gpu_ms": 0,
        "activity": None,
    }
    assert tariff_of(Settings()) == Tariff()
