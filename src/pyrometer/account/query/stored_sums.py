"""Reads the ledger for questions that need neither slots nor single minutes: from sums that were written with it, if
there are any, otherwise from its rows. Both have the same milliseconds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, tzinfo

from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.store import StoreReader
from pyrometer.store.catalog import Part

HOURS = "ledger_hours"
MINUTES = "ledger_minutes"


def open_hours(store: StoreReader, from_ms: int, to_ms: int, *, states: bool = True) -> str:
    """Creates a view of the ledger of a time range in which whole hours are one row where possible, with or without
    states. Returns its name. `minute_ms` is then the hour. Hours that the time range cuts are read by minute."""
    time_range = TimeRange(from_ms, to_ms)
    hours = whole_steps(store, *time_range, MS_PER_HOUR)
    by_state, by_holder = with_sums(store, "hour_sum"), [] if states else with_sums(store, "hour_use")
    if not by_state or (states and hours.is_empty):
        store.expose(["ledger_row"], *time_range)
        return "ledger_row"
    held = f"node_uid, pod_uid, {'state, evidence, ' if states else ''}usd_micro_per_hour"
    read = []
    for kind, without in {"hour_use": [], "hour_sum": beside(store, "hour_sum", by_holder)}.items():
        if not hours.is_empty and (kind == "hour_sum" or by_holder):
            store.expose([kind], *hours, without=without)
            read.append(f"SELECT time_ms AS minute_ms, {held}, ms FROM {kind} {inside('time_ms', hours)}")
    if not hours.is_empty and _has_more(store, hours, by_state):
        store.expose(["ledger_row"], *hours, suffix="_between", without=by_state)
        read.append(f"SELECT minute_ms, {held}, ms FROM ledger_row_between {inside('minute_ms', hours)}")
    for number, span in enumerate(edges(time_range, hours)):
        suffix = f"_edge_{number}"
        if not states:
            read.append(
                f"SELECT time_ms AS minute_ms, {held}, ms * minutes AS ms FROM ({stretches(store, span, suffix)})"
            )
        elif _has_more(store, span, []):
            store.expose(["ledger_row"], *span, suffix=suffix)
            read.append(f"SELECT minute_ms, {held}, ms FROM ledger_row{suffix} {inside('minute_ms', span)}")
    store.connection.execute(f"CREATE OR REPLACE TEMP VIEW {HOURS} AS {' UNION ALL '.join(read)}")
    return HOURS


def open_minutes(store: StoreReader, from_ms: int, to_ms: int) -> str:
    """Creates a view of the ledger of a time range without slots and holders; `held` tells whether there is a
    holder. Returns its name."""
    span = TimeRange(from_ms, to_ms)
    summed = [] if store.is_limited else with_sums(store, "minute_sum")  # those sums include all teams
    store.expose(["minute_sum"], *span)
    store.expose(["ledger_row"], *span, suffix="_beside", without=summed)
    columns = "state, held, usd_micro_per_hour, ms"
    read = [f"SELECT time_ms AS minute_ms, {columns} FROM minute_sum {inside('time_ms', span)}"] if summed else []
    if _has_more(store, span, summed) or not summed:
        rows = "SELECT *, pod_uid IS NOT NULL AS held FROM ledger_row_beside"
        read.append(f"SELECT minute_ms, {columns} FROM ({rows}) {inside('minute_ms', span)}")
    store.connection.execute(f"CREATE OR REPLACE TEMP VIEW {MINUTES} AS {' UNION ALL '.join(read)}")
    return MINUTES


def stretches(store: StoreReader, span: TimeRange, suffix: str) -> str:
    """A query of the ledger without slots and states. Consecutive equal minutes may be one row with their number in
    `minutes`."""
    summed = with_sums(store, "minute_use")
    store.expose(["minute_use"], *span, suffix=suffix)
    store.expose(["ledger_row"], *span, suffix=suffix, without=summed)
    read = f"""
        SELECT greatest(time_ms, {span.from_ms}) AS time_ms, node_uid, pod_uid, usd_micro_per_hour, ms,
            {minutes_before(span.to_ms)} - {minutes_before(span.from_ms)} AS minutes
        FROM minute_use{suffix} WHERE time_ms < {span.to_ms} AND time_ms + minutes * {MS_PER_MINUTE} > {span.from_ms}
    """
    if _has_more(store, span, summed):
        read += f"""
            UNION ALL SELECT minute_ms, node_uid, pod_uid, usd_micro_per_hour, ms, 1
            FROM ledger_row{suffix} {inside("minute_ms", span)}
        """
    return read


def minutes_before(time_ms: int) -> str:
    """SQL for the number of minutes of a row that start before a time."""
    return f"least(minutes, greatest(0, ({time_ms + MS_PER_MINUTE - 1} - time_ms) // {MS_PER_MINUTE}))"


def is_summed(store: StoreReader, from_ms: int, to_ms: int, kind: str) -> bool:
    """Whether a time range has whole hours that all have such sums."""
    hours = whole_steps(store, from_ms, to_ms, MS_PER_HOUR)
    return not hours.is_empty and not _has_more(store, hours, with_sums(store, kind))


def edges(time_range: TimeRange, steps: TimeRange) -> list[TimeRange]:
    """The parts of a time range before and after its whole steps."""
    if steps.is_empty:
        return [time_range]
    return [
        span
        for span in (TimeRange(time_range.from_ms, steps.from_ms), TimeRange(steps.to_ms, time_range.to_ms))
        if not span.is_empty
    ]


def whole_steps(store: StoreReader, from_ms: int, to_ms: int, step_ms: int) -> TimeRange:
    """The hours, or other steps, that are complete in a time range. The newest step is complete if the ledger ends
    before the time range does."""
    newest_ms = max((part.newest_ms for part in store.parts("ledger_row") if part.newest_ms is not None), default=0)
    ended = step_ms - 1 if newest_ms < to_ms else 0
    return TimeRange(-(-from_ms // step_ms) * step_ms, (to_ms + ended) // step_ms * step_ms)


def has_whole_hours(zone: tzinfo, from_ms: int, to_ms: int) -> bool:
    """Whether the hours of a time zone are always hours of UTC: some zones are off by a quarter or half an hour."""
    times = [*range(from_ms, to_ms, MS_PER_DAY), to_ms]
    offsets = {datetime.fromtimestamp(time_ms / 1000, zone).utcoffset() or timedelta() for time_ms in times}
    return all(offset % timedelta(hours=1) == timedelta() for offset in offsets)


def with_sums(store: StoreReader, kind: str) -> list[Part]:
    """The parts of the ledger that have such sums."""
    return beside(store, "ledger_row", store.parts(kind))


def beside(store: StoreReader, kind: str, parts: Iterable[Part]) -> list[Part]:
    """The parts of a kind that cover the same hours as the given parts."""
    known = {(part.from_ms, part.to_ms) for part in parts}
    return [part for part in store.parts(kind) if (part.from_ms, part.to_ms) in known]


def _has_more(store: StoreReader, span: TimeRange, known: list[Part]) -> bool:
    """Whether parts of the ledger other than the given ones overlap a time range."""
    paths = {part.path for part in known}
    touched = [part for part in store.parts("ledger_row") if part.from_ms < span.to_ms and part.to_ms > span.from_ms]
    return any(part.path not in paths for part in touched)


def inside(column: str, span: TimeRange) -> str:
    """An SQL condition: the time is in a time range."""
    return f"WHERE {column} >= {span.from_ms} AND {column} < {span.to_ms}"
