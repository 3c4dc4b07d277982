"""The time of a question: `--last`, `--since` and `--until`, `--month`, `--all`, in a time zone."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyrometer.account.books import month_window
from pyrometer.account.ledger import Accounted
from pyrometer.account.sums import Window
from pyrometer.model.units import MS_PER_MINUTE

# Times that a clock can show in every zone.
FIRST_YEAR, LAST_YEAR = 1970, 9998
LONGEST = timedelta(days=36_500)
MOST_DIGITS = 19  # of a length: with more it is as much too long, and Python reads none with thousands


class WindowError(ValueError):
    """A time that makes no sense; the text names the option, the value and the way out."""


def zone_of(name: str) -> tzinfo:
    """The time zone of a name."""
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: "Europe" is a folder of zones
        raise WindowError(
            f"There is no time zone {name!r} (--tz, or the setting `timezone`). Name one like Europe/Berlin."
        ) from None


def window_of(
    last: str | None, since: str | None, until: str | None, month: str | None, everything: bool, zone: tzinfo,
    default_last: str | None,
) -> Callable[[Accounted], Window]:  # fmt: skip
    """The window that the options mean, once it is known what is accounted for."""
    if sum(map(bool, (last or since, month, everything))) > 1 or (last and since) or (until and (month or everything)):
        raise WindowError("Say the time in one way: --last, --since and --until, --month, or --all.")
    until_ms = time_ms(until, zone) if until else None
    if month:
        fixed = month_of(month, zone)
        return lambda covered: fixed
    if everything or (default_last is None and not (last or since or until)):
        return lambda covered: Window(covered.from_ms, covered.end_ms)
    if since:
        since_ms = time_ms(since, zone)
        if until_ms is not None and until_ms <= since_ms:
            raise WindowError(f"--until {until!r} is not after --since {since!r}.")
        return lambda covered: Window(since_ms, max(since_ms, until_ms or covered.end_ms))
    if default_last is None and not last:
        return lambda covered: Window(covered.from_ms, until_ms or covered.end_ms)
    length_ms = round(_length(last or default_last or "").total_seconds() * 1000)
    return lambda covered: Window((until_ms or covered.end_ms) - length_ms, until_ms or covered.end_ms)


def _length(text: str) -> timedelta:
    found = re.fullmatch(r"(\d+)\s*([smhdw])", text.strip())
    number = int(found[1][:MOST_DIGITS]) if found else 0
    if not found or number == 0:
        raise WindowError(f"--last {text!r} is not a length of time: 90m, 12h, 7d.")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}[found[2]]
    try:
        length = timedelta(minutes=-(-timedelta(**{unit: number}) // timedelta(minutes=1)))
    except OverflowError:
        length = timedelta.max
    if length > LONGEST:
        raise WindowError(f"--last {text!r} is longer than there is time. --all means everything.")
    return length


def time_ms(text: str, zone: tzinfo) -> int:
    """The minute that a text names, in a zone unless it says another."""
    try:
        moment = datetime.fromisoformat(text)
        if not FIRST_YEAR <= moment.year <= LAST_YEAR:
            raise ValueError
    except ValueError:
        raise WindowError(f"{text!r} is not a time: 2026-11-14, '2026-11-14 20:00'.") from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    return round(aware.timestamp()) * 1000 // MS_PER_MINUTE * MS_PER_MINUTE


def month_of(text: str, zone: tzinfo) -> Window:
    """The time of a month as people write it."""
    try:
        first = datetime.strptime(text, "%Y-%m")
        if not FIRST_YEAR <= first.year <= LAST_YEAR:
            raise ValueError
    except ValueError:
        raise WindowError(f"--month {text!r} is not a month: 2026-10.") from None
    return month_window(f"{first:%Y-%m}", zone)
