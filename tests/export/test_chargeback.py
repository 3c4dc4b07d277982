"""Chargeback exports: the files that spreadsheets and FinOps tools read."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import httpx2 as httpx
import pyarrow.parquet as pq
import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.closing.charges import charges
from pyrometer.account.query.cost import cost
from pyrometer.account.query.names import open_names
from pyrometer.account.query.time_range import TimeRange
from pyrometer.cli import main
from pyrometer.export.csv import cost_table, render_csv
from pyrometer.export.focus import COLUMNS, focus_table
from pyrometer.export.parquet import COST_KINDS, render_parquet
from pyrometer.model.records import Node, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core
from pyrometer.serve.main import build_services
from pyrometer.store import Store
from tests.support.clusters import HOUR, PRICE_USD_MICRO, START_MS, all_ranks, at, cluster, job, run, samples
from tests.support.focus_rules import MANDATORY

NIGHT = [*cluster(hours=30), *job(to_min=25 * 60), *run(ended_ms=at(90)), *all_ranks(0, 80)]
ALL = TimeRange(START_MS, START_MS + 30 * HOUR)
BERLIN = ZoneInfo("Europe/Berlin")

NEVER_NULL_OF_USAGE = [
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "SkuId",
    "SkuPriceId",
    "SkuMeter",
    "ResourceId",
    "ResourceType",
    "ServiceSubcategory",
    "ChargeFrequency",
    "SubAccountId",
    "SubAccountType",
    "Tags",
]


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("night")
    with Store(folder, create=True) as store:
        store.append(NIGHT)
        build(store, Settings(), now_ms=ALL.to_ms)
    return folder


@pytest.fixture
def store(folder: Path) -> Iterator[Store]:
    with Store(folder) as store:
        open_names(store)
        yield store


@pytest.mark.parametrize("by", [["team"], ["workload", "state"], ["day", "node"]])
def test_csv_columns_add_up_to_the_totals_of_the_answer(store: Store, by: list[str]) -> None:
    answer = cost(store, ALL, by, zone=UTC)
    rows = read("".join(render_csv(cost_table(answer))))
    assert len(rows) == len(answer["rows"])
    assert sum(int(row["gpu_ms"]) for row in rows) == answer["total"]["gpu_ms"]
    assert sum(Decimal(row["usd"]) for row in rows) * 1_000_000 == answer["total"]["usd_micro"]
    assert sum(int(row["usd_micro"]) for row in rows) == answer["total"]["usd_micro"]


def test_csv_has_four_workload_columns_that_are_empty_for_unheld_time(store: Store) -> None:
    rows = read("".join(render_csv(cost_table(cost(store, ALL, ["workload"], zone=UTC)))))
    assert [row["workload_name"] for row in rows] == ["llama", ""]
    assert (rows[0]["workload_kind"], rows[0]["workload_namespace"]) == ("PyTorchJob", "ml")


def test_csv_and_parquet_have_every_amount_of_the_answer(tmp_path: Path) -> None:
    measured = samples("n0", 0, 0, 120, sm_active_permille=500, power_w=300)
    with Store(tmp_path, create=True) as store:
        store.append([*NIGHT, *measured])
        build(store, Settings(), now_ms=ALL.to_ms)
        open_names(store)
        answer = cost(store, ALL, ["team"], zone=UTC)
    assert [row["activity"] for row in answer["rows"]] == [0.5, None]
    rows = read("".join(render_csv(cost_table(answer))))
    table = pq.read_table(io.BytesIO(b"".join(render_parquet(cost_table(answer), COST_KINDS))))
    for row, in_csv, in_parquet in zip(answer["rows"], rows, table.to_pylist(), strict=True):
        assert list(row) == list(in_csv) == list(in_parquet)
        assert in_csv["activity"] == ("" if row["activity"] is None else str(row["activity"]))
        assert in_parquet["activity"] == row["activity"]
    assert table.schema.field("activity").type == "double"


# -- FOCUS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def focus(store: Store) -> list[dict[str, str]]:
    return read("".join(render_csv(focus_table(charges(store, ALL, zone=BERLIN)))))


def test_focus_has_the_columns_of_its_specification(focus: list[dict[str, str]]) -> None:
    assert set(MANDATORY) <= set(COLUMNS)
    assert all(re.fullmatch(r"[A-Z][A-Za-z]+", name) for name in COLUMNS)
    for row in focus:
        assert tuple(row) == COLUMNS
        assert all(row[name] for name in MANDATORY if name != "ChargeClass")
        assert all(row[name] for name in NEVER_NULL_OF_USAGE)
        assert row["ProviderName"] == row["InvoiceIssuerName"]


def test_focus_costs_match_the_ledger_and_price_times_quantity(store: Store, focus: list[dict[str, str]]) -> None:
    total = cost(store, ALL, ["team"], zone=UTC)["total"]
    for name in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost"):
        assert sum(Decimal(row[name]) for row in focus) * 1_000_000 == total["usd_micro"]
    for row in focus:
        product = Decimal(row["ListUnitPrice"]) * Decimal(row["PricingQuantity"])
        assert abs(product - Decimal(row["ListCost"])) < Decimal("0.000001")
    assert abs(sum(Decimal(row["ConsumedQuantity"]) for row in focus) - Decimal(total["gpu_ms"]) / HOUR) < 1e-9


def test_focus_periods_are_local_days_and_months_in_utc(focus: list[dict[str, str]]) -> None:
    periods = sorted({(row["ChargePeriodStart"], row["ChargePeriodEnd"]) for row in focus})
    begins = datetime.fromtimestamp(START_MS / 1000, UTC)
    assert periods[0][0] == f"{begins:%Y-%m-%dT%H:%M:%SZ}"  # the window begins within a day
    assert {period[11:] for pair in periods for period in pair} >= {"23:00:00Z"}  # midnight in Berlin, in winter
    assert [end for _, end in periods][:-1] == [start for start, _ in periods][1:]
    assert {row["BillingPeriodStart"] for row in focus} == {"2026-10-31T23:00:00Z"}
    assert {row["BillingPeriodEnd"] for row in focus} == {"2026-11-30T23:00:00Z"}


def test_focus_rows_name_team_experiment_and_workload(focus: list[dict[str, str]]) -> None:
    teams = {row["SubAccountName"] for row in focus}
    assert teams == {"nlp", "platform"}
    mine = next(row for row in focus if row["SubAccountName"] == "nlp")
    assert json.loads(mine["Tags"]) == {
        "team": "nlp",
        "experiment": "llama-sft",
        "namespace": "ml",
        "pool": "pool",
        "workload": "llama",
        "workload_kind": "PyTorchJob",
        "workload_uid": "llama",
    }
    assert (mine["ResourceId"], mine["BillingAccountId"]) == ("test/node-0", "test")


def test_focus_has_no_row_for_time_without_a_price(tmp_path: Path) -> None:
    records: list[Any] = [record for record in NIGHT if not isinstance(record, Price)]
    records += [Node(t, "test", "n9", "node-9", 2, "Other GPU", pool="priced") for t in (START_MS, at(120) - 1)]
    with Store(tmp_path, create=True) as store:
        store.append([*records, Price(START_MS, PRICE_USD_MICRO, START_MS - HOUR, pool="priced")])
        build(store, Settings(), now_ms=ALL.to_ms)
        answer = charges(store, ALL, zone=UTC)
        rows = read("".join(render_csv(focus_table(answer))))
        quick = read("".join(render_csv(focus_table(charges(store, ALL, zone=UTC, price_usd_micro=2_000_000)))))
    assert {row["ResourceName"] for row in rows} == {"node-9"}
    assert sum(Decimal(row["BilledCost"]) for row in rows) * 1_000_000 == answer["total"]["usd_micro"]
    assert answer["total"]["unpriced_gpu_ms"] > 0
    assert {row["ResourceName"] for row in quick} == {"node-0", "node-1", "node-9"}
    assert {row["ListUnitPrice"] for row in quick} == {"2.000000"}


# -- over HTTP, and as a command --------------------------------------------------------------------------------------


def test_server_downloads_have_file_names(folder: Path) -> None:
    async def asking(path: str) -> httpx.Response:
        with Store(folder) as store:
            server = build_services(Core(store, Settings()), open_to_all=True)
            transport = httpx.ASGITransport(server.application())
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.get(path)

    answer = asyncio.run(asking("/api/v1/export/csv?all=1&by=team"))
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
    named = answer.headers["Content-Disposition"]
    assert re.fullmatch(r'attachment; filename="pyrometer-csv-[0-9TZ-]+\.csv"', named)
    assert [row["team"] for row in read(answer.text)] == ["nlp", "platform"]
    whole = asyncio.run(asking("/api/v1/export/focus?all=1"))
    assert tuple(read(whole.text)[0]) == COLUMNS
    binary = asyncio.run(asking("/api/v1/export/focus?all=1&as=parquet"))
    assert re.search(r'-[0-9TZ-]+\.parquet"', binary.headers["Content-Disposition"])
    assert pq.read_table(io.BytesIO(binary.content)).column_names == list(COLUMNS)
    for path, status in (
        ("csv?as=xlsx", 400),
        ("perfetto?as=parquet", 400),
        ("xml", 404),
        ("csv?by=nonsense", 400),
        ("focus?by=team", 400),
        ("csv?limit=3", 400),
    ):
        refused = asyncio.run(asking(f"/api/v1/export/{path}"))
        assert (refused.status_code, set(refused.json())) == (status, {"error"})


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["export", *arguments])
    return int(ended.value.code or 0)


def test_export_command_writes_a_file_or_stdout(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "costs.csv"
    arguments = ("csv", "--data", str(folder), "--all", "--by", "team,state")
    assert command(*arguments, "--out", str(path)) == 0
    assert capsys.readouterr().out == ""
    assert command(*arguments) == 0
    printed = capsys.readouterr().out
    assert read(path.read_bytes().decode()) == read(printed)
    assert {row["team"] for row in read(printed)} == {"nlp", "platform"}
    assert command("focus", "--data", str(folder), "--by", "team") == 2
    assert "--by applies to csv only" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", "focus"])
def test_parquet_has_types_and_the_same_sums_in_other_engines(folder: Path, tmp_path: Path, form: str) -> None:
    arguments = (form, "--data", str(folder), "--all", *(("--by", "day,team,workload") if form == "csv" else ()))
    text, parquet = tmp_path / "costs.csv", tmp_path / "costs.Parquet"
    assert command(*arguments, "--out", str(text)) == command(*arguments, "--out", str(parquet)) == 0
    rows, table = read(text.read_bytes().decode()), pq.read_table(parquet)
    assert table.column_names == list(rows[0])
    money = "usd" if form == "csv" else "BilledCost"
    assert str(table.schema.field(money).type) == "decimal128(38, 6)"
    when = {"csv": ("day", "date32[day]"), "focus": ("ChargePeriodStart", "timestamp[ms, tz=UTC]")}[form]
    assert str(table.schema.field(when[0]).type) == when[1]
    whole = sum(Decimal(row[money]) for row in rows)
    summed = f'SELECT count(*), sum("{money}"), typeof(any_value("{money}")) FROM read_parquet(\'{parquet}\')'
    assert duckdb.connect().execute(summed).fetchall() == [(len(rows), whole, "DECIMAL(38,6)")]
    for name in table.column_names:  # cell by cell
        for row, value in zip(rows, table.column(name).to_pylist(), strict=True):
            shown = value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime) else value
            shown = f"{value:f}" if isinstance(value, Decimal) else shown
            assert row[name] == ("" if shown is None else str(shown)), name


def test_team_name_that_is_a_formula_is_exported_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = Workload(at(1), "test", "llama", "PyTorchJob", "ml", "llama", team="=cmd|' /C calc'!A0")
    with Store(tmp_path / "data", create=True) as store:
        store.append([*NIGHT, evil])
    for form, column in (("csv", "team"), ("focus", "SubAccountId")):
        assert command(form, "--data", str(tmp_path / "data"), "--all") == 0
        cells = {row[column] for row in read(capsys.readouterr().out)}
        assert cells == {"'=cmd|' /C calc'!A0", "platform"}
