"""Exporters as a source: asks each of them every so often what its GPUs do. One that fails costs only its own answers.

Connections are not kept: one an answer, a few hundred at most at a time, spread over the interval. What an exporter
says about time is not trusted, nor how much it says, nor in which form.
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
from pyrometer.collect.prometheus.exposition import MOST_KEPT, ExpositionReader, ScrapeError
from pyrometer.collect.source import Delivery
from pyrometer.model.units import MS_PER_MINUTE

INTERVAL_S = 15.0
ANSWER_S = 10.0  # for a whole answer
CONNECT_S = 3.0
MOST_AT_ONCE = 256
MOST_BYTES = 16 * 2**20  # a node with 56 MIG instances and a hundred metrics of each has 3 MB
LARGE_BYTES = 2**20  # read beside the loop, so that the others do not wait
SLOWER_WHEN_DOWN = 4  # intervals between two attempts, at most
CLOCK_LIMIT_MS = 5 * MS_PER_MINUTE  # a time in the text that is further from ours than this is wrong
MOST_WAITING = 500_000  # records, 200 MB: a store may be busy for a minute, and 100,000 GPUs say as much meanwhile
FORGET_EVERY, SILENT_MS = 100, 10 * MS_PER_MINUTE
MOST_TOGETHER = 10_000  # values that become records at once, 5 ms: of few, each takes five times as long
MOST_IN_A_DELIVERY = 50_000
DELIVERIES_AN_INTERVAL = 30  # what comes at about the same time is stored together: transactions cost more than records

_HEADERS = {
    "Accept": "text/plain;version=0.0.4",
    "Accept-Encoding": "identity",  # packing would cost time on machines that train
}
_log = logging.getLogger("pyrometer")


class ScrapeTarget(NamedTuple):
    """An exporter: where it answers, on which node it runs if that is known, and how to be let in."""

    url: str
    node: str | None = None
    token_file: str | None = None  # read anew every time: tokens expire
    ca_file: str | None = None  # whom to believe besides the system's authorities


Value = tuple[Any, Any, float, int]  # measure, place, value, time in ms


class ExporterKind(NamedTuple):
    """How the answers of one kind of exporter are made sense of."""

    measure_of: Callable[[str], Any]
    place_of: Callable[..., Any]
    take: Callable[[list[Value]], GpuBatch]
    uses_of: Callable[[Iterable[Any]], Iterable[DeviceUse]]
    what: str  # its metrics are of
    most_kept: int = MOST_KEPT


def of_gpus(normaliser: Dcgm) -> ExporterKind:
    """Exporters of GPU metrics."""
    return ExporterKind(dcgm.measure_of, dcgm.slot_address_of, normaliser.take, normaliser.uses_of, "a GPU")


def of_machines(normaliser: NodeExporters) -> ExporterKind:
    """node_exporters: a large machine has hundreds of CPUs and devices."""

    calls = count(1)

    def take(samples: list[Value]) -> GpuBatch:
        rows: list[tuple[Any, ...]] = list(normaliser.take(samples))
        if next(calls) % FORGET_EVERY == 0:  # machines that are gone
            rows += normaliser.rest(_now_ms() - SILENT_MS)
        return GpuBatch(rows, {})

    return ExporterKind(
        node_exporter.measure_of, node_exporter.machine_part_of, take, lambda places: (), "a machine", most_kept=8_192
    )


@dataclass(slots=True)
class TargetState:
    """How it goes with a target."""

    up: bool | None = None  # None before the first answer
    since_ms: int = 0  # up or down
    error: str | None = None  # why it is down
    failures: int = 0  # one after the other
    answered_ms: int | None = None
    counts: Counter[str] = field(default_factory=Counter)  # what was left out of its answers
    places: tuple[Any, ...] = ()  # what its last answer was about


class _TargetAnswer(NamedTuple):
    """An answer that is read, and whose."""

    target: ScrapeTarget
    state: TargetState
    values: list[Value]


class Scrapes:
    """Follows the exporters that `targets` names; it is asked again every interval. The deliveries never end."""

    def __init__(
        self,
        targets: Callable[[], Iterable[ScrapeTarget]],
        reading: ExporterKind,
        *,
        interval_s: float = INTERVAL_S,
        answer_s: float = ANSWER_S,
        most_at_once: int = MOST_AT_ONCE,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.states: dict[ScrapeTarget, TargetState] = {}
        self._targets = targets
        self._reading = reading
        self._interval_s, self._answer_s = interval_s, answer_s
        self._most_bytes = most_bytes
        self._places = asyncio.Semaphore(most_at_once)
        self._turn = asyncio.Lock()  # hundreds of answers may be there at once: between two, others go on
        self._names: dict[str, Any] = {}  # what metrics are called: all exporters have the same
        self._said: list[_TargetAnswer] = []  # not yet records
        self._said_values = 0
        self._records: list[tuple[Any, ...]] = []  # not yet delivered
        self._came = asyncio.Event()  # there is any of both
        self._room = asyncio.Event()
        self._room.set()
        self._following: dict[ScrapeTarget, asyncio.Task[None]] = {}
        self._trusted: dict[str | None, ssl.SSLContext] = {}  # by file of authorities

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Samples as they come, and what is new about slots. A slow store slows the scrapes down."""
        naming = asyncio.create_task(self._follow_targets())
        try:
            while True:
                await self._something_came(naming)
                await asyncio.sleep(self._interval_s / DELIVERIES_AN_INTERVAL)
                self._make_records()
                records, self._records = self._records[:MOST_IN_A_DELIVERY], self._records[MOST_IN_A_DELIVERY:]
                if not self._records:
                    self._came.clear()
                if len(self._records) < MOST_WAITING:
                    self._room.set()
                if records:
                    yield Delivery(records)
        finally:
            tasks = naming, *self._following.values()
            for task in tasks:  # all of them first: none is to take the place of another now
                task.cancel()
            for task in tasks:
                await _ended(task)
            self._following.clear()

    def uses(self) -> set[DeviceUse]:
        """Who uses which device, by the newest labels of every exporter that answers."""
        up = [place for state in self.states.values() if state.up for place in state.places]
        return set(self._reading.uses_of(up))

    def shortcomings(self) -> list[str]:
        """Which exporters do not answer, and why."""
        return [f"{_shown(target.url)}: {state.error}" for target, state in self.states.items() if state.error]

    async def _something_came(self, naming: asyncio.Task[None]) -> None:
        """Waits for an answer; what goes wrong with the list of targets is raised here."""
        coming = asyncio.create_task(self._came.wait())
        try:
            await asyncio.wait({coming, naming}, return_when=asyncio.FIRST_COMPLETED)
            if naming.done():
                naming.result()
        finally:
            await _ended(coming)

    def _make_records(self) -> None:
        """Records of what was said. An answer that nothing can be made of costs none of the others."""
        said, self._said, self._said_values = self._said, [], 0
        try:
            self._records += self._reading.take([value for one in said for value in one.values]).records
        except Exception as error:
            if len(said) == 1:
                self._is_down(said[0].target, said[0].state, error)
                return
            for one in said:
                self._said = [one]
                self._make_records()
        else:
            for one in said:
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
        """Scrapes one target for ever, at its own moment of the interval."""
        state = self.states[target]
        address = partial(self._reading.place_of, node=target.node, address=_host(target.url))
        reader: ExpositionReader[Any, Any] = ExpositionReader(
            self._reading.measure_of, address, most_kept=self._reading.most_kept, names=self._names
        )
        due_s = time.monotonic() + zlib.crc32(target.url.encode()) / 2**32 * self._interval_s
        while True:
            await asyncio.sleep(max(due_s - time.monotonic(), 0))
            async with self._places:
                values = await self._scrape(target, state, reader)
            if values:
                await self._room.wait()
                self._take(_TargetAnswer(target, state, values))
            pause_s = self._interval_s * min(2 ** min(state.failures, 8), SLOWER_WHEN_DOWN)
            late_s = time.monotonic() - due_s
            due_s += max(pause_s, late_s - late_s % self._interval_s)  # what was missed is not made up for

    def _take(self, said: _TargetAnswer) -> None:
        self._said.append(said)
        self._said_values += len(said.values)
        self._came.set()
        if self._said_values >= MOST_TOGETHER:
            self._make_records()
            if len(self._records) >= MOST_WAITING:
                self._room.clear()

    async def _scrape(
        self, target: ScrapeTarget, state: TargetState, reader: ExpositionReader[Any, Any]
    ) -> list[Value] | None:
        """One answer; what goes wrong is remembered, and said when it is new."""
        asked_ms = _now_ms()
        try:
            async with asyncio.timeout(self._answer_s):
                body = await self._answer(target, state)
            values = await self._values(body, asked_ms, state, reader)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._is_down(target, state, error)
            return None
        state.answered_ms, state.places = asked_ms, tuple({place for _, place, _, _ in values})
        return values

    async def _values(
        self, body: bytes, asked_ms: int, state: TargetState, reader: ExpositionReader[Any, Any]
    ) -> list[Value]:
        """What an answer says."""
        large = await asyncio.to_thread(reader.read, body) if len(body) > LARGE_BYTES else None
        async with self._turn:
            parsed = large or reader.read(body)
            if not parsed.samples:
                what = self._reading.what
                raise ScrapeError(f"It shows metrics, but none of {what}: is it the address of such an exporter?")
            state.counts["unfinished lines"] += parsed.unfinished
            state.counts["unreadable lines"] += parsed.unreadable
            return _at_our_time(parsed.samples, asked_ms, state.counts)

    def _is_up(self, target: ScrapeTarget, state: TargetState) -> None:
        """Its values became records. Not before: an answer that nothing can be made of is no end of its trouble."""
        if state.up:
            return
        if state.up is False:
            _log.info("%s answers again", _shown(target.url))
        state.up, state.since_ms, state.error, state.failures = True, state.answered_ms or _now_ms(), None, 0

    def _is_down(self, target: ScrapeTarget, state: TargetState, error: Exception) -> None:
        if state.up is not False:
            state.up, state.since_ms = False, _now_ms()
        said, foreseen = self._words(error)
        if said != state.error:
            state.error = said
            _log.warning("%s: %s", _shown(target.url), said, exc_info=None if foreseen else error)
        state.failures += 1

    async def _answer(self, target: ScrapeTarget, state: TargetState) -> bytes:
        headers = _HEADERS | _authorization(target)
        connect_s = min(CONNECT_S, self._answer_s)
        try:
            answer = await fetch.get(
                target.url, headers, self._trust(target.ca_file), connect_s=connect_s, most_bytes=self._most_bytes
            )
        except fetch.AnswerTooLargeError:
            raise _too_large(self._most_bytes) from None
        if answer.status != 200:
            raise ScrapeError(_refusal(answer.status, target.token_file))
        if not answer.whole:
            state.counts["answers cut short"] += 1  # the lines that came are good
        return _unpacked(answer, self._most_bytes)

    def _trust(self, ca_file: str | None) -> ssl.SSLContext:
        if ca_file not in self._trusted:
            try:
                trusted = ssl.create_default_context()
                if ca_file:
                    trusted.load_verify_locations(ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ScrapeError(f"The file of authorities {ca_file} cannot be read: {error}.") from None
            self._trusted[ca_file] = trusted
        return self._trusted[ca_file]

    def _words(self, error: Exception) -> tuple[str, bool]:
        """An error as one sentence, and whether it was to be expected."""
        said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if isinstance(error, ScrapeError):
            return str(error), True
        if isinstance(error, fetch.ConnectTimeoutError):
            return "Nobody takes the call: is the address right, or a firewall between?", True
        if isinstance(error, TimeoutError):
            return f"It does not answer within {self._answer_s:g} s: is the exporter, or this machine, too busy?", True
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"Its certificate is not trusted ({error.verify_message}): name its authority in a CA file.", True
        if isinstance(error, fetch.UrlError | UnicodeError):
            return "The address is no URL like http://node:9400/metrics.", True
        if isinstance(error, fetch.ProtocolError | OSError):
            return f"It does not answer: {said}.", True
        return f"Its answer could not be used: {type(error).__name__}: {said}.", False


def _unpacked(answer: fetch.FetchedAnswer, most_bytes: int) -> bytes:
    """The body of an answer. One that would be larger than it may be is not unpacked to its end."""
    packing = answer.headers.get("content-encoding", "identity").lower()
    if packing == "identity":
        return answer.body
    if packing != "gzip":
        raise ScrapeError(f"Its answer is packed with {packing!r}, which nobody asked for.")
    try:
        body = zlib.decompressobj(wbits=31).decompress(answer.body, most_bytes + 1)
    except zlib.error:
        raise ScrapeError("Its answer says that it is packed with gzip, and is not.") from None
    if len(body) > most_bytes:
        raise _too_large(most_bytes)
    return body


def _too_large(most_bytes: int) -> ScrapeError:
    return ScrapeError(f"Its answer is larger than {most_bytes} bytes: is it a GPU exporter?")


def _at_our_time(
    samples: Iterable[tuple[Any, Any, float, int | None]], now_ms: int, counts: Counter[str]
) -> list[Value]:
    """Values with the time at which they were asked for, unless they bring a time that may be true."""
    timed = []
    for measure, place, value, time_ms in samples:
        if time_ms is None:
            time_ms = now_ms
        elif abs(time_ms - now_ms) > CLOCK_LIMIT_MS:
            time_ms = now_ms
            counts["times far from ours"] += 1
        timed.append((measure, place, value, time_ms))
    return timed


def _authorization(target: ScrapeTarget) -> dict[str, str]:
    if target.token_file is None:
        return {}
    url = fetch.parsed(target.url)
    if url.scheme != "https" and not _is_loopback(url.host):
        raise ScrapeError("Its token would travel for all to read: use https, or leave the token out.")
    try:
        token = Path(target.token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ScrapeError(f"The token file {target.token_file} cannot be read: {said}.") from None
    if not token.isprintable():
        raise ScrapeError(f"The token file {target.token_file} holds more than a token.")
    return {"Authorization": f"Bearer {token}"}


def _refusal(status: int, token_file: str | None) -> str:
    if status not in (401, 403):
        return f"It answers with HTTP {status} instead of metrics: is the path right?"
    if token_file is None:
        return f"It wants to know who asks (HTTP {status}): name a token file."
    if status == 401:
        return f"It does not accept the token in {token_file} (HTTP 401): has it expired?"
    return f"The token in {token_file} may not read metrics (HTTP 403): grant it that."


def _host(url: str) -> str | None:
    try:
        return fetch.parsed(url).host or None
    except fetch.UrlError:
        return None


def _shown(url: str) -> str:
    """A URL without what may be secret in it."""
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
