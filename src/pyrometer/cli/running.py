"""How every command runs: options they share, the data folder brought up to date, errors as one sentence."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import duckdb

from pyrometer.account.closing import ClosingError
from pyrometer.account.ledger import LedgerCoverage
from pyrometer.account.time_range import TimeRangeError
from pyrometer.cli.errors import fail, finish
from pyrometer.cli.progress import progress_bar, waiting
from pyrometer.cli.settings import read_settings
from pyrometer.collect.source import SourceError
from pyrometer.explain.words import counted
from pyrometer.identify.kinds import RuleError
from pyrometer.identify.price_book import PriceError
from pyrometer.model.settings import SettingError, Settings
from pyrometer.serve import questions
from pyrometer.serve.address import Address, ServerError, UnreachableError, ask, published
from pyrometer.serve.questions import NotFoundError, Question, QuestionError, question
from pyrometer.serve.tokens import TokenError
from pyrometer.store import Store, StoreBusyError, StoreError, data_folders
from pyrometer.store.engines import ENGINES, LOCAL, RAY
from pyrometer.store.errors import READ_ERRORS, first_line
from pyrometer.store.inbox import of_training

WAIT_FOR_FOLDER_S = 10.0


def run_command(command: click.Command, name: str, arguments: list[str]) -> int:
    """Runs a click command; an error is one sentence on stderr."""
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
    except READ_ERRORS as error:  # a part that is gone or broken
        if isinstance(error, duckdb.ProgrammingError) and not isinstance(error, duckdb.InvalidInputException):
            raise  # ours
        return fail(f"{first_line(error)}. `pyrometer check DIR` says what is wrong with a data folder.", 1)


class LakeOptions(NamedTuple):
    """What the options say of a lake: which, which clusters of it, and what divides the work."""

    url: str
    clusters: tuple[str, ...] = ()
    engine: str = "local"
    address: str | None = None


class ReadRequest(NamedTuple):
    """What the options of a read command say: whom to ask, about which time, at which price, in which form."""

    data: Path | None
    server: str | None
    parameters: dict[str, str]
    output: str
    token: str | None = None  # for the server; else PYROMETER_TOKEN
    lake: LakeOptions | None = None
    clusters: tuple[str, ...] = ()  # of a lake

    def answer(self, what: str, **more: str) -> dict[str, Any]:
        """The answer, from the server that was named, the data folder, or the server that has that folder."""
        parameters = {**self.parameters, **more}
        if self.lake is not None:
            from pyrometer.cli.lakes import ask_lake  # what reads lakes takes a while to load

            return ask_lake(self.lake, what, parameters)
        if self.clusters:
            raise click.UsageError("--cluster is about a lake: say --lake URL, too.")
        if self.server is not None:
            with waiting("Asking the server"):
                return ask(Address(self.server, self.token or os.environ.get("PYROMETER_TOKEN")), what, parameters)
        folder = data_folder(self.data)
        settings = read_settings(os.environ, folder)
        asked = question(what, parameters, settings)
        address = published(folder)
        try:
            return _answer(folder, settings, asked, wait_s=WAIT_FOR_FOLDER_S if address is None else 0.0)
        except StoreBusyError:
            if address is None:
                raise
        try:
            with waiting("Asking the server"):
                return ask(address, what, parameters)
        except UnreachableError:  # a server that was killed left its address
            return _answer(folder, settings, asked, wait_s=WAIT_FOR_FOLDER_S)


def read_options(
    *, default_last: str | None, formats: tuple[str, ...] = ("table", "json"), engines: bool = False, live: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of every read command: which folder, server or lake, which time, which price, which form. `engines`:
    the work can be divided among machines; `live`: it is about now, of which a lake knows nothing."""
    when = f"the last {default_last}" if default_last else "everything"
    options = [
        click.option("--data", metavar="DIR", type=click.Path(path_type=Path),
                     help="The data folder. Default: PYROMETER_DATA."),
        click.option("--server", metavar="URL", help="Ask this server, with PYROMETER_TOKEN. Default: the folder."),
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
        click.option("--team", metavar="NAME", help="Only what belongs to this team; platform: what nobody held."),
        click.option("--experiment", metavar="NAME", help="Only what belongs to this experiment."),
    ]  # fmt: skip
    if not live:
        options[2:2] = LAKE_OPTIONS + (ENGINE_OPTIONS if engines else [])
    if formats:
        options.append(
            click.option("-o", "--output", type=click.Choice(formats), default="table", help="The form of the answer.")
        )

    def with_asked(function: Callable[..., Any]) -> Callable[..., Any]:
        def command(data: Path | None, server: str | None, everything: bool, output: str = "", **others: Any) -> Any:
            if data is not None and server is not None:
                raise click.UsageError("Say --data or --server, not both.")
            clusters = others.pop("clusters", ())
            lake = _lake_asked(clusters, others)
            if lake is not None and (data is not None or server is not None):
                raise click.UsageError("Say --lake, --data or --server, not two of them.")
            told = {name: others.pop(name) for name in questions.COMMON_PARAMETERS if name != "all"}
            parameters = {name: value for name, value in told.items() if value is not None}
            if everything:
                parameters["all"] = "1"
            return function(ReadRequest(data, server, parameters, output, lake=lake, clusters=clusters), **others)

        command.__doc__ = function.__doc__
        command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        decorated: Callable[..., Any] = command
        for option in reversed(options):
            decorated = option(decorated)
        return decorated

    return with_asked


LAKE_OPTIONS = [
    click.option("--lake", metavar="URL", help="Read a lake, a folder or s3://BUCKET/PREFIX: all its clusters as one."),
    click.option("--cluster", "clusters", metavar="NAME", multiple=True,
                 help="Of a lake, this cluster only; several times, too."),
]  # fmt: skip
ENGINE_OPTIONS = [
    click.option(
        "--engine", type=click.Choice(ENGINES), help="What reads a lake: this machine, or Ray. Default: local."
    ),
    click.option(
        "--address", metavar="ADDR", help="The Ray cluster: auto, HOST:6379, ray://HOST:10001. Default: auto."
    ),
]


def _lake_asked(clusters: tuple[str, ...], options: dict[str, Any]) -> LakeOptions | None:
    """Takes what is said of a lake out of the options."""
    url = options.pop("lake", None)
    engine, address = options.pop("engine", None), options.pop("address", None)
    if url is None:
        for name, value in (("--engine", engine), ("--address", address)):
            if value:
                raise click.UsageError(f"{name} is about a lake: say --lake URL, too.")
        return None
    if address is not None and engine != RAY:
        raise click.UsageError("--address is that of a Ray cluster: say --engine ray, too.")
    return LakeOptions(url, clusters, engine or LOCAL, address)


def _answer(folder: Path, settings: Settings, asked: Question, *, wait_s: float) -> dict[str, Any]:
    with open_store(folder, wait_s=wait_s) as store:
        return answer_from(store, settings, asked, str(folder))


def open_store(folder: Path, *, wait_s: float | None = None, create: bool = False) -> Store:
    """The data folder, with what `pyrometer run` put there; one that has nothing else becomes a data folder."""
    left = bool(of_training(folder).paths())
    store = Store(folder, create=create or left, wait_s=WAIT_FOR_FOLDER_S if wait_s is None else wait_s)
    if left:
        try:
            _take_in(store)
        except BaseException:
            store.close()
            raise
    return store


def _take_in(store: Store) -> None:
    from pyrometer.serve.training import store_inbox  # reading OTLP is slow to import and seldom needed

    for reason, count in sorted(store_inbox(store).items()):
        click.echo(f"{counted(count, 'record')} of a run left out: {reason}.", err=True)


def answer_from(store: Store, settings: Settings, asked: Question, named: str) -> dict[str, Any]:
    """The answer from a store that is open."""
    covered = bring_up_to_date(store, settings)
    if covered is None:
        raise click.ClickException(f"{named} holds nothing to account for yet.")
    with waiting("Asking the ledger"):
        return asked(store, covered)


def bring_up_to_date(store: Store, settings: Settings, *, now_ms: int | None = None) -> LedgerCoverage | None:
    """Builds the stale hours of the ledger, with a bar when that takes long."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    with progress_bar("Accounting") as progress:
        return questions.bring_up_to_date(store, settings, now_ms=now_ms, progress=progress)


def print_json(answer: dict[str, Any]) -> None:
    """The answer as JSON; nothing in it may be what JSON cannot say."""
    click.echo(json.dumps(answer, indent=1, ensure_ascii=False, allow_nan=False))


def data_folder(named: Path | str | None) -> Path:
    """The data folder that `--data` or PYROMETER_DATA names."""
    found = named or os.environ.get("PYROMETER_DATA")
    if not found:
        near = data_folders(Path())
        here = f"Here: {', '.join(near)}. " if near else ""
        raise click.UsageError(f"Which data folder? {here}Say --data DIR, or set PYROMETER_DATA.")
    return Path(found)
