"""Scrapes exporters at a regular interval. An exporter that fails does not affect the others.

Every request uses its own connection. At most a few hundred are open at a time, spread over the interval. Timestamps,
sizes and formats of the responses are not trusted.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.collect.gpu import dcgm
from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.gpu.device import DeviceUse, GpuBatch
from pyrometer.collect.nodes import node_exporter
from pyrometer.collect.nodes.node_exporter import NodeExporters
from pyrometer.collect.prometheus import fetch
from pyrometer.collect.prometheus.exposition import MAX_CACHED, ExpositionReader, ScrapeError
from pyrometer.collect.source import Delivery
from pyrometer.model.units import MS_PER_MINUTE

INTERVAL_S = 15.0
ANSWER_S = 10.0  # for a whole response
CONNECT_S = 3.0
MAX_CONCURRENT = 256
MAX_RESPONSE_BYTES = 16 * 2**20  # a node with 56 MIG instances and 100 metrics of each sends 3 MB
LARGE_BYTES = 2**20  # larger bodies are parsed in a thread, so that the event loop does not block
MAX_BACKOFF_INTERVALS = 4  # between two attempts
CLOCK_LIMIT_MS = 5 * MS_PER_MINUTE  # a timestamp that differs more from our clock is wrong
MAX_WAITING_RECORDS = 500_000  # 200 MB: what 100,000 GPUs report while the store is busy for a minute
FORGET_EVERY, SILENT_MS = 100, 10 * MS_PER_MINUTE
MAX_PENDING_VALUES = 10_000  # converted at once in 5 ms; in small batches, each value takes five times as long
MAX_DELIVERY_RECORDS = 50_000
DELIVERIES_PER_INTERVAL = 30  # batches records, because transactions cost more than records

_HEADERS = {
    "Accept": "text/plain;version=0.0.4",
    "Accept-Encoding": "identity",  # compression would take CPU time on training machines
}
_log = logging.getLogger("pyrometer")


class ScrapeTarget(NamedTuple):
    """An exporter: its URL, its node if that is known, and its credentials."""

    url: str
    node: str | None = None
    token_file: str | None = None  # read for every request, because tokens expire
    ca_file: str | None = None  # trusted in addition to the system's certificate authorities


Value = tuple[Any, Any, float, int]  # measure, address, value, time in ms


class ExporterKind(NamedTuple):
    """How to interpret the metrics of one kind of exporter."""

    measure_of: Callable[[str], Any]
    address_of: Callable[..., Any]
    take: Callable[[list[Value]], GpuBatch]
    uses_of: Callable[[Iterable[Any]], Iterable[DeviceUse]]
    subject: str  # of its metrics, for errors
    max_cached: int = MAX_CACHED


def gpu_exporters(converter: Dcgm) -> ExporterKind:
    """Exporters of GPU metrics."""
    return ExporterKind(dcgm.measure_of, dcgm.slot_address_of, converter.take, converter.uses_of, "a GPU")


def node_exporters(converter: NodeExporters) -> ExporterKind:
    """node_exporter. A large machine has hundreds of CPUs and devices."""

    calls = count(1)

    def take(samples: list[Value]) -> GpuBatch:
        rows: list[tuple[Any, ...]] = list(converter.take(samples))
        if next(calls) % FORGET_EVERY == 0:  # of machines that are gone
            rows += converter.rest(_now_ms() - SILENT_MS)
        return GpuBatch(rows, {})

    return ExporterKind(
        node_exporter.measure_of,
        node_exporter.machine_part_of,
        take,
        lambda addresses: (),
        "a machine",
        max_cached=8_192,
    )


@dataclass(slots=True)
class TargetState:
    """The state of a target."""

    up: bool | None = None  # None before the first response
    since_ms: int = 0  # when it went up or down
    error: str | None = None  # why it is down
    failures: int = 0  # consecutive
    answered_ms: int | None = None
    counts: Counter[str] = field(default_factory=Counter)  # of ignored parts of its responses
    addresses: tuple[Any, ...] = ()  # in its last response


class _ScrapedValues(NamedTuple):
    """The values of one response of a target."""

    target: ScrapeTarget
    state: TargetState
    values: list[Value]


class Scrapes:
    """Scrapes the exporters that `targets` returns, which is called every interval. The deliveries never end."""

    def __init__(
        self,
        targets: Callable[[], Iterable[ScrapeTarget]],
        reading: ExporterKind,
        *,
        interval_s: float = INTERVAL_S,
        answer_s: float = ANSWER_S,
        max_concurrent: int = MAX_CONCURRENT,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self.states: dict[ScrapeTarget, TargetState] = {}
        self._targets = targets
        self._reading = reading
        self._interval_s, self._answer_s = interval_s, answer_s
        self._max_bytes = max_bytes
        self._connections = asyncio.Semaphore(max_concurrent)
        self._turn = (
            asyncio.Lock()
        )  # lets other tasks run between two of the hundreds of responses that may arrive at once
        self._names: dict[str, Any] = {}  # measures by metric name, the same for all exporters
        self._pending: list[_ScrapedValues] = []  # not yet converted to records
        self._pending_values = 0
        self._records: list[tuple[Any, ...]] = []  # not yet delivered
        self._came = asyncio.Event()  # set when there is any of both
        self._room = asyncio.Event()
        self._room.set()
        self._following: dict[ScrapeTarget, asyncio.Task[None]] = {}
        self._trusted: dict[str | None, ssl.SSLContext] = {}  # by CA file

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Yields samples as they arrive, and changes of slots. A slow store slows scraping down."""
        target_task = asyncio.create_task(self._follow_targets())
        try:
            while True:
                await self._wait_for_values(target_task)
                await asyncio.sleep(self._interval_s / DELIVERIES_PER_INTERVAL)
                self._make_records()
                records, self._records = self._records[:MAX_DELIVERY_RECORDS], self._records[MAX_DELIVERY_RECORDS:]
                if not self._records:
                    self._came.clear()
                if len(self._records) < MAX_WAITING_RECORDS:
                    self._room.set()
                if records:
                    yield Delivery(records)
        finally:
            tasks = target_task, *self._following.values()
            for task in tasks:  # cancel all before waiting, so that none proceeds when another releases its connection
                task.cancel()
            for task in tasks:
                await _ended(task)
            self._following.clear()

    def uses(self) -> set[DeviceUse]:
        """The users of devices according to the last response of every exporter that is up."""
        up = [address for state in self.states.values() if state.up for address in state.addresses]
        return set(self._reading.uses_of(up))

    def shortcomings(self) -> list[str]:
        """Which exporters are down, and why."""
        return [f"{_shown(target.url)}: {state.error}" for target, state in self.states.items() if state.error]

    async def _wait_for_values(self, target_task: asyncio.Task[None]) -> None:
        """Waits for values. Raises the error of the task that lists targets."""
        coming = asyncio.create_task(self._came.wait())
        try:
            await asyncio.wait({coming, target_task}, return_when=asyncio.FIRST_COMPLETED)
            if target_task.done():
                target_task.result()
        finally:
            await _ended(coming)

    def _make_records(self) -> None:
        """Converts pending values to records. A response that cannot be converted does not affect the others."""
        pending, self._pending, self._pending_values = self._pending, [], 0
        try:
            self._records += self._reading.take([value for one in pending for value in one.values]).records
        except Exception as error:
            if len(pending) == 1:
                self._is_down(pending[0].target, pending[0].state, error)
                return
            for one in pending:
                self._pending = [one]
                self._make_records()
        else:
            for one in pending:
                self._is_up(one.target, one.state)

    async def _follow_targets(self) -> None:
        while True:
            wanted = dict.fromkeys(self._targets())
            for target in [target for target in self._following if target not in wanted]:
                await _ended(self._following.pop(target))
                self.states.pop(target, None)
            for target in wanted:
                if target not in self._following:
                    self.states[target] = TargetState(since_ms=_now_ms())
                    self._following[target] = asyncio.create_task(self._follow(target))
            await asyncio.sleep(self._interval_s)

    async def _follow(self, target: ScrapeTarget) -> None:
        """Scrapes one target forever, at its own offset within the interval."""
        state = self.states[target]
        address = partial(self._reading.address_of, node=target.node, address=_host(target.url))
        reader: ExpositionReader[Any, Any] = ExpositionReader(
            self._reading.measure_of, address, max_cached=self._reading.max_cached, names=self._names
        )
        due_s = time.monotonic() + zlib.crc32(target.url.encode()) / 2**32 * self._interval_s
        while True:
            await asyncio.sleep(max(due_s - time.monotonic(), 0))
            async with self._connections:
                values = await self._scrape(target, state, reader)
            if values:
                await self._room.wait()
                self._take(_ScrapedValues(target, state, values))
            pause_s = self._interval_s * min(2 ** min(state.failures, 8), MAX_BACKOFF_INTERVALS)
            late_s = time.monotonic() - due_s
            due_s += max(pause_s, late_s - late_s % self._interval_s)  # missed scrapes are not repeated

    def _take(self, scraped: _ScrapedValues) -> None:
        self._pending.append(scraped)
        self._pending_values += len(scraped.values)
        self._came.set()
        if self._pending_values >= MAX_PENDING_VALUES:
            self._make_records()
            if len(self._records) >= MAX_WAITING_RECORDS:
                self._room.clear()

    async def _scrape(
        self, target: ScrapeTarget, state: TargetState, reader: ExpositionReader[Any, Any]
    ) -> list[Value] | None:
        """Scrapes once. An error is remembered, and logged if it is new."""
        requested_ms = _now_ms()
        try:
            async with asyncio.timeout(self._answer_s):
                body = await self._answer(target, state)
            values = await self._values(body, requested_ms, state, reader)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._is_down(target, state, error)
            return None
        state.answered_ms, state.addresses = requested_ms, tuple({address for _, address, _, _ in values})
        return values

    async def _values(
        self, body: bytes, requested_ms: int, state: TargetState, reader: ExpositionReader[Any, Any]
    ) -> list[Value]:
        """Parses a response."""
        large = await asyncio.to_thread(reader.read, body) if len(body) > LARGE_BYTES else None
        async with self._turn:
            parsed = large or reader.read(body)
            if not parsed.samples:
                subject = self._reading.subject
                raise ScrapeError(
                    f"It has metrics, but not of {subject}. Check that the URL is that of such an exporter."
                )
            state.counts["unfinished lines"] += parsed.unfinished
            state.counts["unreadable lines"] += parsed.unreadable
            return _at_our_time(parsed.samples, requested_ms, state.counts)

    def _is_up(self, target: ScrapeTarget, state: TargetState) -> None:
        """Marks a target as up, after its values became records: a response that cannot be converted is an error."""
        if state.up:
            return
        if state.up is False:
            _log.info("%s answers again", _shown(target.url))
        state.up, state.since_ms, state.error, state.failures = True, state.answered_ms or _now_ms(), None, 0

    def _is_down(self, target: ScrapeTarget, state: TargetState, error: Exception) -> None:
        if state.up is not False:
            state.up, state.since_ms = False, _now_ms()
        message, is_expected = self._describe(error)
        if message != state.error:
            state.error = message
            _log.warning("%s: %s", _shown(target.url), message, exc_info=None if is_expected else error)
        state.failures += 1

    async def _answer(self, target: ScrapeTarget, state: TargetState) -> bytes:
        headers = _HEADERS | _authorization(target)
        connect_s = min(CONNECT_S, self._answer_s)
        try:
            answer = await fetch.get(
                target.url, headers, self._trust(target.ca_file), connect_s=connect_s, max_bytes=self._max_bytes
            )
        except fetch.AnswerTooLargeError:
            raise _too_large(self._max_bytes) from None
        if answer.status != 200:
            raise ScrapeError(_refusal(answer.status, target.token_file))
        if not answer.whole:
            state.counts["answers cut short"] += 1  # the received lines are valid
        return _unpacked(answer, self._max_bytes)

    def _trust(self, ca_file: str | None) -> ssl.SSLContext:
        if ca_file not in self._trusted:
            try:
                trusted = ssl.create_default_context()
                if ca_file:
                    trusted.load_verify_locations(ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ScrapeError(f"The CA file {ca_file} cannot be read: {error}.") from None
            self._trusted[ca_file] = trusted
        return self._trusted[ca_file]

    def _describe(self, error: Exception) -> tuple[str, bool]:
        """Describes an error in one sentence. Also returns whether it is an expected kind of error."""
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if isinstance(error, ScrapeError):
            return str(error), True
        if isinstance(error, fetch.ConnectTimeoutError):
            return "No connection could be made. Check the address and firewalls.", True
        if isinstance(error, TimeoutError):
            return (
                f"It does not answer within {self._answer_s:g} s. Check the load of the exporter and of this machine.",
                True,
            )
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"Its certificate is not trusted ({error.verify_message}). Set a CA file that contains its authority.",
                True,
            )
        if isinstance(error, fetch.UrlError | UnicodeError):
            return "The address is not a URL like http://node:9400/metrics.", True
        if isinstance(error, fetch.ProtocolError | OSError):
            return f"It does not answer: {reason}.", True
        return f"Its answer could not be used: {type(error).__name__}: {reason}.", False


def _unpacked(answer: fetch.FetchedAnswer, max_bytes: int) -> bytes:
    """Decodes the body of a response. A body that exceeds the limit is not unpacked to its end."""
    encoding = answer.headers.get("content-encoding", "identity").lower()
    if encoding == "identity":
        return answer.body
    if encoding != "gzip":
        raise ScrapeError(f"Its response has the encoding {encoding!r}, which was not requested.")
    try:
        body = zlib.decompressobj(wbits=31).decompress(answer.body, max_bytes + 1)
    except zlib.error:
        raise ScrapeError("Its response is not gzip, although its Content-Encoding says so.") from None
    if len(body) > max_bytes:
        raise _too_large(max_bytes)
    return body


def _too_large(max_bytes: int) -> ScrapeError:
    return ScrapeError(f"Its response is larger than {max_bytes} bytes. Check that it is a GPU exporter.")


def _at_our_time(
    samples: Iterable[tuple[Any, Any, float, int | None]], now_ms: int, counts: Counter[str]
) -> list[Value]:
    """Sets the time of the request on values that have no plausible time of their own."""
    timed = []
    for measure, address, value, time_ms in samples:
        if time_ms is None:
            time_ms = now_ms
        elif abs(time_ms - now_ms) > CLOCK_LIMIT_MS:
            time_ms = now_ms
            counts["times far from ours"] += 1
        timed.append((measure, address, value, time_ms))
    return timed


def _authorization(target: ScrapeTarget) -> dict[str, str]:
    if target.token_file is None:
        return {}
    url = fetch.parsed(target.url)
    if url.scheme != "https" and not _is_loopback(url.host):
        raise ScrapeError("Its token would be sent unencrypted. Use https, or remove the token.")
    try:
        token = Path(target.token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
        raise ScrapeError(f"The token file {target.token_file} cannot be read: {reason}.") from None
    if not token.isprintable():
        raise ScrapeError(f"The token file {target.token_file} contains more than a token.")
    return {"Authorization": f"Bearer {token}"}


def _refusal(status: int, token_file: str | None) -> str:
    if status not in (401, 403):
        return f"It answers with HTTP {status} instead of metrics. Check the path of the URL."
    if token_file is None:
        return f"It requires authentication (HTTP {status}). Set a token file."
    if status == 401:
        return f"It does not accept the token in {token_file} (HTTP 401). Check whether it has expired."
    return f"The token in {token_file} may not read metrics (HTTP 403). Grant it that permission."


def _host(url: str) -> str | None:
    try:
        return fetch.parsed(url).host or None
    except fetch.UrlError:
        return None


def _shown(url: str) -> str:
    """A URL without the parts that may contain secrets."""
    try:
        parsed = fetch.parsed(url)
        return str(parsed.copy_with(username=None, password=None, query=None, fragment=None))
    except fetch.UrlError:
        return "A target"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
