"""A server starts from Python; its command turns errors into exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import httpx2 as httpx
import pytest

from pyrometer.cli import main as pyrometer
from pyrometer.model.settings import Settings
from pyrometer.questions.client import Address, published
from pyrometer.serve.main import ListenError, Services, SourceOptions, serve
from pyrometer.store import Store


def test_a_server_runs_without_the_command_line(tmp_path: Path) -> None:
    answers: list[int] = []

    async def run() -> None:
        listening: asyncio.Future[Address] = asyncio.get_running_loop().create_future()

        async def ask(services: Services) -> None:
            address = await listening
            assert published(tmp_path) == address
            assert address.token is not None
            async with httpx.AsyncClient(base_url=address.url) as client:
                answers.append((await client.get("/readyz")).status_code)
                headers = {"Authorization": f"Bearer {address.token}"}
                answers.append((await client.get("/api/v1/session", headers=headers)).status_code)
            os.kill(os.getpid(), signal.SIGTERM)

        with Store(tmp_path, create=True) as store:
            await serve(
                store, Settings(), "127.0.0.1", 0, SourceOptions(), on_listening=listening.set_result, alongside=ask
            )

    asyncio.run(run())
    assert answers == [200, 200]
    assert published(tmp_path) is None


def test_a_port_in_use_is_an_error_that_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used, Store(tmp_path / "a", create=True) as store:
        port = used.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}"):
            asyncio.run(serve(store, Settings(), "127.0.0.1", port, SourceOptions()))
        with pytest.raises(SystemExit) as ended:
            pyrometer(["serve", "--data", str(tmp_path / "b"), "--listen", f"127.0.0.1:{port}"])
    assert ended.value.code == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_open_and_a_proxy_that_authenticates_are_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.yaml").write_text("proxy_addresses: [10.0.0.0/8]\nproxy_user_header: X-Forwarded-User\n")
    with pytest.raises(SystemExit) as ended:
        pyrometer(["serve", "--data", str(tmp_path), "--listen", "127.0.0.1:18733", "--open"])
    assert ended.value.code == 2
    assert "Use one of them" in capsys.readouterr().err
