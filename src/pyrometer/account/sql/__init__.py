"""The steps of accounting, one file each, run in the order of their numbers: 00-04 once for a build,
05-15 for every chunk of hours; 20 names things for the questions that follow."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import duckdb

RUNS = "00_runs"
OBJECTS = "01_objects"
GANGS = "02_gangs"
RESTATEMENTS = "03_restatements"
DIGESTS = "04_digests"
SLOTS = "05_slots"
NAMES = "20_names"
CHUNK_STEPS = (
    SLOTS,
    "06_tenants",
    "07_marks",
    "08_windows",
    "09_samples",
    "10_timeline",
    "11_minutes",
    "12_shares",
    "13_ledger",
    "14_carry",
    "15_energy",
)


@cache
def text(name: str) -> str:
    """The text of one step."""
    return files(__package__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def run(connection: duckdb.DuckDBPyConnection, name: str) -> duckdb.DuckDBPyConnection:
    """Runs the statements of one step; the result is that of the last."""
    for statement in _statements(name):
        connection.execute(statement)
    return connection


@cache
def _statements(name: str) -> list[duckdb.Statement]:
    """Parsed once for a process: that is a sixth of the time of a small ledger."""
    return duckdb.extract_statements(text(name))
