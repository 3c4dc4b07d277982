"""The morning report: what burned in the last night, once a day, at a time of day that people live by."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import NamedTuple

from pyrometer.model.settings import SettingError, Settings

MOST_LATE = timedelta(hours=6)  # after that a night is not news any more


class Due(NamedTuple):
    """A report that should be there."""

    day: str  # of which it is the report, where people live
    at: datetime


def time_of(settings: Settings) -> time | None:
    """When the report is made; None: never."""
    if not settings.report_at:
        return None
    found = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", settings.report_at.strip())
    if not found:
        raise SettingError(f"Setting 'report_at' has value {settings.report_at!r}. It is a time of day: \"07:00\".")
    if not settings.report_hours:
        raise SettingError("Setting 'report_hours' has value 0: a report is about an hour at least.")
    if not (settings.report_file or settings.webhook_url_file):
        raise SettingError(
            "Setting 'report_at' says when there is a report, and nothing where: name 'report_file' or "
            "'webhook_url_file'."
        )
    return time(int(found[1]), int(found[2]))


def last_due(at: time, zone: tzinfo, now: datetime) -> Due | None:
    """The report that was due last; None when that is so long ago that nobody waits for it.

    A day has one, whatever the clocks do: a time that is skipped is an hour later, one that comes twice is the first.
    """
    today = now.astimezone(zone).date()
    for day in (today, today - timedelta(days=1)):
        due = datetime.combine(day, at, zone)
        if due.timestamp() <= now.timestamp():
            late = timedelta(seconds=now.timestamp() - due.timestamp())
            return Due(day.isoformat(), due) if late < MOST_LATE else None
    return None


def path_of(settings: Settings, folder: Path, due: Due) -> Path:
    """Where a report is written."""
    return folder / due.at.strftime(settings.report_file)
