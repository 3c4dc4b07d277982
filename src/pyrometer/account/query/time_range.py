"""The time range of a question: `--last`, `--since` and `--until`, `--month` or `--all`, in a time zone."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyrometer.model.units import MS_PER_MINUTE

if TYPE_CHECKING:
    from pyrometer.account.build.ledger import LedgerCoverage

# The years that can be shown in every time zone.
FIRST_YEAR, LAST_YEAR = 1970, 9998
MAX_LENGTH = timedelta(days=36_500)
MAX_LENGTH_DIGITS = (
    19  # a number with more digits is too long in every unit, and Python does not parse thousands of digits
)


class TimeRangeError(ValueError):
    """An invalid time. The text names the option, its value and the fix."""


class TimeRange(NamedTuple):
    """The interval that a question is asked about: whole minutes, the end not included."""

    from_ms: int
    to_ms: int

    @property
    def is_empty(self) -> bool:
        """Whether it contains no time."""
        return self.from_ms >= self.to_ms


def zone_of(name: str) -> tzinfo:
    """The time zone with a name."""
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: "Europe" is a folder of zones
        raise TimeRangeError(
            f"There is no time zone {name!r} (--tz, or the setting `timezone`). Use a name like Europe/Berlin."
        ) from None


def time_range_of(
    last: str | None,
    since: str | None,
    until: str | None,
    month: str | None,
    everything: bool,
    zone: tzinfo,
    default_last: str | None,
) -> Callable[[LedgerCoverage], TimeRange]:
    """The time range that the options select. It depends on the coverage of the ledger."""
    if sum(map(bool, (last or since, month, everything))) > 1 or (last and since) or (until and (month or everything)):
        raise TimeRangeError("Choose one time range: --last, --since and --until, --month, or --all.")
    until_ms = time_ms(until, zone) if until else None
    if month:
        fixed = month_of(month, zone)
        return lambda covered: fixed
    if everything or (default_last is None and not (last or since or until)):
        return lambda covered: TimeRange(covered.from_ms, covered.end_ms)
    if since:
        since_ms = time_ms(since, zone)
        if until_ms is not None and until_ms <= since_ms:
            raise TimeRangeError(f"--until {until!r} is not after --since {since!r}.")
        return lambda covered: TimeRange(since_ms, max(since_ms, until_ms or covered.end_ms))
    if default_last is None and not last:
        return lambda covered: TimeRange(covered.from_ms, until_ms or covered.end_ms)
    length_ms = round(_length(last or default_last or "").total_seconds() * 1000)
    return lambda covered: TimeRange((until_ms or covered.end_ms) - length_ms, until_ms or covered.end_ms)


def _length(text: str) -> timedelta:
    found = re.fullmatch(r"(\d+)\s*([smhdw])", text.strip())
    number = int(found[1][:MAX_LENGTH_DIGITS]) if found else 0
    if not found or number == 0:
        raise TimeRangeError(f"--last {text!r} is not a length of time: 90m, 12h, 7d.")
    unit = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}[found[2]]
    try:
        length = timedelta(minutes=-(-timedelta(**{unit: number}) // timedelta(minutes=1)))
    except OverflowError:
        length = timedelta.max
    if length > MAX_LENGTH:
        raise TimeRangeError(f"--last {text!r} is too long. Use --all for all data.")
    return length


def time_ms(text: str, zone: tzinfo) -> int:
    """The minute that a text names, in the given zone unless the text has an offset."""
    try:
        moment = datetime.fromisoformat(text)
        if not FIRST_YEAR <= moment.year <= LAST_YEAR:
            raise ValueError
    except ValueError:
        raise TimeRangeError(f"{text!r} is not a time: 2026-11-14, '2026-11-14 20:00'.") from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=zone)
    return round(aware.timestamp()) * 1000 // MS_PER_MINUTE * MS_PER_MINUTE


def month_of(text: str, zone: tzinfo) -> TimeRange:
    """The time range of a month in the form 2026-10."""
    try:
        first = datetime.strptime(text, "%Y-%m")
        if not FIRST_YEAR <= first.year <= LAST_YEAR:
            raise ValueError
    except ValueError:
        raise TimeRangeError(f"--month {text!r} is not a month: 2026-10.") from None
    return month_range(f"{first:%Y-%m}", zone)


def zone_name(zone: tzinfo) -> str:
    """The name of a time zone, as it is stored."""
    return str(getattr(zone, "key", "UTC"))


def month_range(month: str, zone: tzinfo) -> TimeRange:
    """The time range of a month."""
    first = date.fromisoformat(f"{month}-01")
    following = (first + timedelta(days=31)).replace(day=1)
    return TimeRange(midnight_ms(first, zone), midnight_ms(following, zone))


def midnight_ms(day: date, zone: tzinfo) -> int:
    """The start of a day."""
    return round(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp() * 1000)
