"""A real server process for tests, stopped like Kubernetes stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx

from tests.support.kube_server import free_port


@contextmanager
def serving(
    folder: Path, *more: str, host: str = "127.0.0.1", port: int | None = None, **variables: str
) -> Iterator[httpx.Client]:
    """A server that listens. It is stopped like Kubernetes stops it."""
    port = port or free_port()
    command = [sys.executable, "-m", "pyrometer", "serve", "--data", str(folder), "--listen", f"{host}:{port}", *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables})
    assert process.stderr is not None
    with process.stderr, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        log: list[str] = []
        for line in process.stderr:
            log.append(line)
            if "Listening" in line:
                break
        assert str(port) in "".join(log[-1:]), log
        try:
            client.get("/healthz")
            yield client
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            code = process.wait(timeout=30)
        assert code == 0
