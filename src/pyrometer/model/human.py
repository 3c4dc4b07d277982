"""Formats numbers, money, shares, durations and times for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Any

from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, USD_MICRO_PER_USD

USD_MICRO_PER_CENT = USD_MICRO_PER_USD // 100
LIVE_UP_TO_MS = 3 * MS_PER_MINUTE  # newer data is called live
CENTS_UP_TO = 1_000  # an amount of ten dollars or more is shown without its cents


def duration(ms: int) -> str:
    """A duration in its two largest units: "6 h 12 min", "25 s"."""
    seconds = round(ms / 1000)
    if seconds < 60:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min" if seconds >= 600 or seconds % 60 == 0 else f"{seconds // 60} min {seconds % 60} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def staleness(end_ms: int, now_ms: int, origin: str | None) -> str:
    """How far data is behind the clock: empty while it is live, the origin of recorded or simulated data.

    `freshness` in serve/page/freshness.js does the same: change both together.
    """
    behind_ms = now_ms - end_ms
    if behind_ms < LIVE_UP_TO_MS and not (origin and behind_ms < -LIVE_UP_TO_MS):
        return ""
    if origin:
        return origin
    if behind_ms < MS_PER_HOUR:
        return f"{behind_ms // MS_PER_MINUTE} min behind"
    if behind_ms < 2 * MS_PER_DAY:
        return f"{behind_ms // MS_PER_HOUR} h behind"
    return f"{behind_ms // MS_PER_DAY} d behind"


def dollars(usd_micro: int | None) -> str:
    """Money: cents below ten dollars, whole dollars from there on; "unpriced" if no price is known.

    Halves round away from zero. `usdMicro` in serve/page/format.js does the same: change both together.
    """
    if usd_micro is None:
        return "unpriced"
    sign, amount = "−" if usd_micro < 0 else "", abs(usd_micro)
    if 0 < amount < USD_MICRO_PER_CENT // 2:
        return f"{sign}<$0.01"  # a small amount is not zero
    cents = _rounded(amount, USD_MICRO_PER_CENT)
    if cents < CENTS_UP_TO:
        return f"{sign}${cents // 100}.{cents % 100:02d}"
    return f"{sign}${_rounded(amount, USD_MICRO_PER_USD):,}"


def _rounded(amount: int, unit: int) -> int:
    """An amount in whole units, in integers: floats would round some halves down."""
    return (2 * amount + unit) // (2 * unit)


def hours(gpu_ms: int) -> str:
    """GPU time: "3,840 GPU-hours", "12.0 GPU-minutes", "0.9 GPU-seconds"."""
    if 0 < gpu_ms < MS_PER_MINUTE:
        return f"{gpu_ms / 1000:.1f} GPU-seconds"
    if gpu_ms < MS_PER_HOUR:
        return f"{gpu_ms / 60_000:.1f} GPU-minutes"
    value = gpu_ms / MS_PER_HOUR
    return f"{value:,.1f} GPU-hours" if value < 100 else f"{value:,.0f} GPU-hours"


def rate(mib_s: float) -> str:
    """A data rate: "310 MiB/s", "1.9 GiB/s"."""
    return f"{mib_s:,.0f} MiB/s" if mib_s < 1000 else f"{mib_s / 1024:,.1f} GiB/s"


def size(count: int) -> str:
    """A number of bytes: "812 B", "3.4 GiB"."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:,.0f} {unit}" if value >= 100 or unit == "B" else f"{value:,.1f} {unit}"


def energy(wh: int) -> str:
    """Energy: "412 kWh", "1.3 MWh"."""
    if wh >= 10_000_000:
        return f"{wh / 1e6:,.1f} MWh"
    return f"{wh / 1e3:,.0f} kWh" if wh >= 100_000 else f"{wh / 1e3:,.3g} kWh"


def emission(co2e_g: int) -> str:
    """Greenhouse gas emissions: "0.16 t CO2e", "12 kg CO2e"."""
    return f"{co2e_g / 1e6:,.2f} t CO2e" if co2e_g >= 100_000 else f"{co2e_g / 1e3:,.3g} kg CO2e"


def coverage(total: dict[str, Any]) -> str:
    """How much GPU time has a known energy; empty if counters cover nearly all GPU time, or none."""
    measured, estimated = total["energy_gpu_ms"], total["energy_estimated_gpu_ms"]
    if not measured or (measured * 100 >= total["gpu_ms"] * 99 and estimated * 100 <= measured):
        return ""
    estimate = f", {percent(estimated, measured)} of the energy estimated from power readings" if estimated else ""
    return f"Energy is known for {percent(measured, total['gpu_ms'])} of the GPU time{estimate}."


def percent(part: int, whole: int) -> str:
    """A share: one decimal below 10%, none from there on: "12%", "4.2%", "4%", "<0.1%".

    Halves round away from zero. `share` in serve/page/format.js does the same: change both together.
    """
    if not whole:
        return "0%"
    sign, part = "−" if part < 0 else "", abs(part)
    tenths = _rounded(1000 * part, whole)
    if part and not tenths:
        return f"{sign}<0.1%"
    return f"{sign}{tenths / 10:g}%" if tenths < 100 else f"{sign}{_rounded(100 * part, whole):,}%"


def ratio(share: float) -> str:
    """A share that is given as a fraction of 1: "59%"."""
    return percent(round(share * 1e9), 10**9)


def clock(time_ms: int, zone: tzinfo, *, beside_ms: int | None = None, seconds: bool = False) -> str:
    """A time of day; with its date if that differs from the date of `beside_ms`."""
    local = datetime.fromtimestamp(time_ms / 1000, zone)
    beside = datetime.fromtimestamp((time_ms if beside_ms is None else beside_ms) / 1000, zone)
    time_of_day = f"{local:%H:%M:%S}" if seconds else f"{local:%H:%M}"
    return time_of_day if local.date() == beside.date() else f"{local:%a}, {date(local)}, {time_of_day}"


def date(local: datetime, *, year: bool = False) -> str:
    """A date: "Oct 8", "Oct 8, 2026". `day` in serve/page/format.js does the same: change both together."""
    return f"{local:%b} {local.day}" + (f", {local.year}" if year else "")


def date_time(local: datetime, *, year: bool = False, seconds: bool = False) -> str:
    """A date with a time: "Oct 8, 14:05". `when` in serve/page/format.js does the same: change both together."""
    return f"{date(local, year=year)}, {local:%H:%M:%S}" if seconds else f"{date(local, year=year)}, {local:%H:%M}"


def listed(names: Sequence[str], max_names: int = 3) -> str:
    """Names in a sentence: "a, b and 4 more"."""
    shown = list(names[:max_names])
    if len(names) > max_names:
        return f"{', '.join(shown)} and {len(names) - max_names} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def counted(number: int, noun: str) -> str:
    """A count with its noun: "1 pod", "12 pods", "2 batches"."""
    plural = "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}{plural}"


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a paragraph."""
    return textwrap.wrap(text, width, break_on_hyphens=False)
