"""`pyrometer serve`: follows a cluster into a data folder and answers over HTTP, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

import click
import uvicorn

from pyrometer.act.post import secret_of
from pyrometer.act.stamping import MlflowSummaryWriter, WandbSummaryWriter
from pyrometer.act.teller import receivers
from pyrometer.cli.addresses import address_of, is_loopback
from pyrometer.cli.running import data_folder
from pyrometer.cli.settings import read_settings
from pyrometer.collect.dcgm import Dcgm
from pyrometer.collect.kubernetes.api import Api, connect
from pyrometer.collect.mlflow import Mlflow
from pyrometer.collect.node_exporter import NodeExporters
from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.collect.prometheus.follow import Following
from pyrometer.collect.prometheus.kube_state import GPU_REQUESTS
from pyrometer.collect.scrape import Scrapes, Target, of_gpus, of_machines
from pyrometer.collect.source import SourceError
from pyrometer.identify.cluster import Cluster
from pyrometer.identify.gpu_models import near_idle_power_w
from pyrometer.model.units import MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.serve import address
from pyrometer.serve.app import Server, application
from pyrometer.serve.collector import Collector, cluster_name, remembered
from pyrometer.serve.connections import protocol
from pyrometer.serve.copying import EVERY_S as COPY_EVERY_S
from pyrometer.serve.disk import OF_DISK, OF_DUCKDB, UNACCOUNTED, UNSTORED, Disk
from pyrometer.serve.garbage import collect_seldom
from pyrometer.serve.history import History, Marks, Remembering
from pyrometer.serve.pushing import receiver
from pyrometer.serve.telemetry import OfKubernetes, OfLabels, People, Telemetry
from pyrometer.serve.threads import to_its_end
from pyrometer.serve.tracked import FollowingMlflow
from pyrometer.store import Store
from pyrometer.store.reader import newest_slots

ACCOUNT_EVERY_S, LOOK_EVERY_S = 5.0, 15.0  # unless it takes long: then it rests ten times as long as it worked
REST = 10
MACHINES_EVERY_S = 60.0  # node_exporters: a row a minute is kept
log = logging.getLogger("pyrometer")
RESTART_S = 5.0
ACCEPTED_AT_ONCE = 32  # new connections: then those that are there are answered
QUEUED = 2_048  # new connections in the kernel, as far as it allows


@click.command()
@click.option("--data", metavar="DIR", help="The data folder; made if it is not there. Default: PYROMETER_DATA.")
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8411", show_default=True, help="Where it answers.")
@click.option("--kube", is_flag=True, help="Follow the Kubernetes cluster of the kubeconfig, or the one it runs in.")
@click.option("--context", metavar="NAME", help="Another context of the kubeconfig than the current one.")
@click.option("--scrape", metavar="URL", multiple=True, help="A GPU exporter to scrape; more than one may be named.")
@click.option(
    "--prometheus", metavar="URL", help="A Prometheus that scrapes GPU exporters: its past, and what it adds."
)
@click.option("--open", "always_open", is_flag=True, help="Serve without authentication, even if there are tokens.")
def command(
    data: str | None, listen: str, kube: bool, context: str | None, scrape: tuple[str, ...], prometheus: str | None,
    always_open: bool,
) -> None:  # fmt: skip
    """The server: follows the cluster, keeps the ledger, answers on HOST:PORT. Stops cleanly on SIGTERM and Ctrl-C."""
    folder = data_folder(data)
    host, port = address_of(listen)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    with Store(folder, create=True) as store:
        asyncio.run(serve(store, host, port, Sources(kube, context, scrape, prometheus), always_open=always_open))


class Sources(NamedTuple):
    """Where a server has its facts from."""

    kube: bool = False
    context: str | None = None
    scrape: tuple[str, ...] = ()
    prometheus: str | None = None


async def serve(
    store: Store,
    host: str,
    port: int,
    sources: Sources,
    beside: Callable[[Server], Coroutine[Any, Any, None]] | None = None,
    *,
    always_open: bool = False,
) -> None:
    """Answers until it is told to stop; `beside` is what else goes on meanwhile. `always_open`: without authentication,
    even if there are tokens."""
    settings = read_settings(os.environ, store.folder)
    Cluster("", settings)  # a rule that makes no sense is said at once
    loopback = is_loopback(host)
    lock = asyncio.Lock()
    server = Server(store, settings, lock, open_to_all=loopback, always_open=always_open)
    _say_who_may_ask(server, host, always_open=always_open)
    for told in (*receivers(settings), receiver(settings)):
        if told is not None:
            log.info("%s", told)
    listening = _listening(host, port)
    port = listening.getsockname()[1]  # 0 is any that is free
    api = connect(sources.context) if sources.kube else None
    prometheus = Prometheus(sources.prometheus, settings) if sources.prometheus else None
    mlflow = _mlflow(server)
    if api is not None:
        server.collector = Collector(store, api, settings, lock, server.disk)
    tasks = [asyncio.create_task(_collect(server, sources.scrape, prometheus, api, mlflow))]
    # So that questions are answered at once, and those who listen are told.
    tasks.append(asyncio.create_task(_every(ACCOUNT_EVERY_S, server.keep_books, UNACCOUNTED, server.disk)))
    tasks.append(
        asyncio.create_task(_every(LOOK_EVERY_S, server.look, "Findings could not be looked for", server.disk))
    )
    tasks.append(asyncio.create_task(_again(server.scrub.run, server.disk)))
    tasks.append(asyncio.create_task(collect_seldom()))
    if server.notifier.is_on:
        tasks.append(asyncio.create_task(_again(server.notifier.run, server.disk)))
    if server.pushing.is_on:
        tasks.append(asyncio.create_task(_again(server.pushing.run, server.disk)))
    if server.copying.is_on:
        log.info("What is sealed is copied into the lake %s.", server.copying.place)
        trouble = "Nothing could be copied into the lake"
        tasks.append(asyncio.create_task(_every(COPY_EVERY_S, server.copying.copy, trouble, server.disk)))
    if settings.wandb_stamp == "yes":
        server.summary_writers.append(
            WandbSummaryWriter(server.say, lambda: server.address or ("", None), folder=settings.wandb_dir)
        )
        log.info("Runs of W&B are told what they cost, %s.", settings.wandb_dir or "on its server")
    tasks += [asyncio.create_task(_again(writer.run, server.disk)) for writer in server.summary_writers]
    if beside is not None:
        tasks.append(asyncio.create_task(beside(server)))
    config = uvicorn.Config(
        application(server), log_config=None, access_log=False, timeout_graceful_shutdown=5, http=protocol(), ws="none",
        proxy_headers=False,  # whose word counts is a setting
        server_header=False, backlog=ACCEPTED_AT_ONCE,
    )  # fmt: skip
    http = _Http(config)
    # its own handlers would end the process before it is tidied up
    http.capture_signals = nullcontext  # type: ignore[method-assign, assignment]

    def stop() -> None:
        http.should_exit = True
        server.live.end()  # who listens would keep it from ending
        server.backups.end()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    server.address = address.publish(store.folder, host, port)
    # after the handlers: who reads this may stop it at once, and what was acknowledged is stored all the same
    click.echo(f"Listening on {server.address.url}, data in {store.folder}. Ctrl-C stops it.", err=True)
    try:
        await http.serve(sockets=[listening])
    finally:
        address.withdraw(store.folder)
        for task in tasks:
            task.cancel()
        await server.end()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        for connection in (api, prometheus, mlflow):
            if connection is not None:
                await connection.close()


def _say_who_may_ask(server: Server, host: str, *, always_open: bool) -> None:
    """Says in one line when everybody may ask, or nobody."""
    has_proxy, is_open = server.access.proxy.is_trusted_at_all, server.access.is_open()
    if always_open and has_proxy:
        raise click.UsageError(
            "--open serves without authentication, but the settings proxy_addresses and proxy_user_header name a proxy "
            "that authenticates. Use one of them."
        )
    if always_open and not is_loopback(host):
        log.warning("--open on %s: everyone who can reach this address is an admin.", host)
    elif always_open:
        log.warning("--open: every user and program of this machine is an admin.")
    elif not is_open and not has_proxy and not server.tokens.listed():
        log.warning(
            "There are no tokens, so this server answers nobody. Create one with "
            "`pyrometer token create NAME --data %s`, or serve without authentication with --open.",
            server.store.folder,
        )


class _Http(uvicorn.Server):
    """Takes a few new connections at a time from a long queue. asyncio has one number for both. With a large one a
    burst of connections takes all open files, and closes an honest connection before its request is read."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUED)


def _mlflow(server: Server) -> Mlflow | None:
    """The tracking server whose runs are read, and, where that is switched on, told what they cost."""
    settings = server.settings
    if not settings.mlflow_tracking_uri:
        return None
    path = settings.mlflow_token_file
    mlflow = Mlflow(settings.mlflow_tracking_uri, secret_of("mlflow_token_file", path) if path else None)
    log.info("Runs of %s are read every minute.", mlflow.uri)
    if settings.mlflow_stamp == "yes":
        server.summary_writers.append(MlflowSummaryWriter(mlflow, server.say, public_url=settings.public_url))
        log.info("Runs of %s are told what they cost.", mlflow.uri)
    return mlflow


async def _collect(
    server: Server, scrape: tuple[str, ...], prometheus: Prometheus | None, api: Api | None, mlflow: Mlflow | None
) -> None:
    """First the past, where a Prometheus remembers it and nobody watched yet; then everything at once, for ever."""
    if prometheus is not None and api is not None:
        server.reading = f"the past from {prometheus.url}"
        try:
            await _read_past(server, prometheus, api)
        except (SourceError, TimeoutError) as error:
            log.warning("The past could not be read, and is left out: %s", error)
        server.reading = None
    remembers = prometheus is not None and api is None and await _remembers_pods(prometheus)
    async with server.lock:
        server.telemetry = await to_its_end(_telemetry, server, scrape, prometheus, remembers)
    if prometheus is not None and remembers:
        server.telemetry.append(Remembering(server.store, server.settings, server.lock, prometheus))
    if mlflow is not None:
        server.telemetry.append(FollowingMlflow(server.store, server.lock, mlflow))
    running = [one.run for one in server.telemetry]
    if server.collector is not None:
        running.append(server.collector.run)
    await asyncio.gather(*(_again(run, server.disk) for run in running))


async def _read_past(server: Server, prometheus: Prometheus, api: Api) -> None:
    """Once, into a folder that has seen nothing of this cluster: what was watched is known better."""
    done = f"past_read_from {prometheus.url}"
    now_ms = time.time_ns() // 1_000_000 // MS_PER_MINUTE * MS_PER_MINUTE
    name = server.settings.cluster or await cluster_name(api)
    async with server.lock:
        before = await to_its_end(remembered, server.store, name, now_ms)
        begun = bool(Marks(server.store, prometheus.url).read())
        if server.store.meta(done) or (before.last_live_ms is not None and not begun):
            return
    from_ms = now_ms - server.settings.prometheus_history_hours * MS_PER_HOUR
    log.info("Reading the last %s hours from %s", server.settings.prometheus_history_hours, prometheus.url)
    history = History(server.store, server.settings, from_ms, now_ms, server.lock)
    await history.read(prometheus, api, lambda done, total: None)
    async with server.lock:
        await to_its_end(server.store.set_meta, done, str(now_ms))


async def _remembers_pods(prometheus: Prometheus) -> bool:
    """Whether it has kube-state-metrics; without them, labels of telemetry say who is there."""
    now_ms = time.time_ns() // 1_000_000
    while True:
        try:
            return bool(await prometheus.labels(GPU_REQUESTS, now_ms - MS_PER_HOUR, now_ms))
        except SourceError as error:
            log.warning("%s", error)
            await asyncio.sleep(RESTART_S)


def _telemetry(
    server: Server, scrape: tuple[str, ...], prometheus: Prometheus | None, remembers: bool
) -> list[Telemetry | Remembering | FollowingMlflow]:
    """Exporters that were named or found; or a Prometheus, which scrapes them already."""
    of_kubernetes = server.collector is not None
    labels = OfLabels(server.settings)
    who: People = labels
    if of_kubernetes:
        who = OfKubernetes(lambda: server.collector.cluster if server.collector else None)
    elif scrape or (prometheus is not None and not remembers):
        now_ms = time.time_ns() // 1_000_000
        last_ms = server.store.newest_ms(["gpu_sample"], now_ms) or now_ms
        server.store.append(labels.resume(remembered(server.store, labels.cluster.name, now_ms), last_ms))
    found: list[Telemetry | Remembering | FollowingMlflow] = []
    if prometheus is not None and not remembers:
        marks = Marks(server.store, prometheus.url)
        since_ms = max((to_ms for _, to_ms in marks.read()), default=time.time_ns() // 1_000_000)
        following = Following(prometheus, _dcgm(server), since_ms)
        found.append(Telemetry(server.store, server.lock, following, who, covered=marks.add, disk=server.disk))
    finds = of_kubernetes and prometheus is None and server.settings.find_exporters == "yes"
    if scrape or finds:
        named = [Target(url) for url in scrape]

        def targets() -> list[Target]:
            source = server.collector.source if finds and server.collector else None
            return [*named, *(source.exporters.values() if source else ())]

        scrapes = Scrapes(targets, of_gpus(_dcgm(server)), interval_s=server.settings.scrape_interval_s)
        found.append(Telemetry(server.store, server.lock, scrapes, who, disk=server.disk))
    if finds:
        machines = of_machines(NodeExporters(server.node_uid_of))
        scrapes = Scrapes(lambda: _gpu_machines(server), machines, interval_s=MACHINES_EVERY_S)
        found.append(Telemetry(server.store, server.lock, scrapes, who, disk=server.disk))
    return found


def _gpu_machines(server: Server) -> list[Target]:
    """The node_exporters of nodes that have GPUs."""
    source = server.collector.source if server.collector else None
    found = source.machine_exporters.values() if source else ()
    return [target for target in found if target.node and server.node_uid_of(target.node)]


def _dcgm(server: Server) -> Dcgm:
    return Dcgm(server.node_uid_of, near_idle_power_w, newest_slots(server.store))


async def _again(run: Callable[[], Awaitable[None]], disk: Disk) -> None:
    """Goes on for ever: what goes wrong is said, and tried again."""
    while True:
        try:
            await run()
        except asyncio.CancelledError:
            raise
        except OF_DUCKDB as error:
            disk.failed(UNSTORED, error)
            await asyncio.sleep(RESTART_S)
        except Exception:
            log.exception("Something stopped; it starts again in %s s", RESTART_S)
            await asyncio.sleep(RESTART_S)


async def _every(least_s: float, work: Callable[[], Awaitable[None]], trouble: str, disk: Disk) -> None:
    """Does something for ever, and rests in between: the longer, the longer it takes."""
    while True:
        began_s = time.monotonic()
        try:
            await work()
            disk.worked(trouble)
        except OF_DISK as error:
            disk.failed(trouble, error)
        except Exception:
            log.exception("%s; it is tried again", trouble)
        await asyncio.sleep(max(least_s, REST * (time.monotonic() - began_s)))


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named: asyncio sends without delay only over what says that it is TCP, and every answer would take 40 ms more.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # who asks before the server is ready waits
    except OSError as error:
        listening.close()
        raise click.ClickException(f"--listen {host}:{port}: {error.strerror}. Name another port.") from None
    return listening
