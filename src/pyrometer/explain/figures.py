"""What the page counts in, and amounts rounded so that what is shown adds up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyrometer.model.units import MS_PER_HOUR, USD_MICRO_PER_USD, largest_remainder


class Amount(NamedTuple):
    """Micro-dollars or GPU-milliseconds, and how many of the page's units are shown for them."""

    exact: int
    units: int


class Measure(NamedTuple):
    """What the page counts in: dollars, or GPU-hours where nothing is priced; whole ones if they are many."""

    key: str
    unit: int
    unit_format: str

    @classmethod
    def of(cls, total: dict[str, Any]) -> Measure:
        """Dollars from $1,000 on, cents below; without a price GPU-hours from 1,000 on, tenths below."""
        if total["usd_micro"]:
            if total["usd_micro"] >= 1_000 * USD_MICRO_PER_USD:
                return cls("usd_micro", USD_MICRO_PER_USD, "${:,.0f}")
            return cls("usd_micro", USD_MICRO_PER_USD // 100, "${:,.2f}")
        if total["gpu_ms"] >= 1_000 * MS_PER_HOUR:
            return cls("gpu_ms", MS_PER_HOUR, "{:,.0f}")
        return cls("gpu_ms", MS_PER_HOUR // 10, "{:,.1f}")

    @property
    def is_money(self) -> bool:
        """Whether amounts are micro-dollars (else they are GPU-milliseconds)."""
        return self.key == "usd_micro"

    def amounts(self, rows: Sequence[dict[str, Any]], prefix: str = "") -> list[Amount]:
        """What the rows amount to, rounded so that they add up; a row without a price is zero here."""
        exacts = [row[prefix + self.key] or 0 for row in rows]
        return [Amount(*pair) for pair in zip(exacts, self._rounded(exacts), strict=True)]

    def amount(self, exact: int) -> Amount:
        """One amount by itself."""
        return Amount(exact, self._rounded([exact])[0])

    def number(self, amount: Amount) -> str:
        """For a table that says what it counts in."""
        whole = USD_MICRO_PER_USD if self.is_money else MS_PER_HOUR
        if amount.units == 0 and amount.exact > 0:
            return "<" + self.unit_format.format(self.unit / whole)
        return self.unit_format.format(amount.units * self.unit / whole)

    def text(self, amount: Amount) -> str:
        """For a sentence."""
        return self.number(amount) + ("" if self.is_money else " GPU-hours")

    def _rounded(self, exacts: list[int]) -> list[int]:
        return largest_remainder(exacts, (2 * sum(exacts) + self.unit) // (2 * self.unit))
