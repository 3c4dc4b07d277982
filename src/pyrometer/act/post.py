"""Sends a body to an address that may be a secret: bounded in time, and never said in a log or an error."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2 as httpx

from pyrometer.model.settings import SettingError

CONNECT_S, ANSWER_S, WHOLE_S = 10.0, 30.0, 60.0  # between two signs of life, and in all
MOST_OF_AN_ANSWER = 4_096  # bytes
LONGEST_WAIT_S = 3_600.0  # that a receiver may ask for
_SAID = re.compile(r"[A-Za-z0-9_ .,:-]{1,100}")  # Slack says what is wrong in a word

# They write down every address that is asked.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class Outcome(NamedTuple):
    """What became of it."""

    sent: bool
    said: str = ""  # why not, in words that hold no secret
    hopeless: bool = False  # this body will never be taken
    after_s: float | None = None  # the receiver asks for so much time
    answer: bytes = b""  # what it said when it took it, the beginning of it


async def post(url: str, body: Any, headers: dict[str, str] | None = None) -> Outcome:
    """Sends JSON, or bytes as they are. Redirects are not followed: they would take the secret elsewhere."""
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    headers = {"Accept-Encoding": "identity", **(headers or {})}  # an answer is not unpacked: it may be a bomb
    sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    try:
        async with (
            asyncio.timeout(WHOLE_S),
            httpx.AsyncClient(timeout=timeout, follow_redirects=False) as client,
            client.stream("POST", url, **sent, headers=headers) as response,
        ):
            said = b""
            async for chunk in response.aiter_raw():
                said += chunk
                if len(said) > MOST_OF_AN_ANSWER:
                    break
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return Outcome(False, f"it does not answer ({type(error).__name__})")
    if response.is_success:
        return Outcome(True, answer=said)
    text = said.decode(errors="replace").strip()
    words = f"HTTP {response.status_code}" + (f", {text}" if _SAID.fullmatch(text) else "")
    return Outcome(False, words, response.status_code in (400, 413, 422), _after_s(response))


def _after_s(response: httpx.Response) -> float | None:
    asked = response.headers.get("Retry-After", "")
    return min(float(asked), LONGEST_WAIT_S) if asked.isascii() and asked.isdecimal() and len(asked) < 10 else None


def secret_of(setting: str, path: str) -> str:
    """What a file holds that a setting names; errors name the file."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise SettingError(f"Setting {setting!r} names {path}: {reason}.") from None
    if not text or len(text.split()) != 1:
        raise SettingError(f"Setting {setting!r} names {path}, which does not hold one line.")
    return text


def address_of(setting: str, path: str) -> str:
    """An address from a file."""
    url = secret_of(setting, path)
    if not is_address(url):
        raise SettingError(f"Setting {setting!r} names {path}, which does not hold an address: https://….")
    return url


def is_address(text: str) -> bool:
    """Whether a text is one that can be sent to."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
