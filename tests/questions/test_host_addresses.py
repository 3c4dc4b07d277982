"""Whether a host is this machine, and the network of an address."""

from __future__ import annotations

import pytest

from pyrometer.questions.host_addresses import is_loopback, network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [("192.0.2.7", "192.0.2.7"), ("2001:db8::1", "2001:db8::/64"), ("::ffff:192.0.2.7", "192.0.2.7"), ("?", "?")],
)
def test_network_of_ipv6_is_its_64_bit_prefix(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.7", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_is_loopback_of_addresses_and_names(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected
