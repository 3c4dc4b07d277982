"""Starting a server: from Python, its errors, and its warnings about access."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from pyrometer.cli import main as pyrometer
from pyrometer.model.settings import Settings
from pyrometer.questions.client import Address, published
from pyrometer.questions.tokens import Tokens
from pyrometer.serve.core import Core
from pyrometer.serve.main import (
    AuthenticationConflictError,
    ListenError,
    Services,
    SourceOptions,
    build_services,
    serve,
    warn_about_access,
)
from pyrometer.store import Store


def test_serve_runs_without_the_command_line(tmp_path: Path) -> None:
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


def test_port_in_use_is_named_in_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used, Store(tmp_path / "a", create=True) as store:
        port = used.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}"):
            asyncio.run(serve(store, Settings(), "127.0.0.1", port, SourceOptions()))
        with pytest.raises(SystemExit) as ended:
            pyrometer(["serve", "--data", str(tmp_path / "b"), "--listen", f"127.0.0.1:{port}"])
    assert ended.value.code == 1
    assert f"127.0.0.1:{port}" in capsys.readouterr().err


def test_open_option_with_authenticating_proxy_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "settings.yaml").write_text("proxy_addresses: [10.0.0.0/8]\nproxy_user_header: X-Forwarded-User\n")
    with pytest.raises(SystemExit) as ended:
        pyrometer(["serve", "--data", str(tmp_path), "--listen", "127.0.0.1:18733", "--open"])
    assert ended.value.code == 2
    assert "Use one of them" in capsys.readouterr().err


class TestWarnAboutAccess:
    @staticmethod
    def lines(folder: Path, caplog: pytest.LogCaptureFixture, host: str = "127.0.0.1", **about: Any) -> list[str]:
        with Store(folder, create=True) as store:
            settings = about.pop("settings", Settings())
            server = build_services(Core(store, settings), open_to_all=host == "127.0.0.1", **about)
            warn_about_access(server.access, store, host, always_open=about.get("always_open", False))
        return [record.getMessage() for record in caplog.records]

    def test_usual_access_logs_nothing(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert self.lines(tmp_path, caplog) == []
        Tokens(tmp_path).create("me", "viewer", 0)
        assert self.lines(tmp_path, caplog) == self.lines(tmp_path, caplog, "0.0.0.0") == []

    @pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
    def test_closed_server_logs_how_to_create_a_token(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str
    ) -> None:
        if host == "127.0.0.1":
            tokens = Tokens(tmp_path)
            tokens.create("me", "viewer", 0)
            tokens.revoke("me")
        (line,) = self.lines(tmp_path, caplog, host)
        assert "refuses every request" in line
        assert f"pyrometer token create NAME --data {tmp_path}" in line
        assert "--open" in line

    @pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
    def test_always_open_server_logs_that_everyone_is_admin(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str
    ) -> None:
        (line,) = self.lines(tmp_path, caplog, host, always_open=True)
        assert "admin" in line

    def test_always_open_conflicts_with_an_authenticating_proxy(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = Settings(proxy_addresses=("10.0.0.0/8",), proxy_user_header="X-Forwarded-User")
        with pytest.raises(AuthenticationConflictError, match="Use one of them"):
            self.lines(tmp_path, caplog, always_open=True, settings=settings)
