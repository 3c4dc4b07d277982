"""Integer units: nothing is lost, nothing is negative, and every rounding adds up."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.model.units import (
    MS_PER_DAY,
    MS_PER_HOUR,
    MS_PER_MINUTE,
    MS_PER_SECOND,
    SHARE_WHOLE,
    gpu_hours,
    largest_remainder,
    round_rows,
    share_parts,
    usd,
    usd_micro,
)

BIG = 10**40  # far beyond 128 bits: Python's integers must not be the ones that round
weights_lists = st.lists(st.integers(0, BIG) | st.integers(0, 12), min_size=1, max_size=30)
totals = st.integers(0, BIG) | st.integers(0, 100) | st.just(MS_PER_MINUTE)


# -- largest remainder ------------------------------------------------------------------------------------------------


@given(weights_lists.filter(any), totals)
def test_the_parts_add_up_exactly_and_none_is_negative(weights, total):
    parts = largest_remainder(weights, total)
    assert len(parts) == len(weights)
    assert sum(parts) == total
    assert min(parts) >= 0


@given(weights_lists.filter(any), totals)
def test_every_part_is_within_one_of_its_quota(weights, total):
    whole = sum(weights)
    for weight, part in zip(weights, largest_remainder(weights, total), strict=True):
        assert abs(part - Fraction(total * weight, whole)) < 1


@given(weights_lists.filter(any), totals)
def test_zero_weight_gets_nothing_and_more_weight_never_gets_less(weights, total):
    ordered = sorted(zip(weights, largest_remainder(weights, total), strict=True))
    assert all(part == 0 for weight, part in ordered if weight == 0)
    by_weight: dict[int, list[int]] = {}
    for weight, part in ordered:
        by_weight.setdefault(weight, []).append(part)
    groups = list(by_weight.values())
    assert all(max(lighter) <= min(heavier) for lighter, heavier in pairwise(groups))


@given(weights_lists.filter(any), totals, st.randoms(use_true_random=False))
def test_order_decides_only_ties(weights, total, random):
    shuffled = weights.copy()
    random.shuffle(shuffled)
    before = sorted(zip(weights, largest_remainder(weights, total), strict=True))
    after = sorted(zip(shuffled, largest_remainder(shuffled, total), strict=True))
    assert before == after


@given(st.integers(1, BIG), st.integers(1, 20), totals)
def test_a_tie_goes_to_the_earlier(weight, count, total):
    parts = largest_remainder([weight] * count, total)
    assert parts == sorted(parts, reverse=True)
    assert parts[0] - parts[-1] <= 1


@given(weights_lists.filter(any), totals)
def test_a_negative_total_is_the_mirror_image(weights, total):
    assert largest_remainder(weights, -total) == [-part for part in largest_remainder(weights, total)]


@given(weights_lists.filter(any))
def test_a_total_that_is_the_sum_gives_the_weights_back(weights):
    assert largest_remainder(weights, sum(weights)) == weights


@pytest.mark.parametrize(
    ("weights", "total", "parts"),
    [
        ([], 60_000, []),
        ([0, 0], 60_000, [0, 0]),
        ([1, 1, 1], 100, [34, 33, 33]),
        ([1, 1, 1], -100, [-34, -33, -33]),
        ([1, 2], 60_000, [20_000, 40_000]),
        ([0, 1, 0], 7, [0, 7, 0]),
        ([5, 3, 1], 0, [0, 0, 0]),
        # Three sevenths, one seventh and the free rest of a MIG slot's minute.
        ([3, 1, 3], 60_000, [25_714, 8_572, 25_714]),
    ],
)
def test_largest_remainder_by_example(weights, total, parts):
    assert largest_remainder(weights, total) == parts


# -- money ------------------------------------------------------------------------------------------------------------


@given(st.integers(0, BIG))
def test_money_is_rounded_once_half_up(ms_price):
    exact = Fraction(ms_price, MS_PER_HOUR)
    rounded = usd_micro(ms_price)
    assert -Fraction(1, 2) < rounded - exact <= Fraction(1, 2)


@pytest.mark.parametrize(
    ("ms_price", "amount"),
    [
        (0, 0),
        (MS_PER_HOUR // 2 - 1, 0),
        (MS_PER_HOUR // 2, 1),
        (MS_PER_HOUR, 1),
        (MS_PER_HOUR * 3 // 2, 2),
        (MS_PER_HOUR * 2_500_000, 2_500_000),
        (10_000 * 720 * MS_PER_HOUR * 12_000_000, 86_400_000_000_000),  # 10,000 GPUs, a month, $12
    ],
)
def test_usd_micro_by_example(ms_price, amount):
    assert usd_micro(ms_price) == amount


@given(st.lists(st.integers(0, BIG) | st.integers(0, 2 * MS_PER_HOUR), max_size=40))
def test_rows_add_up_to_the_rounded_total(ms_prices):
    rows = round_rows(ms_prices)
    assert sum(rows) == usd_micro(sum(ms_prices))
    assert all(row >= 0 for row in rows)
    assert [row for row, ms_price in zip(rows, ms_prices, strict=True) if ms_price == 0 and row] == []


@given(st.lists(st.lists(st.integers(0, BIG), min_size=1, max_size=8), min_size=1, max_size=8))
def test_every_grouping_of_the_same_rows_has_the_same_total(groups):
    fine = round_rows([ms_price for group in groups for ms_price in group])
    coarse = round_rows([sum(group) for group in groups])
    assert sum(fine) == sum(coarse)


@given(st.lists(st.integers(0, BIG), min_size=1, max_size=20))
def test_a_row_is_less_than_two_micro_dollars_from_its_exact_amount(ms_prices):
    for row, ms_price in zip(round_rows(ms_prices), ms_prices, strict=True):
        assert abs(row - Fraction(ms_price, MS_PER_HOUR)) < 2


def test_displayed_amounts_are_rounded():
    assert usd(2_950_004_999) == 2950.0
    assert usd(1_236_000) == 1.24
    assert gpu_hours(MS_PER_HOUR * 3 // 2) == 1.5
    assert gpu_hours(1) == 0.0


# -- shares and time --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", range(8))
def test_sevenths_of_a_mig_device_are_exact(slices):
    assert SHARE_WHOLE % 7 == 0
    assert share_parts(f"{slices}/7") == slices * (SHARE_WHOLE // 7)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16, 32])
def test_time_slicing_is_exact(replicas):
    assert share_parts(f"1/{replicas}") * replicas == SHARE_WHOLE


@pytest.mark.parametrize("tenths", range(11))
def test_tenths_are_exact_as_text_and_as_a_float(tenths):
    assert share_parts(f"{tenths / 10}") == tenths * (SHARE_WHOLE // 10)
    assert share_parts(tenths / 10) == tenths * (SHARE_WHOLE // 10)


@given(st.integers(0, 10**6))
def test_a_fraction_written_with_six_decimals_is_exact(millionths):
    text = f"{millionths // 10**6}.{millionths % 10**6:06d}"
    assert Fraction(share_parts(text), SHARE_WHOLE) == Fraction(text)


def test_a_written_fraction_by_example():
    assert share_parts("0.46") == 1_159_200_000
    assert share_parts("0.46") == share_parts(0.46)
    assert share_parts("0.46") + share_parts("0.54") == SHARE_WHOLE
    assert share_parts("1") == share_parts(1) == SHARE_WHOLE


@given(st.floats(0, 8, allow_nan=False))
def test_any_fraction_is_rounded_by_half_a_part_at_most(fraction):
    assert abs(share_parts(fraction) - Fraction(str(fraction)) * SHARE_WHOLE) <= Fraction(1, 2)


def test_the_units_of_time_are_multiples_of_each_other():
    assert MS_PER_MINUTE == 60 * MS_PER_SECOND
    assert MS_PER_HOUR == 60 * MS_PER_MINUTE
    assert MS_PER_DAY == 24 * MS_PER_HOUR
