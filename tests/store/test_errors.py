"""Errors of data folders."""

from __future__ import annotations

import duckdb
import pytest

from pyrometer.store.errors import READ_ERRORS, StoreBrokenError, StoreBusyError, StoreError, first_line


def test_first_line_has_no_period_and_no_details():
    assert first_line(ValueError("It is late.\nLINE 1: SELECT")) == "It is late"


def test_first_line_of_invalid_bytes_does_not_quote_them():
    with pytest.raises(UnicodeDecodeError) as error:
        b"\xff".decode()
    assert first_line(error.value) == "It has bytes that are not text where text should be"


def test_errors_of_a_damaged_or_busy_folder_are_store_errors():
    assert issubclass(StoreBrokenError, StoreError)
    assert issubclass(StoreBusyError, StoreError)


def test_read_errors_include_those_of_duckdb():
    with pytest.raises(READ_ERRORS):
        duckdb.connect().execute("FROM read_parquet('/nonexistent')")
