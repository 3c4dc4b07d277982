"""The composition root of a server: builds its parts, starts its tasks, and answers until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette

from pyrometer.act.http_post import secret_of
from pyrometer.act.notifier import Notifier, receivers
from pyrometer.act.summary_writers import MlflowSummaryWriter, SummaryWriter, WandbSummaryWriter
from pyrometer.collect.kubernetes.api import Api, connect
from pyrometer.collect.prometheus.api import Prometheus
from pyrometer.collect.trackers.mlflow import Mlflow
from pyrometer.export.metrics_text import Collector as MetricsCollector
from pyrometer.identify.kubernetes.cluster import Cluster
from pyrometer.model.settings import Settings
from pyrometer.questions import client as addresses
from pyrometer.questions.client import Address
from pyrometer.questions.host_addresses import is_loopback
from pyrometer.questions.tokens import Tokens
from pyrometer.serve.core import Core, Nodes
from pyrometer.serve.disk import UNACCOUNTED, Disk
from pyrometer.serve.http import routes
from pyrometer.serve.http.admin import BackupRoute, MonthRoutes
from pyrometer.serve.http.answering import Answering
from pyrometer.serve.http.audit import Audit
from pyrometer.serve.http.auth import Access, Sessions
from pyrometer.serve.http.event_stream import EventStream
from pyrometer.serve.http.guard import protocol
from pyrometer.serve.http.health import Health
from pyrometer.serve.http.routes import AnswerRoutes, Guarded, ProbeRoutes
from pyrometer.serve.ingest.kubernetes_collector import KubernetesCollector
from pyrometer.serve.ingest.otlp_receiver import OtlpReceiver
from pyrometer.serve.ingest.remote_write_receiver import RemoteWriteReceiver
from pyrometer.serve.ingest.source_readers import Sources
from pyrometer.serve.runtime import collect_rarely, repeat, restart_on_error
from pyrometer.serve.tasks import lake_copy_task
from pyrometer.serve.tasks.accounting import Accounting, LedgerMetrics
from pyrometer.serve.tasks.findings_task import FindingsTask
from pyrometer.serve.tasks.lake_copy_task import LakeCopyTask
from pyrometer.serve.tasks.otlp_push_task import OtlpPushTask, receiver
from pyrometer.serve.tasks.scrub import Scrub
from pyrometer.serve.tasks.vitals import MeasuredParts, Vitals
from pyrometer.store import Store

ACCOUNT_EVERY_S, LOOK_EVERY_S = 5.0, 15.0  # or less often when it takes long: see `runtime.repeat`
MAX_ACCEPTED_AT_ONCE = 32  # new connections, before existing ones get their turn
MAX_QUEUED = 2_048  # new connections in the kernel, if it allows that many

_log = logging.getLogger("pyrometer")


class ListenError(Exception):
    """A port that cannot be listened on."""


class AuthenticationConflictError(ValueError):
    """Options and settings that contradict each other about authentication."""


class SourceOptions(NamedTuple):
    """The sources that a server follows, by address."""

    kube: bool = False
    context: str | None = None
    scrape: tuple[str, ...] = ()
    prometheus: str | None = None


@dataclass(frozen=True)
class Services:
    """The parts of one server. Only the code that starts a server and tests have all of them."""

    core: Core
    access: Access
    audit: Audit
    events: EventStream
    metrics: LedgerMetrics
    collectors: tuple[MetricsCollector, ...]  # of everything that `/metrics` shows
    accounting: Accounting
    answering: Answering
    findings: FindingsTask
    sources: Sources
    health: Health
    remote_write: RemoteWriteReceiver
    otlp: OtlpReceiver
    backup: BackupRoute
    answers: AnswerRoutes
    scrub: Scrub
    lake_copy: LakeCopyTask
    push: OtlpPushTask
    notifier: Notifier
    summary_writers: tuple[SummaryWriter, ...]

    def application(self) -> Starlette:
        """The ASGI application."""
        accounting, access, audit = self.accounting, self.access, self.audit
        return routes.application(
            Guarded(access, audit, self.core.disk),
            ProbeRoutes(self.health, access, audit, self.collectors),
            self.answers,
            Sessions(access, audit, lambda: accounting.news),
            MonthRoutes(self.core, accounting),
            self.backup,
            self.remote_write,
            self.otlp,
            audit,
        )

    def end_streams(self) -> None:
        """Ends responses that would keep the server from stopping."""
        self.events.end()
        self.backup.end()

    async def end(self) -> None:
        """Ends everything that clients wait for."""
        self.end_streams()
        await self.answering.end()


def build_services(
    core: Core,
    sources: Sources | None = None,
    *,
    address: Address | None = None,
    mlflow: Mlflow | None = None,
    open_to_all: bool,
    always_open: bool = False,
) -> Services:
    """Builds the parts of a server. `open_to_all`: no authentication is needed until there is a token.
    `always_open`: nor afterwards."""
    settings, folder = core.settings, core.store.folder
    sources = sources or Sources(core)
    events, metrics = EventStream(), LedgerMetrics.empty()
    audit = Audit(folder, on=settings.audit_log == "yes")
    access = Access(
        Tokens(folder), settings, address.token if address else None, open_to_all=open_to_all, always_open=always_open
    )
    accounting = Accounting(core, metrics, events)
    answering = Answering(core, accounting, events)
    remote_write, otlp = RemoteWriteReceiver(core), OtlpReceiver(core)

    async def why(since: str, until: str) -> dict[str, Any] | None:
        return await answering.ask_if_available("why", {"since": since, "until": until})

    notifier = Notifier(settings, folder, why)
    summary_writers = _summary_writers(settings, answering, mlflow, address)
    scrub, lake_copy = Scrub(core), LakeCopyTask(core, accounting)
    push = OtlpPushTask(core, lambda: collectors, answering.ask)
    health = Health(sources, core.disk, scrub, lake_copy, summary_writers)
    vitals = Vitals(
        MeasuredParts(
            accounting=accounting,
            health=health,
            disk=core.disk,
            sources=sources,
            remote_write=remote_write,
            otlp=otlp,
            push=push,
            lake_copy=lake_copy,
            notifier=notifier,
            summary_writers=summary_writers,
        )
    )
    collectors: tuple[MetricsCollector, ...] = (*metrics, vitals)
    return Services(
        core=core,
        access=access,
        audit=audit,
        events=events,
        metrics=metrics,
        collectors=collectors,
        accounting=accounting,
        answering=answering,
        findings=FindingsTask(core, answering.ask, notifier, metrics.ledger, events),
        sources=sources,
        health=health,
        remote_write=remote_write,
        otlp=otlp,
        backup=BackupRoute(core, audit),
        answers=AnswerRoutes(answering, access, events),
        scrub=scrub,
        lake_copy=lake_copy,
        push=push,
        notifier=notifier,
        summary_writers=summary_writers,
    )


def _summary_writers(
    settings: Settings, answering: Answering, mlflow: Mlflow | None, address: Address | None
) -> tuple[SummaryWriter, ...]:
    """The writers of costs into trackers, for those that are enabled."""
    found: list[SummaryWriter] = []
    if mlflow is not None and settings.mlflow_stamp == "yes":
        found.append(MlflowSummaryWriter(mlflow, answering.ask_if_available, public_url=settings.public_url))
        _log.info("The cost of runs is written into %s.", mlflow.uri)
    if address is not None and settings.wandb_stamp == "yes":
        found.append(WandbSummaryWriter(answering.ask_if_available, lambda: address, folder=settings.wandb_dir))
        _log.info("The cost of runs is written into W&B (%s).", settings.wandb_dir or "its server")
    return tuple(found)


class _Connections(NamedTuple):
    """The clients of the sources that a server follows."""

    api: Api | None
    prometheus: Prometheus | None
    mlflow: Mlflow | None

    @classmethod
    def open(cls, options: SourceOptions, settings: Settings) -> _Connections:
        api = connect(options.context) if options.kube else None
        prometheus = Prometheus(options.prometheus, settings) if options.prometheus else None
        return cls(api, prometheus, _mlflow(settings))

    async def close(self) -> None:
        for connection in self:
            if connection is not None:
                await connection.close()


def _mlflow(settings: Settings) -> Mlflow | None:
    if not settings.mlflow_tracking_uri:
        return None
    path = settings.mlflow_token_file
    mlflow = Mlflow(settings.mlflow_tracking_uri, secret_of("mlflow_token_file", path) if path else None)
    _log.info("Runs of %s are read every minute.", mlflow.uri)
    return mlflow


async def serve(
    store: Store,
    settings: Settings,
    host: str,
    port: int,
    options: SourceOptions,
    *,
    always_open: bool = False,
    on_listening: Callable[[Address], None] = lambda address: None,
    alongside: Callable[[Services], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Answers until SIGTERM or SIGINT. Port 0 is any free one. `always_open`: no authentication, even if there are
    tokens. `on_listening` gets the address once requests are answered. `alongside` runs as one more task."""
    Cluster("", settings)  # raises errors of rules
    for sentence in (*receivers(settings), receiver(settings)):
        if sentence is not None:
            _log.info("%s", sentence)
    with _listen(host, port) as listening:
        address = addresses.new_address(host, listening.getsockname()[1])
        connections = _Connections.open(options, settings)
        core, sources = _connect(store, settings, options, connections)
        services = build_services(
            core,
            sources,
            address=address,
            mlflow=connections.mlflow,
            open_to_all=is_loopback(host),
            always_open=always_open,
        )
        warn_about_access(services.access, store, host, always_open=always_open)
        tasks = _start_tasks(services)
        if alongside is not None:
            tasks.append(asyncio.create_task(alongside(services)))
        try:
            await _answer(services, listening, address, on_listening)
        finally:
            addresses.withdraw(store.folder)
            for task in tasks:
                task.cancel()
            await services.end()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            await connections.close()


def _connect(
    store: Store, settings: Settings, options: SourceOptions, connections: _Connections
) -> tuple[Core, Sources]:
    """The core of a server, and its sources."""
    lock, disk = asyncio.Lock(), Disk()
    collector, nodes = None, Nodes()
    if connections.api is not None:
        collector = KubernetesCollector(store, connections.api, settings, lock, disk)
        nodes = Nodes(collector.node_uid_of, are_followed=True)
    core = Core(store, settings, lock, disk, nodes)
    sources = Sources(
        core,
        collector=collector,
        exporter_urls=options.scrape,
        prometheus=connections.prometheus,
        mlflow=connections.mlflow,
    )
    return core, sources


def _start_tasks(services: Services) -> list[asyncio.Task[None]]:
    """Starts the tasks of a server."""
    disk, lake_copy = services.core.disk, services.lake_copy
    running: list[Coroutine[Any, Any, None]] = [
        services.sources.run(),
        repeat(ACCOUNT_EVERY_S, services.accounting.update, UNACCOUNTED, disk),
        repeat(LOOK_EVERY_S, services.findings.look, "Looking for findings failed", disk),
        restart_on_error(services.scrub.run, disk),
        collect_rarely(),
    ]
    if services.notifier.is_on:
        running.append(restart_on_error(services.notifier.run, disk))
    if services.push.is_on:
        running.append(restart_on_error(services.push.run, disk))
    if lake_copy.is_on:
        _log.info("Sealed parts are copied into the lake %s.", lake_copy.url)
        running.append(repeat(lake_copy_task.EVERY_S, lake_copy.copy, "Copying into the lake failed", disk))
    running += [restart_on_error(writer.run, disk) for writer in services.summary_writers]
    return [asyncio.create_task(one) for one in running]


async def _answer(
    services: Services, listening: socket.socket, address: Address, on_listening: Callable[[Address], None]
) -> None:
    """Answers HTTP until a signal stops it."""
    config = uvicorn.Config(
        services.application(),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
        http=protocol(),
        ws="none",
        proxy_headers=False,  # trusted proxies are a setting
        server_header=False,
        backlog=MAX_ACCEPTED_AT_ONCE,
    )
    http = _HttpServer(config)
    # uvicorn's own handlers would end the process before the tasks have ended
    http.capture_signals = nullcontext  # type: ignore[method-assign, assignment]

    def stop() -> None:
        http.should_exit = True
        services.end_streams()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    # Only now, because a process that reads the address may send a signal at once, and acknowledged bodies must be
    # stored.
    addresses.publish(services.core.store.folder, address)
    on_listening(address)
    await http.serve(sockets=[listening])


class _HttpServer(uvicorn.Server):
    """Accepts a few new connections at a time from a long queue. asyncio has one number for both. With a large one, a
    burst of connections takes all open files, and honest connections are closed before their request is read."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(MAX_QUEUED)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # IPPROTO_TCP is named because asyncio disables delays only on sockets that do so. Otherwise every response would
    # take 40 ms longer.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # connections wait until the server is ready
    except OSError as error:
        listening.close()
        raise ListenError(f"Cannot listen on {host}:{port}: {error.strerror}. Choose another port.") from None
    return listening


def warn_about_access(access: Access, store: Store, host: str, *, always_open: bool) -> None:
    """Warns when no client, or every client, has access."""
    has_proxy = access.proxy.is_configured
    if always_open and has_proxy:
        raise AuthenticationConflictError(
            "--open serves without authentication, but the settings proxy_addresses and proxy_user_header name a proxy "
            "that authenticates. Use one of them."
        )
    if always_open and not is_loopback(host):
        _log.warning("--open on %s: everyone who can reach this address is an admin.", host)
    elif always_open:
        _log.warning("--open: every user and program of this machine is an admin.")
    elif not access.is_open() and not has_proxy and not access.tokens.listed():
        _log.warning(
            "There are no tokens, so this server refuses every request. Create one with "
            "`pyrometer token create NAME --data %s`, or serve without authentication with --open.",
            store.folder,
        )
