"""Metrics as text: labels, formats and rendering ahead of requests."""

from __future__ import annotations

from pyrometer.account.query.sums import Sum
from pyrometer.export.ledger_metrics import LedgerCollector
from pyrometer.export.metrics_text import MAX_LABEL_CHARS
from tests.support.clusters import MINUTE, at


def test_long_names_are_cut_and_stay_distinct() -> None:
    ledger = LedgerCollector()
    workload = {"kind": "Job", "namespace": "ml", "name": "x" * 5_000}
    ledger.advance([Sum(("train", "t" * 2_000 + end, None, workload), MINUTE, 0, 0) for end in "ab"], at(1))
    owners = {owner for owner, _ in ledger.amounts}
    assert len(owners) == 2
    assert max(len(value) for owner in owners for value in owner) == MAX_LABEL_CHARS
