"""The intervals in which a GPU was in a state.

The ledger has the milliseconds per state and minute, but not their position. This module runs the accounting steps
again for some pods and hours, up to the step that cuts intervals into minutes, and keeps the intervals. They are
computed from the same facts by the same rules, so they add up to the ledger. Nothing is written to the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyrometer.account.build import sql
from pyrometer.account.build.chunk_inputs import MEASUREMENTS, Chunk
from pyrometer.account.build.ledger import CHUNK_DAYS, OBJECTS
from pyrometer.account.build.step_inputs import declare, put_near_idle
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_QUARTER
from pyrometer.store import StoreReader

_INTERVALS = """
INSERT INTO state_interval
SELECT pod_uid, node_uid, slot_index, judged.state, from_ms, to_ms
FROM judged JOIN tenancy USING (tenancy_id) JOIN every_slot USING (slot_id)
WHERE NOT by_amount AND pod_uid IN (SELECT unnest($1))
"""


def open_intervals(store: StoreReader, settings: Settings, pods: Sequence[str], minutes: Iterable[int]) -> None:
    """Creates `state_interval`: the intervals of these pods' slots around these minutes, each with one state.

    This replaces the views of measurements and `the_run`, so later readers must open them again.
    """
    connection = store.connection
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE state_interval (pod_uid VARCHAR, node_uid VARCHAR, slot_index SMALLINT, "
        "state VARCHAR, from_ms BIGINT, to_ms BIGINT)"
    )
    newest_ms = store.newest_ms(["ledger_row"], 2**62)
    if not pods or newest_ms is None:
        return
    end_ms = newest_ms + MS_PER_MINUTE
    declare(connection, settings, end_ms - 1, end_ms)
    store.expose_all(OBJECTS)
    for step in (sql.RUNS, sql.OBJECTS, sql.GANGS):
        sql.run(connection, step)
    _keep_slots_of(store, pods)
    put_near_idle(connection)
    connection.execute("SET preserve_insertion_order = false")
    try:
        for chunk in _chunks(store, minutes, end_ms):
            _run_steps(store, settings, chunk)
            connection.execute(_INTERVALS, [list(pods)])
    finally:
        connection.execute("RESET preserve_insertion_order")


def _keep_slots_of(store: StoreReader, pods: Sequence[str]) -> None:
    """Keeps only the slots that these pods held."""
    store.connection.execute(
        "DELETE FROM every_slot WHERE (node_uid, slot_index) NOT IN "
        "(SELECT (node_uid, slot_index) FROM the_allocation WHERE pod_uid IN (SELECT unnest($1)))",
        [list(pods)],
    )
    store.connection.execute("DELETE FROM every_slot_span WHERE slot_id NOT IN (SELECT slot_id FROM every_slot)")


def _chunks(store: StoreReader, minutes: Iterable[int], end_ms: int) -> list[Chunk]:
    """The hours to compute again.

    What is known of earlier time is stored where chunks of the ledger start, so each of these starts there, too.
    """
    wanted = sorted({minute_ms // MS_PER_HOUR * MS_PER_HOUR for minute_ms in minutes})
    chunks: list[Chunk] = []
    for part in sorted(store.parts("ledger_row"), key=lambda part: part.from_ms):
        hours = [hour_ms for hour_ms in wanted if part.from_ms <= hour_ms < part.to_ms]
        if not hours:
            continue
        to_ms = min(hours[-1] + MS_PER_HOUR, end_ms)
        last = chunks[-1] if chunks else None
        if last and last.to_ms == part.from_ms and to_ms - last.from_ms <= CHUNK_DAYS * MS_PER_DAY:
            chunks[-1] = Chunk(last.from_ms, to_ms)
        else:
            chunks.append(Chunk(part.from_ms, to_ms))
    return chunks


def _run_steps(store: StoreReader, settings: Settings, chunk: Chunk) -> None:
    connection = store.connection
    connection.execute(f"SET VARIABLE chunk_from_ms = {chunk.from_ms}::BIGINT")
    connection.execute(f"SET VARIABLE chunk_to_ms = {chunk.to_ms}::BIGINT")
    store.expose(["carry"], chunk.from_ms, chunk.from_ms + 1)
    connection.execute("CREATE OR REPLACE TEMP VIEW carried AS FROM carry WHERE time_ms = getvariable('chunk_from_ms')")
    near = chunk.from_ms - MS_PER_HOUR, chunk.to_ms + max(settings.idle_gap_ms + 2 * MS_PER_MINUTE, MS_PER_QUARTER)
    store.expose(MEASUREMENTS, *near, keep="SEMI JOIN every_slot USING (node_uid, slot_index)")
    for step in sql.INTERVAL_STEPS:
        if step == sql.WINDOWS and not store.has("step_window", *near):
            step = sql.NO_WINDOWS
        elif step == sql.SAMPLES and not store.has("gpu_sample", *near):
            step = sql.NO_SAMPLES
        # the first statement of these two steps is about intervals; the others are about prices and minutes
        sql.run(connection, step, first=1 if step in (sql.SLOTS, sql.MINUTES) else None)
