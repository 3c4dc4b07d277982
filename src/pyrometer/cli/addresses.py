"""Where a command listens: HOST:PORT as people write it."""

from __future__ import annotations

import click


def address_of(listen: str) -> tuple[str, int]:
    """The host and port that `--listen` names."""
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536 or not host:
        raise click.UsageError(f"--listen {listen!r} is not HOST:PORT, like 127.0.0.1:8411.")
    return host.strip("[]"), int(port)


def url_of(host: str, port: int) -> str:
    """The address as a URL."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
