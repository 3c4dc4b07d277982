"""Who may ask a server: bearer tokens by role. Only their digests are kept."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pyrometer.store import files, token_marker
from pyrometer.store.grammar import Sha256, read_json, record_of

FILE = token_marker.TOKENS
PREFIX = "pyr_"
ROLES = ("ingest", "viewer", "team_viewer", "admin")
# What each role may do: send records, ask questions, ask what is about everybody, and (only the last) change who may.
MAY = {
    "ingest": ("ingest",),
    "viewer": ("view", "view_all"),
    "team_viewer": ("view",),
    "admin": ("ingest", "view", "view_all", "administer"),
}
LONGEST_NAME = 200


class TokenError(Exception):
    """A token that cannot be made, found or read; the text names the way out."""


class Token(NamedTuple):
    """A token as it is kept: whoever reads the file cannot use it."""

    name: str
    role: str
    sha256: Sha256
    created_ms: int
    team: str | None = None  # of a team viewer: whose data it sees


class Tokens:
    """The tokens of one data folder, read anew when their file has changed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._read_at_ns = -1
        self._tokens: list[Token] = []
        self._are_required = False

    def are_required(self) -> bool:
        """Whether the folder has or had a token. Once true, it stays true."""
        if not self._are_required and token_marker.had_tokens(self.path.parent):
            self._are_required = True
            with suppress(OSError):  # a full disk opens nothing: this server remembers it
                token_marker.mark(self.path.parent)
        return self._are_required

    def listed(self) -> list[Token]:
        """All of them."""
        try:
            changed_ns = self.path.stat().st_mtime_ns
            if changed_ns != self._read_at_ns:
                self._tokens = self._read()
                self._read_at_ns = changed_ns
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError):
            raise TokenError(f"{self.path} cannot be read: move it away and make new tokens.") from None
        return self._tokens

    def create(self, name: str, role: str, now_ms: int, team: str | None = None) -> str:
        """A new token; this is the only time that it is seen."""
        known = self.listed()
        for what, said in (("name", name), ("team", team)):
            if said is not None and not 0 < len(said) <= LONGEST_NAME:
                raise TokenError(f"A {what} has 1 to {LONGEST_NAME} characters, this one {len(said)}.")
        if (role == "team_viewer") != (team is not None):
            raise TokenError(f"--role {role} and --team {team}: a team viewer has a team, and nobody else has.")
        if any(token.name == name for token in known):
            raise TokenError(f"There is a token {name!r} already. Revoke it, or name this one otherwise.")
        secret = PREFIX + secrets.token_urlsafe(32)
        self._write([*known, Token(name, role, digest_of(secret), now_ms, team)])
        return secret

    def revoke(self, name: str) -> None:
        """From now on it opens nothing."""
        known = self.listed()
        kept = [token for token in known if token.name != name]
        if len(kept) == len(known):
            names = ", ".join(token.name for token in known) or "none"
            raise TokenError(f"There is no token {name!r}. Known: {names}.")
        self._write(kept)

    def of(self, digest: str) -> Token | None:
        """The token with this digest. All are compared, each in constant time."""
        found: Token | None = None
        for token in self.listed():
            if same(token.sha256, digest):
                found = token
        return found

    def _read(self) -> list[Token]:
        if not self.path.is_file():  # a pipe would never end
            raise ValueError("not a file")
        entries = read_json(self.path.read_bytes())["tokens"]
        return [record_of(Token, entry) for entry in entries]

    def _write(self, tokens: list[Token]) -> None:
        token_marker.mark(self.path.parent)
        kept = json.dumps({"tokens": [token._asdict() for token in tokens]}, indent=1)
        files.write_text(self.path, kept, secret=True)
        self._read_at_ns = -1


def digest_of(secret: str) -> str:
    """What is kept of a secret. It is random and long, so that a plain digest is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two digests are equal, in a time that does not say where they differ."""
    return hmac.compare_digest(one, other)
