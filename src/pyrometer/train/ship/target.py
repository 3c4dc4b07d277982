"""Where telemetry is sent: a server that accepts OTLP over HTTP, or a data folder on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection, HTTPResponse

CONNECT_S = 5.0
RESPONSE_S = 30.0  # without any data from the server
POST_S = 60.0  # in total
MAX_RESPONSE_BYTES = 65_536
MAX_RETRY_AFTER_S = 300.0
SEARCH_EVERY_S = 30.0  # for a server that has the folder
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class TargetError(ValueError):
    """An invalid address or token. The text is one sentence."""


class PostOutcome(Enum):
    """What the target did with a body."""

    ACCEPTED = "accepted"
    REFUSED = "refused"  # permanently
    RETRY = "retry"


class PostResult(NamedTuple):
    """What the target did with a body, with its message, and when to try again."""

    outcome: PostOutcome
    text: str = ""
    retry_after_s: float = 0.0
    status: int = 0


class TelemetryTarget(Protocol):
    """A place that accepts bodies."""

    display_url: str  # its address, without secrets

    def post(self, name: str, body: bytes) -> PostResult:
        """Offers a body, whose file name contains the signal."""

    def expire(self) -> None:
        """Ends a request that takes too long. Another thread calls it once per second."""

    def close(self) -> None:
        """Closes the connection."""


def target_of(environment: Mapping[str, str] = os.environ) -> TelemetryTarget:
    """The target that PYROMETER_ENDPOINT names."""
    endpoint = environment.get("PYROMETER_ENDPOINT", "")
    if endpoint.startswith("file:///"):
        return FolderTarget(Path(unquote(endpoint.removeprefix("file://"))))
    return HttpTarget(endpoint, environment.get("PYROMETER_TOKEN"), environment.get("PYROMETER_CA_FILE"))


class HttpTarget:
    """A server, with one connection that is reused."""

    def __init__(
        self, url: str, token: str | None = None, ca_file: str | None = None, *, response_s: float = RESPONSE_S
    ) -> None:
        try:
            address = urlsplit(url.strip())
            port = address.port
        except ValueError:
            address, port = urlsplit(""), None
        if address.scheme not in ("http", "https") or not address.hostname:
            raise TargetError(
                f"PYROMETER_ENDPOINT {_without_secrets(url)!r} is not an address. Example: http://127.0.0.1:8411"
            )
        self._host, self._port, self._secure = address.hostname, port, address.scheme == "https"
        self._prefix = address.path.rstrip("/")
        self.display_url = _without_secrets(url.strip()).rstrip("/")
        self._proxy = _proxy_of(address)
        self._ca_file = ca_file
        self._headers = {"Content-Type": "application/json", "Content-Encoding": "gzip", "User-Agent": "pyrometer"}
        token = (token or "").strip()
        if token:
            if not (token.isascii() and token.isprintable()):  # http.client would show it in full in an error
                raise TargetError("PYROMETER_TOKEN contains invalid characters. Create a token with `pyrometer token`.")
            self._headers["Authorization"] = f"Bearer {token}"
        self._response_s = response_s
        self._connection: HTTPConnection | None = None
        self._posting_since_s: float | None = None

    def post(self, name: str, body: bytes) -> PostResult:
        """Offers a body. Reconnects if the server has closed the connection since the last request."""
        from http.client import HTTPException

        signal = name.split(".")[-3]
        while True:
            used = self._connection is not None
            self._posting_since_s = time.monotonic()
            try:
                return self._post_once(signal, body)
            except (OSError, HTTPException) as error:
                self.close()
                if not (used and isinstance(error, ConnectionError)):  # this includes RemoteDisconnected
                    return PostResult(PostOutcome.RETRY, _describe(error))
            finally:
                self._posting_since_s = None

    def expire(self) -> None:
        """Ends a request that a server keeps open by sending a byte from time to time."""
        import socket

        since_s, connection = self._posting_since_s, self._connection
        if since_s is not None and time.monotonic() - since_s > POST_S and connection is not None and connection.sock:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post_once(self, signal: str, body: bytes) -> PostResult:
        connection = self._connect()
        path = f"{self._prefix}/v1/{signal}"
        if self._proxy and not self._secure:
            path = f"http://{_authority(self._host, self._port)}{path}"
        connection.request("POST", path, body, self._headers)
        response = connection.getresponse()
        reply = response.read(MAX_RESPONSE_BYTES)
        if response.will_close or not response.isclosed():
            self.close()
        return _result_of(response, reply)

    def _connect(self) -> HTTPConnection:
        if self._connection is None:
            from http.client import HTTPConnection, HTTPSConnection

            host, port = (self._proxy[0], self._proxy[1]) if self._proxy else (self._host, self._port)
            connection: HTTPConnection
            if self._secure:
                connection = HTTPSConnection(host, port, timeout=CONNECT_S, context=self._ssl_context())
                if self._proxy:
                    connection.set_tunnel(self._host, self._port or 443, self._proxy[2])
            else:
                connection = HTTPConnection(host, port, timeout=CONNECT_S)
            self._connection = connection
            connection.connect()
            connection.sock.settimeout(self._response_s)
            if self._proxy and not self._secure:
                self._headers.update(self._proxy[2])
        return self._connection

    def _ssl_context(self) -> ssl.SSLContext:
        import ssl

        context = ssl.create_default_context()
        if self._ca_file:
            context.load_verify_locations(self._ca_file)
        return context


class FolderTarget:
    """A data folder: writes bodies to its inbox, or sends them to the server that has the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._inbox = folder / "inbox" / "otlp"
        self.display_url = str(folder)
        self._server: HttpTarget | None = None
        self._searched_at_s = -SEARCH_EVERY_S

    def post(self, name: str, body: bytes) -> PostResult:
        """Offers a body to the server of the folder. If it does not accept the body, writes the body to the inbox."""
        server = self._find_server()
        if server is not None:
            result = server.post(name, body)
            if result.outcome is PostOutcome.ACCEPTED:
                return result
            server.close()
            self._server = None
        try:
            for folder in (self._folder, self._inbox.parent, self._inbox):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(mode=0o700, parents=True)
            temporary = self._inbox / f"{name}.tmp"
            temporary.write_bytes(body)
            temporary.rename(self._inbox / name)
        except OSError as error:
            return PostResult(PostOutcome.RETRY, f"the folder cannot be written: {error.strerror}")
        return PostResult(PostOutcome.ACCEPTED)

    def expire(self) -> None:
        """Ends a request that takes too long."""
        server = self._server
        if server is not None:
            server.expire()

    def close(self) -> None:
        """Closes the connection to the server, if there is one."""
        if self._server is not None:
            self._server.close()

    def _find_server(self) -> HttpTarget | None:
        """The server whose address is in the folder, which is read again from time to time."""
        now_s = time.monotonic()
        if self._server is None and now_s - self._searched_at_s >= SEARCH_EVERY_S:
            self._searched_at_s = now_s
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                found = json.loads((self._folder / "server.json").read_text(encoding="utf-8"))
                self._server = HttpTarget(found["url"], found["token"], response_s=CONNECT_S)
        return self._server


def _result_of(response: HTTPResponse, reply: bytes) -> PostResult:
    status = response.status
    if 200 <= status < 300:
        return PostResult(PostOutcome.ACCEPTED, _rejected(reply), status=status)
    text = f"HTTP {status} {_first_line(reply) or response.reason}".strip()
    if 400 <= status < 500 and status not in (408, 429):
        return PostResult(PostOutcome.REFUSED, text, status=status)
    return PostResult(PostOutcome.RETRY, text, _retry_after_s(response.headers.get("Retry-After")), status)


def _rejected(reply: bytes) -> str:
    """The part of an accepted body that the server rejected, as a sentence."""
    if b"rejected" not in reply:
        return ""
    try:
        partial = json.loads(reply)["partialSuccess"]
        rejected = {name: int(count) for name, count in partial.items() if name.startswith("rejected")}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return ""
    if not any(rejected.values()):
        return ""
    return f"{sum(rejected.values())} records were rejected: {partial.get('errorMessage', '')}"[:300]


def _retry_after_s(header: str | None) -> float:
    if not header:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        from email.utils import parsedate_to_datetime

        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S) if seconds == seconds else 0.0


def _proxy_of(address: SplitResult) -> tuple[str, int | None, dict[str, str]] | None:
    """Host, port and headers of the proxy that the environment names; None for addresses of this machine."""
    host = address.hostname or ""
    if host in _LOOPBACK or host.startswith("127."):
        return None
    from urllib.request import getproxies, proxy_bypass

    if proxy_bypass(host):
        return None
    proxies = getproxies()
    found = proxies.get(address.scheme) or proxies.get("all")
    if not found:
        return None
    proxy = urlsplit(found if "//" in found else f"//{found}")
    headers = {}
    if proxy.username:
        import base64

        secret = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}"
    return (proxy.hostname, proxy.port, headers) if proxy.hostname else None


def _authority(host: str, port: int | None) -> str:
    host = f"[{host}]" if ":" in host else host
    return host if port is None else f"{host}:{port}"


def _without_secrets(url: str) -> str:
    scheme, slashes, rest = url.partition("//")
    authority, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{authority.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _first_line(reply: bytes) -> str:
    """The error message of a server, as one line of printable text."""
    text = reply[:300].decode("utf-8", "replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:200]


def _describe(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())[:200]
