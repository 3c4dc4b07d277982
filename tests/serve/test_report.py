"""The report's server: one page, to this machine, and nothing else."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from pyrometer.serve.report import report_server


@contextmanager
def served(page, port=0):
    with report_server(page, port=port) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address
        finally:
            server.shutdown()
            thread.join()


def get(port, path="/"):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return answer.headers, answer.read().decode()


def test_the_page_is_served_as_it_is_now():
    pages = iter(["<p>first</p>", "<p>zweite – ü</p>"])
    with served(lambda: next(pages)) as (host, port):
        assert host == "127.0.0.1"  # loopback, and nothing else
        headers, text = get(port)
        assert text == "<p>first</p>"
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert headers["Cache-Control"] == "no-store"
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert get(port, "/?again")[1] == "<p>zweite – ü</p>"


@pytest.mark.parametrize("path", ["/truth.json", "/../README.md", "/%2e%2e/"])
def test_there_is_no_other_page(path):
    with served(lambda: "page") as (_, port), pytest.raises(urllib.error.HTTPError, match="404"):
        get(port, path)


def test_a_taken_port_is_left_to_whoever_has_it():
    with served(lambda: "first") as (_, port), served(lambda: "second", port=port) as (_, other):
        assert other != port
        assert (get(port)[1], get(other)[1]) == ("first", "second")
