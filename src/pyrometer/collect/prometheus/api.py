"""A read-only client for Prometheus-compatible APIs: Prometheus, Thanos, Mimir, VictoriaMetrics."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import httpx2 as httpx
import msgspec
import numpy as np
import numpy.typing as npt

from pyrometer.collect.source import SourceError, error_text
from pyrometer.model.settings import Settings

CONNECT_S = 10.0
ANSWER_S = 120.0
MAX_RESPONSE_BYTES = 512 * 2**20  # more is requested in smaller chunks
ATTEMPTS = 3  # per request

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


class QueryTooLargeError(SourceError):
    """The response exceeds a limit of the server or of this client. Request less at a time."""


class Series(NamedTuple):
    """One series: labels, times and values."""

    labels: dict[str, str]
    times_ms: Integers
    values: Numbers


class _Item(msgspec.Struct):
    metric: dict[str, str]
    values: msgspec.Raw = msgspec.Raw(b"[]")


class _Data(msgspec.Struct):
    result: list[_Item]


class _Matrix(msgspec.Struct):
    data: _Data | None = None
    error: str = ""


class _Labels(msgspec.Struct):
    data: list[dict[str, str]] | None = None
    error: str = ""


_MATRIX = msgspec.json.Decoder(_Matrix)
_LABELS = msgspec.json.Decoder(_Labels)
# Errors of msgspec and numpy for malformed responses. For a malformed list of numbers, numpy has only a warning yet.
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, DeprecationWarning)
_LATEST_S = 2**33  # above any time


class Prometheus:
    """A read-only client."""

    def __init__(self, url: str, settings: Settings | None = None) -> None:
        self.url = without_password(url)
        self._settings = settings
        self._client = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            verify=_trust(settings),
            follow_redirects=True,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def raw(self, selector: str, from_ms: int, to_ms: int) -> list[Series]:
        """Returns the scraped samples after `from_ms` and up to `to_ms`."""
        query = {"query": f"{selector}[{to_ms - from_ms}ms]", "time": _seconds(to_ms)}
        return await self._matrix("/api/v1/query", query)

    async def at_steps(self, query: str, from_ms: int, to_ms: int, step_ms: int) -> list[Series]:
        """Returns the values of an expression at regular steps."""
        params = {"query": query, "start": _seconds(from_ms), "end": _seconds(to_ms), "step": _seconds(step_ms)}
        return await self._matrix("/api/v1/query_range", params)

    async def labels(self, selector: str, from_ms: int, to_ms: int) -> list[dict[str, str]]:
        """Returns the labels of matching series."""
        params = {"match[]": selector, "start": _seconds(from_ms), "end": _seconds(to_ms)}
        try:
            return _LABELS.decode(await self._request("/api/v1/series", params)).data or []
        except _UNREADABLE:
            raise self._not_prometheus() from None

    async def _matrix(self, path: str, params: Mapping[str, str]) -> list[Series]:
        try:
            return _matrix(_MATRIX.decode(await self._request(path, params)))
        except _UNREADABLE:
            raise self._not_prometheus() from None

    def _not_prometheus(self) -> SourceError:
        return SourceError(
            f"{self.url} does not answer like a Prometheus. Check the URL, and whether a login page is in front of it."
        )

    async def _request(self, path: str, form: Mapping[str, str]) -> bytes:
        for attempt in range(ATTEMPTS):
            try:
                return await self._post(path, form)
            except (httpx.HTTPError, OSError) as error:
                if attempt + 1 == ATTEMPTS or isinstance(error, httpx.ConnectError):
                    raise SourceError(f"{self.url} does not answer: {error_text(error)}.") from None
        raise AssertionError  # the last attempt has returned or raised

    async def _post(self, path: str, form: Mapping[str, str]) -> bytes:
        """Sends a form, because a query may be too long for a URL."""
        body = bytearray()
        headers = _headers(self._settings)  # read for every request, because tokens expire
        async with self._client.stream("POST", path, data=dict(form), headers=headers) as response:
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise QueryTooLargeError(f"{self.url} answers with more than {MAX_RESPONSE_BYTES >> 20} MiB.")
        if response.status_code == 200:
            return bytes(body)
        raise self._refusal(response.status_code, bytes(body))

    def _refusal(self, status: int, body: bytes) -> SourceError:
        try:
            message = _MATRIX.decode(body).error
        except _UNREADABLE:
            message = ""
        if status in (401, 403):
            return SourceError(
                f"{self.url} refuses access (HTTP {status}). Name a file with a valid token in the setting "
                "`prometheus_token_file`."
            )
        if status in (413, 422, 500, 503) and _is_over_limit(message):
            return QueryTooLargeError(f"{self.url}: {message}.")
        if not message:
            return SourceError(f"{self.url} answers HTTP {status}. Check that it is the URL of a Prometheus.")
        return SourceError(f"{self.url} answers HTTP {status}: {' '.join(message.split())[:300]}.")


def without_password(url: str) -> str:
    """Removes the credentials from a URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SourceError(f"{url!r} is not the URL of a Prometheus. Use one like http://127.0.0.1:9090.")
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


def _matrix(answer: _Matrix) -> list[Series]:
    items = answer.data.result if answer.data else []
    return [Series(item.metric, *_numbers(item.values)) for item in items]


def _numbers(pairs: msgspec.Raw) -> tuple[Integers, Numbers]:
    """`[[1700000000.5,"0.25"],…]` as times and values, without an object for each of the millions of pairs."""
    flat = np.fromstring(bytes(pairs).translate(None, b'[]"'), sep=",").reshape(-1, 2)
    flat = flat[(flat[:, 0] >= 0) & (flat[:, 0] < _LATEST_S)]  # drop invalid times
    return np.rint(flat[:, 0] * 1000).astype(np.int64), flat[:, 1].copy()


def _seconds(ms: int) -> str:
    return f"{ms // 1000}.{ms % 1000:03d}"


def _headers(settings: Settings | None) -> dict[str, str]:
    headers = {}
    if settings and settings.prometheus_token_file:
        try:
            token = Path(settings.prometheus_token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SourceError(f"prometheus_token_file {settings.prometheus_token_file}: {error.strerror}.") from None
        headers["Authorization"] = f"Bearer {token}"
    if settings and settings.prometheus_tenant:
        headers["X-Scope-OrgID"] = settings.prometheus_tenant
    return headers


def _trust(settings: Settings | None) -> Any:
    if not settings or not settings.prometheus_ca_file:
        return True
    try:
        return ssl.create_default_context(cafile=settings.prometheus_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise SourceError(f"prometheus_ca_file {settings.prometheus_ca_file}: {error_text(error)}.") from None


def _is_over_limit(message: str) -> bool:
    return any(word in message for word in ("too many samples", "timed out", "exceeds", "limit", "too many points"))
