"""The inputs of the SQL steps other than facts: settings as variables, and small tables of the model."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.model.events import RESTATING
from pyrometer.model.settings import Settings
from pyrometer.model.states import INTERVAL_STATES, STATES
from pyrometer.model.units import SHARE_WHOLE


def declare(connection: duckdb.DuckDBPyConnection, settings: Settings, newest_ms: int, end_ms: int) -> None:
    """Sets the variables and creates the types and tables that do not depend on the objects."""
    for name, value in {
        "newest_ms": newest_ms,
        "end_ms": end_ms,
        "share_whole": SHARE_WHOLE,
        "idle_gap_ms": settings.idle_gap_ms,
        "startup_limit_ms": settings.startup_limit_ms,
        "sample_reach_ms": settings.sample_reach_ms,
        "sample_bridge_ms": settings.sample_reach_ms + settings.sample_jitter_ms,
        "hang_limit_ms": settings.hang_limit_ms,
    }.items():
        connection.execute(f"SET VARIABLE {name} = {int(value)}::BIGINT")
    names = ", ".join(f"'{state.name}'" for state in STATES)
    connection.execute(f"CREATE TEMP TYPE IF NOT EXISTS state_name AS ENUM ({names})")
    connection.execute("CREATE TEMP TYPE IF NOT EXISTS look_name AS ENUM ('idle', 'busy', 'spins')")
    interval_states = [(state, place) for place, state in enumerate(INTERVAL_STATES)]
    put_table(connection, "interval_state", "state VARCHAR, place INTEGER", interval_states)
    put_table(connection, "restating", "opens VARCHAR, closes VARCHAR, state VARCHAR, whole_run BOOLEAN", RESTATING)


def put_near_idle(connection: duckdb.DuckDBPyConnection) -> None:
    """Creates `near_idle` from `every_slot_span`: for each slot the power below which its GPU is idle."""
    models = connection.execute("SELECT DISTINCT gpu_model FROM every_slot_span").fetchall()
    powers = [(model, near_idle_power_w(model)) for (model,) in models]
    put_table(connection, "near_idle_model", "gpu_model VARCHAR, power_w INTEGER", powers)
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE near_idle AS "
        "SELECT slot_id, min(power_w) AS power_w FROM every_slot_span "
        "JOIN near_idle_model USING (gpu_model) GROUP BY slot_id "
        "UNION ALL SELECT slot_id, ? FROM every_slot_span GROUP BY slot_id HAVING count(gpu_model) = 0",
        [near_idle_power_w(None)],
    )


def put_table(
    connection: duckdb.DuckDBPyConnection, name: str, columns: str, rows: Iterable[tuple[object, ...]]
) -> None:
    """Creates a temporary table with these columns and rows."""
    connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} ({columns})")
    values = [list(column) for column in zip(*rows, strict=True)]
    if values:
        connection.execute(f"INSERT INTO {name} SELECT {', '.join(['unnest(?)'] * len(values))}", values)
