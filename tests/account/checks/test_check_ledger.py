"""Checks of the laws of the ledger."""

from __future__ import annotations

from pyrometer.account.checks import check_ledger
from pyrometer.model.records import LedgerRow
from tests.support.hand_ledgers import FIRST, ms_of, write_days
from tests.support.histories import folder


def texts_of(*rows: LedgerRow) -> list[str]:
    """The violated laws of a handwritten ledger part."""
    with folder() as store:
        store.expose_all(["node", "slot"])
        write_days(store, {FIRST: list(rows)})
        (part,) = store.parts("ledger_row")
        return [problem.text.partition(": ")[2] for problem in check_ledger.laws(store, part)]


def row(ms: int = 1, **changed: object) -> LedgerRow:
    return LedgerRow(ms_of(FIRST), "n0", 0, "p", 1, "train", 1, 5, ms)._replace(**changed)


def test_laws_accept_a_correct_ledger() -> None:
    assert texts_of(row(60_000), row(60_000, slot_index=1)) == []


def test_laws_report_negative_rows_and_prices() -> None:
    (text,) = texts_of(row(-1))
    assert text.startswith("1 rows are negative")
    (text,) = texts_of(row(usd_micro_per_hour=-1))
    assert text.startswith("1 rows have a price below zero")


def test_laws_report_unknown_states_and_duplicates() -> None:
    texts = texts_of(row(state="asleep"), row(state="asleep"))
    assert [text.partition(" ")[2].split(" ")[0] for text in texts] == ["rows", "rows"]
    assert any("state that does not exist" in text for text in texts)
    assert any("are duplicates" in text for text in texts)


def test_laws_report_minutes_that_are_too_long() -> None:
    (text,) = texts_of(row(40_000), row(40_000, pod_uid="q"))
    assert text.startswith("1 slot-minutes have more than 60,000 ms")


def test_capacity_of_a_folder_without_a_ledger_is_not_checked() -> None:
    with folder() as store:
        assert list(check_ledger.capacity(store)) == []
