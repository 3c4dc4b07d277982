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


def round_nested(exact: Sequence[int], paths: Sequence[tuple[str, ...]], unit: int) -> list[int]:
    """Amounts in parts of a unit → whole units. Rows whose paths begin alike add up to what they are as one row, so
    that an answer by team and experiment says of each team what the answer by team does. They may be negative.

    Each is the whole number below or above what it is exactly; at each step the largest remainders are rounded up, and
    of equal ones those that come first in the alphabet.
    """
    if unit == 1:
        return list(exact)
    rounded = [0] * len(exact)
    work: list[tuple[list[int], int, int]] = [(list(range(len(exact))), 0, (2 * sum(exact) + unit) // (2 * unit))]
    while work:
        rows, depth, total = work.pop()
        if len(rows) == 1:
            rounded[rows[0]] = total
            continue
        branches: dict[tuple[str, int], list[int]] = {}
        for row in rows:
            known = depth < len(paths[row])
            branches.setdefault((paths[row][depth] if known else "", -1 if known else row), []).append(row)
        sums = {name: sum(exact[row] for row in branch) for name, branch in branches.items()}
        up = total - sum(amount // unit for amount in sums.values())
        by_remainder = sorted(sums, key=lambda name: (-(sums[name] % unit), name))
        for place, name in enumerate(by_remainder):
            work.append((branches[name], depth + 1, sums[name] // unit + (place < up)))
    return rounded


def usd(amount_usd_micro: int) -> float:
    """Dollars rounded to cents, for people; exact figures are the micro-dollars beside it."""
    return round(amount_usd_micro / USD_MICRO_PER_USD, 2)


def gpu_hours(gpu_ms: int) -> float:
    """GPU-hours rounded to four places, for people; exact figures are the milliseconds beside it."""
    return round(gpu_ms / MS_PER_HOUR, 4)
