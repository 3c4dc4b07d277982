"""The grammar of names, paths and numbers from untrusted sources."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pyrometer.store.catalog import HotTable, Part
from pyrometer.store.grammar import (
    MAX_TIME_MS,
    Decimals,
    FilePath,
    GrammarError,
    Month,
    Sha256,
    UnknownKindError,
    check_kind,
    check_meta,
    checked,
    read_json,
    record_of,
    shown,
)

PATH = "parts/event/2025-10-10/00-0123456789abcdef.parquet"
PART = Part("event", 0, 1, PATH, 1, 1, None, "time_ms,kind")._asdict()


class File(NamedTuple):
    """A record with fields of several grammars."""

    path: FilePath
    sha256: Sha256 = "0" * 64
    month: Month = "2026-10"
    factor: Decimals = "1.5"


def test_record_of_reads_a_part():
    assert record_of(Part, PART) == Part(**PART)


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "../outside.parquet"},
        {"path": PATH.replace("event", "Event")},
        {"path": f"{PATH}\n"},
        {"kind": "event; DROP TABLE parts"},
        {"from_ms": -1},
        {"to_ms": MAX_TIME_MS + 1},
        {"row_count": True},
        {"bytes": "1"},
        {"columns": "time_ms, kind"},
        {"more": 1},
    ],
)
def test_record_of_refuses_invalid_fields_by_name(changed):
    with pytest.raises(GrammarError, match=rf"^parts\[3\]\.'?{next(iter(changed))}'? is "):
        record_of(Part, PART | changed, "parts[3]")


def test_record_of_refuses_missing_fields_without_a_default():
    with pytest.raises(GrammarError, match="row_count is missing"):
        record_of(Part, {name: value for name, value in PART.items() if name != "row_count"})
    assert record_of(Part, {name: value for name, value in PART.items() if name != "digest"}).digest is None


def test_record_of_refuses_other_json():
    with pytest.raises(GrammarError):
        record_of(Part, [1], "it")


@pytest.mark.parametrize("path", ["a", "a/b.c", "inbox/otlp/1.logs.json.gz", "..a", "Ünï code-1@x+y"])
def test_file_paths_below_a_folder_are_accepted(path):
    assert checked(File, [path, "0" * 64, "2026-10", "1/3"]).path == path


@pytest.mark.parametrize("path", ["", "/a", "a/", "a//b", "..", "a/../b", ".", "a\\b", "a\0b", "a\n", "x" * 1_001])
def test_file_paths_out_of_a_folder_are_refused(path):
    with pytest.raises(GrammarError):
        checked(File, [path, "0" * 64, "2026-10", "1"])


@pytest.mark.parametrize(
    "values", [("0" * 63, "2026-10", "1"), ("0" * 64, "2026-1", "1"), ("0" * 64, "2026-10", "1/0")]
)
def test_digests_months_and_fractions_are_checked(values):
    with pytest.raises(GrammarError):
        checked(File, ["a", *values])


def test_hot_table_names_are_checked():
    table = {"kind": "event", "from_ms": 0, "name": "hot_event_0123456789ab"}
    assert record_of(HotTable, table) == HotTable(**table)
    with pytest.raises(GrammarError, match="name is "):
        record_of(HotTable, table | {"name": "hot_event_0123456789ab; --"})


def test_check_kind_compares_the_kind_with_the_name():
    check_kind("event", PATH)
    check_kind("event", "hot_event_0123456789ab")
    with pytest.raises(GrammarError, match="does not hold pod records"):
        check_kind("pod", PATH)
    with pytest.raises(UnknownKindError, match="it has quark records"):
        check_kind("quark", PATH)


def test_check_meta_refuses_times_that_are_not_numbers():
    check_meta({"kept_from_ms": "17", "origin": "text"})
    for value in ("-1", "1e9", "", "٣"):
        with pytest.raises(GrammarError, match="kept_from_ms"):
            check_meta({"kept_from_ms": value})


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"1", b"[" * 100_000, b"\xff"])
def test_read_json_refuses_everything_but_objects(content):
    with pytest.raises(GrammarError, match="it is not"):
        read_json(content)


def test_shown_is_one_short_line():
    assert len(shown("a\n" * 5_000)) < 100
    assert "\n" not in shown("a\nb")
