"""Time, shares and money as integers, and how they are rounded."""

from __future__ import annotations

from collections.abc import Sequence

MS_PER_SECOND = 1_000
MS_PER_MINUTE = 60_000
MS_PER_QUARTER = 900_000  # quarter of an hour: hours of every time zone start at one
MS_PER_HOUR = 3_600_000
MS_PER_DAY = 86_400_000

USD_MICRO_PER_USD = 1_000_000

# The parts of a whole slot. It is divisible by 7 (MIG), by 1 to 10, 12, 14, 15, 16 and 32 (time slicing) and by
# fractions with six decimals, so that common shares are exact.
SHARE_WHOLE = 2_520_000_000


def share_parts(fraction: str | float) -> int:
    """A fraction of a GPU ("0.46") in parts of a whole slot."""
    from fractions import Fraction

    return round(Fraction(str(fraction)) * SHARE_WHOLE)


def largest_remainder(weights: Sequence[int], total: int) -> list[int]:
    """Splits `total` in proportion to `weights` into integers that add up to it exactly.

    Ties go to the earlier weight. If all weights are 0, the result is all zeros.
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
    """Milliseconds × (micro-dollars per hour) → micro-dollars, rounded half up. Money is divided only here."""
    return (2 * ms_price + MS_PER_HOUR) // (2 * MS_PER_HOUR)


def round_rows(ms_prices: Sequence[int]) -> list[int]:
    """The micro-dollars of an answer's rows, rounded so that they add up to its total."""
    return largest_remainder(ms_prices, usd_micro(sum(ms_prices)))


def round_nested(exact: Sequence[int], paths: Sequence[tuple[str, ...]], unit: int) -> list[int]:
    """Rounds amounts in parts of a unit to whole units. Rows with a common path prefix add up to their exact sum,
    rounded once, so an answer by team and experiment agrees with the answer by team. Amounts may be negative.

    Each result is the whole number below or above the exact amount. At each level the largest remainders are rounded
    up; equal remainders in alphabetical order.
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
    """Dollars rounded to cents, for display. Answers have the exact micro-dollars next to them."""
    return round(amount_usd_micro / USD_MICRO_PER_USD, 2)


def gpu_hours(gpu_ms: int) -> float:
    """GPU-hours rounded to four places, for display. Answers have the exact milliseconds next to them."""
    return round(gpu_ms / MS_PER_HOUR, 4)
