"""The catalog: versions, transactions and lists."""

from __future__ import annotations

import json

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.store import catalog
from pyrometer.store.catalog import CatalogError, HotTable, Part, transaction


@pytest.fixture
def connection():
    with duckdb.connect() as opened:
        catalog.prepare(opened)
        yield opened


def version(connection):
    return connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchall()


def part(path="parts/event/a.parquet", kind="event", from_ms=0, **rest):
    return Part(kind, from_ms, from_ms + 10, path, 3, 100, from_ms + 5, "time_ms,kind", **rest)


# -- versions -----------------------------------------------------------------------------------------------------


def test_a_new_catalog_has_the_current_version():
    ran = []
    with duckdb.connect() as connection:
        catalog.prepare(connection, version=3, migrations={1: ran.append, 2: ran.append})
        assert version(connection) == [("3",)]
    assert ran == []


def test_preparing_again_changes_nothing(connection):
    catalog.list_parts(connection, [part()])
    catalog.prepare(connection)
    assert version(connection) == [(str(catalog.SCHEMA_VERSION),)]
    assert catalog.parts(connection) == [part()]


def test_an_older_catalog_is_brought_up_one_version_at_a_time(connection):
    ran = []

    def step(number):
        def migrate(given):
            given.execute(f"CREATE TABLE made_{number} (i INTEGER)")
            ran.append((number, version(given)))

        return migrate

    catalog.prepare(connection, version=2, migrations={1: step(1)})
    assert ran == [(1, [("1",)])]
    catalog.prepare(connection, version=5, migrations={n: step(n) for n in range(1, 9)})
    assert [number for number, _ in ran] == [1, 2, 3, 4]
    assert version(connection) == [("5",)]
    made = connection.execute(
        "SELECT table_name FROM duckdb_tables() WHERE table_name LIKE 'made%' ORDER BY 1"
    ).fetchall()
    assert made == [(f"made_{number}",) for number in range(1, 5)]


def test_a_newer_catalog_is_refused_unchanged(connection):
    catalog.prepare(connection, version=7, migrations={n: lambda _: None for n in range(1, 7)})
    with pytest.raises(CatalogError, match=r"newer Pyrometer.*schema 7.*knows 6.*upgrade"):
        catalog.prepare(connection, version=6)
    assert version(connection) == [("7",)]


def test_a_gap_in_the_path_is_an_error_and_leaves_the_old_version(connection):
    def first(given):
        given.execute("CREATE TABLE made (i INTEGER)")

    with pytest.raises(CatalogError, match="no way from schema 2 to 3"):
        catalog.prepare(connection, version=4, migrations={1: first, 3: first})
    assert version(connection) == [("1",)]
    with pytest.raises(duckdb.CatalogException):
        connection.execute("FROM made")


def test_a_failing_migration_is_rolled_back(connection):
    catalog.list_parts(connection, [part()])

    def first(given):
        given.execute("UPDATE parts SET kind = 'changed'")
        given.execute("CREATE TABLE made (i INTEGER)")

    def second(given):
        given.execute("ALTER TABLE no_such_table ADD COLUMN x INTEGER")

    with pytest.raises(duckdb.CatalogException, match="no_such_table"):
        catalog.prepare(connection, version=3, migrations={1: first, 2: second})
    assert version(connection) == [("1",)]
    assert catalog.parts(connection) == [part()]
    with pytest.raises(duckdb.CatalogException):
        connection.execute("FROM made")
    catalog.prepare(connection, version=3, migrations={1: first, 2: lambda _: None})  # and once it is mended, it goes
    assert version(connection) == [("3",)]


def test_migrations_reach_the_current_version_from_all_older_ones():
    assert sorted(catalog.MIGRATIONS) == list(range(1, catalog.SCHEMA_VERSION))


# -- transactions -------------------------------------------------------------------------------------------------


def lists_and_then(connection, then):
    with transaction(connection):
        catalog.list_parts(connection, [part("a")])
        then()


def interrupt():
    raise KeyboardInterrupt


def test_a_transaction_commits_at_its_end(connection):
    lists_and_then(connection, lambda: None)
    connection.execute("BEGIN")  # nothing is open
    connection.execute("ROLLBACK")
    assert catalog.parts(connection) == [part("a")]


def test_an_error_rolls_back(connection):
    with pytest.raises(ZeroDivisionError):
        lists_and_then(connection, lambda: 1 // 0)
    assert catalog.parts(connection) == []


def test_an_interrupt_rolls_back(connection):
    with pytest.raises(KeyboardInterrupt):
        lists_and_then(connection, interrupt)
    assert catalog.parts(connection) == []


def test_a_broken_transaction_rolls_back_with_its_error(connection):
    with pytest.raises(duckdb.ConstraintException, match=r"hot\.kind"):
        lists_and_then(connection, lambda: connection.execute("INSERT INTO hot VALUES (NULL, 0, 'x')"))
    assert catalog.parts(connection) == []
    lists_and_then(connection, lambda: None)
    assert catalog.parts(connection) == [part("a")]


def test_rollback_works_with_an_unread_result(connection):
    with pytest.raises(ZeroDivisionError):
        lists_and_then(connection, lambda: connection.execute("FROM range(10)").fetchone() and 1 // 0)
    assert catalog.parts(connection) == []


# -- parts, hot tables, marks -------------------------------------------------------------------------------------


def test_parts_are_listed_oldest_first_by_kind(connection):
    parts = [part("c", "b", 5), part("b", "b", 5), part("a", "b", 7), part("d", "a", 9, digest="x")]
    catalog.list_parts(connection, parts)
    assert catalog.parts(connection) == [parts[3], parts[1], parts[0], parts[2]]
    assert catalog.parts(connection, "b") == [parts[1], parts[0], parts[2]]
    assert catalog.parts(connection, "c") == []


def test_unlisting_takes_exactly_the_named_ones(connection):
    parts = [part(path) for path in ("a", "b", "c")]
    catalog.list_parts(connection, parts)
    catalog.unlist_parts(connection, [parts[0], parts[2], part("unknown")])
    assert catalog.parts(connection) == [parts[1]]


@given(
    st.lists(
        st.builds(
            Part,
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
            st.integers(-(2**63), 2**63 - 1),
            st.integers(-(2**63), 2**63 - 1),
            st.uuids().map(str),
            st.integers(0, 2**63 - 1),
            st.integers(0, 2**63 - 1),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
            st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        ),
        max_size=4,
        unique_by=lambda made: made.path,
    )
)
@settings(max_examples=30)
def test_parts_are_read_as_listed_from_catalog_and_manifest(law_connection, parts):
    law_connection.execute("DELETE FROM parts")
    catalog.list_parts(law_connection, parts)
    assert set(catalog.parts(law_connection)) == set(parts)
    manifest = json.loads(catalog.manifest(catalog.parts(law_connection)))
    assert {Part(**listed) for listed in manifest["parts"]} == set(parts)


@pytest.fixture(scope="module")
def law_connection():
    with duckdb.connect() as opened:
        catalog.prepare(opened)
        yield opened


def test_hot_tables_are_listed_oldest_first(connection):
    tables = [HotTable("b", 7, "x"), HotTable("b", 5, "y"), HotTable("a", 9, "z")]
    for table in tables:
        connection.execute("INSERT INTO hot VALUES (?, ?, ?)", list(table))
    assert catalog.hot_tables(connection) == [tables[2], tables[1], tables[0]]
    assert catalog.hot_tables(connection, "b") == [tables[1], tables[0]]


def test_a_producer_that_never_sent_has_no_mark(connection):
    assert catalog.mark_of(connection, "nobody") == -1
    connection.execute("INSERT INTO marks VALUES ('it''s', 0)")
    assert catalog.mark_of(connection, "it's") == 0


def test_unlisted_files_are_found_at_any_depth(connection, tmp_path):
    listed = part("parts/event/2025-10-10/00-a.parquet")
    catalog.list_parts(connection, [listed])
    strays = ["parts/x.tmp", "parts/event/2025-10-10/00-b.parquet", "parts/a/b/c/d"]
    for path in [listed.path, *strays, "elsewhere/x.parquet", "manifest.json"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert set(catalog.unlisted_files(connection, tmp_path)) == {tmp_path / path for path in strays}


def test_a_folder_without_parts_has_no_strays(connection, tmp_path):
    assert catalog.unlisted_files(connection, tmp_path) == []
