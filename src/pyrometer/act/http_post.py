"""Sends a body to an address that may be secret. Time is bounded, and the address never appears in logs or errors."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2 as httpx

from pyrometer.model.settings import SettingError

CONNECT_TIMEOUT_S, READ_TIMEOUT_S, TOTAL_TIMEOUT_S = 10.0, 30.0, 60.0
MAX_RESPONSE_BYTES = 4_096
MAX_RETRY_AFTER_S = 3_600.0
_HARMLESS_REASON = re.compile(r"[A-Za-z0-9_ .,:-]{1,100}")  # such as the error codes of Slack

# These loggers would write every address.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)


class SendResult(NamedTuple):
    """The result of sending one body."""

    sent: bool
    error: str = ""  # why it failed, without secrets
    permanent: bool = False  # the receiver will never accept this body
    retry_after_s: float | None = None
    response: bytes = b""  # the start of the response to an accepted body


async def post(url: str, body: Any, headers: dict[str, str] | None = None) -> SendResult:
    """Sends JSON, or bytes as they are. Redirects are not followed, because they would leak the secret."""
    timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    headers = {"Accept-Encoding": "identity", **(headers or {})}  # a compressed response could be a zip bomb
    sent: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    try:
        async with (
            asyncio.timeout(TOTAL_TIMEOUT_S),
            httpx.AsyncClient(timeout=timeout, follow_redirects=False) as client,
            client.stream("POST", url, **sent, headers=headers) as response,
        ):
            received = b""
            async for chunk in response.aiter_raw():
                received += chunk
                if len(received) > MAX_RESPONSE_BYTES:
                    break
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        return SendResult(False, f"no response ({type(error).__name__})")
    if response.is_success:
        return SendResult(True, response=received)
    text = received.decode(errors="replace").strip()
    reason = f"HTTP {response.status_code}" + (f", {text}" if _HARMLESS_REASON.fullmatch(text) else "")
    return SendResult(False, reason, response.status_code in (400, 413, 422), _retry_after_s(response))


def _retry_after_s(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return min(float(value), MAX_RETRY_AFTER_S) if value.isascii() and value.isdecimal() and len(value) < 10 else None


def secret_of(setting: str, path: str) -> str:
    """Reads a secret from the file that a setting names. Errors name the file."""
    try:
        text = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise SettingError(f"Setting {setting!r} names {path}: {reason}.") from None
    if not text or len(text.split()) != 1:
        raise SettingError(f"Setting {setting!r} names {path}, which must contain exactly one line.")
    return text


def address_of(setting: str, path: str) -> str:
    """Reads an address from a file."""
    url = secret_of(setting, path)
    if not is_address(url):
        raise SettingError(f"Setting {setting!r} names {path}, which must contain an address such as https://….")
    return url


def is_address(text: str) -> bool:
    """Whether a text is an HTTP address."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
