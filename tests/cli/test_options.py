"""The HOST:PORT of `--listen`, and its URL."""

from __future__ import annotations

import click
import pytest

from pyrometer.cli.options import address_of, url_of


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:8411", ("127.0.0.1", 8411)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
    ],
)
def test_address_of_splits_host_and_port(listen, address):
    assert address_of(listen) == address


@pytest.mark.parametrize("listen", ["", "host", ":80", "host:", "host:0", "host:65536", "host:-1", "host:http"])
def test_address_of_refuses_other_texts(listen):
    with pytest.raises(click.UsageError, match="is not HOST:PORT"):
        address_of(listen)


def test_url_of_puts_ipv6_addresses_in_brackets():
    assert url_of("::1", 8411) == "http://[::1]:8411"
    assert url_of("localhost", 80) == "http://localhost:80"
