"""Who asks, and what they may: by a token, by the session of a page that was opened with one, or by a proxy's word.

A browser sends cookies and passes proxies by itself, whichever page made it ask. So who is known by these may only
look, and what changes something has to come from the server's own pages.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from pyrometer.model.settings import SettingError, Settings
from pyrometer.serve.limits import Guesses, Recent
from pyrometer.serve.tokens import MAY, TokenError, Tokens, digest_of, same

COOKIE = "pyrometer_session"
HOSTS = ("127.0.0.1", "localhost", "::1")  # this machine's own names for itself
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\[\]:]+)(?::\d*)?")
SESSION_S = 12 * 3600
MOST_SESSIONS = 10_000
LONGEST_NAME = 200
_FOR_SOMETHING_ELSE = "This token is for something else."
SAFE = ("GET", "HEAD", "OPTIONS")
ADMIT = "admit"  # in the state of a request: what its connection wants called when access is granted
# Names of headers that proxies add, by what they are about or who adds them. `_` counts as `-`. nginx adds none by
# default, but uses HTTP/1.0 up to version 1.29.
PROXY_HEADER = re.compile(
    r"""
    .*(forward|proxy|webauth|auth-request).*
    | .*(client|connecting|real|remote|source|user|viewer)-?(address|addr|ip|user)
    | via | cdn-loop | x-scheme | x-host | x-varnish | (x-)?ssl-client-.*
    | (akamai|cf|cloudfront|fastly|fly|ngrok|tailscale)-.*
    | x-(amz-cf|amzn|appgw|arr|azure|cloud-trace|envoy|goog|haproxy|kong|ms-client|ngrok|original|traefik|vercel)-.*
    """,
    re.VERBOSE,
)


class RefusedError(Exception):
    """An answer that says no."""

    def __init__(self, status: int, text: str, *, retry_s: int = 1, who: Who | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.retry_s = status, text, retry_s
        self.who = who  # where that is known

    @property
    def headers(self) -> dict[str, str] | None:
        """What the status is sent with."""
        return {
            401: {"WWW-Authenticate": "Bearer"}, 408: {"Connection": "close"}, 429: {"Retry-After": str(self.retry_s)},
        }.get(self.status)  # fmt: skip


class Who(NamedTuple):
    """Who asks. One with a team sees that team's data and nothing else."""

    name: str
    role: str
    team: str | None = None
    sign_in: str = "token"  # open, token, proxy
    by_itself: bool = False  # a browser says so, whoever made it ask

    def may(self, what: str) -> bool:
        """Whether their role is for that."""
        return what in MAY.get(self.role, ())


ANYBODY = Who("anybody", "admin", sign_in="open")


class Proxy:
    """The proxies whose word counts, and the headers in which they say it."""

    def __init__(self, settings: Settings) -> None:
        try:
            self._networks = [ipaddress.ip_network(one, strict=False) for one in settings.proxy_addresses]
        except ValueError as error:
            raise SettingError(f"Setting 'proxy_addresses': {error}. Name addresses or networks: 10.0.0.0/8.") from None
        self._user, self._team = settings.proxy_user_header, settings.proxy_team_header
        self._role = "team_viewer" if self._team else settings.proxy_role
        if self._role == "team_viewer" and not self._team:
            raise SettingError("Setting 'proxy_role' is 'team_viewer': name 'proxy_team_header', which says the team.")

    @property
    def is_trusted_at_all(self) -> bool:
        """Whether any proxy says who asks."""
        return bool(self._networks and self._user)

    def sent(self, request: Request) -> bool:
        """Whether one of them sent this."""
        try:
            peer = ipaddress.ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self._networks)

    def who(self, request: Request) -> Who | None:
        """Who it says that asks; None when it says nothing."""
        if not (self._user and self.sent(request)):
            return None
        name = _only(request, self._user)
        if name is None:
            return None
        team = _only(request, self._team) if self._team else None
        if self._team and team is None:
            raise RefusedError(403, f"The proxy names no team in {self._team}.")
        return Who(name, self._role, team, "proxy", by_itself=True)


def _only(request: Request, header: str) -> str | None:
    """The value of a header that is there once: a second one may be the client's own."""
    values = request.headers.getlist(header)
    if len(values) > 1:
        raise RefusedError(403, f"There is more than one {header}: the proxy must replace what clients send.")
    value = values[0].strip() if values else ""
    if len(value) > LONGEST_NAME:
        raise RefusedError(403, f"{header} has {len(value):,} characters, {LONGEST_NAME} at most.")
    return value or None


class Access:
    """Says who asks; what they may is checked here and nowhere else."""

    def __init__(
        self, tokens: Tokens, settings: Settings, own: Callable[[], str | None], *, open_to_all: bool,
        always_open: bool = False,
    ) -> None:  # fmt: skip
        self.tokens = tokens
        self.proxy = Proxy(settings)
        self.guesses = Guesses()
        self.sessions: Recent[str, tuple[str, float]] = Recent(MOST_SESSIONS)  # by digest: the token's, and until when
        self._own = own  # the word that lies in the folder: who may read that may read the data
        self._open_to_all = open_to_all and not self.proxy.is_trusted_at_all
        self._always_open = always_open
        self._secure = settings.secure_cookie == "yes"

    def who(self, request: Request, what: str) -> Who:
        """Who asks for this, if they may."""
        who = self._open(request) or self._known(request, what)
        admit = getattr(request.state, ADMIT, None)
        if who is not None and admit is not None:
            admit(authenticated=who is not ANYBODY)
        if who is None:
            text = "A token is needed: `Authorization: Bearer …`; `pyrometer token create` makes it."
            raise RefusedError(401, text)
        if not who.may(what):
            about_all = what == "view_all" and who.team is not None
            text = "This is about everybody, and you see one team's data." if about_all else _FOR_SOMETHING_ELSE
            raise RefusedError(403, text, who=who)
        if who.by_itself and request.method not in SAFE:
            self.check_origin(request)
        return who

    def is_open(self) -> bool:
        """Whether everybody may do everything: with `--open`, or on loopback when there has never been a token."""
        required = self.tokens.are_required()  # always asked, because it also records that there are tokens
        return self._always_open or (self._open_to_all and not required)

    def sign_in(self, request: Request, secret: str) -> tuple[Who, str | None]:
        """Who has this token, and the session that stands for it; none where everybody may."""
        who = self._open(request)
        if who is not None:
            return who, None
        who = self._of_secret(request, secret)
        if not who.may("view"):
            raise RefusedError(403, _FOR_SOMETHING_ELSE, who=who)
        session = secrets.token_urlsafe(32)
        self.sessions[digest_of(session)] = (digest_of(secret), time.monotonic() + SESSION_S)
        return who, session

    def sign_out(self, request: Request) -> None:
        """Ends the session, if there is one."""
        self.sessions.pop(digest_of(request.cookies.get(COOKIE, "")))

    def check_origin(self, request: Request) -> None:
        """Only pages of this server may do this: a browser says which page it was."""
        if not self._is_own_page(request):
            raise RefusedError(403, "This has to come from the server's own page.")

    def address(self, request: Request) -> str:
        """Where it comes from, as far as can be believed."""
        peer = request.client.host if request.client else "?"
        if self.proxy.sent(request):
            said = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
            try:
                return str(ipaddress.ip_address(said))
            except ValueError:
                return peer
        return peer

    def is_secure(self, request: Request) -> bool:
        """Whether the browser came over https, as far as can be known."""
        said = request.headers.get("X-Forwarded-Proto", "") if self.proxy.sent(request) else ""
        return self._secure or request.url.scheme == "https" or said == "https"

    def _open(self, request: Request) -> Who | None:
        """Anybody on this machine, on an open server. Not what came through a proxy, and no other site's page."""
        if not self.is_open():
            return None
        sign = _sign_of_proxy(request)
        if sign is not None:
            raise RefusedError(
                403, f"This server has no authentication, so it refuses what comes through a proxy ({sign}). "
                "Create a token with `pyrometer token create NAME`, or set `proxy_addresses` and `proxy_user_header`.",
            )  # fmt: skip
        if not _is_own_name(request.headers.get("Host")):  # but another site's for this machine
            raise RefusedError(403, "This server answers only to its own name.")
        says = "sec-fetch-site" in request.headers or "origin" in request.headers
        if request.method not in SAFE and says:
            self.check_origin(request)
        return ANYBODY

    def _known(self, request: Request, what: str) -> Who | None:
        if what != "ingest":
            who = self.proxy.who(request)
            if who is not None:
                return who
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._of_secret(request, secret.strip())
        session = request.cookies.get(COOKIE)
        if session and what != "ingest":
            return self._of_session(session)
        return None

    def _of_secret(self, request: Request, secret: str) -> Who:
        """Who has this token. A right one never waits: tokens have 256 random bits, so looking first tells nobody
        anything. Only wrong ones are slowed down, so that a flood of them stays cheap and out of the audit log."""
        who = self._of_digest(digest_of(secret))
        if who is not None:
            return who
        network = network_of(self.address(request))
        wait_s = self.guesses.wait_s(network)
        if wait_s > 0:
            raise RefusedError(429, "Too many wrong tokens. Come again in a moment.", retry_s=int(wait_s) + 1)
        self.guesses.wrong(network)
        raise WrongTokenError(401, "Nobody knows this token: `pyrometer token create` makes one.")

    def _of_session(self, session: str) -> Who | None:
        found = self.sessions.get(digest_of(session))
        if found is None or time.monotonic() >= found[1]:
            return None
        who = self._of_digest(found[0])  # a token that was revoked opens nothing
        return who and who._replace(by_itself=True)

    def _of_digest(self, digest: str) -> Who | None:
        own = self._own()
        if own is not None and same(digest_of(own), digest):
            return Who("folder", "viewer")
        with _readable():
            token = self.tokens.of(digest)
        if token is None or (
            token.role == "team_viewer" and not token.team
        ):  # without its team it would see everything
            return None
        return Who(token.name, token.role, token.team)

    def _is_own_page(self, request: Request) -> bool:
        site = request.headers.get("Sec-Fetch-Site")
        if site is not None:
            return site == "same-origin"
        hosts = [request.headers.get("Host")]
        if self.proxy.sent(request):
            hosts.append(request.headers.get("X-Forwarded-Host"))
        try:
            origin = urlsplit(request.headers.get("Origin", ""))
        except ValueError:
            return False
        return origin.scheme in ("http", "https") and bool(origin.netloc) and origin.netloc in hosts


def _is_own_name(host: str | None) -> bool:
    """Whether a Host is this machine's name for itself. HTTP/1.0 may leave it out, and no browser is so old."""
    named = None if host is None else _HOST.fullmatch(host)
    return host is None or (named is not None and named[1].strip("[]").lower() in HOSTS)


def _sign_of_proxy(request: Request) -> str | None:
    """What shows that a proxy sent a request; None when nothing does."""
    if request.scope.get("http_version") == "1.0":
        return "HTTP/1.0"
    for name in request.headers:
        if PROXY_HEADER.fullmatch(name.replace("_", "-")):
            return f"header {name[:LONGEST_NAME]}"
    return None


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except TokenError:  # it names a path, which is nobody's business
        raise RefusedError(503, "The tokens cannot be read: `pyrometer token list` says why.") from None


class WrongTokenError(RefusedError):
    """A token that nobody knows."""


def network_of(address: str) -> str:
    """The network that one client has: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    found = getattr(found, "ipv4_mapped", None) or found
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
