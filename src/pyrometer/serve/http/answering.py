"""Answers to questions over HTTP: one at a time for equal questions, from the cache while nothing has changed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NamedTuple, Protocol

import duckdb
from starlette.requests import Request
from starlette.responses import Response

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.time_range import TimeRangeError
from pyrometer.model.settings import Settings
from pyrometer.questions.cache import (
    AnswerCache,
    AnswerPage,
    CachedAnswer,
    as_json,
    is_known,
    key,
    last_will_do,
    question_of,
    tag,
)
from pyrometer.questions.parameters import QuestionError
from pyrometer.questions.registry import NotFoundError, Question, question
from pyrometer.questions.tokens import Principal
from pyrometer.serve.core import Core
from pyrometer.serve.disk import UNANSWERED
from pyrometer.serve.http.event_stream import EventStream
from pyrometer.serve.http.http_error import HttpError
from pyrometer.serve.runtime import run_to_end
from pyrometer.serve.tasks.accounting import Accounting
from pyrometer.store import Snapshot

JSON = "application/json"
MAX_ANSWERING = 2  # questions at a time: each may use all cores and a gigabyte
MAX_ASKING = 32  # including those that wait

Answer = dict[str, Any]


class Ask(Protocol):
    """Asks a question of the server. Raises `HttpError` when there is no answer."""

    def __call__(self, what: str, parameters: dict[str, str], team: str | None = None) -> Awaitable[Answer]:
        """The answer."""
        ...


class AnswerFormat(NamedTuple):
    """How an answer is sent."""

    media_type: str
    render: Callable[[Answer], bytes]


AS_JSON = AnswerFormat(JSON, as_json)


class AnswerRequest(NamedTuple):
    """A question, the format of its answer, and the audience that may share the answer."""

    what: str
    form: AnswerFormat
    parameters: dict[str, str]
    audience: str  # a team; empty: all teams

    def tag(self, revision: str) -> str:
        """The tag of the answer at a revision of the ledger."""
        return tag(f"{self.what} {self.form.media_type}", self.parameters, revision)

    @property
    def question(self) -> str:
        """The part that the tags of all its answers have in common."""
        return question_of(self.tag(""))


class Answering:
    """Answers questions from snapshots of the store."""

    def __init__(self, core: Core, accounting: Accounting, events: EventStream) -> None:
        self._core = core
        self._accounting = accounting
        self._events = events
        self._cache = AnswerCache()
        self._making: dict[str, asyncio.Task[bytes]] = {}  # answers in progress, by their key in the cache
        self._renewing: dict[str, asyncio.Task[None]] = {}  # by question
        self._asking = 0
        self._slots = asyncio.Semaphore(MAX_ANSWERING)

    async def ask(self, what: str, parameters: dict[str, str], team: str | None = None) -> Answer:
        """The answer as of now. It is cached."""
        parameters = parameters if team is None else {**parameters, "team": team}
        _, body = await self._made(AnswerRequest(what, AS_JSON, parameters, team or ""))
        answer: Answer = json.loads(body or b"")
        return answer

    async def ask_if_available(self, what: str, parameters: dict[str, str]) -> Answer | None:
        """The answer as of now, or None when there is none."""
        with suppress(HttpError):
            return await self.ask(what, parameters)
        return None

    async def respond(self, request: Request, what: str, form: AnswerFormat = AS_JSON) -> Response:
        """The response to a question: 304 when the client already has the answer."""
        principal: Principal = request.state.principal
        parameters = limited_to_team(principal, dict(request.query_params))
        with question_errors():
            latest = last_will_do(parameters)
            page = AnswerPage.requested(what, parameters) if form.media_type == JSON else None
        answer_request = AnswerRequest(what, form, parameters, principal.team or "")
        known = request.headers.get("If-None-Match", "")
        if page is not None and page.tag is not None:
            return _page_response(page, self._cache.get(key(answer_request.audience, page.tag)), page.tag)
        made = self._cache.newest(answer_request.audience, answer_request.question) if latest else None
        if made is not None and made.is_slow:
            self._renew(answer_request, made)
            tagged, body = made.tag, self._cache.get(key(answer_request.audience, made.tag))
        else:
            async with self.turn():
                tagged, body = await self._made(answer_request, known if page is None else "")
        return _page_response(page, body, tagged) if page is not None else _response(tagged, body, form, known)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn to answer a question. Few are answered at a time, some wait, and the rest is refused."""
        if self._asking >= MAX_ASKING:
            raise HttpError(429, "Too many questions at the same time. Try again later.")
        self._asking += 1
        try:
            async with self._slots:
                yield
        finally:
            self._asking -= 1

    async def end(self) -> None:
        """Interrupts answers that are in progress."""
        while tasks := [*self._making.values(), *self._renewing.values()]:
            await asyncio.to_thread(self._core.store.interrupt_readers)
            await asyncio.wait(tasks, timeout=0.1)

    async def _made(self, answer_request: AnswerRequest, known: str = "") -> tuple[str, bytes | None]:
        """The tag of the current answer, and its body unless the client has it."""
        ask = _checked(answer_request.what, answer_request.parameters, self._core.settings)
        async with self._core.lock:
            covered, revision = self._current() if self._accounting.is_current() else await run_to_end(self._current)
            tagged = answer_request.tag(revision)
            if is_known(tagged, known):
                return tagged, None
            cached = key(answer_request.audience, tagged)
            body = self._cache.get(cached)
            if body is None and cached not in self._making:  # equal questions wait for one answer
                snapshot = await run_to_end(self._core.store.snapshot)
                self._making[cached] = asyncio.create_task(self._make(answer_request, tagged, ask, snapshot, covered))
                self._making[cached].add_done_callback(lambda made: self._was_made(cached, made))
            making = self._making.get(cached)
        if body is None and making is not None:
            body = await asyncio.shield(making)
        return tagged, body

    def _current(self) -> tuple[LedgerCoverage, str]:
        """The time that the ledger covers, and its revision. The caller holds the lock."""
        state = self._accounting.bring_up_to_date()
        if state.covered is None:
            raise HttpError(409, "There is no data to account for yet.")
        return state.covered, state.revision

    def _was_made(self, cached: str, made: asyncio.Task[bytes]) -> None:
        del self._making[cached]
        if not made.cancelled():
            made.exception()  # marks it as retrieved: requests that still wait get it

    async def _make(
        self, answer_request: AnswerRequest, tagged: str, ask: Question, snapshot: Snapshot, covered: LedgerCoverage
    ) -> bytes:
        began_s = time.monotonic()
        body = await asyncio.to_thread(lambda: answer_request.form.render(_read(ask, snapshot, covered)))
        self._core.disk.worked(UNANSWERED)
        now_s = time.monotonic()
        self._cache.add(answer_request.audience, CachedAnswer(tagged, now_s - began_s, now_s), body)
        return body

    def _renew(self, answer_request: AnswerRequest, made: CachedAnswer) -> None:
        """Makes the next answer in the background, and sends an event when it differs."""
        name = f"{answer_request.question} {answer_request.audience}"
        if name in self._renewing or not made.may_be_renewed(time.monotonic()):
            return

        async def renew() -> None:
            with suppress(HttpError):
                async with self.turn():
                    tagged, _ = await self._made(answer_request)
                if tagged != made.tag:
                    self._events.send("answer", {"question": answer_request.what})

        self._renewing[name] = asyncio.create_task(renew())
        self._renewing[name].add_done_callback(lambda _: self._renewing.pop(name))


def limited_to_team(principal: Principal, parameters: dict[str, str]) -> dict[str, str]:
    """The parameters of a question; for a team viewer, with its team."""
    if principal.team is None:
        return parameters
    if parameters.get("team", principal.team) != principal.team:
        raise HttpError(403, "This token sees the data of one team, and the question is about another one.")
    return {**parameters, "team": principal.team}


@contextmanager
def question_errors() -> Iterator[None]:
    """Turns errors of a question into a status."""
    try:
        yield
    except (QuestionError, TimeRangeError) as error:
        raise HttpError(400, str(error)) from None
    except NotFoundError as error:
        raise HttpError(404, str(error)) from None


def _checked(what: str, parameters: dict[str, str], settings: Settings) -> Question:
    with question_errors():
        return question(what, parameters, settings)


def _read(ask: Question, snapshot: Snapshot, covered: LedgerCoverage) -> Answer:
    try:
        with question_errors(), snapshot:
            return ask(snapshot, covered)
    except duckdb.InterruptException:
        raise HttpError(503, "The server is stopping.") from None


def _response(tagged: str, body: bytes | None, form: AnswerFormat, known: str) -> Response:
    headers = {"ETag": tagged, "Cache-Control": "private, no-cache"}
    if is_known(tagged, known):
        return Response(None, 304, headers=headers)
    return Response(body, headers=headers, media_type=form.media_type)


def _page_response(page: AnswerPage, body: bytes | None, tagged: str) -> Response:
    if body is None:
        raise HttpError(410, "This answer is no longer available. Ask again without the cursor.")
    return Response(page.cut(body, tagged), headers={"Cache-Control": "no-store"}, media_type=JSON)
