"""`pyrometer agent`: a GPU exporter over NVML, in dcgm-exporter's metric names.

It runs on every GPU node, so it imports nothing that is heavy.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from pathlib import Path

import click

from pyrometer.cli.options import address_of, url_of
from pyrometer.collect.nvml import Nvml, NvmlError
from pyrometer.collect.pod_resources import SOCKET
from pyrometer.serve.agent import Agent, AgentServer
from pyrometer.serve.host_addresses import is_loopback

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0}


@click.command()
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:9400", show_default=True, help="Where it can be scraped."
)
@click.option("--every", metavar="LENGTH", default="1s", show_default=True, help="How often GPUs are read: 500ms, 10s.")
@click.option(
    "--pod-resources", metavar="SOCKET", default=SOCKET, show_default=True,
    type=click.Path(path_type=Path), help="The kubelet's socket that says which pod has which GPU.",
)  # fmt: skip
@click.option(
    "--proc", metavar="DIR", default="/proc", show_default=True,
    type=click.Path(path_type=Path), help="Where the processes of the node are seen.",
)  # fmt: skip
def command(listen: str, every: str, pod_resources: Path, proc: Path) -> None:
    """GPU metrics of this machine, as dcgm-exporter has them, at /metrics of HOST:PORT; no DCGM is needed. Stops
    cleanly on SIGTERM and Ctrl-C."""
    host, port = address_of(listen)
    every_s = _seconds(every)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        agent = Agent(Nvml(), every_s=every_s, pod_resources=pod_resources, proc=proc)
    except NvmlError as error:
        raise click.ClickException(str(error)) from None
    serve(agent, host, port)


def serve(agent: Agent, host: str, port: int) -> None:
    """Reads and answers until the process is told to stop."""
    try:
        server = AgentServer((host, port), agent)
    except OSError as error:
        raise click.ClickException(f"--listen {host}:{port}: {error.strerror}. Name another port.") from None
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # set by another thread: this one may hold the event's lock when the signal comes
        signal.signal(number, lambda *_: threading.Thread(target=ended.set).start())
    agent.tick(time.monotonic())  # so that nobody is shown an empty page
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    reach = "" if is_loopback(host) else ", for whoever can reach it"
    click.echo(f"Listening on {url_of(host, port)}/metrics{reach}. Ctrl-C stops it.", err=True)
    agent.run(ended)
    server.shutdown()
    server.server_close()
    agent.close()


def _seconds(length: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", length)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0.1 <= seconds <= 300:
        raise click.UsageError(f"--every {length!r} is not a length from 100ms to 5m, like 1s.")
    return seconds
