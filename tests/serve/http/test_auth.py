"""Access control of every route, role and kind of credentials, and the audit log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from pyrometer.model.settings import SettingError, Settings
from pyrometer.questions.tokens import PERMISSIONS, ROLES, Tokens
from pyrometer.serve.core import Core
from pyrometer.serve.http import answering, audit, auth
from pyrometer.serve.http.auth import COOKIE, Access, GuessLimiter, RateLimit, RecentItems
from pyrometer.serve.http.guard import HEADERS
from pyrometer.serve.http.http_error import HttpError
from pyrometer.serve.http.page_files import PAGES
from pyrometer.serve.main import Services, build_services
from pyrometer.serve.tasks.accounting import Accounting
from pyrometer.store import Store, token_marker
from tests.support import two_teams
from tests.support.two_teams import OTHER_TEAM, OUR_RUN, SAME_RUN, TEAM, THEIR_RUN, THEIRS

LOOPBACK = "http://127.0.0.1:8411"
HERE = "http://pyrometer.test"
PAGE = {"Origin": HERE}  # what a browser sends from a page of this server


class World(NamedTuple):
    """A server that has tokens of every role, in this process."""

    client: httpx.AsyncClient
    server: Services
    tokens: dict[str, str]

    def as_(self, role: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[role]}"}

    async def written(self) -> list[dict[str, Any]]:
        """The audit log."""
        await asyncio.to_thread(self.server.audit.close)
        path = self.server.core.store.folder / audit.FILE
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@asynccontextmanager
async def world(store: Store, settings: Settings | None = None, peer: str = "192.0.2.7") -> AsyncIterator[World]:
    tokens = Tokens(store.folder)
    tokens.path.unlink(missing_ok=True)
    (store.folder / audit.FILE).unlink(missing_ok=True)
    made = {role: tokens.create(role, role, 0, TEAM if role == "team_viewer" else None) for role in ROLES}
    made["other_team"] = tokens.create("other_team", "team_viewer", 0, OTHER_TEAM)
    server = build_services(Core(store, settings or Settings()), open_to_all=False)
    transport = httpx.ASGITransport(server.application(), client=(peer, 4711))
    async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
        yield World(client, server, made)
    await asyncio.to_thread(server.audit.close)


@asynccontextmanager
async def open_world(store: Store, *, always_open: bool = False) -> AsyncIterator[httpx.AsyncClient]:
    """A server on loopback, as `pyrometer serve` starts it, and its client."""
    server = build_services(Core(store, Settings(audit_log="no")), open_to_all=True, always_open=always_open)
    transport = httpx.ASGITransport(server.application())
    async with httpx.AsyncClient(transport=transport, base_url=LOOPBACK) as client:
        yield client


def forget_tokens(folder: Path) -> None:
    """Makes the folder look as if it never had a token."""
    for name in (token_marker.TOKENS, token_marker.MARKER):
        (folder / name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("teams"), create=True) as store:
        store.append(two_teams.all_records())
        yield store


Test = Callable[[World], Coroutine[Any, Any, None]]
Run = Callable[..., None]


@pytest.fixture
def run(store: Store) -> Run:
    """Runs a test in a world of its own, over the same records."""

    def run(test: Test, settings: Settings | None = None, peer: str = "192.0.2.7") -> None:
        async def running() -> None:
            async with world(store, settings, peer) as one:
                await test(one)

        asyncio.run(running())

    return run


# What a team viewer gets from each route. Add every new route with its reason.
OF_A_TEAM_VIEWER = {
    ("/healthz", "GET"): 200,  # no data
    ("/readyz", "GET"): 200,  # without shortcomings
    **{(path, "GET"): 200 for path in PAGES},  # no data
    ("/page/{name:path}", "GET"): 200,  # likewise
    ("/report", "GET"): 200,  # of its team
    ("/metrics", "GET"): 403,  # of all teams
    ("/api/v1/write", "POST"): 403,
    ("/v1/logs", "POST"): 403,
    ("/v1/traces", "POST"): 403,
    ("/v1/metrics", "POST"): 403,
    ("/api/v1/session", "GET"): 200,  # itself
    ("/api/v1/session", "POST"): 415,  # no authentication needed
    ("/api/v1/session", "DELETE"): 204,
    ("/api/v1/close", "POST"): 403,  # an admin's
    ("/api/v1/rebuild", "POST"): 403,  # likewise
    ("/api/v1/backup", "POST"): 403,  # likewise: it has all teams
    ("/api/v1/live", "GET"): None,  # a stream, tested below
    ("/api/v1/openapi.json", "GET"): 200,  # the list of questions
    ("/api/v1/export/{form}", "GET"): 200,  # of its team
    ("/api/v1/{what}", "GET"): 200,  # of its team
}


def test_every_route_has_a_decision_for_team_viewers(run: Run) -> None:
    async def test(world: World) -> None:
        routes = world.server.application().routes
        there = {(route.path, method) for route in routes for method in route.methods - {"HEAD"}}
        assert there == set(OF_A_TEAM_VIEWER)
        for (path, method), status in OF_A_TEAM_VIEWER.items():
            if status is not None:
                address = path.replace("{what}", "cost").replace("{form}", "csv").replace("{name:path}", "app.js")
                answer = await world.client.request(method, address, headers=PAGE | world.as_("team_viewer"))
                assert (path, method, answer.status_code) == (path, method, status)
                assert THEIRS not in answer.text

    run(test)


@pytest.mark.parametrize("role", [*ROLES, "nobody"])
def test_role_has_exactly_its_permissions(run: Run, role: str) -> None:
    async def test(world: World) -> None:
        headers = {} if role == "nobody" else world.as_(role)
        statuses = {
            "ingest": (await world.client.post("/v1/logs", headers=headers)).status_code,
            "view": (await world.client.get("/api/v1/cost?all=1", headers=headers)).status_code,
            "view_all": (await world.client.get("/metrics", headers=headers)).status_code,
        }
        refused = 401 if role == "nobody" else 403
        assert {what for what, status in statuses.items() if status != refused} == set(PERMISSIONS.get(role, ())) & set(
            statuses
        )
        ready = (await world.client.get("/readyz", headers=headers)).json()
        assert ("shortcomings" in ready) == ("view_all" in PERMISSIONS.get(role, ()))

    run(test)


# With every parameter, also with names of another team.
QUESTIONS: list[tuple[str, dict[str, str]]] = [
    ("why", {}),
    ("runs", {"limit": "9"}),
    ("show", {"run": OUR_RUN}),
    ("show", {"run": SAME_RUN}),
    ("cost", {"by": "team,experiment,workload,namespace,user,queue,pod,outcome,node,pool,cluster,state,month"}),
    ("trace", {"run": OUR_RUN, "sample": f"{THEIRS}-137"}),
    ("trace", {"run": THEIR_RUN, "step": "20"}),
    ("lineage", {"run": THEIR_RUN, "spikes": "1"}),
    ("lineage", {"run": SAME_RUN, "spikes": "1"}),
    ("why", {"experiment": f"{THEIRS}-sft"}),
    ("burn", {}),
    ("cluster", {}),
    ("top", {}),
    ("worth", {}),
    ("charges", {}),
    ("charges", {"share_platform": "even"}),
    ("closed", {}),
    ("instances", {}),
    ("cost", {"by": "team,node,state", "share_platform": "proportional"}),
    ("worth", {"experiment": f"{THEIRS}-sft"}),
    ("signals", {"run": OUR_RUN}),
    ("signals", {"run": THEIR_RUN}),
    ("export/csv", {"by": "team,experiment,workload,user"}),
    ("export/focus", {}),
    ("export/focus", {"as": "parquet"}),
    ("export/perfetto", {"run": THEIR_RUN, "step": "20"}),
]
MORE_QUESTIONS: list[tuple[str, dict[str, str]]] = [
    *(("cost", {"by": by}) for by in ("team", "experiment", "node", "cause", "hour,user", "day", "pod")),
    ("show", {"run": THEIR_RUN}),
    ("cost", {"experiment": f"{THEIRS}-sft", "by": "experiment"}),
    *(
        (what, {"run": run, **about})
        for run in (OUR_RUN, THEIR_RUN, SAME_RUN)
        for what, about in (
            ("trace", {}),
            ("trace", {"step": "20"}),
            ("trace", {"step": "20", "attempt": "2"}),
            ("trace", {"sample": f"{THEIRS}-137"}),
            ("lineage", {"step": "20"}),
            ("lineage", {"checkpoint": "20"}),
            ("lineage", {"sample": f"{THEIRS}-137"}),
            ("lineage", {"spikes": "1"}),
            ("lineage", {"spikes": "1", "metric": f"{THEIRS}_accuracy"}),
        )
    ),
]


def without(text: str, parameters: dict[str, str]) -> str:
    """An answer without what was in the question."""
    for value in parameters.values():
        text = text.replace(value, "")
    return text


@pytest.mark.parametrize("questions", [QUESTIONS, pytest.param(MORE_QUESTIONS, marks=pytest.mark.heavy)])
def test_team_viewer_answers_contain_nothing_of_another_team(
    run: Run, questions: list[tuple[str, dict[str, str]]]
) -> None:
    async def test(world: World) -> None:
        statuses = []
        for what, about in questions:
            parameters = {"all": "1", **about}
            answer = await world.client.get(f"/api/v1/{what}", params=parameters, headers=world.as_("team_viewer"))
            statuses.append(answer.status_code)
            assert answer.status_code in (200, 404), (what, about, answer.text)
            shown = without(f"{dict(answer.headers)} {answer.text}", about)
            assert THEIRS not in shown, (what, about)
            if about.get("run") == THEIR_RUN or about.get("experiment"):
                assert answer.status_code == 404, (what, about)
        assert statuses.count(200) > len(questions) // 3

    run(test)


@pytest.mark.heavy
def test_viewer_sees_both_teams(run: Run) -> None:
    async def test(world: World) -> None:
        for what, about in QUESTIONS[:5]:
            answer = await world.client.get(
                f"/api/v1/{what}", params={"all": "1", **about}, headers=world.as_("viewer")
            )
            assert (THEIRS in answer.text) == (about.get("run") != OUR_RUN)
        page = await world.client.get("/report?all=1", headers=world.as_("team_viewer"))
        assert two_teams.OURS in page.text
        assert THEIRS not in page.text

    run(test)


@pytest.mark.parametrize("what", ["why", "cost", "runs"])
def test_other_team_is_refused_in_every_form_of_the_parameter(run: Run, what: str) -> None:
    async def test(world: World) -> None:
        for query in (f"team={OTHER_TEAM}", f"team={TEAM}&team={OTHER_TEAM}", "team=platform", "team=", "team=%00"):
            answer = await world.client.get(f"/api/v1/{what}?{query}", headers=world.as_("team_viewer"))
            assert (query, answer.status_code) == (query, 403)
        report = await world.client.get(f"/report?team={OTHER_TEAM}", headers=world.as_("team_viewer"))
        assert report.status_code == 403
        own = await world.client.get(f"/api/v1/{what}?team={TEAM}", headers=world.as_("team_viewer"))
        assert own.status_code == 200
        assert (await world.client.get(f"/api/v1/{what}?team=", headers=world.as_("viewer"))).status_code == 400

    run(test)


def test_cursors_and_etags_do_not_open_another_teams_answer(run: Run) -> None:
    async def test(world: World) -> None:
        async def ask(role: str, **parameters: str) -> httpx.Response:
            return await world.client.get("/api/v1/cost", params=parameters, headers=world.as_(role))

        everything = {"all": "1", "by": "pod,state", "limit": "1"}
        cursors = {
            role: (await ask(role, **everything)).json()["next"] for role in ("viewer", "team_viewer", "other_team")
        }
        assert len(set(cursors.values())) == 3
        for role in cursors:
            for whose, cursor in cursors.items():
                answer = await ask(role, cursor=cursor)
                assert answer.status_code == (200 if role == whose else 410)
        tags = {role: (await ask(role, all="1")).headers["ETag"] for role in cursors}
        assert len(set(tags.values())) == 3
        again = {**world.as_("team_viewer"), "If-None-Match": tags["viewer"]}
        assert (await world.client.get("/api/v1/cost?all=1", headers=again)).status_code == 200

    run(test)


@pytest.mark.heavy
def test_team_viewer_receives_only_findings_of_its_team(run: Run) -> None:
    async def test(world: World) -> None:
        events = {team: world.server.events.events(team) for team in (TEAM, OTHER_TEAM, "nobody-s", None)}
        for one in events.values():
            await anext(one)
        await world.server.accounting.update()
        await world.server.findings.look()
        world.server.events.end()
        received = {team: "".join([text async for text in one]) for team, one in events.items()}
        assert "event: finding" in received[TEAM]
        assert THEIRS not in received[TEAM]
        assert two_teams.OURS not in received[OTHER_TEAM]
        assert THEIRS in received[None]
        assert two_teams.OURS in received[None]
        assert all("event: ledger" in text for text in received.values())
        assert "event: finding" not in received["nobody-s"]

    run(test, Settings(finding_min_usd_micro=0, finding_min_ms=0))


def test_event_stream_ends_when_the_token_is_revoked(run: Run) -> None:
    async def test(world: World) -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.7", 1)}
        scope["headers"] = [(b"authorization", world.as_("team_viewer")["Authorization"].encode())]
        listening = Request(scope)
        listening.state.principal = world.server.access.authorize(listening, "view")
        events = world.server.answers.events_for(listening)
        await anext(events)
        world.server.events.send("ledger", {"revision": "a"})
        assert "ledger" in await anext(events)
        world.server.access.tokens.revoke("team_viewer")
        world.server.events.send("ledger", {"revision": "b"})
        assert [text async for text in events] == []
        assert not world.server.events._listeners

    run(test)


class TestSessions:
    @staticmethod
    async def sign_in(world: World, secret: str, **more: str) -> httpx.Response:
        return await world.client.post("/api/v1/session", json={"token": secret}, headers=PAGE | more)

    def test_page_signs_in_reads_and_signs_out(self, run: Run) -> None:
        async def test(world: World) -> None:
            assert (await world.client.get("/api/v1/session")).status_code == 401
            answer = await self.sign_in(world, world.tokens["team_viewer"])
            itself = {"name": "team_viewer", "role": "team_viewer", "team": TEAM, "sign_in": "token"}
            assert answer.json() == itself
            cookie = answer.headers["Set-Cookie"]
            assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
            assert "Secure" not in cookie
            assert world.tokens["team_viewer"] not in cookie
            assert (await world.client.get("/api/v1/session")).json() == {**itself, "ledger": None}
            answer = await world.client.get("/api/v1/cost?all=1&by=team")
            assert [row["team"] for row in answer.json()["rows"]] == [TEAM]
            kept = dict(world.client.cookies)
            assert (await world.client.delete("/api/v1/session", headers=PAGE)).status_code == 204
            assert COOKIE not in world.client.cookies
            stolen = {"Cookie": f"{COOKIE}={kept[COOKIE]}"}
            assert (await world.client.get("/api/v1/session", headers=stolen)).status_code == 401

        run(test)

    def test_session_ends_with_its_token_and_after_its_lifetime(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def test(world: World) -> None:
            await self.sign_in(world, world.tokens["viewer"])
            assert (await world.client.get("/api/v1/session")).status_code == 200
            world.server.access.tokens.revoke("viewer")
            assert (await world.client.get("/api/v1/session")).status_code == 401
            monkeypatch.setattr(auth, "SESSION_S", -1)
            await self.sign_in(world, world.tokens["admin"])
            assert (await world.client.get("/api/v1/cost?all=1")).status_code == 401

        run(test)

    def test_session_is_read_only_for_every_role(self, run: Run) -> None:
        async def test(world: World) -> None:
            await self.sign_in(world, world.tokens["admin"])
            assert (await world.client.get("/metrics")).status_code == 200
            for path in ("/v1/logs", "/v1/traces", "/v1/metrics", "/api/v1/write"):
                assert (await world.client.post(path, headers=PAGE)).status_code == 401
            assert (await self.sign_in(world, world.tokens["ingest"])).status_code == 403

        run(test)

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Origin": "null"},
            {"Origin": "http://evil.test"},
            {"Origin": f"{HERE}.evil.test"},
            {"Origin": "//"},
            {"Origin": "http://["},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "none"},
            {"Sec-Fetch-Site": "cross-site", "Origin": HERE},
        ],
    )
    def test_other_site_cannot_sign_in_or_out(self, run: Run, headers: dict[str, str]) -> None:
        async def test(world: World) -> None:
            body = {"token": world.tokens["viewer"]}
            assert (await world.client.post("/api/v1/session", json=body, headers=headers)).status_code == 403
            await self.sign_in(world, world.tokens["viewer"])
            assert (await world.client.delete("/api/v1/session", headers=headers)).status_code == 403
            assert (await world.client.get("/api/v1/session")).status_code == 200

        run(test)

    @pytest.mark.parametrize(
        ("body", "kind", "status"),
        [
            (b'{"token": "pyr_x"}', "text/plain", 415),
            (b"token=pyr_x", "application/x-www-form-urlencoded", 415),
            (b"", "application/json", 400),
            (b"[]", "application/json", 400),
            (b'{"token": 1}', "application/json", 400),
            (b'{"token": ""}', "application/json", 400),
            (b"[" * 4000, "application/json", 400),
            (b"\xff", "application/json", 400),
            (b" " * 5000, "application/json", 413),
            (b'{"token": "pyr_\\ud800"}', "application/json", 401),
            (b'{"token": "pyr_x"}', "application/json", 401),
        ],
    )
    def test_sign_in_rejects_invalid_bodies(self, run: Run, body: bytes, kind: str, status: int) -> None:
        async def test(world: World) -> None:
            headers = {**PAGE, "Content-Type": kind}
            answer = await world.client.post("/api/v1/session", content=body, headers=headers)
            assert answer.status_code == status
            assert answer.json()["error"]
            assert "Set-Cookie" not in answer.headers

        run(test)

    def test_cookie_is_secure_over_https(self, run: Run) -> None:
        async def forwarded(world: World) -> None:
            answer = await self.sign_in(world, world.tokens["viewer"], **{"X-Forwarded-Proto": "https"})
            assert "Secure" in answer.headers["Set-Cookie"]

        async def unforwarded(world: World) -> None:
            answer = await self.sign_in(world, world.tokens["viewer"], **{"X-Forwarded-Proto": "https"})
            assert "Secure" not in answer.headers["Set-Cookie"]

        run(forwarded, Settings(secure_cookie="yes"))
        run(forwarded, Settings(proxy_addresses=("192.0.2.0/24",)))
        run(unforwarded)

    @given(st.lists(st.tuples(st.integers(0, 9), st.booleans())))
    def test_recent_items_keeps_the_newest(self, steps: list[tuple[int, bool]]) -> None:
        recent: RecentItems[int, int] = RecentItems(4)
        kept: list[int] = []
        for key, adds in steps:
            kept = [one for one in kept if one != key]
            if adds:
                recent[key] = key
                kept = [*kept, key][-4:]
            else:
                recent.pop(key)
            assert [one for one in range(10) if one in recent] == sorted(kept)


def request(peer: str = "192.0.2.7", **headers: str) -> Request:
    raw = [(name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request(
        {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": raw, "client": (peer, 1)}
    )


class TestProxies:
    SETTINGS = Settings(proxy_addresses=("10.0.0.0/8", "::1"), proxy_user_header="X-Forwarded-User")

    def test_trusted_proxy_names_the_user(self, run: Run) -> None:
        async def test(world: World) -> None:
            answer = await world.client.get("/api/v1/session", headers={"X-Forwarded-User": "ada"})
            itself = {"name": "ada", "role": "viewer", "team": None, "sign_in": "proxy"}
            assert answer.json() == {**itself, "ledger": None}
            assert (
                await world.client.get("/api/v1/cost?all=1", headers={"X-Forwarded-User": "ada"})
            ).status_code == 200
            assert (await world.client.get("/api/v1/session")).status_code == 401
            # a token of the proxy is not checked and does not count as a guess
            both = {"X-Forwarded-User": "ada", "Authorization": "Bearer eyJhbGciOi"}
            assert [(await world.client.get("/api/v1/session", headers=both)).status_code for _ in range(20)] == [
                200
            ] * 20
            sent = {"X-Forwarded-User": "ada", **world.as_("ingest")}
            assert (await world.client.post("/v1/logs", headers=sent)).status_code not in (401, 403)
            assert (await world.client.post("/v1/logs", headers={"X-Forwarded-User": "ada"})).status_code == 401

        run(test, self.SETTINGS, "10.1.2.3")

    def test_untrusted_peer_cannot_name_the_user(self, run: Run) -> None:
        async def test(world: World) -> None:
            assert (await world.client.get("/api/v1/session", headers={"X-Forwarded-User": "ada"})).status_code == 401

        run(test, self.SETTINGS, "11.1.2.3")
        run(test, Settings(proxy_user_header="X-Forwarded-User"), "10.1.2.3")
        run(test, Settings(proxy_addresses=("10.0.0.0/8",)), "10.1.2.3")

    def test_team_header_limits_users_to_their_team(self, run: Run) -> None:
        async def test(world: World) -> None:
            headers = {"X-Forwarded-User": "ada", "X-Team": TEAM}
            answer = await world.client.get("/api/v1/cost?all=1&by=team", headers=headers)
            assert [row["team"] for row in answer.json()["rows"]] == [TEAM]
            assert (await world.client.get("/metrics", headers=headers)).status_code == 403
            without_team = await world.client.get("/api/v1/cost?all=1", headers={"X-Forwarded-User": "ada"})
            assert without_team.status_code == 403
            twice = httpx.Headers([("X-Forwarded-User", "ada"), ("X-Team", TEAM), ("X-Team", OTHER_TEAM)])
            assert (await world.client.get("/api/v1/cost?all=1", headers=twice)).status_code == 403

        run(test, self.SETTINGS._replace(proxy_team_header="X-Team"), "10.1.2.3")

    def test_server_behind_a_proxy_is_never_open(self, store: Store) -> None:
        forget_tokens(store.folder)
        tokens = Tokens(store.folder)
        behind = Access(tokens, self.SETTINGS, open_to_all=True)
        with pytest.raises(HttpError, match="A token is needed"):
            behind.authorize(request(host="127.0.0.1"), "view")
        assert Access(tokens, Settings(), open_to_all=True).authorize(request(host="127.0.0.1"), "view")

    @pytest.mark.parametrize(
        ("peer", "forwarded_for", "address"),
        [
            ("10.1.2.3", "1.1.1.1, 2.2.2.2", "2.2.2.2"),
            ("10.1.2.3", "nonsense", "10.1.2.3"),
            ("10.1.2.3", "", "10.1.2.3"),
            ("11.1.2.3", "2.2.2.2", "11.1.2.3"),
            ("::1", "2001:db8::1", "2001:db8::1"),
            ("::ffff:10.1.2.3", "2.2.2.2", "2.2.2.2"),
        ],
    )
    def test_client_address_uses_only_trusted_headers(
        self, tmp_path: Path, peer: str, forwarded_for: str, address: str
    ) -> None:
        one = Access(Tokens(tmp_path), self.SETTINGS, open_to_all=False)
        assert one.address(request(peer, x_forwarded_for=forwarded_for)) == address

    @pytest.mark.parametrize(
        ("changes", "words"),
        [({"proxy_addresses": ("10.0.0.0/33",)}, "10.0.0.0/33"), ({"proxy_role": "team_viewer"}, "proxy_team_header")],
    )
    def test_invalid_proxy_settings_are_rejected(self, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(SettingError, match=words):
            Access(Tokens(tmp_path), Settings(**changes), open_to_all=False)


class TestGuessLimits:
    def test_guesses_are_limited_per_address(self, run: Run) -> None:
        async def test(world: World) -> None:
            async def ask(secret: str, peer: str = "192.0.2.7") -> httpx.Response:
                transport = httpx.ASGITransport(world.client._transport.app, client=(peer, 1))  # type: ignore[attr-defined]
                async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
                    return await client.get("/api/v1/session", headers={"Authorization": f"Bearer {secret}"})

            right = world.tokens["viewer"]
            assert (await ask(right)).status_code == 200
            statuses = [(await ask(f"pyr_{number}")).status_code for number in range(30)]
            assert statuses == [401] * 10 + [429] * 20
            limited = await ask("pyr_more")
            assert 1 <= int(limited.headers["Retry-After"]) <= 7
            assert (await ask(world.tokens["admin"])).status_code == 200  # first use, from the same address
            assert (await ask(right)).status_code == 200
            assert (await ask(world.tokens["admin"], "192.0.2.8")).status_code == 200
            signs_in = await world.client.post("/api/v1/session", json={"token": "pyr_x"}, headers=PAGE)
            assert signs_in.status_code == 429
            refused = [one for one in await world.written() if one["what"] == "refused"]
            assert len(refused) == 10
            counted = [one for one in await world.written() if one["what"] == "count"]
            assert sum(one["times"] for one in counted if "429" in one["of"]) >= 20

        run(test)

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 20)), max_size=80))
    def test_guess_limiter_enforces_its_rates_in_every_interval(self, tries: list[tuple[str, float]]) -> None:
        now_s = 1000.0
        guesses = GuessLimiter(RateLimit(3, 2.0), RateLimit(5, 1.0), lambda: now_s)
        looked_at: list[tuple[str, float]] = []
        for address, later_s in tries:
            now_s += later_s
            if guesses.wait_s(address) <= 0:
                guesses.add(address)
                looked_at.append((address, now_s))
        for begin in range(len(looked_at)):
            for end in range(begin + 1, len(looked_at) + 1):
                within_s = looked_at[end - 1][1] - looked_at[begin][1]
                assert end - begin <= 5 + within_s / 1.0 + 1e-6
                of_a = [one for one in looked_at[begin:end] if one[0] == "a"]
                assert len(of_a) <= 3 + within_s / 2.0 + 1e-6


class TestHeaders:
    @pytest.mark.parametrize(
        "path", ["/healthz", "/readyz", "/api/v1/cost?all=1", "/nothing", "/api/v1/nothing", "/metrics"]
    )
    def test_every_response_has_security_headers(self, run: Run, path: str) -> None:
        async def test(world: World) -> None:
            for headers in ({}, world.as_("viewer")):
                answer = await world.client.get(path, headers=headers)
                assert {name: answer.headers[name] for name in HEADERS} == HEADERS

        run(test)

    def test_error_500_has_security_headers(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(world: World) -> None:
            monkeypatch.setattr(answering, "as_json", None)
            monkeypatch.setattr(Accounting, "bring_up_to_date", lambda self: 1 / 0)
            transport = httpx.ASGITransport(world.server.application(), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=HERE) as client:
                answer = await client.get("/api/v1/cost", headers=world.as_("viewer"))
            assert answer.status_code == 500
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
            assert "ZeroDivision" not in answer.text

        run(test)

    def test_policy_forbids_inline_scripts(self) -> None:
        scripts = next(one for one in HEADERS["Content-Security-Policy"].split("; ") if one.startswith("script-src"))
        assert scripts == "script-src 'self'"

    def test_report_policy_forbids_scripts(self, run: Run) -> None:
        async def test(world: World) -> None:
            answer = await world.client.get("/report?all=1", headers=world.as_("viewer"))
            assert "script-src" not in answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]

        run(test)


class TestAudit:
    def test_audit_log_has_sender_question_and_address(self, run: Run) -> None:
        async def test(world: World) -> None:
            await world.client.get("/api/v1/cost?all=1&by=team", headers=world.as_("team_viewer"))
            await world.client.get("/metrics", headers=world.as_("team_viewer"))
            await world.client.post("/api/v1/session", json={"token": world.tokens["viewer"]}, headers=PAGE)
            await world.client.post("/api/v1/session", json={"token": "pyr_wrong"}, headers=PAGE)
            await world.client.post("/v1/logs", headers=world.as_("ingest"))
            await world.client.post("/v1/logs", headers=world.as_("ingest"))
            written = await world.written()
            question, refused, sign_in, failed, *counts = written
            assert (refused["what"], refused["who"], refused["path"], refused["status"]) == (
                "refused",
                "team_viewer",
                "/metrics",
                403,
            )
            assert {name: value for name, value in question.items() if name not in ("at", "by", "ms")} == {
                "what": "question",
                "who": "team_viewer",
                "role": "team_viewer",
                "team": TEAM,
                "from": "192.0.2.7",
                "path": "/api/v1/cost",
                "asked": {"all": "1", "by": "team"},
                "status": 200,
            }
            assert question["ms"] >= 0
            assert question["at"].endswith("Z")
            assert (sign_in["what"], sign_in["who"], sign_in["status"]) == ("sign_in", "viewer", 200)
            assert (failed["what"], failed["status"]) == ("sign_in", 401)
            assert {(one["who"], one["of"], one["times"]) for one in counts} >= {("ingest", "/v1/logs", 2)}
            assert (world.server.core.store.folder / audit.FILE).stat().st_mode & 0o777 == 0o600

        run(test)

    def test_audit_log_contains_no_secret(self, run: Run) -> None:
        async def test(world: World) -> None:
            secret, other = world.tokens["viewer"], "hunter2-hunter2"
            ask, headers = world.client.get, world.as_("viewer")
            await ask("/api/v1/cost", headers={"Authorization": f"Bearer {secret}x"})
            await ask("/api/v1/cost", params={"token": other, "team": secret, secret: "1"}, headers=headers)
            await ask(f"/api/v1/{secret}", headers=headers)
            await ask(f"/api/v1/{other}", headers=headers)
            await ask("/api/v1/show", params={"run": f"x {secret}"}, headers=headers)
            for body in ({"token": secret}, {"token": f"{secret}y"}, {"token": other}, {other: secret}):
                await world.client.post("/api/v1/session", json=body, headers=PAGE)
            session = world.client.cookies[COOKIE]
            await ask("/api/v1/cost", headers={"Referer": f"http://x/{secret}"})
            await world.client.post("/v1/logs", content=secret, headers=world.as_("ingest"))
            written = await world.written()
            text = (world.server.core.store.folder / audit.FILE).read_text()
            assert len(written) > 8
            for one in (*world.tokens.values(), other, session, secret.removeprefix("pyr_")):
                assert one not in text

        run(test)


class TestTokensOfTeams:
    def test_team_viewer_without_a_team_is_refused(self, run: Run) -> None:
        async def test(world: World) -> None:
            path = world.server.access.tokens.path
            path.write_text(path.read_text().replace(json.dumps(TEAM), "null"))
            assert (await world.client.get("/api/v1/cost", headers=world.as_("team_viewer"))).status_code == 401

        run(test)

    def test_unreadable_token_file_refuses_all_and_hides_its_path(self, run: Run) -> None:
        async def test(world: World) -> None:
            world.server.access.tokens.path.write_text("{")
            answer = await world.client.get("/api/v1/cost", headers=world.as_("viewer"))
            assert answer.status_code == 503
            assert str(world.server.core.store.folder) not in answer.text

        run(test)


def test_open_server_refuses_other_sites_and_host_names(store: Store) -> None:
    forget_tokens(store.folder)

    async def test() -> None:
        async with open_world(store) as client:
            for path in ("/v1/logs", "/v1/traces", "/v1/metrics", "/api/v1/write"):
                for headers in ({"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
                    assert (await client.post(path, headers=headers)).status_code == 403
                assert (await client.post(path)).status_code != 403  # not a browser
            itself = (await client.get("/api/v1/session")).json()
            anybody = {"name": "anybody", "role": "admin", "team": None, "sign_in": "open"}
            assert itself == {**anybody, "ledger": None}
            signs_in = await client.post(
                "/api/v1/session", json={"token": "pyr_x"}, headers={"Origin": "http://127.0.0.1:8411"}
            )
            assert (signs_in.json()["sign_in"], signs_in.headers.get("Set-Cookie")) == ("open", None)
            for host in ("127.0.0.1", "localhost:8411", "LOCALHOST", "[::1]:8411", "[::1]"):
                assert (await client.get("/api/v1/session", headers={"Host": host})).status_code == 200, host
            for host in (
                "evil.test",
                "127.0.0.1.evil.test",
                "evil.test:127.0.0.1",
                "[::1]evil.test",
                "x@127.0.0.1",
                "::1",
                "127.0.0.1/x",
                "127.0.0.1:1:2",
                "",
            ):
                assert (await client.get("/api/v1/session", headers={"Host": host})).status_code == 403, host
                assert (await client.post("/v1/logs", headers={"Host": host})).status_code == 403, host

    asyncio.run(test())


class TestOpenServers:
    """On loopback, a folder that never had a token is open, and stays closed after its first one."""

    @pytest.mark.parametrize("ends", ["revoke", "delete", "empty", "delete_before_a_request"])
    def test_folder_that_had_a_token_stays_closed(self, store: Store, ends: str) -> None:
        forget_tokens(store.folder)
        session = "/api/v1/session"

        async def test() -> None:
            async with open_world(store) as client:
                assert (await client.get(session)).json()["sign_in"] == "open"
                tokens = Tokens(store.folder)
                secret = tokens.create("me", "viewer", 0)
                if ends != "delete_before_a_request":
                    known = await client.get(session, headers={"Authorization": f"Bearer {secret}"})
                    assert known.json()["sign_in"] == "token"
                if ends == "revoke":
                    tokens.revoke("me")
                elif ends == "empty":
                    tokens.path.write_text('{"tokens": []}')
                else:
                    tokens.path.unlink()
                assert (await client.get(session)).status_code == 401
                assert (await client.post("/v1/logs")).status_code == 401
            async with open_world(store) as client:  # another start
                assert (await client.get(session)).status_code == 401
                tokens.create("again", "viewer", 0)
                assert (await client.get(session)).status_code == 401

        asyncio.run(test())

    def test_folder_of_an_older_version_with_tokens_stays_closed(self, store: Store) -> None:
        forget_tokens(store.folder)
        tokens = Tokens(store.folder)
        tokens.create("me", "viewer", 0)
        (store.folder / token_marker.MARKER).unlink()  # older versions did not write it

        async def test() -> None:
            async with open_world(store) as client:
                assert (await client.get("/api/v1/session")).status_code == 401
            tokens.path.unlink()
            async with open_world(store) as client:
                assert (await client.get("/api/v1/session")).status_code == 401

        asyncio.run(test())

    @pytest.mark.parametrize("options", [{"open_to_all": False}, {"open_to_all": True, "always_open": True}])
    def test_is_open_remembers_tokens_for_later_servers(self, tmp_path: Path, options: dict[str, bool]) -> None:
        """One on another address is closed with and without tokens, and one with `--open` is open."""
        Tokens(tmp_path).create("me", "viewer", 0)
        (tmp_path / token_marker.MARKER).unlink()  # an older version did not have it
        Access(Tokens(tmp_path), Settings(), **options).is_open()
        (tmp_path / token_marker.TOKENS).unlink()
        assert not Access(Tokens(tmp_path), Settings(), open_to_all=True).is_open()

    def test_always_open_ignores_tokens(self, store: Store) -> None:
        Tokens(store.folder).create("reader", "viewer", 0)

        async def test() -> None:
            async with open_world(store, always_open=True) as client:
                assert (await client.get("/api/v1/session")).json()["sign_in"] == "open"
                assert (await client.get("/api/v1/session", headers={"Host": "evil.test"})).status_code == 403
                assert (await client.get("/api/v1/session", headers={"Via": "1.1 x"})).status_code == 403

        asyncio.run(test())

    @pytest.mark.parametrize(
        "name",
        [
            "Forwarded",
            "X-Forwarded-For",
            "x-forwarded-host",
            "X-FORWARDED-PROTO",
            "X-Forwarded-Anything",
            "Via",
            "X-Real-IP",
            "X-Client-IP",
            "True-Client-IP",
            "CF-Connecting-IP",
            "X-Original-Forwarded-For",
            "X-Cluster-Client-IP",
            "X-Envoy-External-Address",
            "X-Auth-Request-User",
            "Tailscale-User-Login",
            "Forwarded-For",
            "X_Forwarded_For",
            "X-Vercel-Forwarded-For",
            "X-ProxyContextPath",
            "X-NginX-Proxy",
            "Remote-Addr",
            "X-Remote-Addr",
            "Ali-Cdn-Real-Ip",
            "X-Appengine-User-Ip",
            "X-Sucuri-ClientIP",
            "CloudFront-Viewer-Address",
            "X-Amzn-Trace-Id",
            "X-Envoy-Expected-Rq-Timeout-Ms",
            "CDN-Loop",
            "X-Scheme",
        ],
    )
    def test_open_server_refuses_requests_from_a_proxy(self, store: Store, name: str) -> None:
        forget_tokens(store.folder)

        async def test() -> None:
            async with open_world(store) as client:
                for method, path in (
                    ("GET", "/api/v1/session"),
                    ("GET", "/api/v1/cost?all=1"),
                    ("GET", "/metrics"),
                    ("GET", "/report"),
                    ("POST", "/v1/logs"),
                    ("POST", "/api/v1/write"),
                    ("POST", "/api/v1/close?month=2026-10"),
                ):
                    answer = await client.request(method, path, headers={name: "203.0.113.9"})
                    assert (path, answer.status_code) == (path, 403)
                    assert name.lower() in answer.json()["error"]
                    assert "pyrometer token create" in answer.json()["error"]
                assert (await client.get("/readyz", headers={name: "203.0.113.9"})).json().get("shortcomings") is None
                assert (await client.get("/healthz", headers={name: "203.0.113.9"})).status_code == 200

        asyncio.run(test())

    def test_open_server_refuses_http_1_0(self, store: Store) -> None:
        forget_tokens(store.folder)
        one = Access(Tokens(store.folder), Settings(), open_to_all=True)
        local = request(host="127.0.0.1:8411")
        assert one.authorize(local, "view").name == "anybody"
        local.scope["http_version"] = "1.0"
        with pytest.raises(HttpError, match="proxy"):
            one.authorize(local, "view")

    @pytest.mark.parametrize(
        "name",
        [
            "Accept",
            "Accept-Encoding",
            "Cache-Control",
            "Content-Encoding",
            "Cookie",
            "Priority",
            "Referer",
            "Sec-CH-UA",
            "Sec-Fetch-User",
            "Traceparent",
            "Upgrade-Insecure-Requests",
            "User-Agent",
            "X-Prometheus-Remote-Write-Version",
            "X-Prometheus-Scrape-Timeout-Seconds",
            "X-Request-Id",
        ],
    )
    def test_proxy_header_does_not_match_browser_and_sender_headers(self, name: str) -> None:
        assert auth.PROXY_HEADER.fullmatch(name.lower()) is None

    def test_token_is_accepted_through_a_proxy(self, run: Run) -> None:
        async def test(world: World) -> None:
            headers = {"X-Forwarded-For": "203.0.113.9", "Via": "1.1 x"}
            assert (await world.client.get("/api/v1/session", headers=headers | world.as_("viewer"))).status_code == 200

        run(test)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab")), max_size=60))
def test_valid_token_never_waits(tries: list[tuple[bool, str]]) -> None:
    """Wrong tokens before it do not matter, whatever their address."""
    with TemporaryDirectory() as folder:
        tokens = Tokens(Path(folder))
        right = tokens.create("sender", "ingest", 0)
        one = Access(tokens, Settings(), open_to_all=False)
        for number, (is_right, peer) in enumerate(tries):
            sent = request(f"192.0.2.{ord(peer)}", authorization=f"Bearer {right if is_right else f'pyr_{number}'}")
            if is_right:
                assert one.authorize(sent, "ingest").name == "sender"
            else:
                with pytest.raises(HttpError):
                    one.authorize(sent, "ingest")
