"""`pyrometer serve`: follows a cluster into a data folder and answers over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any

import click

from pyrometer.cli.command_support import data_folder
from pyrometer.cli.options import address_of
from pyrometer.cli.settings_files import read_settings
from pyrometer.questions.client import Address
from pyrometer.serve import main
from pyrometer.serve.main import AuthenticationConflictError, ListenError, Services, SourceOptions
from pyrometer.store import Store


@click.command()
@click.option("--data", metavar="DIR", help="The data folder. Created if it does not exist. Default: PYROMETER_DATA.")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8411", show_default=True, help="Where to listen.")
@click.option("--kube", is_flag=True, help="Follow the Kubernetes cluster of the kubeconfig, or the one it runs in.")
@click.option("--context", metavar="NAME", help="Context of the kubeconfig. Default: the current one.")
@click.option("--scrape", metavar="URL", multiple=True, help="A GPU exporter to scrape. Can be repeated.")
@click.option("--prometheus", metavar="URL", help="A Prometheus that scrapes GPU exporters. Its history is read first.")
@click.option("--open", "always_open", is_flag=True, help="Serve without authentication, even if there are tokens.")
def command(
    data: str | None,
    listen: str,
    kube: bool,
    context: str | None,
    scrape: tuple[str, ...],
    prometheus: str | None,
    always_open: bool,
) -> None:
    """Runs the server: follows the cluster, keeps the ledger, answers on HOST:PORT. Stops on SIGTERM and Ctrl-C."""
    folder = data_folder(data)
    host, port = address_of(listen)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    with Store(folder, create=True) as store:
        run_server(store, host, port, SourceOptions(kube, context, scrape, prometheus), always_open=always_open)


def run_server(
    store: Store,
    host: str,
    port: int,
    options: SourceOptions,
    *,
    always_open: bool = False,
    alongside: Callable[[Services], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Runs a server until it is stopped, and prints its address."""

    def print_address(address: Address) -> None:
        click.echo(f"Listening on {address.url}, data in {store.folder}. Press Ctrl-C to stop.", err=True)

    settings = read_settings(os.environ, store.folder)
    try:
        asyncio.run(
            main.serve(
                store,
                settings,
                host,
                port,
                options,
                always_open=always_open,
                on_listening=print_address,
                alongside=alongside,
            )
        )
    except AuthenticationConflictError as error:
        raise click.UsageError(str(error)) from None
    except ListenError as error:
        raise click.ClickException(f"--listen: {error}") from None
