"""The client of a server, and the file in a data folder with the address of the server that uses it.

A process that can read the folder finds the address and a token there, and asks the server instead.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pyrometer.collect.source import error_text
from pyrometer.questions.host_addresses import LOCAL_HOSTS
from pyrometer.questions.tokens import PREFIX
from pyrometer.store import files

if TYPE_CHECKING:
    import httpx2 as httpx

FILE = "server.json"
CONNECT_S = 5.0
ANSWER_S = 600.0  # the ledger may have to be built first
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - where a server listens, and how to reach it from this machine


class ServerError(Exception):
    """A server that does not answer or refuses. The text is one sentence. `usage`: the question is wrong."""

    def __init__(self, text: str, *, usage: bool = False) -> None:
        super().__init__(text)
        self.usage = usage


class UnreachableError(ServerError):
    """No server answers at an address."""


class Address(NamedTuple):
    """The URL of a server and a token for it."""

    url: str
    token: str | None = None


def new_address(host: str, port: int) -> Address:
    """The address of a server that listens there, with a new token."""
    reached = EVERYWHERE.get(host, f"[{host}]" if ":" in host else host)
    return Address(f"http://{reached}:{port}", PREFIX + secrets.token_urlsafe(32))


def publish(folder: Path, address: Address) -> None:
    """Writes a server's address and token into its folder. A process that can read the file can read the data."""
    files.write_text(folder / FILE, json.dumps({**address._asdict(), "pid": os.getpid()}), secret=True)


def withdraw(folder: Path) -> None:
    """Removes the address from a folder, because the server stops."""
    (folder / FILE).unlink(missing_ok=True)


def published(folder: Path) -> Address | None:
    """The address in a folder. After a server was killed, no server answers there."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return Address(found["url"], found["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def ask(address: Address, what: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """A server's answer to a question."""
    return _answered(address, "GET", what, parameters)


def post(address: Address, what: str, parameters: Mapping[str, str], body: bytes = b"") -> dict[str, Any]:
    """A server's answer to a request that changes something."""
    return _answered(address, "POST", what, parameters, body)


@contextmanager
def streamed(address: Address, what: str, body: bytes) -> Iterator[Iterator[bytes]]:
    """The response to a POST, piece by piece."""
    import httpx2 as httpx

    request = _request(address, "POST", what)
    request["headers"]["Accept-Encoding"] = "identity"  # it is compressed already
    shown = address.url.rstrip("/")
    try:
        with httpx.stream(**request, content=body) as response:
            if response.status_code != 200:
                response.read()
                raise _refusal(shown, response)
            yield response.iter_bytes()
    except httpx.RemoteProtocolError:
        raise ServerError(f"{shown} closed the connection early. See its log. Existing files are unchanged.") from None
    except (httpx.HTTPError, OSError) as error:
        raise UnreachableError(f"{shown} does not answer: {error_text(error)}.") from None


def _answered(
    address: Address, method: str, what: str, parameters: Mapping[str, str], body: bytes | None = None
) -> dict[str, Any]:
    import httpx2 as httpx

    shown = address.url.rstrip("/")
    try:
        response = httpx.request(**_request(address, method, what), params=dict(parameters), content=body)
    except (httpx.HTTPError, OSError) as error:
        raise UnreachableError(f"{shown} does not answer: {error_text(error)}.") from None
    answer = _json_of(response)
    if response.status_code == 200 and answer is not None:
        return answer
    raise _refusal(shown, response)


def _request(address: Address, method: str, what: str) -> dict[str, Any]:
    """The request, without its parameters and body."""
    import httpx2 as httpx

    shown = address.url.rstrip("/")
    try:
        host = urlsplit(shown).hostname if urlsplit(shown).scheme in ("http", "https") else None
    except ValueError:
        host = None
    if not host:
        raise ServerError(f"--server {address.url!r} is not a URL like http://127.0.0.1:8411.", usage=True)
    return {
        "method": method,
        "url": f"{shown}/api/v1/{what}",
        "headers": {"Authorization": f"Bearer {address.token}"} if address.token else {},
        "timeout": httpx.Timeout(ANSWER_S, connect=CONNECT_S),
        "trust_env": host not in LOCAL_HOSTS,  # requests to this machine use no proxy
    }


def _json_of(response: httpx.Response) -> dict[str, Any] | None:
    try:
        answer = response.json()
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _refusal(shown: str, response: httpx.Response) -> ServerError:
    text = (_json_of(response) or {}).get("error")
    if not isinstance(text, str):
        return ServerError(f"{shown} answered HTTP {response.status_code}. Is it a Pyrometer server?")
    return ServerError(text, usage=response.status_code == 400)
