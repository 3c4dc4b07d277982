"""Who may ask a server: bearer tokens by role. Only their digests are kept."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import NamedTuple

from pyrometer.store import files

FILE = "tokens.json"
PREFIX = "pyr_"
ROLES = ("ingest", "viewer", "admin")
# What each role may do: send records, ask questions, and (only the last) change who may.
MAY = {"ingest": ("ingest",), "viewer": ("view",), "admin": ("ingest", "view", "administer")}


class TokenError(Exception):
    """A token that cannot be made, found or read; the text names the way out."""


class Token(NamedTuple):
    """A token as it is kept: whoever reads the file cannot use it."""

    name: str
    role: str
    sha256: str
    created_ms: int


class Tokens:
    """The tokens of one data folder, read anew when their file has changed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._read_at_ns = -1
        self._tokens: list[Token] = []

    def listed(self) -> list[Token]:
        """All of them."""
        try:
            changed_ns = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed_ns != self._read_at_ns:
            try:
                entries = json.loads(self.path.read_text(encoding="utf-8"))["tokens"]
                self._tokens = [Token(**entry) for entry in entries]
            except (OSError, ValueError, KeyError, TypeError):
                raise TokenError(f"{self.path} cannot be read: move it away and make new tokens.") from None
            self._read_at_ns = changed_ns
        return self._tokens

    def create(self, name: str, role: str, now_ms: int) -> str:
        """A new token; this is the only time that it is seen."""
        known = self.listed()
        if any(token.name == name for token in known):
            raise TokenError(f"There is a token {name!r} already. Revoke it, or name this one otherwise.")
        secret = PREFIX + secrets.token_urlsafe(32)
        self._write([*known, Token(name, role, _digest(secret), now_ms)])
        return secret

    def revoke(self, name: str) -> None:
        """From now on it opens nothing."""
        known = self.listed()
        kept = [token for token in known if token.name != name]
        if len(kept) == len(known):
            names = ", ".join(token.name for token in known) or "none"
            raise TokenError(f"There is no token {name!r}. Known: {names}.")
        self._write(kept)

    def may(self, secret: str, what: str) -> bool | None:
        """Whether this token may do this; None when nobody knows it. All are compared, each in constant time."""
        digest = _digest(secret)
        found: Token | None = None
        for token in self.listed():
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return None if found is None else what in MAY.get(found.role, ())

    def _write(self, tokens: list[Token]) -> None:
        kept = json.dumps({"tokens": [token._asdict() for token in tokens]}, indent=1)
        files.write_text(self.path, kept, secret=True)
        self._read_at_ns = -1


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
