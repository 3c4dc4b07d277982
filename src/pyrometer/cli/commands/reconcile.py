"""`pyrometer reconcile`: compares a cloud invoice with the ledger."""

from __future__ import annotations

from datetime import UTC, timedelta, tzinfo
from pathlib import Path
from typing import Any

import click

from pyrometer.account.closing.reconciliation import ledger_use, off_by_percent, reconcile
from pyrometer.account.query.time_range import zone_of
from pyrometer.cli.command_support import ReadRequest, print_json
from pyrometer.collect.files.bills import BillError, columns_of, days_of, read_bill
from pyrometer.model.human import dollars, hours
from pyrometer.render.tables import print_table

_APART = {"tax": "tax", "credit": "credits", "commitment_fee": "commitment fees", "other": "other than GPU instances"}


@click.command()
@click.argument("bill", metavar="BILL.csv", type=click.Path(path_type=Path))
@click.option(
    "--data", metavar="DIR", type=click.Path(path_type=Path), help="The data folder. Default: PYROMETER_DATA."
)
@click.option("--server", metavar="URL", help="Query this server, with the token in PYROMETER_TOKEN.")
@click.option("--tz", metavar="ZONE", help="Time zone of days. Default: UTC, like invoices.")
@click.option(
    "--map",
    "maps",
    metavar="NAME=TYPE",
    multiple=True,
    help="The instance type of a pool or GPU model whose nodes do not report one.",
)
@click.option("--columns", metavar="day=…,type=…,usd=…,hours=…", help="The columns of an invoice of unknown format.")
@click.option("--price", metavar="USD", help="Price all GPUs in the ledger at this rate per GPU-hour.")
@click.option(
    "--tolerance", metavar="PCT", type=click.FloatRange(min=0), help="Exit 1 if the totals differ by more percent."
)
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="Output format.")
def command(
    bill: Path,
    data: Path | None,
    server: str | None,
    tz: str | None,
    maps: tuple[str, ...],
    columns: str | None,
    price: str | None,
    tolerance: float | None,
    output: str,
) -> int:
    """Compares a cloud invoice with the ledger, by day and instance type, and splits each difference into hours and
    price. The invoice is read locally and never sent."""
    if data is not None and server is not None:
        raise click.UsageError("Pass --data or --server, not both.")
    mapped = _mapped(maps)
    zone = zone_of(tz) if tz else UTC
    request = ReadRequest(data, server, {"tz": tz or "UTC"} | ({"price": price} if price else {}), output)
    try:
        answer = _answer(request, bill, zone, mapped, columns_of(columns) if columns else None)
    except BillError as error:
        raise click.ClickException(str(error)) from None
    off = off_by_percent(answer["total"])
    if output == "json":
        print_json(answer)
    else:
        _print(answer)
    return 1 if tolerance is not None and off > tolerance else 0


def _mapped(maps: tuple[str, ...]) -> dict[str, str]:
    for one in maps:
        if "=" not in one:
            raise click.UsageError(f"--map {one!r} is not NAME=TYPE, like h100-pool=p5.48xlarge.")
    return dict(one.split("=", 1) for one in maps)


def _answer(
    request: ReadRequest, path: Path, zone: tzinfo, mapped: dict[str, str], columns: dict[str, str] | None
) -> dict[str, Any]:
    """Reads the invoice twice: for its days, and then with the instance types that the ledger has on those days."""
    first, last = days_of(path, zone, columns)
    rows = request.answer("instances", since=str(first), until=str(last + timedelta(days=1)))["rows"]
    bill = read_bill(
        path, {*(row["instance_type"] for row in rows if row["instance_type"]), *mapped.values()}, zone, columns
    )
    seen, nameless_ms = ledger_use(rows, mapped)
    return reconcile(bill, seen) | {"nameless_node_ms": nameless_ms}


def _print(answer: dict[str, Any]) -> None:
    headings = ["day", "instance type", "reason", "billed h", "ledger h", "billed", "ledger", "difference"]
    rows = [[row["day"], row["instance_type"], ", ".join(row["because"]), *_figures(row)] for row in answer["rows"]]
    total = answer["total"]
    print_table(headings, [*rows, ["total", "", "", *_figures(total)]], figures=5, foot=True)
    by_hours, by_price = (dollars(total[f"{name}_usd_micro"]) for name in ("by_hours", "by_price"))
    click.echo(f"The difference is {by_hours} from hours and {by_price} from prices.", err=True)
    apart = [f"{_APART[kind]} {dollars(of['usd_micro'])}" for kind, of in answer["apart"].items() if of["usd_micro"]]
    if apart:
        click.echo(f"On the invoice but not compared: {', '.join(apart)}.", err=True)
    if answer["nameless_node_ms"]:
        click.echo(
            f"{hours(answer['nameless_node_ms']).replace('GPU', 'node')} in the ledger have no instance type. "
            "Set it with --map POOL=TYPE.",
            err=True,
        )


def _figures(row: dict[str, Any]) -> list[str]:
    shown = ["–" if row[name] is None else f"{row[name]:,.2f}" for name in ("billed_hours", "ledger_hours")]
    money = [row[f"{name}_usd_micro"] for name in ("billed", "ledger", "difference")]
    return [*shown, *("–" if micro is None else dollars(micro) for micro in money)]
