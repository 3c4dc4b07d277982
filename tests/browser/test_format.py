"""Money, shares and dates on the page are written like in the terminal and in the report."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from pyrometer.model.human import date, date_time, dollars, percent, ratio
from tests.support.money_texts import AMOUNT_TEXTS, SHARE_TEXTS


def test_money_has_one_format(looking, night_url):
    """tests/model/test_human.py compares the terminal with the same table."""
    chosen = random.Random(7)
    amounts = [amount for amount, _ in AMOUNT_TEXTS]
    amounts += [chosen.randint(-(10 ** chosen.randint(1, 14)), 10 ** chosen.randint(1, 15)) for _ in range(2_000)]
    amounts += [amount * 500_000 for amount in range(-60, 60)]
    page = looking(night_url).at("/experiments")
    written = page.evaluate("async (amounts) => amounts.map((await import('/page/format.js')).usdMicro)", amounts)
    assert written[: len(AMOUNT_TEXTS)] == [text for _, text in AMOUNT_TEXTS]
    assert written == [dollars(amount) for amount in amounts]


def test_shares_have_one_format(looking, night_url):
    chosen = random.Random(8)
    wholes = [chosen.randint(1, 10 ** chosen.randint(1, 12)) for _ in range(2_000)]
    pairs = [(part, whole) for part, whole, _ in SHARE_TEXTS] + [(chosen.randint(0, whole), whole) for whole in wholes]
    pairs += [(part, 2_000) for part in range(500)]
    page = looking(night_url).at("/experiments")
    ask = "async (pairs) => { const {%s: format} = await import('/page/format.js'); return pairs.map(%s); }"
    written = page.evaluate(ask % ("share", "([part, whole]) => format(part, whole)"), pairs)
    assert written[: len(SHARE_TEXTS)] == [text for _, _, text in SHARE_TEXTS]
    assert written == [percent(part, whole) for part, whole in pairs]
    parts = [round(part / whole, 4) for part, whole in pairs]
    assert page.evaluate(ask % ("ratio", "(part) => format(part)"), parts) == [ratio(part) for part in parts]


def test_dates_have_one_format(looking, night_url):
    times = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=37 * number, seconds=number) for number in range(200)]
    page = looking(night_url).at("/experiments")
    written = page.evaluate(
        "async (times) => { const {day, when, exactly, useZone} = await import('/page/format.js'); useZone('UTC'); "
        "return times.map((time) => [day(time), when(time), exactly(time)]); }",
        [round(time.timestamp() * 1000) for time in times],
    )
    assert written == [[date(at), date_time(at), date_time(at, year=True, seconds=True)] for at in times]
