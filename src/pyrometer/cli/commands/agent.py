"""`pyrometer agent`: exports GPU metrics from NVML under the metric names of dcgm-exporter.

It runs on every GPU node, so it imports nothing heavy.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from pathlib import Path

import click

from pyrometer.agent.nvml import Nvml, NvmlError
from pyrometer.agent.pod_resources import SOCKET
from pyrometer.agent.server import Agent, AgentServer
from pyrometer.cli.options import address_of, url_of
from pyrometer.questions.host_addresses import is_loopback

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9400",
    show_default=True,
    help="The address to serve metrics on.",
)
@click.option(
    "--every", metavar="LENGTH", default="1s", show_default=True, help="How often to read the GPUs: 500ms, 10s."
)
@click.option(
    "--pod-resources",
    metavar="SOCKET",
    default=SOCKET,
    show_default=True,
    type=click.Path(path_type=Path),
    help="The kubelet socket that reports which pod has which GPU.",
)
@click.option(
    "--proc",
    metavar="DIR",
    default="/proc",
    show_default=True,
    type=click.Path(path_type=Path),
    help="The /proc of the node.",
)
def command(listen: str, every: str, pod_resources: Path, proc: Path) -> None:
    """Serves GPU metrics of this machine at /metrics of HOST:PORT, with the metric names of dcgm-exporter. It does not
    need DCGM. It stops cleanly on SIGTERM and Ctrl-C."""
    host, port = address_of(listen)
    every_s = _seconds(every)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        agent = Agent(Nvml(), every_s=every_s, pod_resources=pod_resources, proc=proc)
    except NvmlError as error:
        raise click.ClickException(str(error)) from None
    serve(agent, host, port)


def serve(agent: Agent, host: str, port: int) -> None:
    """Reads GPUs and serves metrics until a signal stops the process."""
    try:
        server = AgentServer((host, port), agent)
    except OSError as error:
        raise click.ClickException(f"--listen {host}:{port}: {error.strerror}. Choose another port.") from None
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # set by another thread: this thread may hold the lock of the event when the signal arrives
        signal.signal(number, lambda *_: threading.Thread(target=ended.set).start())
    agent.tick(time.monotonic())  # so that the first scrape is not empty
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    reach = "" if is_loopback(host) else ", open to everyone who can reach it"
    click.echo(f"Listening on {url_of(host, port)}/metrics{reach}. Press Ctrl-C to stop.", err=True)
    agent.run(ended)
    server.shutdown()
    server.server_close()
    agent.close()


def _seconds(length: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", length)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0.1 <= seconds <= 300:
        raise click.UsageError(f"--every {length!r} is not a duration from 100ms to 5m, like 1s.")
    return seconds
