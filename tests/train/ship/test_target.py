"""Targets of telemetry: a server over HTTP, or a data folder."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time

import pytest

from pyrometer.train.ship import target as targets
from pyrometer.train.ship.target import HttpTarget, PostOutcome, PostResult, TargetError, target_of
from tests.support.otlp_server import Collector


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def posted(target: HttpTarget) -> PostResult:
    answer = target.post("1-1.logs.json.gz", b"x")
    target.close()
    return answer


def test_post_aborts_a_response_that_trickles(monkeypatch):
    monkeypatch.setattr(targets, "POST_S", 0.2)
    slow = socket.create_server(("127.0.0.1", 0))

    def trickle() -> None:
        connection, _ = slow.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 2")
            try:
                while True:
                    connection.sendall(b"x")
                    time.sleep(0.02)
            except OSError:
                pass

    threading.Thread(target=trickle, daemon=True).start()
    target = HttpTarget(f"http://127.0.0.1:{slow.getsockname()[1]}")
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            target.expire()

    threading.Thread(target=watch, daemon=True).start()
    begun = time.monotonic()
    answer = target.post("1-1.logs.json.gz", b"x")
    ended.set()
    slow.close()
    target.close()
    assert answer.outcome is PostOutcome.RETRY
    assert time.monotonic() - begun < 10


def test_post_returns_the_retry_after_of_the_server(collector):
    collector.moods = ["429", "503"]
    target = HttpTarget(collector.url)
    assert target.post("1-1.logs.json.gz", b"x").retry_after_s == 0.01
    assert target.post("1-1.logs.json.gz", b"x").retry_after_s == 0.0
    target.close()
    assert targets._retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert targets._retry_after_s("1e9") == targets.MAX_RETRY_AFTER_S
    assert targets._retry_after_s("soon") == targets._retry_after_s("nan") == 0.0


def test_http_target_reconnects_when_the_server_closes(collector):
    target = HttpTarget(collector.url)
    assert target.post("1-1.logs.json.gz", b"x").outcome is PostOutcome.ACCEPTED
    kept = target._connection.sock
    assert target.post("1-2.logs.json.gz", b"x").outcome is PostOutcome.ACCEPTED
    assert target._connection.sock is kept
    collector.moods = ["drop"]  # an idle connection that was closed looks like this
    assert target.post("1-3.logs.json.gz", b"x").outcome is PostOutcome.ACCEPTED
    assert target._connection.sock is not kept
    target.close()


def test_proxy_is_used_except_for_local_addresses(collector, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://user:word@127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert posted(HttpTarget(collector.url)).outcome is PostOutcome.ACCEPTED
    assert HttpTarget("http://inside.example")._proxy is None
    proxied = Collector()
    monkeypatch.setenv("http_proxy", f"http://user:word@{proxied.url.removeprefix('http://')}")
    assert posted(HttpTarget("http://else.example:4318/x")).outcome is PostOutcome.ACCEPTED
    proxied.close()
    ((path, headers),) = proxied.requests
    assert path == "http://else.example:4318/x/v1/logs"
    assert headers["Host"] == "else.example:4318"
    assert headers["Proxy-Authorization"] == "Basic dXNlcjp3b3Jk"


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://x", "http://", "http://[::1", "https://:443", "file:relative"])
def test_invalid_address_is_a_one_line_error(url):
    with pytest.raises(TargetError, match="is not an address"):
        target_of({"PYROMETER_ENDPOINT": url})


def test_configured_certificate_authority_is_trusted(tmp_path, monkeypatch):
    made = subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            tmp_path / "key",
            "-out",
            tmp_path / "cert",
        ],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"needs openssl: {made.stderr[-200:]}")
    collector = Collector()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    collector._server.socket = context.wrap_socket(collector._server.socket, server_side=True)
    url = collector.url.replace("http://127.0.0.1", "https://localhost")
    answer = posted(HttpTarget(url))
    assert answer.outcome is PostOutcome.RETRY
    assert "certificate verify failed" in answer.text
    trusting = target_of({"PYROMETER_ENDPOINT": url, "PYROMETER_CA_FILE": str(tmp_path / "cert")})
    assert posted(trusting).outcome is PostOutcome.ACCEPTED
    collector.close()
