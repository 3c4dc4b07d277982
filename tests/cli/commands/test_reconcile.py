"""`pyrometer reconcile`: invoices of all providers against a ledger with known hours and prices."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.closing.reconciliation import LedgerUse, reconcile
from pyrometer.cli import main
from pyrometer.collect.files.bills import Bill, BilledUse, BillError, read_bill
from pyrometer.model.records import Node, Price
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store
from tests.support.hand_ledgers import ms_of

DAY = date(2026, 10, 5)
H100 = "NVIDIA-H100-80GB-HBM3"
Row = dict[str, Any]


def node(uid: str, kind: str | None, from_h: int, to_h: int, **more: Any) -> list[Node]:
    """A node of eight GPUs that exists for some hours of the day."""
    begin, end = (ms_of(DAY) + hour * MS_PER_HOUR for hour in (from_h, to_h))
    one = Node(begin, "here", uid, uid, 8, H100, instance_type=kind, **more)
    return [one, one._replace(time_ms=end - 1), one._replace(time_ms=end, present=False)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten hours of a p5, at $2 per GPU-hour, and four of a machine without an instance type."""
    folder = tmp_path_factory.mktemp("invoice") / "data"
    with Store(folder, create=True) as store:
        store.append([Price(1_700_000_000_000, 2_000_000, 0), *node("n0", "p5.48xlarge", 0, 10)])
        store.append(node("n1", None, 0, 4, pool="lab"))
    return folder


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["reconcile", *arguments])
    return int(ended.value.code or 0)


Ask = Callable[..., Row]


@pytest.fixture
def ask(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(lines: list[Row], *options: str, status: int = 0) -> Row:
        path = tmp_path / "bill.csv"
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)
        assert command(str(path), "--data", str(data), "-o", "json", *options) == status
        answer: Row = json.loads(capsys.readouterr().out)
        return answer

    return ask


def focus(usd: float, hours: float, **more: Any) -> Row:
    return {
        "BilledCost": usd,
        "EffectiveCost": more.pop("effective", usd),
        "BillingCurrency": "USD",
        "ChargePeriodStart": "2026-10-05T03:00:00Z",
        "ChargeCategory": more.pop("category", "Usage"),
        "ConsumedQuantity": hours,
        "ConsumedUnit": "Hours",
        "CommitmentDiscountId": more.pop("commitment", ""),
        "SkuPriceDetails": json.dumps({"InstanceType": more.pop("kind", "p5.48xlarge")}),
        "ChargeDescription": "",
    }


def aws(usd: float, hours: float, **more: Any) -> Row:
    return {
        "line_item_usage_start_date": "2026-10-05 03:00:00.000",
        "line_item_unblended_cost": usd,
        "line_item_usage_amount": hours,
        "pricing_unit": "Hrs",
        "line_item_currency_code": "USD",
        "product_instance_type": more.pop("kind", "p5.48xlarge"),
        "line_item_line_item_type": {"Tax": "Tax", "Credit": "Credit"}.get(more.get("category", ""), "Usage")
        if "commitment" not in more
        else "SavingsPlanCoveredUsage",
        "savings_plan_savings_plan_effective_cost": more.get("effective", ""),
    }


def legacy(usd: float, hours: float, **more: Any) -> Row:
    names = {
        "line_item_usage_start_date": "lineItem/UsageStartDate",
        "line_item_unblended_cost": "lineItem/UnblendedCost",
        "line_item_usage_amount": "lineItem/UsageAmount",
        "pricing_unit": "pricing/unit",
        "line_item_currency_code": "lineItem/CurrencyCode",
        "product_instance_type": "product/instanceType",
        "line_item_line_item_type": "lineItem/LineItemType",
        "savings_plan_savings_plan_effective_cost": "savingsPlan/SavingsPlanEffectiveCost",
    }
    row = {names[name]: value for name, value in aws(usd, hours, **more).items()}
    return row | {"lineItem/UsageStartDate": "2026-10-05T03:00:00Z"}


def azure(usd: float, hours: float, **more: Any) -> Row:
    return {
        "Date": "10/05/2026",
        "MeterSubCategory": "NDv5",
        "Quantity": hours,
        "UnitOfMeasure": "1 Hour",
        "CostInBillingCurrency": more.get("effective", usd),
        "BillingCurrency": "USD",
        "AdditionalInfo": json.dumps({"ServiceType": more.pop("kind", "p5.48xlarge"), "VCPUs": 96}),
        "ChargeType": {"Tax": "Tax", "Credit": "Refund"}.get(more.get("category", ""), "Usage"),
        "PricingModel": "SavingsPlan" if "commitment" in more else "OnDemand",
    }


PROVIDERS = {"FOCUS": focus, "AWS CUR 2.0": aws, "AWS CUR": legacy, "Azure": azure}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_invoice_lines_of_every_provider_are_read(ask: Ask, provider: str) -> None:
    line = PROVIDERS[provider]
    lines = [line(96, 6), line(64, 4), line(19, 0, category="Tax"), line(-5, 0, category="Credit")]
    lines.append(line(7.5, 10, kind="m5.large"))
    answer = ask(lines)
    assert answer["bill"] == {"format": provider, "lines": 5}
    (row,) = answer["rows"]
    assert (row["day"], row["instance_type"], row["because"]) == ("2026-10-05", "p5.48xlarge", [])
    assert (row["billed_usd"], row["ledger_usd"], row["difference_usd_micro"]) == (160.0, 160.0, 0)
    assert (row["billed_hours"], row["ledger_hours"]) == (10.0, 10.0)
    assert {kind: of["usd"] for kind, of in answer["apart"].items()} == {
        "tax": 19.0,
        "credit": -5.0,
        "commitment_fee": 0.0,
        "other": 7.5,
    }
    covered = ask([line(0 if provider != "Azure" else 100, 10, commitment="sp-1", effective=100)])
    assert (covered["rows"][0]["billed_usd"], covered["rows"][0]["because"]) == (100.0, ["commitment discount"])


def test_differences_are_split_into_hours_and_price(ask: Ask) -> None:
    dearer = ask([focus(200, 10)])["rows"][0]
    assert (dearer["because"], dearer["by_hours_usd"], dearer["by_price_usd"]) == (["price differs"], 0.0, 40.0)
    longer = ask([focus(192, 12)])["rows"][0]
    assert (longer["because"], longer["by_hours_usd"], longer["by_price_usd"]) == (["hours differ"], 32.0, 0.0)
    both = ask([focus(240, 12), focus(98, 3, kind="p4d.24xlarge")], "--map", "lab=p5e.48xlarge")
    assert {row["instance_type"]: row["because"] for row in both["rows"]} == {
        "p5.48xlarge": ["hours differ", "price differs"],
        "p4d.24xlarge": ["not in the ledger"],
        "p5e.48xlarge": ["not on the bill"],
    }
    total = both["total"]
    assert total["difference_usd"] == 240 + 98 - 160 - 64
    assert total["by_hours_usd_micro"] + total["by_price_usd_micro"] == total["difference_usd_micro"]
    assert both["nameless_node_ms"] == 0
    assert ask([focus(160, 10)])["nameless_node_ms"] == 4 * MS_PER_HOUR


def test_google_cloud_lines_of_one_machine_are_combined(ask: Ask) -> None:
    line = {
        "usage_start_time": "2026-10-05 00:00:00 UTC",
        "cost_type": "regular",
        "currency": "USD",
        "system_labels": '[{"key": "compute.googleapis.com/machine_spec", "value": "a3-highgpu-8g"}]',
    }
    lines = [line | {"sku.description": f"A3 {part}", "cost": 32} for part in ("Core", "Ram", "Nvidia H100")]
    lines.append(line | {"sku.description": "Tax", "cost": 5, "cost_type": "tax"})
    answer = ask(lines, "--map", "lab=a3-highgpu-8g")
    row = next(row for row in answer["rows"] if row["instance_type"] == "a3-highgpu-8g")
    assert (row["billed_usd"], row["ledger_usd"], row["billed_hours"]) == (96.0, 64.0, None)
    assert row["because"] == ["price differs"]
    assert answer["apart"]["tax"]["usd"] == 5.0


def test_custom_columns_and_tolerance(ask: Ask) -> None:
    lines = [{"When": "2026-10-05", "Box": "p5.48xlarge", "Paid": "$168.00", "h": "10"}]
    columns = ("--columns", "day=When,type=Box,usd=Paid,hours=h")
    assert ask(lines, *columns, "--tolerance", "5")["rows"][0]["by_price_usd"] == 8.0
    ask(lines, *columns, "--tolerance", "4", status=1)


def test_reconcile_table_explains_differences(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bill.csv.gz"
    with gzip.open(path, "wt") as stream:
        stream.write("day,type,usd,hours\n2026-10-05,p5.48xlarge,200,10\n")
    assert command(str(path), "--data", str(data), "--columns", "day=day,type=type,usd=usd,hours=hours") == 0
    result = capsys.readouterr()
    assert "2026-10-05  p5.48xlarge    price differs     10.00     10.00    $200    $160         $40" in result.out
    assert "The difference is $0.00 from hours and $40 from prices." in result.err
    assert "4.0 node-hours in the ledger have no instance type. Set it with --map POOL=TYPE." in result.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no usage lines"),
        ("a,b\n1,2\n", "is not in a known invoice format"),
        ("BilledCost,ChargePeriodStart,ChargeCategory\n1,yesterday,Usage\n", "line 2: 'yesterday' is not a day"),
        ("BilledCost,ChargePeriodStart,ChargeCategory\n1,9999-12-31,Usage\n", "line 2: '9999-12-31' is not a day"),
        ("BilledCost,ChargePeriodStart,ChargeCategory\n1,0001-01-01T00:00+14:00,Usage\n", "is not a day"),
        ("sku.description,cost,usage_start_time\nA3 Core\n", "line 2: '' is not a day"),
        ("BilledCost,ChargePeriodStart,ChargeCategory\nmuch,2026-10-05,Usage\n", "line 2: 'much' is not an amount"),
        (
            "BilledCost,ChargePeriodStart,ChargeCategory,BillingCurrency\n1,2026-10-05,Usage,EUR\n",
            "the amount is in EUR",
        ),
        ("BilledCost,ChargePeriodStart,ChargeCategory\n1e999,2026-10-05,Usage\n", "'1e999' is not an amount"),
    ],
)
def test_unreadable_invoice_is_a_one_line_error(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "bill.csv"
    path.write_text(text)
    assert command(str(path), "--data", str(data)) == 1
    assert message in capsys.readouterr().err
    assert command(str(tmp_path / "nowhere.csv"), "--data", str(data)) == 1


AMOUNT = st.decimals(0, 10**6, places=4)


@given(
    st.dictionaries(
        st.tuples(st.just(DAY), st.sampled_from("abc")), st.builds(BilledUse, AMOUNT, AMOUNT | st.none(), AMOUNT)
    ),
    st.dictionaries(
        st.tuples(st.just(str(DAY)), st.sampled_from("abc")),
        st.builds(LedgerUse, st.integers(1, 10**9), st.integers(0, 10**12) | st.none()),
    ),
)
def test_differences_add_up_without_remainder(used: Any, seen: Any) -> None:
    answer = reconcile(Bill("any", 1, used, {}), seen)
    for row in answer["rows"]:
        assert row["difference_usd_micro"] == row["billed_usd_micro"] - (row["ledger_usd_micro"] or 0)
        if row["by_hours_usd_micro"] is not None:
            assert row["by_hours_usd_micro"] + row["by_price_usd_micro"] == row["difference_usd_micro"]
    assert answer["total"]["difference_usd_micro"] == sum(row["difference_usd_micro"] for row in answer["rows"])


@given(st.binary(max_size=300))
def test_arbitrary_invoice_files_do_not_crash(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(b"BilledCost,ChargePeriodStart,ChargeCategory\n" + content)
    with suppress(BillError):
        assert read_bill(path, ["p5.48xlarge"]).lines >= 1
