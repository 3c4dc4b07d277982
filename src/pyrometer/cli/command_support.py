"""What commands share: options, the data folder with an up-to-date ledger, and errors as one sentence."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import duckdb

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.closing.closing_months import ClosingError
from pyrometer.account.query.time_range import TimeRangeError
from pyrometer.cli.command_errors import fail, finish
from pyrometer.cli.progress_bar import progress_bar, waiting
from pyrometer.cli.settings_files import read_settings
from pyrometer.collect.source import SourceError
from pyrometer.identify.gpus.price_book import PriceError
from pyrometer.identify.kubernetes.workload_kinds import RuleError
from pyrometer.model.human import counted
from pyrometer.model.settings import SettingError, Settings
from pyrometer.questions import registry
from pyrometer.questions.client import Address, ServerError, UnreachableError, ask, published
from pyrometer.questions.parameters import COMMON_PARAMETERS, QuestionError
from pyrometer.questions.registry import NotFoundError, Question, question
from pyrometer.questions.tokens import TokenError
from pyrometer.store import Store, StoreBusyError, StoreError, data_folders
from pyrometer.store.engines import ENGINES, LOCAL, RAY
from pyrometer.store.errors import READ_ERRORS, first_line
from pyrometer.store.inbox import of_training

WAIT_FOR_FOLDER_S = 10.0


def run_command(command: click.Command, name: str, arguments: list[str]) -> int:
    """Runs a click command. An error is one sentence on stderr."""
    try:
        return finish(command, name, arguments)
    except (TimeRangeError, QuestionError) as error:
        return fail(str(error), 2)
    except ServerError as error:
        return fail(str(error), 2 if error.usage else 1)
    except (
        StoreError,
        SourceError,
        PriceError,
        SettingError,
        RuleError,
        TokenError,
        NotFoundError,
        ClosingError,
    ) as error:
        return fail(str(error), 1)
    except duckdb.OutOfMemoryException as error:
        return fail(f"Not enough memory: {str(error).splitlines()[0]}", 1)
    except READ_ERRORS as error:  # a Parquet part that is missing or broken
        if isinstance(error, duckdb.ProgrammingError) and not isinstance(error, duckdb.InvalidInputException):
            raise  # a defect of Pyrometer, not of the folder
        return fail(f"{first_line(error)}. `pyrometer check DIR` shows what is wrong with a data folder.", 1)


class LakeRequest(NamedTuple):
    """The options about a lake: its URL, which of its clusters, and the engine that reads it."""

    url: str
    clusters: tuple[str, ...] = ()
    engine: str = "local"
    address: str | None = None


class ReadRequest(NamedTuple):
    """The options of a read command: the source, the parameters of the question, the output format."""

    data: Path | None
    server: str | None
    parameters: dict[str, str]
    output: str
    token: str | None = None  # for the server; default: PYROMETER_TOKEN
    lake: LakeRequest | None = None
    clusters: tuple[str, ...] = ()  # of a lake

    def answer(self, what: str, **more: str) -> dict[str, Any]:
        """The answer of the lake, of the server, of the data folder, or of the server that has the folder open."""
        parameters = {**self.parameters, **more}
        if self.lake is not None:
            from pyrometer.cli.lake_requests import ask_lake  # takes a while to load

            return ask_lake(self.lake, what, parameters)
        if self.clusters:
            raise click.UsageError("--cluster needs --lake URL.")
        if self.server is not None:
            with waiting("Querying the server"):
                return ask(Address(self.server, self.token or os.environ.get("PYROMETER_TOKEN")), what, parameters)
        folder = data_folder(self.data)
        settings = read_settings(os.environ, folder)
        query = question(what, parameters, settings)
        address = published(folder)
        try:
            return _answer(folder, settings, query, wait_s=WAIT_FOR_FOLDER_S if address is None else 0.0)
        except StoreBusyError:
            if address is None:
                raise
        try:
            with waiting("Querying the server"):
                return ask(address, what, parameters)
        except UnreachableError:  # a killed server leaves its address behind
            return _answer(folder, settings, query, wait_s=WAIT_FOR_FOLDER_S)


def read_options(
    *, default_last: str | None, formats: tuple[str, ...] = ("table", "json"), engines: bool = False, live: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds the options of every read command: source, time range, price, filters, output format.

    `engines`: the work can be divided among machines. `live`: the question is about now, which a lake cannot answer.
    """
    when = default_last or "everything"
    options = [
        click.option(
            "--data", metavar="DIR", type=click.Path(path_type=Path), help="The data folder. Default: PYROMETER_DATA."
        ),
        click.option("--server", metavar="URL", help="Query this server, with the token in PYROMETER_TOKEN."),
        click.option(
            "--last",
            metavar="LENGTH",
            help=f"Length of the time range, up to the newest accounted minute: 90m, 12h, 7d. Default: {when}.",
        ),
        click.option("--since", metavar="TIME", help="Start of the time range: 2026-11-14, '2026-11-14 20:00'."),
        click.option("--until", metavar="TIME", help="End of the time range, not included."),
        click.option("--month", metavar="YYYY-MM", help="A calendar month as the time range."),
        click.option("--all", "everything", is_flag=True, help="All recorded time."),
        click.option("--tz", metavar="ZONE", help="Time zone of hours, days and months: Europe/Berlin. Default: UTC."),
        click.option("--price", metavar="USD", help="Price all GPUs at this rate per GPU-hour, for a quick estimate."),
        click.option("--team", metavar="NAME", help="Only this team. `platform`: GPU time that no pod held."),
        click.option("--experiment", metavar="NAME", help="Only this experiment."),
    ]
    if not live:
        options[2:2] = LAKE_OPTIONS + (ENGINE_OPTIONS if engines else [])
    if formats:
        options.append(
            click.option("-o", "--output", type=click.Choice(formats), default="table", help="Output format.")
        )

    def with_request(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(data: Path | None, server: str | None, everything: bool, output: str = "", **others: Any) -> Any:
            if data is not None and server is not None:
                raise click.UsageError("Pass --data or --server, not both.")
            clusters = others.pop("clusters", ())
            lake = _lake_request(clusters, others)
            if lake is not None and (data is not None or server is not None):
                raise click.UsageError("Pass only one of --lake, --data and --server.")
            values = {name: others.pop(name) for name in COMMON_PARAMETERS if name != "all"}
            parameters = {name: value for name, value in values.items() if value is not None}
            if everything:
                parameters["all"] = "1"
            return function(ReadRequest(data, server, parameters, output, lake=lake, clusters=clusters), **others)

        command.__doc__ = function.__doc__
        command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        decorated: Callable[..., Any] = command
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return with_request


LAKE_OPTIONS = [
    click.option("--lake", metavar="URL", help="Read all clusters of a lake: a folder or s3://BUCKET/PREFIX."),
    click.option(
        "--cluster", "clusters", metavar="NAME", multiple=True, help="With --lake: only this cluster. Can be repeated."
    ),
]
ENGINE_OPTIONS = [
    click.option(
        "--engine", type=click.Choice(ENGINES), help="With --lake: read it on this machine or on Ray. Default: local."
    ),
    click.option(
        "--address", metavar="ADDR", help="With --engine ray: auto, HOST:6379 or ray://HOST:10001. Default: auto."
    ),
]


def _lake_request(clusters: tuple[str, ...], options: dict[str, Any]) -> LakeRequest | None:
    """Takes the options about a lake out of the options of a command."""
    url = options.pop("lake", None)
    engine, address = options.pop("engine", None), options.pop("address", None)
    if url is None:
        for name, value in (("--engine", engine), ("--address", address)):
            if value:
                raise click.UsageError(f"{name} needs --lake URL.")
        return None
    if address is not None and engine != RAY:
        raise click.UsageError("--address needs --engine ray.")
    return LakeRequest(url, clusters, engine or LOCAL, address)


def _answer(folder: Path, settings: Settings, query: Question, *, wait_s: float) -> dict[str, Any]:
    with open_store(folder, wait_s=wait_s) as store:
        return answer_from(store, settings, query, str(folder))


def open_store(folder: Path, *, wait_s: float | None = None, create: bool = False) -> Store:
    """Opens a data folder and stores what `pyrometer run` left in its inbox. A folder with only that is initialized."""
    has_inbox = bool(of_training(folder).paths())
    store = Store(folder, create=create or has_inbox, wait_s=WAIT_FOR_FOLDER_S if wait_s is None else wait_s)
    if has_inbox:
        try:
            _store_inbox(store)
        except BaseException:
            store.close()
            raise
    return store


def _store_inbox(store: Store) -> None:
    from pyrometer.serve.ingest.step_store import (
        store_inbox,  # the OTLP reader takes a while to load and is seldom needed
    )

    for reason, count in sorted(store_inbox(store).items()):
        click.echo(f"{counted(count, 'record')} of a run skipped: {reason}.", err=True)


def answer_from(store: Store, settings: Settings, query: Question, source: str) -> dict[str, Any]:
    """The answer from an open store. `source` names it in errors."""
    covered = bring_up_to_date(store, settings)
    if covered is None:
        raise click.ClickException(f"{source} contains nothing to account for yet.")
    with waiting("Querying the ledger"):
        return query(store, covered)


def bring_up_to_date(store: Store, settings: Settings, *, now_ms: int | None = None) -> LedgerCoverage | None:
    """Builds the stale hours of the ledger, with a progress bar if it takes long."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    with progress_bar("Accounting") as progress:
        return registry.bring_up_to_date(store, settings, now_ms=now_ms, progress=progress)


def print_json(answer: dict[str, Any]) -> None:
    """Prints the answer as JSON. NaN and infinity are errors."""
    click.echo(json.dumps(answer, indent=1, ensure_ascii=False, allow_nan=False))


def data_folder(named: Path | str | None) -> Path:
    """The data folder that `--data` or PYROMETER_DATA names."""
    found = named or os.environ.get("PYROMETER_DATA")
    if not found:
        nearby = data_folders(Path())
        here = f" Data folders here: {', '.join(nearby)}." if nearby else ""
        raise click.UsageError(f"No data folder: pass --data DIR, or set PYROMETER_DATA.{here}")
    return Path(found)
