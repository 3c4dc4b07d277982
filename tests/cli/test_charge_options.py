"""The option --share-platform, and notes about closed months."""

from __future__ import annotations

import pytest

from pyrometer.cli.charge_options import print_books, shared_by, to_the_second


def test_to_the_second_drops_fractions_and_the_offset():
    assert to_the_second("2026-11-01T02:03:04.567+00:00") == "2026-11-01T02:03:04Z"


def test_shared_by_is_empty_without_the_option():
    assert shared_by(None) == {}
    assert shared_by("even") == {"share_platform": "even"}


OPEN = {"basis": "open", "month": "2026-11", "adjustments_left_out": False, "closed_time": False}
LEDGER = {**OPEN, "basis": "ledger"}


@pytest.mark.parametrize(
    ("books", "note"),
    [
        (None, ""),
        (LEDGER, ""),
        (
            {"basis": "closed", "month": "2026-10", "closed": "2026-11-01T02:00:00Z"},
            "2026-10 was closed at 2026-11-01T02:00:00Z: these figures do not change.\n",
        ),
        (
            {**OPEN, "ledger": {"usd_micro": 4_000_000}, "adjustments": {"usd_micro": -2_000_000}},
            "2026-11: $4.00 from the ledger, −$2.00 of adjustments to closed months.\n",
        ),
        (
            {"basis": "mixed"},
            "Some clusters have closed this month, others have not. --cluster NAME shows the charges of one.\n",
        ),
        (
            {**LEDGER, "adjustments_left_out": True},
            "Adjustments to closed months are not included: they have no hour, cause, outcome, pipeline or sweep.\n",
        ),
    ],
)
def test_print_books_notes_how_closed_months_affect_the_answer(capsys, books, note):
    print_books(books)
    assert tuple(capsys.readouterr()) == ("", note)


def test_print_books_notes_closed_time_in_the_range(capsys):
    print_books({**LEDGER, "closed_time": True})
    assert capsys.readouterr().err.startswith("This time range includes closed months")
