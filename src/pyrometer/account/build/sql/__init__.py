"""The steps of accounting, one file each, run in the order of their numbers: 00-04 once for a build,
05-19 for every chunk of hours (13 and 17-19 are queries of what is written); 20 names things for questions."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib.resources import files

import duckdb

RUNS = "00_runs"
OBJECTS = "01_objects"
GANGS = "02_gangs"
RESTATEMENTS = "03_restatements"
DIGESTS = "04_digests"
PRICE_MATCHES = "04_price_matches"
SLOTS = "05_slots"
NAMES = "20_names"
NAMED = (
    "the_workload",
    "the_pipeline_run",
    "the_sweep",
    "the_trial",
    "holder_name",
    "node_name",
)  # the tables it makes
LEDGER = "13_ledger"
WINDOWS, NO_WINDOWS = "08_windows", "08_no_windows"
SAMPLES, NO_SAMPLES = "09_samples", "09_no_samples"
MINUTES = "11_minutes"
ENERGY, NO_ENERGY = "15_energy", "15_no_energy"
ACTIVITY, NO_ACTIVITY = "16_activity", "16_no_activity"
# what questions read instead of the ledger where they can, by kind
SUMMED = {
    "hour_sum": "17_hour_sum",
    "minute_sum": "18_minute_sum",
    "minute_use": "18_minute_use",
    "quarter_use": "19_quarter_use",
    "hour_use": "19_hour_use",
}
INTERVAL_STEPS = (SLOTS, "06_tenants", "07_marks", WINDOWS, SAMPLES, "10_timeline", MINUTES)
CHUNK_STEPS = (*INTERVAL_STEPS, "12_shares", "14_carry", ENERGY, ACTIVITY)


@cache
def text(name: str) -> str:
    """The text of one step."""
    return files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def run(connection: duckdb.DuckDBPyConnection, name: str, first: int | None = None) -> duckdb.DuckDBPyConnection:
    """Runs the statements of one step, or only the first of them; the result is that of the last."""
    for statement in _statements(name)[:first]:
        connection.execute(statement)
    return connection


@lru_cache(maxsize=256)
def parsed(query: str) -> duckdb.Statement:
    """A single statement, ready to be bound: the questions of a report are the same every time."""
    (statement,) = duckdb.extract_statements(query)
    return statement


@cache
def _statements(name: str) -> list[duckdb.Statement]:
    """Parsed once for a process: that is a sixth of the time of a small ledger."""
    return duckdb.extract_statements(text(name))
