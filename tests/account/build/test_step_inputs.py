"""Settings as variables, and small tables, for the SQL steps."""

from __future__ import annotations

import duckdb
import pytest

from pyrometer.account.build.step_inputs import declare, put_near_idle, put_table
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.model.settings import Settings
from pyrometer.model.states import INTERVAL_STATES, STATES
from tests.support.histories import H100, UNLISTED


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def test_declare_sets_the_limits_of_the_settings(connection: duckdb.DuckDBPyConnection) -> None:
    declare(connection, Settings(sample_reach_ms=60_000, sample_jitter_ms=15_000), 7, 8)
    for name, value in {"newest_ms": 7, "end_ms": 8, "sample_bridge_ms": 75_000}.items():
        assert connection.execute(f"SELECT getvariable('{name}')").fetchall() == [(value,)]
    assert connection.execute("SELECT count(*) FROM interval_state").fetchall() == [(len(INTERVAL_STATES),)]
    assert connection.execute("SELECT len(enum_range(NULL::state_name))").fetchall() == [(len(STATES),)]


def test_declare_can_be_repeated(connection: duckdb.DuckDBPyConnection) -> None:
    declare(connection, Settings(), 1, 2)
    declare(connection, Settings(hang_limit_ms=5), 3, 4)
    assert connection.execute("SELECT getvariable('hang_limit_ms'), getvariable('end_ms')").fetchall() == [(5, 4)]


def test_put_table_replaces_its_rows(connection: duckdb.DuckDBPyConnection) -> None:
    put_table(connection, "pair", "a INTEGER, b VARCHAR", [(1, "x"), (2, None)])
    put_table(connection, "pair", "a INTEGER, b VARCHAR", [(3, "y")])
    assert connection.execute("FROM pair").fetchall() == [(3, "y")]


def test_put_table_without_rows_is_empty(connection: duckdb.DuckDBPyConnection) -> None:
    put_table(connection, "pair", "a INTEGER", [])
    assert connection.execute("FROM pair").fetchall() == []


def test_near_idle_power_is_that_of_the_model_or_the_default(connection: duckdb.DuckDBPyConnection) -> None:
    put_table(
        connection, "every_slot_span", "slot_id INTEGER, gpu_model VARCHAR", [(1, H100), (2, None), (3, UNLISTED)]
    )
    put_near_idle(connection)
    found = dict(connection.execute("FROM near_idle").fetchall())
    assert found == {1: near_idle_power_w(H100), 2: near_idle_power_w(None), 3: near_idle_power_w(UNLISTED)}
