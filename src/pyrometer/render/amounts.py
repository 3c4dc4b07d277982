"""The unit of reports: dollars, or GPU time if nothing is priced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyrometer.model.human import dollars
from pyrometer.model.units import MS_PER_HOUR


class Measure(NamedTuple):
    """The unit of a report. Shares are shares of the same unit, so that they fit their amounts."""

    key: str

    @classmethod
    def of(cls, total: dict[str, Any]) -> Measure:
        """Dollars if any time has a price, GPU time otherwise."""
        return cls("usd_micro" if total["usd_micro"] else "gpu_ms")

    @property
    def is_money(self) -> bool:
        """Whether amounts are micro-dollars (otherwise they are GPU-milliseconds)."""
        return self.key == "usd_micro"

    def amounts(self, rows: Sequence[dict[str, Any]], prefix: str = "") -> list[int]:
        """The amount of each row; a row without a price counts as zero."""
        return [row[prefix + self.key] or 0 for row in rows]

    def number(self, amount: int) -> str:
        """An amount for a table whose heading names the unit."""
        return dollars(amount) if self.is_money else gpu_hours(amount)

    def text(self, amount: int) -> str:
        """An amount with its unit, for a sentence."""
        return self.number(amount) + ("" if self.is_money else " GPU-hours")


def gpu_hours(gpu_ms: float) -> str:
    """GPU-hours without their unit: "1,204", "3.2"."""
    hours = gpu_ms / MS_PER_HOUR
    if 0 < hours < 0.05:
        return "<0.1"
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:,.1f}"
