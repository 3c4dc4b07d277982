"""Authentication and authorization of requests: tokens, sessions of the page, identities from a trusted proxy.

A browser sends cookies, and passes through proxies, on its own, whichever site caused the request. A principal that one
of these identifies may therefore only read, and requests that change something must come from the server's own pages.
"""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from pyrometer.model.settings import SettingError, Settings
from pyrometer.questions.host_addresses import LOCAL_HOSTS, network_of
from pyrometer.questions.tokens import Principal, TokenError, Tokens, digest_of, same
from pyrometer.serve.http.audit import Audit
from pyrometer.serve.http.guard import ADMIT, body_of
from pyrometer.serve.http.http_error import HttpError, WrongTokenError

COOKIE = "pyrometer_session"
SESSION_PATH = "/api/v1/session"
SESSION_S = 12 * 3600
SIGN_IN_BODY_S = 2.0  # the client is not authenticated yet, and a token fits into one packet
MAX_SIGN_IN_BYTES = 4_096
MAX_SESSIONS = 10_000
MAX_NAME_LENGTH = 200
MAX_ADDRESSES = 10_000  # with wrong tokens that are remembered
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_HOST = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\[\]:]+)(?::\d*)?")
_WRONG_ROLE = "The role of this token does not permit this."
# Headers that proxies add, by their subject or by the proxy that adds them. `_` counts as `-`. nginx adds none by
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
ANYBODY = Principal("anybody", "admin", sign_in="open")

Key = TypeVar("Key")
Value = TypeVar("Value")


class Proxy:
    """The proxies that are trusted, and the headers in which they name the user."""

    def __init__(self, settings: Settings) -> None:
        try:
            self._networks = [ipaddress.ip_network(one, strict=False) for one in settings.proxy_addresses]
        except ValueError as error:
            raise SettingError(f"Setting 'proxy_addresses': {error}. Name addresses or networks: 10.0.0.0/8.") from None
        self._user, self._team = settings.proxy_user_header, settings.proxy_team_header
        self._role = "team_viewer" if self._team else settings.proxy_role
        if self._role == "team_viewer" and not self._team:
            raise SettingError("Setting 'proxy_role' is 'team_viewer'. Set 'proxy_team_header' to the team's header.")

    @property
    def is_configured(self) -> bool:
        """Whether a proxy may authenticate users."""
        return bool(self._networks and self._user)

    def sent(self, request: Request) -> bool:
        """Whether a trusted proxy sent this request."""
        try:
            peer = ipaddress.ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        peer = getattr(peer, "ipv4_mapped", None) or peer
        return any(peer in network for network in self._networks)

    def principal_of(self, request: Request) -> Principal | None:
        """The user that a trusted proxy names."""
        if not (self._user and self.sent(request)):
            return None
        name = _single_value(request, self._user)
        if name is None:
            return None
        team = _single_value(request, self._team) if self._team else None
        if self._team and team is None:
            raise HttpError(403, f"The proxy sent no team in header {self._team}.")
        return Principal(name, self._role, team, "proxy", is_ambient=True)


def _single_value(request: Request, header: str) -> str | None:
    """The value of a header that may occur once: a second one may come from the client."""
    values = request.headers.getlist(header)
    if len(values) > 1:
        raise HttpError(403, f"Header {header} occurs more than once. The proxy must replace the client's.")
    value = values[0].strip() if values else ""
    if len(value) > MAX_NAME_LENGTH:
        raise HttpError(403, f"Header {header} has {len(value):,} characters. The maximum is {MAX_NAME_LENGTH}.")
    return value or None


class Access:
    """Authenticates and authorizes every request. No other class does."""

    def __init__(
        self,
        tokens: Tokens,
        settings: Settings,
        folder_token: str | None = None,
        *,
        open_to_all: bool,
        always_open: bool = False,
    ) -> None:
        self.tokens = tokens
        self.proxy = Proxy(settings)
        self.guesses = GuessLimiter()
        # By digest of the session: the digest of its token, and when it expires.
        self.sessions: RecentItems[str, tuple[str, float]] = RecentItems(MAX_SESSIONS)
        # The token in the address file: a process that can read that file can read the data.
        self._folder_digest = None if folder_token is None else digest_of(folder_token)
        self._open_to_all = open_to_all and not self.proxy.is_configured
        self._always_open = always_open
        self._secure = settings.secure_cookie == "yes"

    def authorize(self, request: Request, permission: str) -> Principal:
        """The sender of a request. Raises `HttpError` if it lacks the permission."""
        principal = self._anybody(request) or self._authenticated(request, permission)
        admit = getattr(request.state, ADMIT, None)
        if principal is not None and admit is not None:
            admit(authenticated=principal is not ANYBODY)
        if principal is None:
            text = "A token is needed: `Authorization: Bearer …`. Create one with `pyrometer token create`."
            raise HttpError(401, text)
        if not principal.may(permission):
            is_for_all_teams = permission == "view_all" and principal.team is not None
            text = "This covers all teams. This token sees the data of one team." if is_for_all_teams else _WRONG_ROLE
            raise HttpError(403, text, principal=principal)
        if principal.is_ambient and request.method not in SAFE_METHODS:
            self.check_origin(request)
        return principal

    def is_open(self) -> bool:
        """Whether no authentication is needed: with `--open`, or on loopback when there has never been a token."""
        required = self.tokens.are_required()  # always called, because it also records that there are tokens
        return self._always_open or (self._open_to_all and not required)

    def sign_in(self, request: Request, secret: str) -> tuple[Principal, str | None]:
        """The owner of a token and a new session; no session on an open server."""
        principal = self._anybody(request)
        if principal is not None:
            return principal, None
        principal = self._owner_of_secret(request, secret)
        if not principal.may("view"):
            raise HttpError(403, _WRONG_ROLE, principal=principal)
        session = secrets.token_urlsafe(32)
        self.sessions[digest_of(session)] = (digest_of(secret), time.monotonic() + SESSION_S)
        return principal, session

    def sign_out(self, request: Request) -> None:
        """Ends the session, if there is one."""
        self.sessions.pop(digest_of(request.cookies.get(COOKIE, "")))

    def check_origin(self, request: Request) -> None:
        """Refuses requests that another site's page caused. Browsers name the page."""
        if not self._is_own_page(request):
            raise HttpError(403, "This request must come from a page of this server.")

    def address(self, request: Request) -> str:
        """The address of the client. Only a trusted proxy's header counts."""
        peer = request.client.host if request.client else "?"
        if self.proxy.sent(request):
            forwarded = request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()
            try:
                return str(ipaddress.ip_address(forwarded))
            except ValueError:
                return peer
        return peer

    def is_secure(self, request: Request) -> bool:
        """Whether the browser used HTTPS, as far as the server can tell."""
        forwarded = request.headers.get("X-Forwarded-Proto", "") if self.proxy.sent(request) else ""
        return self._secure or request.url.scheme == "https" or forwarded == "https"

    def _anybody(self, request: Request) -> Principal | None:
        """Anybody on this machine, when the server is open. Refuses proxies and pages of other sites."""
        if not self.is_open():
            return None
        sign = _sign_of_proxy(request)
        if sign is not None:
            raise HttpError(
                403,
                f"This server has no authentication, so it refuses requests from a proxy ({sign}). "
                "Create a token with `pyrometer token create NAME`, or set `proxy_addresses` and `proxy_user_header`.",
            )
        if not _is_own_name(request.headers.get("Host")):  # another site's name may resolve to this machine
            raise HttpError(403, "This server answers only requests to its own name.")
        from_browser = "sec-fetch-site" in request.headers or "origin" in request.headers
        if request.method not in SAFE_METHODS and from_browser:
            self.check_origin(request)
        return ANYBODY

    def _authenticated(self, request: Request, permission: str) -> Principal | None:
        if permission != "ingest":
            principal = self.proxy.principal_of(request)
            if principal is not None:
                return principal
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._owner_of_secret(request, secret.strip())
        session = request.cookies.get(COOKIE)
        if session and permission != "ingest":
            return self._owner_of_session(session)
        return None

    def _owner_of_secret(self, request: Request, secret: str) -> Principal:
        """The owner of a token. A valid one never waits: with 256 random bits, the order of the checks reveals nothing.
        Wrong ones are slowed down, so that a flood of them stays cheap and out of the audit log."""
        principal = self._owner_of_digest(digest_of(secret))
        if principal is not None:
            return principal
        network = network_of(self.address(request))
        wait_s = self.guesses.wait_s(network)
        if wait_s > 0:
            raise HttpError(429, "Too many wrong tokens. Try again later.", retry_s=int(wait_s) + 1)
        self.guesses.add(network)
        raise WrongTokenError(401, "This token does not exist. Create one with `pyrometer token create`.")

    def _owner_of_session(self, session: str) -> Principal | None:
        found = self.sessions.get(digest_of(session))
        if found is None or time.monotonic() >= found[1]:
            return None
        principal = self._owner_of_digest(found[0])  # a revoked token ends its sessions
        return principal and principal._replace(is_ambient=True)

    def _owner_of_digest(self, digest: str) -> Principal | None:
        if self._folder_digest is not None and same(self._folder_digest, digest):
            return Principal("folder", "viewer")
        with _readable_tokens():
            token = self.tokens.of(digest)
        if token is None or (token.role == "team_viewer" and not token.team):  # no team would mean all teams
            return None
        return Principal(token.name, token.role, token.team)

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
    """Whether a Host header names this machine. HTTP/1.0 may omit it, but no browser does."""
    named = None if host is None else _HOST.fullmatch(host)
    return host is None or (named is not None and named[1].strip("[]").lower() in LOCAL_HOSTS)


def _sign_of_proxy(request: Request) -> str | None:
    """What shows that a request came through a proxy."""
    if request.scope.get("http_version") == "1.0":
        return "HTTP/1.0"
    for name in request.headers:
        if PROXY_HEADER.fullmatch(name.replace("_", "-")):
            return f"header {name[:MAX_NAME_LENGTH]}"
    return None


@contextmanager
def _readable_tokens() -> Iterator[None]:
    try:
        yield
    except TokenError:  # its text has a path, which clients must not see
        raise HttpError(503, "The tokens cannot be read. `pyrometer token list` shows why.") from None


# -- sessions ---------------------------------------------------------------------------------------------------------


class Sessions:
    """The route that signs a page in with a token, so that the page does not keep the token, and out again."""

    def __init__(self, access: Access, audit: Audit, ledger: Callable[[], dict[str, Any] | None]) -> None:
        self._access = access
        self._audit = audit
        self._ledger = ledger

    async def route(self, request: Request) -> Response:
        """Returns the principal and the end of the ledger (GET), signs in (POST) or signs out (DELETE). The last two
        only from a page of this server."""
        try:
            if request.method == "POST":
                return await self._sign_in(request)
            if request.method == "DELETE":
                return self._sign_out(request)
            shown = {**_shown(self._access.authorize(request, "view")), "ledger": self._ledger()}
            return JSONResponse(shown, headers={"Cache-Control": "no-store"})
        except HttpError as error:
            what = {"POST": "sign_in", "DELETE": "sign_out"}.get(request.method, "refused")
            self._audit.refused(error, self._access.address(request), SESSION_PATH, what)
            return JSONResponse({"error": error.text}, error.status, headers=error.headers)

    async def _sign_in(self, request: Request) -> Response:
        self._access.check_origin(request)
        principal, session = self._access.sign_in(request, await _secret(request))
        self._audit.write(
            "sign_in",
            who=principal.name,
            role=principal.role,
            team=principal.team,
            **{"from": self._access.address(request)},
            status=200,
        )
        response = JSONResponse(_shown(principal), headers={"Cache-Control": "no-store"})
        if session is not None:
            response.set_cookie(
                COOKIE,
                session,
                max_age=SESSION_S,
                path="/",
                httponly=True,
                samesite="strict",
                secure=self._access.is_secure(request),
            )
        return response

    def _sign_out(self, request: Request) -> Response:
        self._access.check_origin(request)
        self._access.sign_out(request)
        self._audit.write("sign_out", **{"from": self._access.address(request)}, status=204)
        response = Response(status_code=204)
        response.delete_cookie(
            COOKIE, path="/", httponly=True, samesite="strict", secure=self._access.is_secure(request)
        )
        return response


async def _secret(request: Request) -> str:
    """The token in a body."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpError(415, 'The body must be application/json: {"token": "pyr_…"}.')
    try:
        body = await body_of(request, MAX_SIGN_IN_BYTES, SIGN_IN_BODY_S)
    except (TimeoutError, ClientDisconnect):
        raise HttpError(408, f"The body did not arrive within {SIGN_IN_BODY_S:g} s. Try again.") from None
    if len(body) > MAX_SIGN_IN_BYTES:
        raise HttpError(413, f"The body must be shorter than {MAX_SIGN_IN_BYTES:,} bytes.")
    try:
        fields: Any = json.loads(body)
        secret = fields["token"]
    except (ValueError, RecursionError, KeyError, TypeError):
        secret = None
    if not isinstance(secret, str) or not secret:
        raise HttpError(400, 'The body must be {"token": "pyr_…"}.')
    return secret.strip()


def _shown(principal: Principal) -> dict[str, str | None]:
    return {"name": principal.name, "role": principal.role, "team": principal.team, "sign_in": principal.sign_in}


# -- limits -----------------------------------------------------------------------------------------------------------


class RecentItems(Generic[Key, Value]):
    """The most recently set items, by key. The oldest one is dropped."""

    def __init__(self, max_items: int) -> None:
        self._max = max_items
        self._items: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: Key) -> bool:
        return key in self._items

    def __setitem__(self, key: Key, value: Value) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        if len(self._items) > self._max:
            self._items.popitem(last=False)

    def get(self, key: Key) -> Value | None:
        """The value, if it is still kept."""
        return self._items.get(key)

    def pop(self, key: Key) -> None:
        """Removes an item, if it exists."""
        self._items.pop(key, None)


class RateLimit(NamedTuple):
    """A burst, and after it one per interval."""

    burst: int
    every_s: float


PER_ADDRESS = RateLimit(10, 6.0)
TOTAL = RateLimit(60, 1.0)


class GuessLimiter:
    """Limits wrong tokens, per address and in total."""

    def __init__(
        self,
        per_address: RateLimit = PER_ADDRESS,
        total: RateLimit = TOTAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_address, self._total = per_address, total
        self._clock = clock
        # The state of a limit is the time when its whole burst is available again.
        self._full_s: RecentItems[str, float] = RecentItems(MAX_ADDRESSES)
        self._total_full_s = 0.0

    def wait_s(self, address: str) -> float:
        """How long this address must wait before its next guess is checked."""
        now_s = self._clock()
        full_s = self._full_s.get(address) or 0.0
        return max(_wait_s(self._per_address, full_s, now_s), _wait_s(self._total, self._total_full_s, now_s))

    def add(self, address: str) -> None:
        """Counts a wrong token."""
        now_s = self._clock()
        self._full_s[address] = max(self._full_s.get(address) or 0.0, now_s) + self._per_address.every_s
        self._total_full_s = max(self._total_full_s, now_s) + self._total.every_s


def _wait_s(limit: RateLimit, full_s: float, now_s: float) -> float:
    return max(0.0, full_s - (limit.burst - 1) * limit.every_s - now_s)
