"""Money on the page is written like in the terminal and in the report."""

from __future__ import annotations

import random

from money import WRITTEN
from pyrometer.explain.words import dollars


def test_money_has_one_format(looking, night_url):
    """tests/explain/test_words.py compares the terminal with the same table."""
    chosen = random.Random(7)
    amounts = [amount for amount, _ in WRITTEN]
    amounts += [chosen.randint(-(10 ** chosen.randint(1, 14)), 10 ** chosen.randint(1, 15)) for _ in range(2_000)]
    amounts += [amount * 500_000 for amount in range(-60, 60)]
    page = looking(night_url).at("/experiments")
    written = page.evaluate("async (amounts) => amounts.map((await import('/page/format.js')).usdMicro)", amounts)
    assert written[: len(WRITTEN)] == [text for _, text in WRITTEN]
    assert written == [dollars(amount) for amount in amounts]
