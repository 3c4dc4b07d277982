"""The schedule of the morning report: once per day at a local time."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta, tzinfo
from pathlib import Path
from typing import NamedTuple

from pyrometer.model.settings import SettingError, Settings

MAX_DELAY = timedelta(hours=6)  # a later report is skipped


class DueReport(NamedTuple):
    """A report that is due."""

    day: str  # the local date of the report
    at: datetime


def time_of(settings: Settings) -> time | None:
    """The time of day of the report; None if it is off."""
    if not settings.report_at:
        return None
    found = re.fullmatch(r"([01]?\d|2[0-3]):([0-5]\d)", settings.report_at.strip())
    if not found:
        raise SettingError(
            f"Setting 'report_at' has value {settings.report_at!r}. Use a time of day, such as \"07:00\"."
        )
    if not settings.report_hours:
        raise SettingError("Setting 'report_hours' has value 0. A report covers at least one hour.")
    if not (settings.report_file or settings.webhook_url_file):
        raise SettingError(
            "Setting 'report_at' is set without a destination. Set 'report_file' or 'webhook_url_file' as well."
        )
    return time(int(found[1]), int(found[2]))


def last_due(at: time, zone: tzinfo, now: datetime) -> DueReport | None:
    """Returns the last due report, or None if it is more than `MAX_DELAY` ago.

    Each day has one report, also when clocks change: a skipped time is an hour later, and of a repeated time the first
    one counts.
    """
    today = now.astimezone(zone).date()
    for day in (today, today - timedelta(days=1)):
        due = datetime.combine(day, at, zone)
        if due.timestamp() <= now.timestamp():
            late = timedelta(seconds=now.timestamp() - due.timestamp())
            return DueReport(day.isoformat(), due) if late < MAX_DELAY else None
    return None


def path_of(settings: Settings, folder: Path, due: DueReport) -> Path:
    """The file of a report."""
    return folder / due.at.strftime(settings.report_file)
