"""Repairs of a data folder."""

from __future__ import annotations

from pathlib import Path

from pyrometer.account.checks.check_parts import Problem
from pyrometer.account.checks.repair import mend, replace_catalog
from pyrometer.store import Store
from pyrometer.store.catalog_rebuild import LOST
from pyrometer.store.data_folder import DATABASE
from tests.support.histories import BASE, folder, node, samples


def test_mend_runs_a_repair_of_several_problems_once() -> None:
    def repair(store: Store) -> str:
        return "Repaired."

    with folder() as store:
        assert list(mend(store, [Problem("a", mend=repair), Problem("b", mend=repair)])) == ["Repaired."]


def test_mend_lists_a_readable_part_as_it_is() -> None:
    with folder() as store:
        store.append(samples("busy", BASE, BASE + 60_000))
        (part,) = store.seal()
        store.relist(part, part._replace(row_count=7))
        (listed,) = store.parts()
        (text,) = mend(store, [Problem("rows", listed)])
        assert text == f"{part.path} is listed as it is: 2 rows, not 7."
        assert store.parts() == [part]


def test_mend_drops_a_missing_part() -> None:
    with folder() as store:
        store.append([node(BASE)])
        (part,) = store.seal()
        (store.folder / part.path).unlink()
        assert list(mend(store, [Problem("missing", part)])) == [f"1 node rows are lost with {part.path}."]
        assert store.parts() == []


def test_replace_catalog_lists_the_parts_again(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        store.append([node(BASE)])
        parts = store.seal()
    (tmp_path / DATABASE).write_bytes(b"damaged")
    texts = list(replace_catalog(tmp_path))
    assert texts[0] == f"A new catalog lists 1 parts with 1 rows. The old one is in {LOST}/."
    with Store(tmp_path) as store:
        assert store.parts() == parts
