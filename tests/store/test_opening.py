"""A database that cannot be opened: only damage is offered a repair, everything else gets the advice that helps."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pytest

from pyrometer.model.records import Event
from pyrometer.store import Store, StoreBrokenError, StoreError
from pyrometer.store.data_folder import DATABASE
from tests.support.duckdb_files import with_header

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z
NEWER = {
    "newer": {"storage": 1_000, "library": "v9.1.0"},
    "newer, by its storage only": {"storage": 2_000},
    "between": {"storage": 500},
    "newer, by its library only": {"storage": 70, "library": "v2.9.0"},
}
OPENS = """
import os, sys
from pyrometer.store import Store, StoreError
os.seteuid(65534)
try:
    Store(sys.argv[1]).close()
except StoreError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def database(folder):
    """The database of a folder with a sealed part and hot rows."""
    with Store(folder, create=True) as store:
        store.append([Event(DAY, "sealed")])
        store.seal()
        store.append([Event(DAY + 1, "hot")])
    return folder / DATABASE


def state_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(database):
    """Why a folder is not opened; nothing in it has changed."""
    before = state_of(database.parent)
    with pytest.raises(StoreError) as error:
        Store(database.parent)
    assert state_of(database.parent) == before
    assert str(database.parent) in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, StoreBrokenError) == ("--repair" in str(error.value))
    return error.value


@pytest.mark.parametrize("header", NEWER)
def test_a_file_of_a_newer_duckdb_says_upgrade(database, header):
    database.write_bytes(with_header(database.read_bytes(), **NEWER[header]))
    if header == "newer, by its library only":  # the installed DuckDB can read the rest of such a file, or not
        database.write_bytes(database.read_bytes()[:-1_000])
    error = refused(database)
    assert not isinstance(error, StoreBrokenError)
    assert f"storage version {NEWER[header]['storage']}" in str(error)
    assert NEWER[header].get("library", "v").removeprefix("v") in str(error)
    assert duckdb.__version__ in str(error)
    assert "upgrade" in str(error)


def test_the_version_in_a_damaged_header_is_used(database):
    data = database.read_bytes()
    database.write_bytes(data[:12] + (4_000).to_bytes(8, "little") + data[20:])  # the checksum is another
    assert "upgrade" in str(refused(database))


def test_a_file_of_an_older_duckdb_names_the_fix(database):
    database.write_bytes(with_header(database.read_bytes(), storage=51, library=""))
    error = refused(database)
    assert not isinstance(error, StoreBrokenError)
    assert "storage version 51" in str(error)
    assert "restore a backup" in str(error)


def test_an_encrypted_file_is_not_damaged(database):
    database.write_bytes(with_header(database.read_bytes(), storage=68, flags=1))
    error = refused(database)
    assert not isinstance(error, StoreBrokenError)
    assert "encrypted" in str(error)


OTHER_FILES = {
    "SQLite": b"SQLite format 3\0" + bytes(8_192),
    "Parquet": b"PAR1" + bytes(8_192) + b"PAR1",
    "text": b"a,b\n" * 99,
    "zeros": bytes(12_288),
    "empty": b"",
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_a_file_in_another_format_is_refused(database, folder, name):
    database.write_bytes(OTHER_FILES[name])
    error = refused(database)
    assert isinstance(error, StoreBrokenError), "its parts can be listed again"
    assert "put the right file back" in str(error)
    for part in (folder / "parts").rglob("*.parquet"):
        part.unlink()
    error = refused(database)
    assert not isinstance(error, StoreBrokenError), "there is nothing to start from"
    assert "restore a backup" in str(error)


def test_a_database_of_another_program_is_left_alone(database):
    database.unlink()
    with duckdb.connect(str(database)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS a")
    error = refused(database)
    assert not isinstance(error, StoreBrokenError)
    assert "not one of Pyrometer" in str(error)


def test_an_empty_database_does_not_take_parts_for_leftovers(database):
    database.unlink()
    duckdb.connect(str(database)).close()
    assert isinstance(refused(database), StoreBrokenError)


def test_a_database_whose_log_is_gone_does_not_take_parts_for_leftovers(folder):
    """The server was killed before DuckDB wrote anything but its write-ahead log."""
    killed = (
        "import os, sys; from pyrometer.store import Store; from pyrometer.model.records import Event\n"
        f"store = Store(sys.argv[1], create=True); store.append([Event({DAY}, 'a')]); store.seal(); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", killed, str(folder)], check=True)
    (folder / f"{DATABASE}.wal").unlink()
    assert isinstance(refused(folder / DATABASE), StoreBrokenError)
    assert list((folder / "parts").rglob("*.parquet"))


def test_a_folder_in_the_place_of_the_database(database):
    database.unlink()
    database.mkdir()
    error = refused(database)
    assert not isinstance(error, StoreBrokenError)
    assert os.strerror(errno.EISDIR) in str(error)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS, errno.ENOLCK, errno.EACCES])
def test_system_errors_are_not_damage(database, monkeypatch, code):
    def fails(*_, **__):
        raise duckdb.IOException(f'IO Error: Cannot open file "{database}": {os.strerror(code)}')

    monkeypatch.setattr(duckdb, "connect", fails)
    error = refused(database)
    assert not isinstance(error, StoreBrokenError)
    assert os.strerror(code) in str(error)


def test_out_of_memory_is_not_damage(database, monkeypatch):
    def fails(*_, **__):
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate data of size 16.0 KiB")

    monkeypatch.setattr(duckdb, "connect", fails)
    error = refused(database)
    assert not isinstance(error, StoreBrokenError)
    assert "not enough memory" in str(error)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("closed", ["database", "folder"])
def test_missing_permissions_are_not_damage(database, folder, closed):
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        copy = shutil.copytree(folder, Path(place) / "data")
        (copy / DATABASE if closed == "database" else copy).chmod(0o700)
        # Not measured by `make coverage`: the other user may not write the results.
        unmeasured = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
        done = subprocess.run([sys.executable, "-c", OPENS, str(copy)], capture_output=True, text=True, env=unmeasured)
    assert done.stderr == ""
    assert done.stdout.startswith("StoreError ")
    assert os.strerror(errno.EACCES) in done.stdout
    assert "--repair" not in done.stdout


# -- hostile names and SQL---------------------------------------------------------------------------------------

FORGED = {
    "a table": "UPDATE hot SET name = 'z(a int); CREATE TABLE hot_event_000000000000'",
    "a table of another kind": "UPDATE hot SET name = 'hot_pod_000000000000'",
    "a table with a newline": "UPDATE hot SET name = name || chr(10)",
    "a path": "UPDATE parts SET path = '../../outside.parquet'",
    "an absolute path": "UPDATE parts SET path = '/etc/passwd'",
    "a pattern": "UPDATE parts SET path = 'parts/event/2025-10-10/*.parquet'",
    "a path of another kind": "UPDATE parts SET path = replace(path, 'event', 'pod')",
    "a time": "UPDATE parts SET from_ms = -1",
    "a number": "INSERT INTO meta VALUES ('kept_from_ms', 'soon')",
}


@pytest.mark.parametrize("forged", FORGED)
def test_names_that_pyrometer_does_not_write_are_refused(database, forged):
    with duckdb.connect(str(database)) as connection:
        connection.execute(FORGED[forged])
    error = refused(database)
    assert not isinstance(error, StoreBrokenError)
    assert "restore a backup" in str(error)


def test_sql_of_a_data_folder_reaches_nothing_else(database, folder, tmp_path):
    (tmp_path / "mine.csv").write_text("a\n1\n")
    (folder / "link.csv").symlink_to(tmp_path / "mine.csv")
    with Store(folder) as store:
        for sql in (
            f"COPY (SELECT 1) TO '{tmp_path}/out.csv'",
            f"SELECT content FROM read_text('{tmp_path}/mine.csv')",
            "SELECT content FROM read_text('/etc/hostname')",
            f"ATTACH '{tmp_path}/other.duckdb'",
            "SET enable_external_access = true",
            "INSTALL httpfs",
            f"FROM read_csv('{str(folder).replace(chr(39), chr(39) * 2)}/link.csv')",
        ):
            with pytest.raises(duckdb.Error), store.snapshot() as snapshot:
                snapshot.connection.execute(sql)
            with pytest.raises(duckdb.Error):
                store.connection.execute(sql)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.csv", folder.name}


def test_parts_may_be_on_another_disk(database, folder, tmp_path):
    (folder / "parts").rename(tmp_path / "disk")
    (folder / "parts").symlink_to(tmp_path / "disk")
    with Store(folder) as store:
        store.seal()
        store.expose_all(["event"])
        assert len(store.connection.execute("FROM event").fetchall()) == 2
