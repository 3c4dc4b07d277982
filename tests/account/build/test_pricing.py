"""Parts of a slot, and what a slot costs: exact milliseconds, and the price of each minute."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.model.records import Price
from pyrometer.model.units import SHARE_WHOLE, largest_remainder, share_parts
from tests.support.effort import DETERMINISTIC, EFFORT
from tests.support.histories import H100, UNLISTED, Ledger, Scenario, at, hold, ledger, node, pod, scenario, until


def shared(*shares: int, **more: Any) -> list[Any]:
    """One slot for a minute, held in these parts by pods a, b, c…"""
    return [
        node(),
        until(at(1)),
        *(hold(name, share=part, **more) for name, part in zip("abcdefg", shares, strict=False)),
    ]


def parts(found: Ledger) -> dict[str | None, int]:
    """Milliseconds of each pod, and of free time."""
    return {uid: sum(row.ms for row in found.rows if row.pod_uid == uid) for uid in {row.pod_uid for row in found.rows}}


@scenario
def test_shares_of_seven_sevenths_leave_no_free_time() -> Scenario:
    found = yield shared(*[SHARE_WHOLE // 7] * 7)
    assert None not in parts(found)
    assert sorted(parts(found).values()) == [8_571] * 4 + [8_572] * 3


@scenario
def test_the_remainder_of_a_slot_is_free() -> Scenario:
    fraction, sevenths = yield shared(share_parts("0.46")), shared(SHARE_WHOLE * 3 // 7, SHARE_WHOLE * 2 // 7)
    assert parts(fraction) == {"a": 27_600, None: 32_400}
    assert parts(sevenths) == {"a": 25_714, "b": 17_143, None: 17_143}


@scenario
def test_time_slices_divide_a_slot() -> Scenario:
    found = yield shared(*[SHARE_WHOLE // 4] * 3)
    assert parts(found) == {"a": 15_000, "b": 15_000, "c": 15_000, None: 15_000}


@scenario
def test_more_than_a_whole_is_scaled_down() -> Scenario:
    found = yield (
        shared(*[SHARE_WHOLE] * 2),
        shared(*[SHARE_WHOLE] * 3),
        shared(SHARE_WHOLE, SHARE_WHOLE // 2),
        shared(2 * SHARE_WHOLE),
    )
    assert [sorted(parts(one).values()) for one in found] == [[30_000] * 2, [20_000] * 3, [20_000, 40_000], [60_000]]


@scenario
def test_a_slot_is_divided_anew_when_its_holders_change() -> Scenario:
    half = hold("a", share=SHARE_WHOLE // 2)
    found = yield [node(), until(at(1)), half, hold("b", at(0, 20), at(0, 50))]
    assert parts(found) == {"a": 10_000 + 10_000 + 5_000, "b": 20_000, None: 10_000 + 5_000}


@scenario
def test_a_share_divides_each_state_in_proportion() -> Scenario:
    found = yield [node(), until(at(1)), pod(started=at(0, 20)), hold(share=SHARE_WHOLE // 2)]
    assert found.states() == {"startup": 10_000, "unobserved": 20_000, "free": 30_000}


@scenario
def test_holds_without_share_or_time_are_ignored() -> Scenario:
    found = yield (shared(0), shared(-1), shared(SHARE_WHOLE, to_ms=at(0)), shared(SHARE_WHOLE, to_ms=at(0) - 1))
    assert [parts(one) for one in found] == [{None: 60_000}] * 4


@scenario
def test_a_slot_that_is_known_by_its_hold_has_only_its_share() -> Scenario:
    found = yield [hold(node_uid="x", to_ms=at(3), share=SHARE_WHOLE // 3), until(at(3))]
    assert found.states(node_uid="x") == {"unobserved": 60_000}


@settings(deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=8), st.integers(-(10**9), 10**9))
def test_the_largest_remainder_loses_nothing(weights: list[int], total: int) -> None:
    parts = largest_remainder(weights, total)
    whole = sum(weights)
    assert sum(parts) == (total if whole else 0)
    for part, weight in zip(parts, weights, strict=True):
        assert whole == 0 or abs(part * whole - total * weight) < whole  # less than one away from its exact part
        assert weight or not part


# -- prices -------------------------------------------------------------------------------------------------------


def priced(*prices: Price, minutes: int = 4, **of_node: Any) -> list[int | None]:
    """The price of each minute of a slot."""
    found = ledger(node(**of_node), until(at(minutes))._replace(**of_node), *prices)
    return [row.usd_micro_per_hour for row in found.rows]


def price(usd: int, from_ms: int = at(0), to_ms: int | None = None, **selectors: Any) -> Price:
    return Price(selectors.pop("time_ms", at(0)), usd, from_ms, to_ms, **selectors)


def test_a_price_changes_at_a_minute() -> None:
    assert priced(price(1, to_ms=at(2)), price(2, at(2))) == [1, 1, 2, 2]


def test_a_minute_has_the_price_of_its_last_millisecond() -> None:
    assert priced(price(1), price(2, at(1, 30)), price(3, at(3) - 1)) == [1, 2, 3, 3]


def test_list_prices_apply_without_a_configured_price() -> None:
    assert priced(price(1, at(1), at(3))) == [6_880_000, 1, 1, 6_880_000]
    assert priced(price(1, at(1), at(3)), gpu_model=UNLISTED) == [None, 1, 1, None]


def test_any_configured_price_wins_over_the_list() -> None:
    assert priced(price(7), price(9, gpu_model=H100, source="list")) == [7] * 4


def test_a_price_with_more_selectors_wins() -> None:
    book = [
        price(1),
        price(2, pool="blue"),
        price(3, pool="blue", purchase="spot"),
        price(4, pool="green", cluster="prod"),
    ]
    pools = {"a": {}, "b": {"pool": "blue"}, "c": {"pool": "blue", "purchase": "spot"}, "d": {"pool": "green"}}
    found = ledger(*(node(uid=uid, **selected) for uid, selected in pools.items()), *book)
    assert {row.node_uid: row.usd_micro_per_hour for row in found.rows} == {"a": 1, "b": 2, "c": 3, "d": 4}


def test_a_price_for_a_model_is_for_every_name_of_it() -> None:
    assert priced(price(5, gpu_model="H100-SXM"), price(6, gpu_model="A100-SXM")) == [5] * 4


def test_the_later_of_two_equally_specific_prices_wins() -> None:
    assert priced(price(9), price(1, at(-60))) == [9] * 4
    assert priced(price(1), price(9, time_ms=at(1))) == [9] * 4  # it was corrected


def test_a_slot_changes_its_price_with_its_pool() -> None:
    book = [price(1, pool="blue"), price(2, pool="green")]
    found = ledger(node(pool="blue"), node(at(2, 10), pool="green"), node(at(3, 59), pool="green"), *book)
    assert {(row.minute_ms, row.usd_micro_per_hour) for row in found.rows} == {
        (at(0), 1),
        (at(1), 1),
        (at(2), 2),
        (at(3), 2),
    }


def test_a_price_of_zero_is_a_price() -> None:
    assert priced(price(0)) == [0] * 4


@settings(deadline=None, derandomize=DETERMINISTIC, max_examples=3 * EFFORT)
@given(st.integers(0, 10**9), st.integers(1, 16), st.integers(1, 3))
def test_the_slots_of_a_node_add_up_to_its_price(usd: int, gpus: int, minutes: int) -> None:
    """To the last micro-dollar: nothing is rounded, the first slots have what does not divide evenly."""
    found = ledger(node(count=gpus), until(at(minutes), count=gpus), price(usd, per="node"))
    assert (
        sum(row.ms * row.usd_micro_per_hour for row in found.rows if row.usd_micro_per_hour) == usd * minutes * 60_000
    )
    of_slot = {row.slot_index: row.usd_micro_per_hour for row in found.rows}
    assert sorted(of_slot.values(), reverse=True) == [of_slot[index] for index in range(gpus)]
    assert of_slot[0] - of_slot[gpus - 1] in (0, 1)


def test_a_node_that_shows_more_gpus_divides_its_price_anew() -> None:
    found = ledger(node(count=2), node(at(2, 10), count=3), until(at(4), count=3), price(6_000_001, per="node"))
    by_minute = {m: [r.usd_micro_per_hour for r in found.rows if r.minute_ms == at(m)] for m in range(4)}
    assert by_minute[1] == [3_000_001, 3_000_000]
    assert by_minute[2] == by_minute[3] == [2_000_001, 2_000_000, 2_000_000]


def test_a_node_that_lost_a_gpu_keeps_its_price() -> None:
    found = ledger(node(count=2), node(at(1), count=1), until(at(3), count=1), price(6_000_001, per="node"))
    assert {row.usd_micro_per_hour for row in found.rows if row.minute_ms == at(2)} == {3_000_001, 3_000_000}


def test_slots_without_a_node_have_no_node_price() -> None:
    found = ledger(hold(node_uid="x", to_ms=at(3)), until(at(3)), price(6_000_000, per="node"), price(5, at(-9)))
    assert {(row.node_uid, row.usd_micro_per_hour) for row in found.rows} == {("x", 5), ("n0", 6_000_000)}
