"""`pyrometer prices`: which price applies to which GPUs, where it comes from, and which GPUs have none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import click

from pyrometer.account.build.pricing import PricedKind, priced_kinds
from pyrometer.account.query.answer_json import iso
from pyrometer.cli.command_support import open_store, print_json
from pyrometer.cli.settings_files import read_settings
from pyrometer.identify.gpus.gpu_models import gpu_model, gpu_models
from pyrometer.identify.gpus.price_book import Entry, read_entries, selectors_of
from pyrometer.identify.gpus.prices import LISTED
from pyrometer.model.human import counted
from pyrometer.model.records import Price
from pyrometer.model.units import USD_MICRO_PER_USD
from pyrometer.render.tables import print_table

_NAMES = ("gpu_model", "pool", "cluster", "purchase", "instance_type")


@click.command()
@click.option("--data", metavar="DIR", help="The data folder with the GPUs to price. Default: PYROMETER_DATA.")
@click.option("--book", metavar="FILE", help="A price book to try. Default: the price book of the settings.")
@click.option("--starter", is_flag=True, help="Print a price book to start from, with the models found.")
@click.option("-o", "--output", type=click.Choice(("table", "json")), default="table", help="Output format.")
def command(data: str | None, book: str | None, starter: bool, output: str) -> None:
    """Shows which price applies to which GPUs now, where it comes from, and which GPUs have none. Without a data
    folder, shows the entries of the price book and the bundled list of public prices."""
    named = data or os.environ.get("PYROMETER_DATA")
    folder = Path(named) if named else None
    path = book or read_settings(os.environ, folder).price_book
    entries = read_entries(Path(path)) if path else []
    if folder is None:
        if starter:
            click.echo(_starter(known.model for known in gpu_models() if known.list_usd_micro_per_hour), nl=False)
        elif output == "json":
            print_json({"book": [_entry_json(entry) for entry in entries], "list": _list_json()})
        else:
            _print_book(entries)
        return
    with open_store(folder) as store:
        prices = [entry.price for entry in entries]
        kinds, written = priced_kinds(store, prices, now_ms=time.time_ns() // 1_000_000)
    if starter:
        click.echo(_starter(kind.gpu_model for kind in kinds), nl=False)
        return
    answer = _answer(kinds, written, entries)
    if output == "json":
        print_json(answer)
    else:
        _print_answer(answer, entries)


# -- what applies -----------------------------------------------------------------------------------------------------


def _answer(kinds: Sequence[PricedKind], written: Sequence[Price], entries: Sequence[Entry]) -> dict[str, Any]:
    rows = [_row(kind, written, entries) for kind in kinds]
    used = {row["entry"] for row in rows}
    return {
        "rows": rows,
        "gpus": sum(row["gpus"] for row in rows),
        "assumed_gpus": sum(row["gpus"] for row in rows if row["assumed"]),
        "unpriced_gpus": sum(row["gpus"] for row in rows if row["source"] is None),
        "unused_entries": [entry.number for entry in entries if entry.number not in used],
    }


def _row(kind: PricedKind, written: Sequence[Price], entries: Sequence[Entry]) -> dict[str, Any]:
    """A kind of GPU with its price. The entries of the book are the last of `written`."""
    row: dict[str, Any] = {name: getattr(kind, name) for name in _NAMES}
    row |= {"node_gpus": kind.node_gpus, "gpus": kind.gpus, "usd_micro_per_hour": kind.usd_micro_per_hour}
    row |= {"usd_micro_per_node_hour": None, "source": None, "entry": None, "assumed": False, "arithmetic": None}
    if kind.place is None:
        return row
    if kind.place == LISTED:
        return row | {"source": "list", "assumed": True}
    price = written[kind.place]
    number = kind.place - (len(written) - len(entries))
    if number < 0:
        row |= {"source": "data"}
    else:
        row |= {"source": "book", "entry": entries[number].number, "arithmetic": entries[number].arithmetic}
    if price.per == "node":
        divided = f"{_money(price.usd_micro_per_hour)} per node-hour ÷ {kind.node_gpus} GPUs"
        row["usd_micro_per_node_hour"] = price.usd_micro_per_hour
        row["arithmetic"] = f"{row['arithmetic']}; {divided}" if row["arithmetic"] else divided
    return row


def _print_answer(answer: dict[str, Any], entries: Sequence[Entry]) -> None:
    rows = [
        [*(row[name] for name in _NAMES), _origin(row), row["gpus"], _money(row["usd_micro_per_hour"])]
        for row in answer["rows"]
    ]
    headings = ["GPU model", "pool", "cluster", "purchase", "instance type", "price from", "GPUs", "per GPU-hour"]
    print_table(headings, rows, figures=2, spare=("cluster", "purchase", "instance type"))
    for number, arithmetic in {(row["entry"], row["arithmetic"]): None for row in answer["rows"] if row["arithmetic"]}:
        label = "Data" if number is None else f"Entry {number}"
        click.echo(f"{label}: {arithmetic}.")
    if answer["unused_entries"]:
        numbers = ", ".join(map(str, answer["unused_entries"]))
        click.echo(f"Entries of the book that apply to no GPU here now: {numbers} (of {len(entries)}).")
    if answer["assumed_gpus"]:
        click.echo(
            f"List prices are assumed for {counted(answer['assumed_gpus'], 'GPU')}. Put your prices into a price book."
        )
    if answer["unpriced_gpus"]:
        click.echo(f"{counted(answer['unpriced_gpus'], 'GPU')} without a price: their time is unpriced.")


def _origin(row: dict[str, Any]) -> str:
    if row["source"] == "book":
        return f"book entry {row['entry']}"
    return {"list": "list (assumed)", "data": "data", None: "none"}[row["source"]]


# -- the book and the list --------------------------------------------------------------------------------------------


def _print_book(entries: Sequence[Entry]) -> None:
    if entries:
        rows = [
            [
                entry.number,
                _selected(entry.price),
                _valid(entry.price),
                entry.price.per or "gpu",
                _money(entry.price.usd_micro_per_hour),
            ]
            for entry in entries
        ]
        print_table(["entry", "applies to", "valid", "per", "per hour"], rows, figures=1)
        for entry in entries:
            if entry.arithmetic:
                click.echo(f"Entry {entry.number}: {entry.arithmetic}.")
        click.echo()
    print_table(
        ["GPU model", "as of", "source of the list price and the idle power", "idle W", "per GPU-hour"],
        [
            [row["model"], row["as_of"], row["source"], row["held_idle_power_w"], _money(row["usd_micro_per_hour"])]
            for row in _list_json()
        ],
        figures=2,
    )


def _selected(price: Price) -> str:
    return ", ".join(f"{name} {value}" for name, value in selectors_of(price).items()) or "everything"


def _valid(price: Price) -> str:
    from_day = f"from {iso(price.from_ms, UTC)[:10]}" if price.from_ms else ""
    until_day = f"until {iso(price.to_ms, UTC)[:10]}" if price.to_ms is not None else ""
    return " ".join(filter(None, (from_day, until_day))) or "always"


def _entry_json(entry: Entry) -> dict[str, Any]:
    price = entry.price
    return {
        "entry": entry.number,
        **{name: getattr(price, name) for name in _NAMES},
        "from": iso(price.from_ms, UTC) if price.from_ms else None,
        "until": None if price.to_ms is None else iso(price.to_ms, UTC),
        "per": price.per or "gpu",
        "usd_micro_per_hour": price.usd_micro_per_hour,
        "arithmetic": entry.arithmetic,
    }


def _list_json() -> list[dict[str, Any]]:
    return [
        {
            "model": known.model,
            "usd_micro_per_hour": known.list_usd_micro_per_hour,
            "as_of": known.as_of or None,
            "source": known.source,
            "board_power_w": known.board_power_w,
            "held_idle_power_w": known.held_idle_power_w,
        }
        for known in gpu_models()
    ]


def _money(usd_micro: int | None) -> str:
    """A price with all its decimals, at least two."""
    if usd_micro is None:
        return "–"
    whole, places = divmod(usd_micro, USD_MICRO_PER_USD)
    return f"${whole:,}.{f'{places:06d}'.rstrip('0').ljust(2, '0')}"


# -- a book to start from ---------------------------------------------------------------------------------------------

_STARTER = """\
# A price book: what a GPU costs you per hour. The entry with the most selectors applies. Among equals the later
# `from` applies, then the later entry. Set `price_book` to the path of this file. `pyrometer prices` shows which
# entry applies to which GPUs.
prices:
{entries}
# Other forms of entries:
#  - usd_per_node_hour: 55.04        # divided by the number of GPUs of the node
#    instance_type: p5.48xlarge
#    purchase: on_demand             # on_demand, spot, reserved
#    from: 2026-01-01                # inclusive; `until` is exclusive
#  - pool: own                       # machines that you own
#    owned:
#      capital_usd_per_node: 280000  # or capital_usd_per_gpu; power and fixed cost are then per GPU
#      lifetime_years: 4
#      power_w: 10200
#      pue: 1.3
#      usd_per_kwh: 0.12
#      fixed_usd_per_hour: 2.50      # space, network, staff
"""


def _starter(models: Iterable[str | None]) -> str:
    """A book with an entry per model. Models on the public list have its price, to be replaced."""
    entries = []
    found = {(known.model if (known := gpu_model(name)) else name): known for name in models if name is not None}
    for model, known in found.items():
        amount, note = "0", "unknown: enter what you pay"
        if known and known.list_usd_micro_per_hour is not None:
            amount, note = _money(known.list_usd_micro_per_hour).lstrip("$").replace(",", ""), known.source
        # an unknown price is a comment: an entry with 0 would make the GPU free of charge
        mark = "  " if known and known.list_usd_micro_per_hour is not None else "# "
        entries += [f"{mark}- model: {_quoted(model)}", f"{mark}  usd_per_gpu_hour: {amount}  # {note}"]
    if all(line.startswith("#") for line in entries):
        entries.insert(0, "  []")
    return _STARTER.format(entries="\n".join(entries))


def _quoted(name: str) -> str:
    """A name as a YAML string, whatever it contains: JSON strings are valid YAML."""
    return json.dumps(name, ensure_ascii=False)
