"""`pyrometer serve`: follows a cluster into a data folder and answers over HTTP, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from contextlib import nullcontext, suppress

import click
import uvicorn

from pyrometer.cli.addresses import address_of, is_loopback
from pyrometer.cli.running import data_folder
from pyrometer.cli.settings import read_settings
from pyrometer.collect.kubernetes.api import connect
from pyrometer.serve import address
from pyrometer.serve.app import Server, application
from pyrometer.serve.collector import Collector
from pyrometer.store import Store

ACCOUNT_EVERY_S = 60.0
RESTART_S = 5.0


@click.command()
@click.option("--data", metavar="DIR", help="The data folder; made if it is not there. Default: PYROMETER_DATA.")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8411", show_default=True, help="Where it answers.")
@click.option("--kube", is_flag=True, help="Follow the Kubernetes cluster of the kubeconfig, or the one it runs in.")
@click.option("--context", metavar="NAME", help="Another context of the kubeconfig than the current one.")
def command(data: str | None, listen: str, kube: bool, context: str | None) -> None:
    """The server: follows the cluster, keeps the ledger, answers on HOST:PORT. Stops cleanly on SIGTERM and Ctrl-C."""
    folder = data_folder(data)
    host, port = address_of(listen)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    with Store(folder, create=True) as store:
        asyncio.run(_serve(store, host, port, kube, context))


async def _serve(store: Store, host: str, port: int, kube: bool, context: str | None) -> None:
    settings = read_settings(os.environ, store.folder)
    loopback = is_loopback(host)
    lock = asyncio.Lock()
    server = Server(store, settings, lock, open_to_all=loopback)
    if not loopback and not server.tokens.listed():
        logging.getLogger("pyrometer").warning(
            "%s can be reached by others, and there is no token yet: nobody may ask. "
            "pyrometer token create NAME --role viewer --data %s", host, store.folder,
        )  # fmt: skip
    listening = _listening(host, port)
    tasks: list[asyncio.Task[None]] = []
    api = None
    if kube:
        api = connect(context)
        server.collector = Collector(store, api, settings, lock)
        tasks.append(asyncio.create_task(_collect(server.collector)))
    tasks.append(asyncio.create_task(_account(server)))
    server.address = address.publish(store.folder, host, port)
    click.echo(f"Listening on {server.address.url}, data in {store.folder}. Ctrl-C stops it.", err=True)
    config = uvicorn.Config(application(server), log_config=None, access_log=False, timeout_graceful_shutdown=5)
    http = uvicorn.Server(config)
    # its own handlers would end the process before it is tidied up
    http.capture_signals = nullcontext  # type: ignore[method-assign, assignment]
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, setattr, http, "should_exit", True)
    try:
        await http.serve(sockets=[listening])
    finally:
        address.withdraw(store.folder)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        if api is not None:
            await api.close()


async def _collect(collector: Collector) -> None:
    """Goes on for ever: what goes wrong is said, and tried again."""
    while True:
        try:
            await collector.run()
        except asyncio.CancelledError:
            raise
        except Exception:
            logging.getLogger("pyrometer").exception("The collector stopped; it starts again in %s s", RESTART_S)
            await asyncio.sleep(RESTART_S)


async def _account(server: Server) -> None:
    """Keeps the ledger up to date, so that questions are answered at once."""
    while True:
        async with server.lock:
            try:
                await asyncio.to_thread(server.keep_books)
            except Exception:
                logging.getLogger("pyrometer").exception("The ledger could not be built; it is tried again")
        await asyncio.sleep(ACCOUNT_EVERY_S)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # who asks before the server is ready waits
    except OSError as error:
        listening.close()
        raise click.ClickException(f"--listen {host}:{port}: {error.strerror}. Name another port.") from None
    return listening
