"""Rebuilding the catalog from the parts."""

from __future__ import annotations

import pytest

from pyrometer.model.records import Event
from pyrometer.store import Store
from pyrometer.store.catalog_rebuild import LOST, put_aside, rebuild
from pyrometer.store.data_folder import DATABASE

DAY = 1_760_054_400_000  # 2025-10-10T00:00Z


@pytest.fixture
def sealed(folder):
    """A folder with one sealed row and one hot row."""
    with Store(folder, create=True) as store:
        store.append([Event(DAY, "sealed")])
        store.seal()
        store.append([Event(DAY + 1, "hot")], producer="watch", sequence=4)
    return folder


def kinds(folder):
    with Store(folder) as store:
        store.expose_all(["event"])
        return [kind for (kind,) in store.connection.execute("SELECT kind FROM event ORDER BY 1").fetchall()]


def test_rebuild_without_a_database_has_the_sealed_rows(sealed):
    (sealed / DATABASE).unlink()
    made = rebuild(sealed, (), "kept_from_ms")
    assert (made.parts, made.rows, made.unread, made.is_saved) == (1, 1, (), False)
    assert kinds(sealed) == ["sealed"]


def test_rebuild_keeps_the_hot_rows_of_a_readable_database(sealed):
    assert rebuild(sealed, (), "kept_from_ms").is_saved
    assert kinds(sealed) == ["hot", "sealed"]


def test_rebuild_sets_an_unreadable_part_aside(sealed):
    (sealed / DATABASE).write_bytes(b"damaged")
    (path,) = (sealed / "parts").rglob("*.parquet")
    path.write_bytes(b"damaged")
    made = rebuild(sealed, (), "kept_from_ms")
    assert (made.parts, made.unread) == (0, (path.relative_to(sealed).as_posix(),))
    assert not path.exists()
    assert {one.name for one in (sealed / LOST).rglob("*") if one.is_file()} == {path.name, DATABASE}


def test_rebuild_does_not_list_derived_parts_and_records_their_start(sealed):
    (sealed / DATABASE).unlink()
    assert rebuild(sealed, ("event",), "kept_from_ms").parts == 0
    with Store(sealed) as store:
        assert int(store.meta("kept_from_ms")) == DAY


def test_put_aside_keeps_the_path(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("x")
    moved = put_aside(tmp_path, tmp_path / "a" / "b")
    assert moved.parts[-2:] == ("a", "b")
    assert moved.read_text() == "x"
