"""Time, shares and money as integers, and the one way to round them."""

from __future__ import annotations

from collections.abc import Sequence

MS_PER_SECOND = 1_000
MS_PER_MINUTE = 60_000
MS_PER_QUARTER = 900_000  # of an hour: every time zone's hours begin at one of UTC's
MS_PER_HOUR = 3_600_000
MS_PER_DAY = 86_400_000

USD_MICRO_PER_USD = 1_000_000

# A whole slot, in parts. Divisible by the sevenths of MIG, by time-slicing into up to ten (and 12, 14, 15, 16, 32)
# and by a fraction written with six decimals, so that common shares are exact.
SHARE_WHOLE = 2_520_000_000


def share_parts(fraction: str | float) -> int:
    """A fraction of a GPU as written by a person ("0.46") in parts of a whole slot."""
    from fractions import Fraction

    return round(Fraction(str(fraction)) * SHARE_WHOLE)


def largest_remainder(weights: Sequence[int], total: int) -> list[int]:
    """Splits `total` in proportion to `weights` into integers that add up to it exactly.

    Ties go to the earlier one. With no weight at all there is nobody to give to: all zeros.
    """
    whole = sum(weights)
    if whole <= 0:
        return [0] * len(weights)
    sign = -1 if total < 0 else 1
    parts = [abs(total) * weight // whole for weight in weights]
    remainders = [abs(total) * weight % whole for weight in weights]
    left = abs(total) - sum(parts)
    for i in sorted(range(len(weights)), key=lambda i: (-remainders[i], i))[:left]:
        parts[i] += 1
    return [sign * part for part in parts]


def usd_micro(ms_price: int) -> int:
    """Milliseconds × (micro-dollars per hour) → micro-dollars, rounded half up: the only division of money."""
    return (2 * ms_price + MS_PER_HOUR) // (2 * MS_PER_HOUR)


def round_rows(ms_prices: Sequence[int]) -> list[int]:
    """Micro-dollars of the rows of one answer, rounded so that they add up to the answer's total."""
    return largest_remainder(ms_prices, usd_micro(sum(ms_prices)))


def usd(amount_usd_micro: int) -> float:
    """Dollars rounded to cents, for people; exact figures are the micro-dollars beside it."""
    return round(amount_usd_micro / USD_MICRO_PER_USD, 2)


def gpu_hours(gpu_ms: int) -> float:
    """GPU-hours rounded to four places, for people; exact figures are the milliseconds beside it."""
    return round(gpu_ms / MS_PER_HOUR, 4)
