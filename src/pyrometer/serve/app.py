"""The HTTP side of a server: is it well, the page, the answers as JSON, and what is sent to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import UTC
from typing import Any, NamedTuple

import duckdb
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from pyrometer.account.answer_json import iso
from pyrometer.account.ledger import LedgerCoverage
from pyrometer.account.time_range import TimeRangeError
from pyrometer.act.lives import FindingTracker, ms_of
from pyrometer.act.stamping import SummaryWriter
from pyrometer.act.teller import Notifier
from pyrometer.collect.otlp import SIGNALS
from pyrometer.explain.html import render_html
from pyrometer.export.exposition import Collector as Exposed
from pyrometer.export.exposition import exposition
from pyrometer.export.prometheus import Ledger
from pyrometer.export.training import Runs
from pyrometer.export.workloads import Workloads
from pyrometer.model.records import Finding
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE
from pyrometer.serve import web
from pyrometer.serve.access import Access, RefusedError, Who, WrongTokenError
from pyrometer.serve.address import Address
from pyrometer.serve.answers import (
    Kept,
    Made,
    Page,
    as_json,
    is_known,
    key,
    last_will_do,
    question_of,
    revision,
    tag,
)
from pyrometer.serve.audit import Audit
from pyrometer.serve.backups import Backups
from pyrometer.serve.closing import Closing
from pyrometer.serve.collector import Collector
from pyrometer.serve.copying import Copying
from pyrometer.serve.disk import OF_DUCKDB, UNANSWERED, Disk
from pyrometer.serve.disk import words as words_of_disk
from pyrometer.serve.downloads import DOWNLOADS, FILES, file_name
from pyrometer.serve.headers import Headers
from pyrometer.serve.history import Remembering
from pyrometer.serve.live import Live
from pyrometer.serve.openapi import document
from pyrometer.serve.otlp import Otlp
from pyrometer.serve.pushing import Pushing
from pyrometer.serve.questions import NothingError, Question, QuestionError, bring_up_to_date, known, question
from pyrometer.serve.remote_write import RemoteWrite
from pyrometer.serve.scrub import Scrub
from pyrometer.serve.sessions import Sessions
from pyrometer.serve.straight import Straight
from pyrometer.serve.telemetry import Telemetry
from pyrometer.serve.threads import to_its_end
from pyrometer.serve.tokens import Tokens
from pyrometer.serve.tracked import FollowingMlflow
from pyrometer.serve.vitals import Vitals
from pyrometer.store import Snapshot, Store

SEAL_EVERY_S = 300.0
JSON = "application/json"
METRICS = "/metrics"
COMPRESSED_FROM = 1_024  # bytes of an answer
MOST_AT_ONCE = 2  # questions: each may use all cores, and a gigabyte
MOST_ASKING = 32  # with those that wait
SHOWN_FIRST: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("burn", {}),
    ("cluster", {}),
    ("worth", {}),
    ("runs", {}),
    ("cost", {"by": "team,experiment", "last": "31d"}),
    ("cost", {"by": "day,team", "last": "31d"}),
)
QUICK_S, REST, LONGEST_REST_S = 0.2, 5, 10.0  # books that take longer rest so many times as long between questions
MOST_SUMMED_UP, LONGEST_SUMMED_UP_MS = (
    5,
    31 * MS_PER_DAY,
)  # findings that are over: a question each
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # of the report: it needs nothing from outside
Answer = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]


def first_experiment(worth: Answer) -> str | None:
    """The one that the page of all experiments shows until another is chosen."""
    return next((row["experiment"] for row in worth["rows"] if row["experiment"] and row["metric"]), None)


class Server:
    """What the routes share. The lock is held while the store itself is used; questions are asked of snapshots of it,
    so that nobody who sends something waits for an answer."""

    def __init__(
        self, store: Store, settings: Settings, lock: asyncio.Lock, *, open_to_all: bool, always_open: bool = False
    ) -> None:
        self.store = store
        self.settings = settings
        self.lock = lock
        self.disk = Disk()
        self.scrub = Scrub(self)
        self.collector: Collector | None = None
        self.telemetry: list[Telemetry | Remembering | FollowingMlflow] = []
        self.reading: str | None = None  # what has to be read before anything is followed
        self.remote_write = RemoteWrite(self)
        self.otlp = Otlp(self)
        self.closing = Closing(self)
        self.backups = Backups(self)
        self.tokens = Tokens(store.folder)
        self.address: Address | None = None  # as it lies in the folder
        self.access = Access(
            self.tokens, settings, lambda: self.address.token if self.address else None,
            open_to_all=open_to_all,  # on loopback, until the first token
            always_open=always_open,
        )  # fmt: skip
        self.audit = Audit(store.folder, on=settings.audit_log == "yes")
        self.news: Answer | None = None  # of the ledger, as pages were last told
        self.sessions = Sessions(self.access, self.audit, lambda: self.news)
        self.counted = Ledger()
        self.training, self.workloads = Runs(), Workloads()
        self.end_ms = 0  # the newest accounted minute
        self.accounting_s = self.accounted_at_s = 0.0
        self.live = Live()
        self.notifier = Notifier(settings, store.folder, self.last_night)
        self.pushing = Pushing(self)
        self.copying = Copying(self)
        self.summary_writers: list[SummaryWriter] = []
        self._lives: FindingTracker | None = None  # what was found, once somebody has looked
        self._books: Books | None = None
        self._kept = Kept()
        self._making: dict[str, asyncio.Task[bytes]] = {}  # answers that are worked out now, by where they are kept
        self._renewing: dict[str, asyncio.Task[None]] = {}  # by question
        self._asking = 0
        self._answering = asyncio.Semaphore(MOST_AT_ONCE)
        self._told: dict[str | None, set[str]] = {}  # findings, as ids, by the team that was told; None: who sees all
        self._seal_due_s = time.monotonic() + SEAL_EVERY_S

    # -- is it well -------------------------------------------------------------------------------------------------

    async def healthz(self, request: Request) -> Response:
        """The process answers."""
        return PlainTextResponse("ok\n")

    async def readyz(self, request: Request) -> Response:
        """Everything that was there at the start has been seen; to who may see everything, what may not be read."""
        missing = self.not_ready()
        body = {"ready": not missing, "waiting_for": missing}
        try:
            self.access.who(request, "view_all")
            body["shortcomings"] = self.shortcomings()
        except WrongTokenError as refused:  # who probes has none, and that is as it should be
            self.audit.refused(refused, self.access.address(request), _path(request))
        except RefusedError:
            pass
        return JSONResponse(body, 200 if not missing else 503)

    def not_ready(self) -> list[str]:
        """What is still waited for."""
        if self.reading is not None:
            return [self.reading]
        if self.collector is None:
            return []
        source = self.collector.source
        if source is None:
            return ["the Kubernetes API"]
        if source.ready.is_set():
            return []
        unsynced = [watch for watch in source.watches.values() if not watch.synced.is_set()]
        named = [f"{watch.resource.name}: {watch.trouble or 'the first list'}" for watch in unsynced]
        return named or [source.trouble or "the first list"]

    def shortcomings(self) -> list[str]:
        """What is not known because it may not be read."""
        source = self.collector.source if self.collector else None
        said = source.shortcomings() if source else []
        said = [
            *said,
            *([f"Nothing is copied into the lake: {self.copying.trouble}"] if self.copying.trouble else []),
            *(f"What runs cost is not written into {one.title}: {one.trouble}" for one in self.summary_writers if one.trouble),
        ]
        return [
            *self.disk.shortcomings(),
            *self.scrub.shortcomings(),
            *said,
            *(text for one in self.telemetry for text in one.source.shortcomings()),
        ]

    def node_uid_of(self, name: str) -> str | None:
        """The node of that name, where Kubernetes knows it."""
        cluster = self.collector.cluster if self.collector else None
        return cluster.node_uid_of(name) if cluster else None

    def exposed(self) -> tuple[Exposed, ...]:
        """What has metrics to show."""
        return (self.counted, self.training, self.workloads, Vitals(self))

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        body, form = exposition(self.exposed(), request.headers.get("Accept", ""))
        return Response(body, headers={"Content-Type": form})

    # -- answers ----------------------------------------------------------------------------------------------------

    async def report(self, request: Request) -> Response:
        """The report of the last twelve hours, as one page without scripts."""
        answered = await self._answered(request, "why", Form("text/html; charset=utf-8", _html))
        answered.headers["Content-Security-Policy"] = POLICY
        return answered

    async def answer(self, request: Request) -> Response:
        """What the command of that name says, as JSON."""
        return await self._answered(request, request.path_params["what"], Form(JSON, as_json))

    async def download(self, request: Request) -> Response:
        """An answer as a file, written while it is sent."""
        form = request.path_params["form"]
        if form not in DOWNLOADS:
            raise RefusedError(404, f"There is no format {form!r}. Known: {', '.join(DOWNLOADS)}.")
        download = DOWNLOADS[form]
        who: Who = request.state.who
        parameters = _own(who, dict(request.query_params))
        written = parameters.pop("as", None) if download.parquet else None
        if written not in (None, *FILES):
            raise RefusedError(400, f"as={written!r} is not known: {', '.join(FILES)}.")
        async with self._turn():
            answer = await self.ask(download.what, parameters, who.team)
        pieces, kind, suffix = download.written_as(written)
        headers = {
            "Content-Disposition": f'attachment; filename="{file_name(form, answer, suffix)}"',
            "Cache-Control": "no-store",
        }
        return StreamingResponse(pieces(answer), media_type=kind, headers=headers)

    async def listen(self, request: Request) -> Response:
        """What happens, as it happens."""
        if self.live.is_full():
            raise RefusedError(429, "Too many listen already. Ask again in a moment.")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._heard(request), media_type="text/event-stream", headers=headers)

    async def _heard(self, request: Request) -> AsyncIterator[str]:
        """What somebody may hear, for as long as they may."""
        who: Who = request.state.who
        async with aclosing(self.live.events(who.team)) as events:
            async for text in events:
                with suppress(RefusedError):
                    if self.access.who(request, "view") == who:
                        yield text
                        continue
                return

    async def document(self, request: Request) -> Response:
        """What can be asked, for programs."""
        return JSONResponse(document())

    async def _answered(self, request: Request, what: str, form: Form) -> Response:
        """The answer to a request; nothing but its tag when the client has it already."""
        who: Who = request.state.who
        parameters = _own(who, dict(request.query_params))
        with _refusing():
            latest = last_will_do(parameters)
            page = Page.asked_for(what, parameters) if form.kind == JSON else None
        asking = Asking(what, form, parameters, who.team or "")
        known = request.headers.get("If-None-Match", "")
        if page is not None and page.tag is not None:
            return _paged(page, self._kept.get(key(asking.whose, page.tag)), page.tag)
        made = self._kept.newest(asking.whose, asking.question) if latest else None
        if made is not None and made.is_slow:
            self._renew(asking, made)
            tagged, body = made.tag, self._kept.get(key(asking.whose, made.tag))
        else:
            async with self._turn():
                tagged, body = await self._made(asking, known if page is None else "")
        return _paged(page, body, tagged) if page is not None else self._sent(tagged, body, form, known)

    def _sent(self, tagged: str, body: bytes | None, form: Form, known: str) -> Response:
        headers = {"ETag": tagged, "Cache-Control": "private, no-cache"}
        if is_known(tagged, known):
            return Response(None, 304, headers=headers)
        return Response(body, headers=headers, media_type=form.kind)

    async def _made(self, asking: Asking, known: str = "") -> tuple[str, bytes | None]:
        """An answer that is up to date, and its tag; without its body when that is known."""
        asked = _asked(asking.what, asking.parameters, self.settings)
        async with self.lock:
            covered, revised = self._current() if self._books_hold() else await to_its_end(self._current)
            tagged = asking.tag(revised)
            if is_known(tagged, known):
                return tagged, None
            kept = key(asking.whose, tagged)
            body = self._kept.get(kept)
            if body is None and kept not in self._making:  # who asks the same meanwhile waits for the same answer
                snapshot = await to_its_end(self.store.snapshot)
                self._making[kept] = asyncio.create_task(self._make(asking, tagged, asked, snapshot, covered))
                self._making[kept].add_done_callback(lambda made: self._was_made(kept, made))
            making = self._making.get(kept)
        if body is None and making is not None:
            body = await asyncio.shield(making)
        return tagged, body

    def _was_made(self, kept: str, made: asyncio.Task[bytes]) -> None:
        del self._making[kept]
        if not made.cancelled():
            made.exception()  # told to those who wait, if anybody still does

    async def _make(
        self, asking: Asking, tagged: str, asked: Question, snapshot: Snapshot, covered: LedgerCoverage
    ) -> bytes:
        began_s = time.monotonic()
        body = await asyncio.to_thread(lambda: asking.form.rendered(_read(asked, snapshot, covered)))
        self.disk.worked(UNANSWERED)
        now_s = time.monotonic()
        self._kept.keep(asking.whose, Made(tagged, now_s - began_s, now_s), body)
        return body

    async def end(self) -> None:
        """Nobody waits any more for what is worked out."""
        self.live.end()
        self.backups.end()
        while tasks := [*self._making.values(), *self._renewing.values()]:
            await asyncio.to_thread(self.store.interrupt_readers)
            await asyncio.wait(tasks, timeout=0.1)

    def _renew(self, asking: Asking, made: Made) -> None:
        """Makes the next answer, while somebody looks at this one; who looks is told when it is there."""
        name = f"{asking.question} {asking.whose}"
        if name in self._renewing or not made.may_be_made_again(time.monotonic()):
            return

        async def renew() -> None:
            with suppress(RefusedError):
                async with self._turn():
                    tagged, _ = await self._made(asking)
                if tagged != made.tag:
                    self.live.tell("answer", {"question": asking.what})

        self._renewing[name] = asyncio.create_task(renew())
        self._renewing[name].add_done_callback(lambda _: self._renewing.pop(name))

    async def ask(self, what: str, parameters: dict[str, str], team: str | None = None) -> Answer:
        """The answer, as it is now; kept for whoever asks next."""
        parameters = parameters if team is None else {**parameters, "team": team}
        _, body = await self._made(Asking(what, Form(JSON, as_json), parameters, team or ""))
        answer: Answer = json.loads(body or b"")
        return answer

    def _current(self) -> tuple[LedgerCoverage, str]:
        """What the ledger covers when it is up to date, and its revision. The caller has the lock."""
        books = self.account()
        if books.covered is None:
            raise RefusedError(409, "There is nothing to account for yet.")
        return books.covered, books.revised

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """A few are answered at a time, some may wait, the others are to come again."""
        if self._asking >= MOST_ASKING:
            raise RefusedError(429, "Too many questions at once. Ask again in a moment.")
        self._asking += 1
        try:
            async with self._answering:
                yield
        finally:
            self._asking -= 1

    def account(self, *, may_rest: bool = True) -> Books:
        """Brings the ledger up to date, unless it is still, or may rest. The caller has the lock."""
        if self._books is not None and self._books_hold(may_rest=may_rest):
            return self._books
        began_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        covered = bring_up_to_date(self.store, self.settings, now_ms=now_ms)
        revised = "" if covered is None else revision(self.store, covered)
        done_s = time.monotonic()
        self.accounting_s = done_s - began_s
        took_s = 0.0 if self._books is None else self.accounting_s  # the first time it may be all there is
        self._books = Books(covered, revised, self.store.changes, now_ms // MS_PER_MINUTE, done_s, took_s)
        self.accounted_at_s = time.time()
        self.end_ms = covered.end_ms if covered else 0
        return self._books

    def _books_hold(self, *, may_rest: bool = True) -> bool:
        """Whether there is nothing to do to have them up to date."""
        now_ms = time.time_ns() // 1_000_000
        return self._books is not None and self._books.hold(
            self.store.changes, now_ms, time.monotonic(), may_rest=may_rest
        )

    async def keep_books(self) -> None:
        """Seals hours that are over, brings ledger and counters up to date, and tells those who listen."""
        async with self.lock:
            news = await to_its_end(self._keep_books)
        if news is not None:
            self.news = news
            self.live.tell("ledger", news, lasting=True)

    async def look(self) -> None:
        """Looks for findings, and at what the page shows first, so that it is there when somebody opens it."""
        try:
            await self.find()
        except RefusedError:  # there is nothing to account for yet
            return
        for what, parameters in SHOWN_FIRST:
            await self.ask(what, dict(parameters))
        with suppress(RefusedError):
            if experiment := first_experiment(await self.ask("worth", {})):
                await self.ask("worth", {"experiment": experiment})

    async def find(self) -> None:
        """Looks for findings, for /metrics, for those who listen and for those who tell; and remembers them, so that
        what is found again keeps its name."""
        answer = await self.ask("why", {})
        async with self.lock:
            lives, news = await to_its_end(self._remember, answer)
        longer = [one for one in news if one.over_ms is not None and one.from_ms < ms_of(answer["window"]["from"])]
        for one in longer[:MOST_SUMMED_UP]:
            await self._sum_up(lives, one)
        await self.notifier.update(lives.all())
        await asyncio.to_thread(self.counted.found, answer["findings"])
        self._tell(None, answer["findings"])
        for team in self.live.teams():  # what they may see, found in what they may see
            with suppress(RefusedError):  # there is nothing of that team
                self._tell(team, (await self.ask("why", {}, team))["findings"])

    def _remember(self, answer: Answer) -> tuple[FindingTracker, list[Finding]]:
        if self._lives is None:
            self._lives = FindingTracker.of(self.store)
        return self._lives, self._lives.remember(self.store, answer)

    async def _sum_up(self, lives: FindingTracker, over: Finding) -> None:
        """What a finding cost in all that is longer than the window it was found in."""
        until_ms = over.to_ms + MS_PER_MINUTE
        since, until = iso(max(over.from_ms, until_ms - LONGEST_SUMMED_UP_MS), UTC), iso(until_ms, UTC)
        with suppress(RefusedError):
            found = (await self.ask("why", {"since": since, "until": until}))["findings"]
            learnt = [lives.learn(finding) for finding in found if finding["id"] == over.finding_id]
            async with self.lock:
                await to_its_end(self.store.append, learnt)

    async def last_night(self, since: str, until: str) -> Answer | None:
        """What `why` says of some time; None when there is nothing to account for yet."""
        return await self.say("why", {"since": since, "until": until})

    async def say(self, what: str, parameters: dict[str, str]) -> Answer | None:
        """The answer, as it is now; None when there is none."""
        with suppress(RefusedError):
            return await self.ask(what, parameters)
        return None

    def _tell(self, team: str | None, findings: list[Answer]) -> None:
        """Tells those who listen which findings are new to them."""
        told = self._told.get(team, set())
        for finding in findings:
            if finding["id"] not in told:
                names = ("id", "cause", "title", "team", "from", "to", "usd_micro", "usd")
                self.live.tell_those_of(team, "finding", {name: finding[name] for name in names})
        self._told[team] = {finding["id"] for finding in findings}

    def _keep_books(self) -> Answer | None:
        """What is to be told of the ledger."""
        if not self.store.revive():  # a full disk may have ended the database; what was committed is there
            return None
        if time.monotonic() >= self._seal_due_s:
            self._seal_due_s = time.monotonic() + SEAL_EVERY_S
            self.store.seal(before_ms=time.time_ns() // 1_000_000 - MS_PER_HOUR)
        books = self.account(may_rest=False)
        if books.covered is None:
            return None
        self.counted.count(self.store, books.covered.end_ms)
        self.training.count(self.store, books.covered.end_ms)
        self.workloads.count(self.store, books.covered.end_ms, self.training.progress.runs.values())
        return {
            "revision": books.revised, "to": iso(books.covered.end_ms, UTC), "origin": self.store.meta("origin"),
        }  # fmt: skip

    # -- who may ------------------------------------------------------------------------------------------------------

    def guarded(
        self, what: str, route: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The route, for those who may; what they asked is written down."""

        async def checked(request: Request) -> Response:
            began_s = time.monotonic()
            try:
                who = request.state.who = self.access.who(request, what)
            except RefusedError as refused:
                self.audit.refused(refused, self.access.address(request), _path(request))
                return _refusal(refused)
            status = 500
            try:
                response = await route(request)
                status = response.status_code
            except RefusedError as refused:
                response = _refusal(refused)
                status = refused.status
            except OF_DUCKDB as error:
                self.disk.failed(UNANSWERED, error)
                response = _refusal(RefusedError(503, _unreadable(error)))
                status = response.status_code
            finally:
                if what == "ingest" or request.url.path == METRICS:
                    self.audit.count(who.name, _path(request))
                else:
                    address, asked = self.access.address(request), dict(request.query_params)
                    self.audit.asked(who, address, _path(request), asked, status, began_s)
            return response

        return checked


@contextmanager
def _refusing() -> Iterator[None]:
    """What is wrong with a question, as a status."""
    try:
        yield
    except (QuestionError, TimeRangeError) as error:
        raise RefusedError(400, str(error)) from None
    except NothingError as error:
        raise RefusedError(404, str(error)) from None


def _asked(what: str, parameters: dict[str, str], settings: Settings) -> Question:
    with _refusing():
        return question(what, parameters, settings)


def _read(asked: Question, snapshot: Snapshot, covered: LedgerCoverage) -> Answer:
    try:
        with _refusing(), snapshot:
            return asked(snapshot, covered)
    except duckdb.InterruptException:
        raise RefusedError(503, "The server stops.") from None


class Books(NamedTuple):
    """The ledger as it was last brought up to date."""

    covered: LedgerCoverage | None
    revised: str
    changes: int  # of the store, until then
    minute: int
    at_s: float  # on the monotonic clock
    took_s: float

    def hold(self, changes: int, now_ms: int, now_s: float, *, may_rest: bool = True) -> bool:
        """Whether they are still good: nothing has come in, or to do them again takes long and is not due yet."""
        same = changes == self.changes and now_ms // MS_PER_MINUTE == self.minute
        rest_s = min(REST * self.took_s, LONGEST_REST_S) if may_rest and self.took_s > QUICK_S else 0.0
        return same or now_s - self.at_s < rest_s


class Form(NamedTuple):
    """How an answer is sent."""

    kind: str
    rendered: Callable[[Answer], bytes]


class Asking(NamedTuple):
    """A question, in which form its answer is wanted, and who may see the same."""

    what: str
    form: Form
    parameters: dict[str, str]
    whose: str  # a team, or nobody in particular

    def tag(self, revised: str) -> str:
        """Of the answer, at a revision."""
        return tag(f"{self.what} {self.form.kind}", self.parameters, revised)

    @property
    def question(self) -> str:
        """What the tags of all its answers have in common."""
        return question_of(self.tag(""))


def _html(answer: Answer) -> bytes:
    return render_html(answer).encode()


def _paged(page: Page, body: bytes | None, tagged: str) -> Response:
    if body is None:
        raise RefusedError(410, "That answer is not kept any more: ask again, without the cursor.")
    return Response(page.of(body, tagged), headers={"Cache-Control": "no-store"}, media_type=JSON)


def _unreadable(error: Exception) -> str:
    return f"The server's data cannot be used now: {words_of_disk(error)}. Its log and `pyrometer check DIR` say more."


def _own(who: Who, parameters: dict[str, str]) -> dict[str, str]:
    """The parameters, of a team's viewer with that team: whatever is asked is asked of its data."""
    if who.team is None:
        return parameters
    if parameters.get("team", who.team) != who.team:
        raise RefusedError(403, "You see one team's data, and this is another's.")
    return {**parameters, "team": who.team}


def _path(request: Request) -> str:
    """What was asked for, as it may be written down: what there is not may be anything."""
    route = request.scope["route"].path
    return request.url.path if request.path_params.get("what") in known() else str(route)


def _refusal(refused: RefusedError) -> Response:
    return JSONResponse({"error": refused.text}, refused.status, headers=refused.headers)


def application(server: Server) -> Starlette:
    """The routes, each for those who may."""
    senders = [
        Route("/api/v1/write", server.guarded("ingest", server.remote_write.take), methods=["POST"]),
        *(
            Route(f"/v1/{signal}", server.guarded("ingest", server.otlp.route(signal)), methods=["POST"])
            for signal in SIGNALS
        ),
    ]
    return _Application(
        senders,
        routes=[
            *senders,
            *(Route(path, route, methods=methods) for path, (route, methods) in _open(server).items()),
            Route("/report", server.guarded("view", server.report)),
            Route(METRICS, server.guarded("view_all", server.metrics)),
            Route("/api/v1/live", server.guarded("view", server.listen)),
            Route("/api/v1/openapi.json", server.guarded("view", server.document)),
            Route("/api/v1/close", server.guarded("administer", server.closing.take), methods=["POST"]),
            Route("/api/v1/rebuild", server.guarded("administer", server.closing.rebuild), methods=["POST"]),
            Route("/api/v1/backup", server.guarded("administer", server.backups.take), methods=["POST"]),
            Route("/api/v1/export/{form}", server.guarded("view", server.download)),
            Route("/api/v1/{what}", server.guarded("view", server.answer)),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=COMPRESSED_FROM, compresslevel=2)],
        lifespan=lambda _: _keeping(server),
    )


def _open(server: Server) -> dict[str, tuple[Handler, list[str]]]:
    """The routes that ask nobody who they are: they hold no data, or find out by themselves."""
    return {
        "/healthz": (server.healthz, ["GET"]),
        "/readyz": (server.readyz, ["GET"]),
        "/api/v1/session": (server.sessions.route, ["GET", "POST", "DELETE"]),
        **{path: (web.page, ["GET"]) for path in web.PAGES},
        "/page/{name:path}": (web.file, ["GET"]),
    }


class _Application(Starlette):
    """One whose every response has the headers, those that say that something went wrong as well; senders go straight
    to their routes."""

    def __init__(self, senders: list[Route], **options: Any) -> None:
        self._senders = senders
        super().__init__(**options)

    def build_middleware_stack(self) -> ASGIApp:
        return Headers(Straight(super().build_middleware_stack(), self._senders))


@asynccontextmanager
async def _keeping(server: Server) -> AsyncIterator[None]:
    warming = asyncio.create_task(asyncio.to_thread(web.warm))
    try:
        async with server.remote_write.keeping(), server.otlp.keeping():
            yield
        await warming
    finally:
        await asyncio.to_thread(server.audit.close)
