"""Invoices of cloud providers as CSV."""

from __future__ import annotations

import gzip
from datetime import date
from decimal import Decimal

import pytest

from pyrometer.collect.files.bills import BillError, columns_of, days_of, read_bill

FOCUS = "BilledCost,ChargePeriodStart,ChargeCategory,x_InstanceType,ConsumedQuantity,ConsumedUnit,BillingCurrency\n"


@pytest.fixture
def focus(tmp_path):
    def write(*lines):
        path = tmp_path / "bill.csv"
        path.write_text(FOCUS + "".join(f"{line}\n" for line in lines))
        return path

    return write


def test_read_bill_sums_by_day_and_type(focus):
    path = focus(
        "10,2026-10-08T00:00:00Z,Usage,p5.48xlarge,2,Hours,USD",
        "5.5,2026-10-08T12:00:00Z,Usage,p5.48xlarge,1,Hours,USD",
        "7,2026-10-08T00:00:00Z,Tax,,,,USD",
    )
    bill = read_bill(path, ["p5.48xlarge"])
    ((key, used),) = bill.used.items()
    assert key == (date(2026, 10, 8), "p5.48xlarge")
    assert (used.usd, used.hours, bill.apart["tax"]) == (Decimal("15.5"), Decimal(3), Decimal(7))
    assert (bill.form, bill.lines) == ("FOCUS", 3)


def test_read_bill_reads_gzip(focus, tmp_path):
    packed = tmp_path / "bill.csv.gz"
    packed.write_bytes(gzip.compress(focus("1,2026-10-08,Usage,p5.48xlarge,1,Hours,USD").read_bytes()))
    assert read_bill(packed, []).lines == 1


def test_read_bill_rejects_other_currency(focus):
    with pytest.raises(BillError, match="line 2: the amount is in EUR"):
        read_bill(focus("1,2026-10-08,Usage,p5.48xlarge,1,Hours,EUR"), [])


def test_read_bill_rejects_unknown_format(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BillError, match="not in a known invoice format"):
        read_bill(tmp_path / "x.csv", [])


def test_days_of_is_first_and_last_usage_day(focus):
    path = focus(
        "1,2026-10-09,Usage,x,1,Hours,USD", "1,2026-10-07,Usage,x,1,Hours,USD", "1,2026-10-01,Tax,x,1,Hours,USD"
    )
    assert days_of(path) == (date(2026, 10, 7), date(2026, 10, 9))


def test_days_of_rejects_invalid_day(focus):
    with pytest.raises(BillError, match="'yesterday' is not a day"):
        days_of(focus("1,yesterday,Usage,x,1,Hours,USD"))


def test_columns_of_parses_pairs():
    assert columns_of("day=d,type=t,usd=u") == {"day": "d", "type": "t", "usd": "u"}
    with pytest.raises(BillError, match="is not valid"):
        columns_of("day=d,typo=t,usd=u")
