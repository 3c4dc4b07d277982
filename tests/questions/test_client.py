"""The address of a server in its folder, and requests to it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pyrometer.questions import client
from pyrometer.questions.client import Address, ServerError, UnreachableError, ask, new_address, post, published
from tests.support.kube_server import free_port


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8411"),
        ("0.0.0.0", "http://127.0.0.1:8411"),
        ("::", "http://[::1]:8411"),
        ("fd00::1", "http://[fd00::1]:8411"),
        ("gpu-head", "http://gpu-head:8411"),
    ],
)
def test_new_address_can_be_reached_from_this_machine(host: str, url: str) -> None:
    address = new_address(host, 8411)
    assert address.url == url
    assert address.token is not None
    assert address.token.startswith("pyr_")
    assert address.token != new_address(host, 8411).token


def test_published_address_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    address = new_address("127.0.0.1", 8411)
    client.publish(tmp_path, address)
    assert published(tmp_path) == address
    assert (tmp_path / client.FILE).stat().st_mode & 0o077 == 0
    client.withdraw(tmp_path)
    assert published(tmp_path) is None
    client.withdraw(tmp_path)  # also without a file


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": "http://x"}'])
def test_broken_address_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / client.FILE).write_text(text)
    assert published(tmp_path) is None


class Echo(BaseHTTPRequestHandler):
    """Answers with the request, or with the status in the path."""

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def _answer(self, body: bytes) -> None:
        what = self.path.removeprefix("/api/v1/").partition("?")[0]
        status = int(what) if what.isdecimal() else 200
        shown = {"path": self.path, "token": self.headers.get("Authorization"), "body": body.decode(), "error": "No."}
        content = b"<html>" if what == "html" else json.dumps(shown).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture(scope="module")
def echo_url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_ask_sends_parameters_and_token(echo_url: str) -> None:
    answer = ask(Address(echo_url + "/", "pyr_x"), "cost", {"by": "team"})
    assert (answer["path"], answer["token"]) == ("/api/v1/cost?by=team", "Bearer pyr_x")
    assert post(Address(echo_url), "close", {"month": "2026-10"}, b"x")["body"] == "x"
    assert ask(Address(echo_url), "cost", {})["token"] is None


@pytest.mark.parametrize(("status", "usage"), [("400", True), ("401", False), ("404", False), ("500", False)])
def test_refused_request_raises_the_servers_text(echo_url: str, status: str, *, usage: bool) -> None:
    with pytest.raises(ServerError, match=r"^No\.$") as raised:
        ask(Address(echo_url), status, {})
    assert raised.value.usage is usage


def test_response_that_is_not_json_is_not_from_a_server(echo_url: str) -> None:
    with pytest.raises(ServerError, match="Is it a Pyrometer server"):
        ask(Address(echo_url), "html", {})


def test_closed_port_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match="does not answer"):
        ask(Address(f"http://127.0.0.1:{free_port()}"), "cost", {})


@pytest.mark.parametrize("url", ["here", "ftp://x", "http://", "http://[", ""])
def test_invalid_url_is_a_usage_error(url: str) -> None:
    with pytest.raises(ServerError, match="is not a URL") as raised:
        ask(Address(url), "cost", {})
    assert raised.value.usage
