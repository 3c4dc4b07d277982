"""The cache of answers, their tags, and pages of their rows.

A tag has the question and the revision of the store, which changes with every row and every accounted minute. Pages are
cut from a cached answer, so that no row is missed or repeated while the store changes. With `stale=ok` a client gets
the last answer at once while a slow new one is made.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.closing.closed_months import revision_of
from pyrometer.model.columns import SCHEMAS
from pyrometer.questions.parameters import QuestionError
from pyrometer.store import StoreReader

MAX_BYTES = 64 << 20  # of cached answers
PAGED = ("cost", "runs", "charges")  # answers with many rows
MAX_ROWS = 10_000  # of a page
MAX_QUESTIONS = 1_000  # whose last answer is known
QUICK_S = 0.5  # a page waits this long for a new answer
MIN_PAUSE_S, REST_FACTOR = 5.0, 4  # between slow answers to one question; the factor is of the time that one takes
_ALWAYS = (-(2**62), 2**62)


def revision(store: StoreReader, covered: LedgerCoverage) -> str:
    """The revision of the records, the ledger and the closed months."""
    facts = store.fingerprint(SCHEMAS, *_ALWAYS)
    closed = revision_of(store.folder)
    return hashlib.sha256(f"{covered.from_ms} {covered.end_ms} {facts} {closed}".encode()).hexdigest()[:16]


def tag(what: str, parameters: Mapping[str, str], revised: str) -> str:
    """An ETag: the revision, then the question."""
    hashed = hashlib.sha256(json.dumps([what, sorted(parameters.items())]).encode()).hexdigest()[:16]
    return f'W/"{revised}-{hashed}"'


def question_of(tag: str) -> str:
    """The part of a tag that is the question."""
    return tag.rstrip('"').rpartition("-")[2]


def key(audience: str, tag: str) -> str:
    """The key of an answer in the cache. It has the team, so that a cursor never opens another team's answer."""
    return f"{tag} {audience}"


def is_known(tag: str, if_none_match: str) -> bool:
    """Whether the client has this answer."""
    known = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag.removeprefix("W/") in known or "*" in known


def last_will_do(parameters: dict[str, str]) -> bool:
    """Takes `stale` out of the parameters. Returns whether the last answer may be sent."""
    stale = parameters.pop("stale", None)
    if stale not in (None, "ok"):
        raise QuestionError(f"stale={stale!r} is unknown. The only value is ok.")
    return stale is not None


class AnswerPage(NamedTuple):
    """Some rows of an answer. The cursor has the tag of the answer and the first row."""

    limit: int
    tag: str | None = None
    offset: int = 0

    @classmethod
    def requested(cls, what: str, parameters: dict[str, str]) -> AnswerPage | None:
        """Takes the page out of the parameters. None: all rows are requested."""
        if what not in PAGED or not {"limit", "cursor"} & set(parameters):
            return None
        limit = parameters.pop("limit", str(MAX_ROWS))
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:10]) <= MAX_ROWS):
            raise QuestionError(f"limit={limit!r} is not a number of rows from 1 to {MAX_ROWS:,}.")
        cursor = parameters.pop("cursor", None)
        if cursor is None:
            return cls(int(limit))
        try:
            tag, offset = base64.urlsafe_b64decode(cursor.encode()).decode().rsplit(" ", 1)
            return cls(int(limit), tag, max(int(offset[:10]), 0))
        except ValueError:  # neither base64, nor text, nor a number
            raise QuestionError("Unknown cursor. Start again without one.") from None

    def cut(self, body: bytes, tag: str) -> bytes:
        """This page of an answer, with the cursor of the next one."""
        answer = json.loads(body)
        after = self.offset + self.limit
        following = base64.urlsafe_b64encode(f"{tag} {after}".encode()).decode()
        answer["next"] = following if after < len(answer["rows"]) else None
        answer["rows"] = answer["rows"][self.offset : after]
        return as_json(answer)


def as_json(answer: dict[str, Any]) -> bytes:
    """An answer as it is sent."""
    return msgspec.json.encode(answer)


class CachedAnswer(NamedTuple):
    """The last answer to a question, even if something has changed since."""

    tag: str
    took_s: float
    at_s: float  # when it was complete, on the monotonic clock

    @property
    def is_slow(self) -> bool:
        """Whether a new one takes too long to wait for."""
        return self.took_s > QUICK_S

    def may_be_renewed(self, now_s: float) -> bool:
        """Whether the pause after a slow answer has ended."""
        return now_s - self.at_s > max(MIN_PAUSE_S, REST_FACTOR * self.took_s)


class AnswerCache:
    """The answers that were requested last, by tag and team."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max = max_bytes
        self._bytes = 0
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._newest: OrderedDict[str, CachedAnswer] = OrderedDict()  # by question

    def get(self, tag: str) -> bytes | None:
        """The answer with this tag."""
        body = self._bodies.get(tag)
        if body is not None:
            self._bodies.move_to_end(tag)
        return body

    def newest(self, audience: str, question: str) -> CachedAnswer | None:
        """The last answer to a question, if it is still in the cache."""
        made = self._newest.get(f"{question} {audience}")
        return made if made is not None and self.get(key(audience, made.tag)) is not None else None

    def add(self, audience: str, made: CachedAnswer, body: bytes) -> None:
        """Adds an answer, and drops those that were not requested for the longest time."""
        tag = key(audience, made.tag)
        self._bytes += len(body) - len(self._bodies.pop(tag, b""))
        self._bodies[tag] = body
        question = f"{question_of(made.tag)} {audience}"
        self._newest.pop(question, None)
        self._newest[question] = made
        while len(self._newest) > MAX_QUESTIONS:
            self._newest.popitem(last=False)
        while self._bytes > self._max:
            _, oldest = self._bodies.popitem(last=False)
            self._bytes -= len(oldest)
