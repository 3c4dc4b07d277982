"""The basis of charges before and after months are closed. The adjustments are in test_closing_months.py."""

from __future__ import annotations

import random
from datetime import UTC
from zoneinfo import ZoneInfo

from pyrometer.account.closing.charge_basis import (
    LEDGER,
    ChargeBasis,
    basis_json,
    basis_of,
    charged_sums,
    groupable,
    was_charged,
)
from pyrometer.account.closing.closing_months import close
from pyrometer.account.query.time_range import TimeRange, month_range
from pyrometer.model.settings import Settings
from tests.support.hand_ledgers import FIRST, hours_after, ms_of, next_month, random_day, write_days
from tests.support.histories import folder

SEPTEMBER, OCTOBER = month_range("2026-09", UTC), month_range("2026-10", UTC)


def test_frozen_charges_have_no_hours_and_causes() -> None:
    assert groupable(["team", "workload", "day", "month", "state"])
    assert not groupable(["hour"])
    assert not groupable(["team", "cause"])


def test_basis_without_closed_months_is_the_ledger() -> None:
    with folder() as store:
        assert basis_of(store, SEPTEMBER, ["team"], UTC) == LEDGER
        assert basis_of(store, SEPTEMBER, ["team"], UTC, "nlp") == ChargeBasis(team="nlp")
        assert charged_sums(store, LEDGER, ["team"], zone=UTC) == []
        assert not was_charged(store, "nlp", None)
    assert basis_json(LEDGER, {}) is None


def test_basis_depends_on_the_time_range_after_a_month_is_closed() -> None:
    with folder() as store:
        write_days(store, {day: random_day(random.Random(6), day) for day in (FIRST, next_month(FIRST))})
        close(store, Settings(), "2026-09", UTC, now_ms=hours_after(next_month(FIRST), 48), by="ann")
        closed = basis_of(store, SEPTEMBER, ["team"], UTC)
        assert (closed.kind, closed.month) == ("closed", "2026-09")
        assert basis_of(store, OCTOBER, ["team"], UTC).kind == "open"
        by_hour = basis_of(store, OCTOBER, ["hour"], UTC)
        assert (by_hour.kind, by_hour.left_out) == ("ledger", True)
        part = basis_of(store, TimeRange(ms_of(FIRST), ms_of(FIRST) + 60_000), ["team"], UTC)
        assert (part.kind, part.touches_closed) == ("ledger", True)
        assert basis_of(store, SEPTEMBER, ["team"], ZoneInfo("Europe/Berlin")).kind == "ledger"
        assert sum(one.gpu_ms for one in charged_sums(store, closed, ["team"], zone=UTC)) > 0
        assert was_charged(store, None, None)
        assert not was_charged(store, "absent", None)
