"""Answers that were given, kept while nothing has changed: asked again, they cost nothing.

A tag names a question and the store that it was asked of: its revision changes whenever a row is added or dropped, or
the ledger reaches further. Who has an answer with the same tag already is told so. Pages are cut from an answer that is
kept, so that rows are neither missed nor met twice while the store goes on changing. Who would rather have the last
answer at once than the next one in a while (a page that somebody looks at) gets that, where the next one takes long.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pyrometer.account.closed import revision_of
from pyrometer.account.ledger import LedgerCoverage
from pyrometer.model.columns import SCHEMAS
from pyrometer.serve.questions import QuestionError
from pyrometer.store import StoreReader

MOST_BYTES = 64 << 20  # of answers that are kept
PAGED = ("cost", "runs", "charges")  # answers with many rows
MOST_ROWS = 10_000  # of a page
MOST_QUESTIONS = 1_000  # whose last answer is remembered
QUICK_S = 0.5  # who looks at a page waits so long for an answer that is new
LEAST_PAUSE_S, REST = 5.0, 4  # between slow answers to one question: so many times what one takes
_ALWAYS = (-(2**62), 2**62)


def revision(store: StoreReader, covered: LedgerCoverage) -> str:
    """Of the facts, the ledger made from them, and the months that are closed."""
    facts = store.fingerprint(SCHEMAS, *_ALWAYS)
    books = revision_of(store.folder)
    return hashlib.sha256(f"{covered.from_ms} {covered.end_ms} {facts} {books}".encode()).hexdigest()[:16]


def tag(what: str, parameters: Mapping[str, str], revised: str) -> str:
    """An ETag: the revision, and after it the question."""
    asked = hashlib.sha256(json.dumps([what, sorted(parameters.items())]).encode()).hexdigest()[:16]
    return f'W/"{revised}-{asked}"'


def question_of(tag: str) -> str:
    """The part of a tag that is the question."""
    return tag.rstrip('"').rpartition("-")[2]


def key(whose: str, tag: str) -> str:
    """Where an answer is kept. A cursor names a tag: with another's, nobody finds another team's answer."""
    return f"{tag} {whose}"


def is_known(tag: str, if_none_match: str) -> bool:
    """Whether the client says that it has this answer."""
    known = [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return tag.removeprefix("W/") in known or "*" in known


def last_will_do(parameters: dict[str, str]) -> bool:
    """Whether the last answer is as welcome as the next one, which the parameters do not say any more then."""
    stale = parameters.pop("stale", None)
    if stale not in (None, "ok"):
        raise QuestionError(f"stale={stale!r} is not known: say stale=ok when the last answer will do.")
    return stale is not None


class Page(NamedTuple):
    """A part of an answer's rows; the cursor says of which answer, and where it begins."""

    limit: int
    tag: str | None = None
    offset: int = 0

    @classmethod
    def asked_for(cls, what: str, parameters: dict[str, str]) -> Page | None:
        """What the parameters say of a page, which they are without from then on; None: everything is wanted."""
        if what not in PAGED or not {"limit", "cursor"} & set(parameters):
            return None
        limit = parameters.pop("limit", str(MOST_ROWS))
        if not (limit.isascii() and limit.isdecimal() and 1 <= int(limit[:10]) <= MOST_ROWS):
            raise QuestionError(f"limit={limit!r} is not a number of rows from 1 to {MOST_ROWS:,}.")
        cursor = parameters.pop("cursor", None)
        if cursor is None:
            return cls(int(limit))
        try:
            tag, offset = base64.urlsafe_b64decode(cursor.encode()).decode().rsplit(" ", 1)
            return cls(int(limit), tag, max(int(offset[:10]), 0))
        except ValueError:  # neither base64, nor text, nor a number
            raise QuestionError("That cursor is none of ours: begin without it.") from None

    def of(self, body: bytes, tag: str) -> bytes:
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


class Made(NamedTuple):
    """An answer to a question, whatever has happened since."""

    tag: str
    took_s: float
    at_s: float  # on the monotonic clock: when it was there

    @property
    def is_slow(self) -> bool:
        """Whether the next one is worth waiting for."""
        return self.took_s > QUICK_S

    def may_be_made_again(self, now_s: float) -> bool:
        """Slow answers are not made all the time."""
        return now_s - self.at_s > max(LEAST_PAUSE_S, REST * self.took_s)


class Kept:
    """The answers that were asked for last, as they are sent, each for those who may see the same."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._newest: OrderedDict[str, Made] = OrderedDict()  # by question

    def get(self, tag: str) -> bytes | None:
        """The answer with this tag."""
        body = self._kept.get(tag)
        if body is not None:
            self._kept.move_to_end(tag)
        return body

    def newest(self, whose: str, question: str) -> Made | None:
        """The last answer to a question, as far as it is still kept."""
        made = self._newest.get(f"{question} {whose}")
        return made if made is not None and self.get(key(whose, made.tag)) is not None else None

    def keep(self, whose: str, made: Made, body: bytes) -> None:
        """Keeps an answer, and lets go of those that were not asked for the longest."""
        tag = key(whose, made.tag)
        self._bytes += len(body) - len(self._kept.pop(tag, b""))
        self._kept[tag] = body
        question = f"{question_of(made.tag)} {whose}"
        self._newest.pop(question, None)
        self._newest[question] = made
        while len(self._newest) > MOST_QUESTIONS:
            self._newest.popitem(last=False)
        while self._bytes > self._most:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest)
