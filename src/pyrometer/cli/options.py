"""The option --listen of `serve` and `agent`. The agent uses it, so it imports nothing heavy."""

from __future__ import annotations

import click


def address_of(listen: str) -> tuple[str, int]:
    """Parses the HOST:PORT of `--listen`."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536 or not host:
        raise click.UsageError(f"--listen {listen!r} is not HOST:PORT, like 127.0.0.1:8411.")
    return host.strip("[]"), int(port)


def url_of(host: str, port: int) -> str:
    """The URL of a host and a port."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
