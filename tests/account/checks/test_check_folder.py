"""Checks of the catalog, marks and facts that refer to others."""

from __future__ import annotations

from pyrometer.account.checks import check_folder
from pyrometer.model.records import Finding, Restatement
from pyrometer.store.data_folder import MANIFEST
from tests.support.histories import BASE, folder, node

CHECKS = (
    check_folder.manifest,
    check_folder.hot_tables,
    check_folder.marks,
    check_folder.restatements,
    check_folder.findings,
)


def test_a_correct_folder_has_no_problems() -> None:
    with folder() as store:
        store.append([node(BASE)], producer="watch", sequence=0)
        store.seal()
        assert [problem.text for check in CHECKS for problem in check(store)] == []


def test_manifest_is_written_again() -> None:
    with folder() as store:
        store.append([node(BASE)])
        store.seal()
        (store.folder / MANIFEST).unlink()
        (problem,) = check_folder.manifest(store)
        assert problem.mend is not None
        assert problem.mend(store) == "manifest.json was written again."
        assert list(check_folder.manifest(store)) == []


def test_a_negative_mark_is_removed() -> None:
    with folder() as store:
        store.append([node(BASE)], producer="watch", sequence=0)
        store.connection.execute("UPDATE marks SET sequence = -2")
        (problem,) = check_folder.marks(store)
        assert "The mark of watch is -2" in problem.text
        assert problem.mend is not None
        problem.mend(store)
        assert list(check_folder.marks(store)) == []


def test_facts_with_unknown_states_and_causes_are_reported() -> None:
    with folder() as store:
        store.append([Restatement(BASE, "r", 1, "n0", 0, BASE, BASE + 1, "asleep")])
        store.append([Finding(BASE, "f", "gremlins", "w", BASE, BASE + 1, BASE)])
        texts = [problem.text for check in CHECKS for problem in check(store)]
    assert texts[0] == "1 restatements have an unknown state."
    assert texts[1].startswith("1 findings have an unknown cause")
