"""Bearer tokens of a data folder, and what their roles permit. Only digests of tokens are stored."""

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
# What each role may do: send records, ask questions, ask about all teams, and administer the server.
PERMISSIONS = {
    "ingest": ("ingest",),
    "viewer": ("view", "view_all"),
    "team_viewer": ("view",),
    "admin": ("ingest", "view", "view_all", "administer"),
}
MAX_NAME_LENGTH = 200


class TokenError(Exception):
    """A token that cannot be created, found or read. The text says what to do."""


class Principal(NamedTuple):
    """The sender of a request. One with a team sees only that team's data."""

    name: str
    role: str
    team: str | None = None
    sign_in: str = "token"  # open, token, proxy
    is_ambient: bool = False  # the browser adds the credentials, whichever page caused the request

    def may(self, permission: str) -> bool:
        """Whether the role has this permission."""
        return permission in PERMISSIONS.get(self.role, ())


class Token(NamedTuple):
    """A token as it is stored: reading the file does not reveal the secret."""

    name: str
    role: str
    sha256: Sha256
    created_ms: int
    team: str | None = None  # of a team viewer: the team whose data it sees


class Tokens:
    """The tokens of one data folder, read again when their file changes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._read_at_ns = -1
        self._tokens: list[Token] = []
        self._are_required = False

    def are_required(self) -> bool:
        """Whether the folder has or had a token. Once true, it stays true."""
        if not self._are_required and token_marker.had_tokens(self.path.parent):
            self._are_required = True
            with suppress(OSError):  # the disk may be full: this process remembers it
                token_marker.mark(self.path.parent)
        return self._are_required

    def listed(self) -> list[Token]:
        """All tokens."""
        try:
            changed_ns = self.path.stat().st_mtime_ns
            if changed_ns != self._read_at_ns:
                self._tokens = self._read()
                self._read_at_ns = changed_ns
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError):
            raise TokenError(f"{self.path} cannot be read. Move it away and create new tokens.") from None
        return self._tokens

    def create(self, name: str, role: str, now_ms: int, team: str | None = None) -> str:
        """Creates a token and returns its secret, which is not stored."""
        tokens = self.listed()
        for what, value in (("name", name), ("team", team)):
            if value is not None and not 0 < len(value) <= MAX_NAME_LENGTH:
                raise TokenError(f"The {what} has {len(value)} characters. It must have 1 to {MAX_NAME_LENGTH}.")
        if (role == "team_viewer") != (team is not None):
            raise TokenError(f"--role {role} with --team {team}: only a team viewer has a team, and it needs one.")
        if any(token.name == name for token in tokens):
            raise TokenError(f"A token named {name!r} already exists. Revoke it, or choose another name.")
        secret = PREFIX + secrets.token_urlsafe(32)
        self._write([*tokens, Token(name, role, digest_of(secret), now_ms, team)])
        return secret

    def revoke(self, name: str) -> None:
        """Deletes a token. It has no effect from now on."""
        tokens = self.listed()
        kept = [token for token in tokens if token.name != name]
        if len(kept) == len(tokens):
            names = ", ".join(token.name for token in tokens) or "none"
            raise TokenError(f"Token {name!r} not found. Existing tokens: {names}.")
        self._write(kept)

    def of(self, digest: str) -> Token | None:
        """The token with this digest. All are compared, each in constant time."""
        found: Token | None = None
        for token in self.listed():
            if same(token.sha256, digest):
                found = token
        return found

    def _read(self) -> list[Token]:
        if not self.path.is_file():  # reading a pipe would not end
            raise ValueError("not a file")
        entries = read_json(self.path.read_bytes())["tokens"]
        return [record_of(Token, entry) for entry in entries]

    def _write(self, tokens: list[Token]) -> None:
        token_marker.mark(self.path.parent)
        text = json.dumps({"tokens": [token._asdict() for token in tokens]}, indent=1)
        files.write_text(self.path, text, secret=True)
        self._read_at_ns = -1


def digest_of(secret: str) -> str:
    """The digest that is stored for a secret. Secrets are long and random, so that a plain digest is enough."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two digests are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one, other)
