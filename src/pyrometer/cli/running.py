"""How every command runs: options they share, the data folder brought up to date, errors as one sentence."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import tzinfo
from pathlib import Path
from typing import Any, NamedTuple

import click
import duckdb

from pyrometer.account.ledger import Accounted, build
from pyrometer.account.retention import forget
from pyrometer.account.sums import Window
from pyrometer.account.windows import WindowError, window_of, zone_of
from pyrometer.cli.progress import progress_bar, waiting
from pyrometer.cli.settings import read_settings
from pyrometer.collect.source import SourceError
from pyrometer.identify.kinds import RuleError
from pyrometer.identify.prices import PriceError, read_price_book
from pyrometer.model.records import Price
from pyrometer.model.settings import SettingError, Settings
from pyrometer.serve.tokens import TokenError
from pyrometer.store import Store, StoreError

WAIT_FOR_FOLDER_S = 10.0


def run_command(command: click.Command, name: str, arguments: list[str]) -> int:
    """Runs a click command; an error is one sentence on stderr."""
    try:
        result = command.main(arguments, prog_name=f"pyrometer {name}", standalone_mode=False)
    except click.UsageError as error:
        return _fail(error.format_message(), 2)
    except WindowError as error:
        return _fail(str(error), 2)
    except click.ClickException as error:
        return _fail(error.format_message(), 1)
    except (StoreError, SourceError, PriceError, SettingError, RuleError, TokenError) as error:
        return _fail(str(error), 1)
    except duckdb.OutOfMemoryException as error:
        return _fail(f"Not enough memory: {str(error).splitlines()[0]}", 1)
    except (duckdb.IOException, duckdb.InvalidInputException) as error:  # a part that is gone or broken
        return _fail(f"{str(error).splitlines()[0]}. `pyrometer check DIR` says what is wrong with a data folder.", 1)
    except (click.Abort, KeyboardInterrupt):
        return _fail("Interrupted.", 130)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _fail(f"{error.filename or 'A file'} cannot be read or written: {error.strerror}.", 1)
    return result if isinstance(result, int) else 0


def _fail(text: str, code: int) -> int:
    click.echo(f"Error: {' '.join(line.strip() for line in text.splitlines())}", err=True)
    return code


class Asked(NamedTuple):
    """What the options of a read command say."""

    data: Path
    window: Callable[[Accounted], Window]
    zone: tzinfo
    price_usd_micro: int | None
    output: str
    settings: Settings


def read_options(
    *, default_last: str | None, formats: tuple[str, ...] = ("table", "json")
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of every read command: which folder, which time, which price, which form."""
    when = f"the last {default_last}" if default_last else "everything"
    options = [
        click.option("--data", metavar="DIR", help="The data folder. Default: PYROMETER_DATA."),
        click.option(
            "--last",
            metavar="LENGTH",
            help=f"Up to the newest accounted minute: 90m, 12h, 7d. Default: {when}.",
        ),
        click.option("--since", metavar="TIME", help="From this time on: 2026-11-14, '2026-11-14 20:00'."),
        click.option("--until", metavar="TIME", help="Up to this time, not included."),
        click.option("--month", metavar="YYYY-MM", help="One month."),
        click.option("--all", "everything", is_flag=True, help="Everything there is."),
        click.option("--tz", metavar="ZONE", help="Time zone of days, hours and months: Europe/Berlin. Default: UTC."),
        click.option("--price", metavar="USD", help="One price per GPU-hour for everything: a quick answer."),
        click.option("-o", "--output", type=click.Choice(formats), default="table", help="The form of the answer."),
    ]

    def with_asked(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(
            data: str | None, last: str | None, since: str | None, until: str | None, month: str | None,
            everything: bool, tz: str | None, price: str | None, output: str, **others: Any,
        ) -> Any:  # fmt: skip
            folder = data_folder(data)
            settings = read_settings(os.environ, folder)
            zone = zone_of(tz or settings.timezone)
            window = window_of(last, since, until, month, everything, zone, default_last)
            return function(Asked(folder, window, zone, _price(price), output, settings), **others)

        command.__doc__ = function.__doc__
        command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        decorated: Callable[..., Any] = command
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return with_asked


@contextmanager
def accounted(asked: Asked) -> Iterator[tuple[Store, Window]]:
    """The data folder with its ledger up to date, and the window that was asked for."""
    with Store(asked.data, wait_s=WAIT_FOR_FOLDER_S) as store:
        covered = bring_up_to_date(store, asked.settings)
        if covered is None:
            raise click.ClickException(f"{asked.data} holds nothing to account for yet.")
        with waiting("Asking the ledger"):
            yield store, asked.window(covered)


def bring_up_to_date(store: Store, settings: Settings, *, now_ms: int | None = None) -> Accounted | None:
    """Builds the stale hours of the ledger, with a bar when that takes long."""
    prices: list[Price] = read_price_book(Path(settings.price_book)) if settings.price_book else []
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    with progress_bar("Accounting") as progress:
        covered = build(store, settings, now_ms=now_ms, prices=prices, progress=progress)
    if settings.retention_days > 0 and forget(store, keep_days=settings.retention_days, now_ms=now_ms):
        covered = build(store, settings, now_ms=now_ms, prices=prices)
    return covered


def print_json(answer: dict[str, Any]) -> None:
    """The answer as JSON; nothing in it may be what JSON cannot say."""
    click.echo(json.dumps(answer, indent=1, ensure_ascii=False, allow_nan=False))


def data_folder(named: str | None) -> Path:
    """The data folder that `--data` or PYROMETER_DATA names."""
    found = named or os.environ.get("PYROMETER_DATA")
    if not found:
        raise click.UsageError("Which data folder? Say --data DIR, or set PYROMETER_DATA.")
    return Path(found)


def _price(text: str | None) -> int | None:
    if text is None:
        return None
    from decimal import Decimal, InvalidOperation

    try:
        micro = int(Decimal(text.lstrip("$")) * 1_000_000)
    except (InvalidOperation, ValueError, OverflowError):  # not a number, "nan", "inf"
        raise click.UsageError(f"--price {text!r} is not a number of dollars.") from None
    if not 0 <= micro <= 10**12:
        raise click.UsageError(f"--price {text!r} is not a price: 0 to 1,000,000 dollars per GPU-hour.")
    return micro
