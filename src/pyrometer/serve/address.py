"""A server's address: while it has a data folder, whoever may read that folder finds it there and asks it instead."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pyrometer.collect.source import words
from pyrometer.serve.tokens import PREFIX
from pyrometer.store import files

if TYPE_CHECKING:
    import httpx2 as httpx

FILE = "server.json"
CONNECT_S = 5.0
LOCAL = ("127.0.0.1", "::1", "localhost")
ANSWER_S = 600.0  # the ledger may have to be built first
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - where a server listens, and how to reach it from here


class ServerError(Exception):
    """A server that does not answer, or says no; the text is one sentence. `usage`: it was asked wrongly."""

    def __init__(self, text: str, *, usage: bool = False) -> None:
        super().__init__(text)
        self.usage = usage


class UnreachableError(ServerError):
    """Nobody answers there."""


class Address(NamedTuple):
    """Where a server answers, and the word that opens it."""

    url: str
    token: str | None = None


def publish(folder: Path, host: str, port: int) -> Address:
    """Leaves a server's address in its folder, with a token of its own: who may read the file may read the data."""
    reached = EVERYWHERE.get(host, f"[{host}]" if ":" in host else host)
    address = Address(f"http://{reached}:{port}", PREFIX + secrets.token_urlsafe(32))
    files.write_text(folder / FILE, json.dumps({**address._asdict(), "pid": os.getpid()}), secret=True)
    return address


def withdraw(folder: Path) -> None:
    """The server is gone, or about to be."""
    (folder / FILE).unlink(missing_ok=True)


def published(folder: Path) -> Address | None:
    """The address that lies in a folder. A server that was killed leaves one that nobody answers at."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return Address(found["url"], found["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def ask(address: Address, what: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """A server's answer to a question."""
    return _answered(address, "GET", what, parameters)


def tell(address: Address, what: str, parameters: Mapping[str, str], body: bytes = b"") -> dict[str, Any]:
    """A server's answer to something that it is told to do, or that it is sent."""
    return _answered(address, "POST", what, parameters, body)


@contextmanager
def streamed(address: Address, what: str, body: bytes) -> Iterator[Iterator[bytes]]:
    """What a server sends piece by piece when it is told something."""
    import httpx2 as httpx

    asked = _request(address, "POST", what)
    asked["headers"]["Accept-Encoding"] = "identity"  # it is compressed already
    shown = address.url.rstrip("/")
    try:
        with httpx.stream(**asked, content=body) as response:
            if response.status_code != 200:
                response.read()
                raise _refusal(shown, response)
            yield response.iter_bytes()
    except httpx.RemoteProtocolError:
        raise ServerError(f"{shown} broke off: its log says why. What was there before is as it was.") from None
    except (httpx.HTTPError, OSError) as error:
        raise UnreachableError(f"{shown} does not answer: {words(error)}.") from None


def _answered(
    address: Address, method: str, what: str, parameters: Mapping[str, str], body: bytes | None = None
) -> dict[str, Any]:
    import httpx2 as httpx

    shown = address.url.rstrip("/")
    try:
        response = httpx.request(**_request(address, method, what), params=dict(parameters), content=body)
    except (httpx.HTTPError, OSError) as error:
        raise UnreachableError(f"{shown} does not answer: {words(error)}.") from None
    answer = _said(response)
    if response.status_code == 200 and answer is not None:
        return answer
    raise _refusal(shown, response)


def _request(address: Address, method: str, what: str) -> dict[str, Any]:
    """Whom to ask, and how."""
    import httpx2 as httpx

    shown = address.url.rstrip("/")
    try:
        host = urlsplit(shown).hostname if urlsplit(shown).scheme in ("http", "https") else None
    except ValueError:
        host = None
    if not host:
        raise ServerError(f"--server {address.url!r} is not an address: http://127.0.0.1:8411.", usage=True)
    return {
        "method": method, "url": f"{shown}/api/v1/{what}",
        "headers": {"Authorization": f"Bearer {address.token}"} if address.token else {},
        "timeout": httpx.Timeout(ANSWER_S, connect=CONNECT_S),
        "trust_env": host not in LOCAL,  # what is asked of this machine goes through no proxy
    }  # fmt: skip


def _said(response: httpx.Response) -> dict[str, Any] | None:
    try:
        answer = response.json()
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _refusal(shown: str, response: httpx.Response) -> ServerError:
    said = (_said(response) or {}).get("error")
    if not isinstance(said, str):
        return ServerError(f"{shown} answers HTTP {response.status_code}: is it a Pyrometer server?")
    return ServerError(said, usage=response.status_code == 400)
