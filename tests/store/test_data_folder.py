"""Opening a data folder: one process at a time, errors that name the fix, and folders of older versions."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import duckdb
import pytest

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.records import Event
from pyrometer.store import Store, StoreBusyError, StoreError, catalog, data_folder
from pyrometer.store.data_folder import DATABASE
from pyrometer.store.inbox import of_training

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z

HOLDER = """
import sys
from pyrometer.store import Store
with Store(sys.argv[1]) as store:
    print("open", flush=True)
    sys.stdin.read()
"""


def event(time_ms, kind="seen", **rest):
    return Event(time_ms, kind, **rest)


def rows_of(store, kind="event"):
    store.expose_all([kind])
    rows = store.connection.execute(f"FROM {kind} ORDER BY ALL").fetchall()
    return [SCHEMAS[kind].record(*row) for row in rows]


def a_folder(folder, rows=1):
    with Store(folder, create=True) as store:
        store.append([event(DAY + i) for i in range(rows)])
    return folder


@contextmanager
def held_by_another_process(folder):
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "open\n"
            yield holder
        finally:
            holder.stdin.close()
            assert holder.wait() == 0


# -- one process --------------------------------------------------------------------------------------------------


def test_a_busy_folder_names_its_process(folder):
    a_folder(folder)
    with held_by_another_process(folder) as holder, pytest.raises(StoreBusyError) as refusal:
        Store(folder)
    assert str(folder) in str(refusal.value)
    assert f"process {holder.pid}:" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    with Store(folder) as store:
        assert rows_of(store) == [event(DAY)]


def test_opening_waits_until_the_first_process_closes(folder, monkeypatch):
    a_folder(folder)
    with held_by_another_process(folder) as holder:
        waits = []

        def let_go(seconds):
            waits.append(seconds)
            if not holder.stdin.closed:
                holder.stdin.close()
                holder.wait()

        monkeypatch.setattr(data_folder, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=let_go))
        with Store(folder, wait_s=30) as store:
            assert rows_of(store) == [event(DAY)]
    assert len(waits) == 1


def test_opening_gives_up_after_the_wait(folder, monkeypatch):
    a_folder(folder)
    clock = [1_000.0]

    def pass_time(seconds):
        clock[0] += seconds

    monkeypatch.setattr(data_folder, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=pass_time))
    with held_by_another_process(folder) as holder, pytest.raises(StoreBusyError, match=str(holder.pid)):
        Store(folder, wait_s=5)
    assert 1_005 <= clock[0] < 1_006


def test_opening_without_a_wait_fails_at_once(folder, monkeypatch):
    def never(seconds):
        raise AssertionError("it slept")

    a_folder(folder)
    monkeypatch.setattr(data_folder, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=never))
    with held_by_another_process(folder), pytest.raises(StoreBusyError):
        Store(folder)


def test_a_closed_folder_is_free_for_another_process(folder):
    a_folder(folder)
    with held_by_another_process(folder):
        pass
    with Store(folder) as store:
        store.append([event(DAY + 1)])
    with held_by_another_process(folder) as holder:
        assert holder.poll() is None


# -- other folders ---------------------------------------------------------------------------------------------


def test_a_folder_without_data_names_the_commands_that_create_one(tmp_path):
    alone = tmp_path / "alone" / "here"  # data folders next to it would be named
    alone.mkdir(parents=True)
    for missing in (alone, alone / "nowhere"):
        with pytest.raises(
            StoreError, match=r"not a Pyrometer data folder.*`pyrometer run`.*`import`.*--data"
        ) as refusal:
            Store(missing)
        assert str(refusal.value).startswith(str(missing))
    assert list(alone.iterdir()) == []


def test_a_wrong_folder_lists_data_folders_next_to_it(tmp_path):
    Store(tmp_path / "pyrometer-demo", create=True).close()
    of_training(tmp_path / "runs").folder.mkdir(parents=True)  # what `pyrometer run` leaves before a server runs
    with pytest.raises(
        StoreError, match=r"no such folder\)\. Next to it: .*/pyrometer-demo, .*/runs\. Choose another with --data DIR"
    ):
        Store(tmp_path / "demo")


def test_a_file_is_not_a_folder(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for create in (False, True):
        with pytest.raises(StoreError, match=str(file)):
            Store(file, create=create)
    assert file.read_text() == "mine"


def test_a_folder_can_be_made_anywhere_and_made_again(tmp_path):
    folder = tmp_path / "a" / "b" / "ü [1] 'quoted' *"
    a_folder(folder)
    with Store(str(folder), create=True) as store:
        store.seal()
        store.append([event(DAY), event(DAY + 1)])
        assert rows_of(store) == [event(DAY), event(DAY + 1)]


DAMAGES = {
    "not a database": lambda data: b"garbage" * 10_000,
    "empty": lambda data: b"",
    "a piece of the header": lambda data: data[:100],
    "the header alone": lambda data: data[:12_288],
    "half": lambda data: data[: len(data) // 2],
    "zeros after the header": lambda data: data[:12_288] + bytes(len(data) - 12_288),
    "noise after the header": lambda data: data[:12_288] + bytes(i * 37 % 251 for i in range(len(data) - 12_288)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_opening_a_damaged_database_names_the_folder(folder, damage):
    database = a_folder(folder, rows=20_000) / DATABASE
    damaged = DAMAGES[damage](database.read_bytes())
    database.write_bytes(damaged)
    with pytest.raises(StoreError) as refusal:
        Store(folder)
    assert str(folder) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not isinstance(refusal.value, StoreBusyError)
    assert database.read_bytes() == damaged  # nothing was made worse
    with pytest.raises(StoreError):  # and no file stays open
        Store(folder)


# -- schemas ------------------------------------------------------------------------------------------------------


def test_opening_a_newer_folder_says_upgrade(folder):
    with Store(folder, create=True) as store:
        store.set_meta("schema_version", str(catalog.SCHEMA_VERSION + 1))
    with pytest.raises(StoreError, match="upgrade Pyrometer") as refusal:
        Store(folder)
    assert str(folder) in str(refusal.value)
    with duckdb.connect(str(folder / DATABASE)) as connection:  # it was let go, and left as it was
        version = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchall()
    assert version == [(str(catalog.SCHEMA_VERSION + 1),)]


def test_a_hot_table_of_an_older_version_gets_newer_columns(folder):
    with Store(folder, create=True) as store:
        store.append([event(DAY, message="old", step=1)])
        (table,) = store.hot_tables("event")
        store.connection.execute(f"ALTER TABLE {table.name} DROP COLUMN message")
        store.connection.execute(f"ALTER TABLE {table.name} DROP COLUMN duration_ms")
    new = event(DAY + 1, duration_ms=5, message="new")
    with Store(folder) as store:
        assert rows_of(store) == [event(DAY, step=1)]
        store.append([new])
        assert rows_of(store) == [event(DAY, step=1), new]
        store.seal()
        assert rows_of(store) == [event(DAY, step=1), new]


def test_reading_a_folder_does_not_write_to_it(folder):
    with Store(folder, create=True) as store:
        store.append([event(DAY)])
        store.seal()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    with Store(folder) as store:
        assert rows_of(store) == [event(DAY)]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
