"""Who may what: every route, every role, every way to be known; and what is written down of it."""

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

from pyrometer.cli import main
from pyrometer.model.settings import SettingError, Settings
from pyrometer.questions.host_addresses import network_of
from pyrometer.questions.tokens import PERMISSIONS, ROLES, TokenError, Tokens
from pyrometer.serve.core import Core
from pyrometer.serve.http import answering, audit, auth
from pyrometer.serve.http.audit import Audit
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
PAGE = {"Origin": HERE}  # what a browser says of a page of the server itself


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
    """A server on loopback, as `pyrometer serve` starts it, and whoever asks it."""
    server = build_services(Core(store, Settings(audit_log="no")), open_to_all=True, always_open=always_open)
    transport = httpx.ASGITransport(server.application())
    async with httpx.AsyncClient(transport=transport, base_url=LOOPBACK) as client:
        yield client


def forget_tokens(folder: Path) -> None:
    """As if the folder had never had a token."""
    for name in (token_marker.TOKENS, token_marker.MARKER):
        (folder / name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("teams"), create=True) as store:
        store.append(two_teams.both())
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


# What a team viewer gets from each route. A route that is not here is not decided: say what it gets, and why.
OF_A_TEAM_VIEWER = {
    ("/healthz", "GET"): 200,  # says nothing
    ("/readyz", "GET"): 200,  # without shortcomings
    **{(path, "GET"): 200 for path in PAGES},  # a frame without data
    ("/page/{name:path}", "GET"): 200,  # likewise
    ("/report", "GET"): 200,  # of its team
    ("/metrics", "GET"): 403,  # everybody's
    ("/api/v1/write", "POST"): 403,
    ("/v1/logs", "POST"): 403,
    ("/v1/traces", "POST"): 403,
    ("/v1/metrics", "POST"): 403,
    ("/api/v1/session", "GET"): 200,  # itself
    ("/api/v1/session", "POST"): 415,  # anybody may try
    ("/api/v1/session", "DELETE"): 204,
    ("/api/v1/close", "POST"): 403,  # an admin's
    ("/api/v1/rebuild", "POST"): 403,  # likewise
    ("/api/v1/backup", "POST"): 403,  # likewise: it is everybody's
    ("/api/v1/live", "GET"): None,  # a stream: see below
    ("/api/v1/openapi.json", "GET"): 200,  # what can be asked, by anybody
    ("/api/v1/export/{form}", "GET"): 200,  # of its team
    ("/api/v1/{what}", "GET"): 200,  # of its team
}


def test_of_every_route_it_is_decided_what_a_team_viewer_gets(run: Run) -> None:
    async def test(world: World) -> None:
        routes = world.server.application().routes
        there = {(route.path, method) for route in routes for method in route.methods - {"HEAD"}}
        assert there == set(OF_A_TEAM_VIEWER)
        for (path, method), status in OF_A_TEAM_VIEWER.items():
            if status is not None:
                asked = path.replace("{what}", "cost").replace("{form}", "csv").replace("{name:path}", "app.js")
                answer = await world.client.request(method, asked, headers=PAGE | world.as_("team_viewer"))
                assert (path, method, answer.status_code) == (path, method, status)
                assert THEIRS not in answer.text

    run(test)


@pytest.mark.parametrize("role", [*ROLES, "nobody"])
def test_what_each_role_may(run: Run, role: str) -> None:
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


# By every parameter there is, those of another team among them.
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


def without(text: str, asked: dict[str, str]) -> str:
    """An answer without what was in the question."""
    for value in asked.values():
        text = text.replace(value, "")
    return text


@pytest.mark.parametrize("questions", [QUESTIONS, pytest.param(MORE_QUESTIONS, marks=pytest.mark.heavy)])
def test_no_answer_to_a_team_viewer_names_anything_of_another_team(
    run: Run, questions: list[tuple[str, dict[str, str]]]
) -> None:
    async def test(world: World) -> None:
        statuses = []
        for what, about in questions:
            asked = {"all": "1", **about}
            answer = await world.client.get(f"/api/v1/{what}", params=asked, headers=world.as_("team_viewer"))
            statuses.append(answer.status_code)
            assert answer.status_code in (200, 404), (what, about, answer.text)
            told = without(f"{dict(answer.headers)} {answer.text}", about)
            assert THEIRS not in told, (what, about)
            if about.get("run") == THEIR_RUN or about.get("experiment"):
                assert answer.status_code == 404, (what, about)
        assert statuses.count(200) > len(questions) // 3

    run(test)


@pytest.mark.heavy
def test_who_sees_everything_sees_both(run: Run) -> None:
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
def test_another_team_s_data_is_refused_however_it_is_asked_for(run: Run, what: str) -> None:
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


def test_neither_cursors_nor_tags_lead_to_another_s_answer(run: Run) -> None:
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
def test_a_team_viewer_hears_of_its_own_findings_only(run: Run) -> None:
    async def test(world: World) -> None:
        events = {team: world.server.events.events(team) for team in (TEAM, OTHER_TEAM, "nobody-s", None)}
        for one in events.values():
            await anext(one)
        await world.server.accounting.update()
        await world.server.findings.look()
        world.server.events.end()
        heard = {team: "".join([text async for text in one]) for team, one in events.items()}
        assert "event: finding" in heard[TEAM]
        assert THEIRS not in heard[TEAM]
        assert two_teams.OURS not in heard[OTHER_TEAM]
        assert THEIRS in heard[None]
        assert two_teams.OURS in heard[None]
        assert all("event: ledger" in text for text in heard.values())
        assert "event: finding" not in heard["nobody-s"]

    run(test, Settings(finding_min_usd_micro=0, finding_min_ms=0))


def test_who_may_not_any_more_hears_nothing_more(run: Run) -> None:
    async def test(world: World) -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.7", 1)}
        scope["headers"] = [(b"authorization", world.as_("team_viewer")["Authorization"].encode())]
        asked = Request(scope)
        asked.state.who = world.server.access.authorize(asked, "view")
        events = world.server.answers.events_for(asked)
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

    def test_a_page_signs_in_looks_and_signs_out(self, run: Run) -> None:
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

    def test_a_session_ends_with_its_token_and_with_its_time(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(world: World) -> None:
            await self.sign_in(world, world.tokens["viewer"])
            assert (await world.client.get("/api/v1/session")).status_code == 200
            world.server.access.tokens.revoke("viewer")
            assert (await world.client.get("/api/v1/session")).status_code == 401
            monkeypatch.setattr(auth, "SESSION_S", -1)
            await self.sign_in(world, world.tokens["admin"])
            assert (await world.client.get("/api/v1/cost?all=1")).status_code == 401

        run(test)

    def test_it_may_only_look_whatever_its_token_may(self, run: Run) -> None:
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
    def test_no_other_site_signs_anybody_in_or_out(self, run: Run, headers: dict[str, str]) -> None:
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
    def test_bodies_that_are_no_token(self, run: Run, body: bytes, kind: str, status: int) -> None:
        async def test(world: World) -> None:
            headers = {**PAGE, "Content-Type": kind}
            answer = await world.client.post("/api/v1/session", content=body, headers=headers)
            assert answer.status_code == status
            assert answer.json()["error"]
            assert "Set-Cookie" not in answer.headers

        run(test)

    def test_over_https_cookies_are_sent_over_nothing_else(self, run: Run) -> None:
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
    def test_the_newest_are_remembered(self, steps: list[tuple[int, bool]]) -> None:
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

    def test_one_that_is_trusted_says_who_asks(self, run: Run) -> None:
        async def test(world: World) -> None:
            answer = await world.client.get("/api/v1/session", headers={"X-Forwarded-User": "ada"})
            itself = {"name": "ada", "role": "viewer", "team": None, "sign_in": "proxy"}
            assert answer.json() == {**itself, "ledger": None}
            assert (
                await world.client.get("/api/v1/cost?all=1", headers={"X-Forwarded-User": "ada"})
            ).status_code == 200
            assert (await world.client.get("/api/v1/session")).status_code == 401
            # a token of the proxy's own is not ours, and no guess
            both = {"X-Forwarded-User": "ada", "Authorization": "Bearer eyJhbGciOi"}
            assert [(await world.client.get("/api/v1/session", headers=both)).status_code for _ in range(20)] == [
                200
            ] * 20
            sent = {"X-Forwarded-User": "ada", **world.as_("ingest")}
            assert (await world.client.post("/v1/logs", headers=sent)).status_code not in (401, 403)
            assert (await world.client.post("/v1/logs", headers={"X-Forwarded-User": "ada"})).status_code == 401

        run(test, self.SETTINGS, "10.1.2.3")

    def test_nobody_else_does(self, run: Run) -> None:
        async def test(world: World) -> None:
            assert (await world.client.get("/api/v1/session", headers={"X-Forwarded-User": "ada"})).status_code == 401

        run(test, self.SETTINGS, "11.1.2.3")
        run(test, Settings(proxy_user_header="X-Forwarded-User"), "10.1.2.3")
        run(test, Settings(proxy_addresses=("10.0.0.0/8",)), "10.1.2.3")

    def test_with_a_team_header_everybody_sees_their_team(self, run: Run) -> None:
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

    def test_a_server_behind_one_is_open_to_nobody(self, store: Store) -> None:
        forget_tokens(store.folder)
        tokens = Tokens(store.folder)
        behind = Access(tokens, self.SETTINGS, open_to_all=True)
        with pytest.raises(HttpError, match="A token is needed"):
            behind.authorize(request(host="127.0.0.1"), "view")
        assert Access(tokens, Settings(), open_to_all=True).authorize(request(host="127.0.0.1"), "view")

    @pytest.mark.parametrize(
        ("peer", "said", "address"),
        [
            ("10.1.2.3", "1.1.1.1, 2.2.2.2", "2.2.2.2"),
            ("10.1.2.3", "nonsense", "10.1.2.3"),
            ("10.1.2.3", "", "10.1.2.3"),
            ("11.1.2.3", "2.2.2.2", "11.1.2.3"),
            ("::1", "2001:db8::1", "2001:db8::1"),
            ("::ffff:10.1.2.3", "2.2.2.2", "2.2.2.2"),
        ],
    )
    def test_where_a_request_comes_from(self, tmp_path: Path, peer: str, said: str, address: str) -> None:
        one = Access(Tokens(tmp_path), self.SETTINGS, open_to_all=False)
        assert one.address(request(peer, x_forwarded_for=said)) == address

    @pytest.mark.parametrize(
        ("changes", "words"),
        [({"proxy_addresses": ("10.0.0.0/33",)}, "10.0.0.0/33"), ({"proxy_role": "team_viewer"}, "proxy_team_header")],
    )
    def test_settings_that_make_no_sense(self, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(SettingError, match=words):
            Access(Tokens(tmp_path), Settings(**changes), open_to_all=False)


class TestGuessing:
    def test_it_becomes_slow_and_others_do_not_wait_for_it(self, run: Run) -> None:
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
            assert (await ask(world.tokens["admin"])).status_code == 200  # never used before, and from the same address
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
    def test_no_more_than_so_many_in_any_time(self, tries: list[tuple[str, float]]) -> None:
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

    @pytest.mark.parametrize(
        ("address", "network"),
        [("192.0.2.7", "192.0.2.7"), ("2001:db8::1", "2001:db8::/64"), ("::ffff:192.0.2.7", "192.0.2.7"), ("?", "?")],
    )
    def test_of_ipv6_one_has_a_network(self, address: str, network: str) -> None:
        assert network_of(address) == network


class TestHeaders:
    @pytest.mark.parametrize(
        "path", ["/healthz", "/readyz", "/api/v1/cost?all=1", "/nothing", "/api/v1/nothing", "/metrics"]
    )
    def test_every_response_has_them(self, run: Run, path: str) -> None:
        async def test(world: World) -> None:
            for headers in ({}, world.as_("viewer")):
                answer = await world.client.get(path, headers=headers)
                assert {name: answer.headers[name] for name in HEADERS} == HEADERS

        run(test)

    def test_one_that_went_wrong_as_well(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
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

    def test_no_script_may_be_inline(self) -> None:
        scripts = next(one for one in HEADERS["Content-Security-Policy"].split("; ") if one.startswith("script-src"))
        assert scripts == "script-src 'self'"

    def test_the_report_is_stricter(self, run: Run) -> None:
        async def test(world: World) -> None:
            answer = await world.client.get("/report?all=1", headers=world.as_("viewer"))
            assert "script-src" not in answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]

        run(test)


class TestAudit:
    def test_who_asked_what_from_where(self, run: Run) -> None:
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

    def test_no_secret_is_in_it_wherever_it_was(self, run: Run) -> None:
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

    @given(st.text(), st.text(max_size=500))
    def test_a_line_stays_one(self, name: str, value: str) -> None:
        written = audit.line("question", who=name, asked={"run": value})
        assert written.isascii()
        assert not {"\n", "\r", "\x1b", "\x00"} & set(written)
        assert len(written) < 7 * 1000
        assert json.loads(written)["what"] == "question"

    def test_files_are_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit, "MAX_BYTES", 2_000)
        log = Audit(tmp_path, on=True)
        for number in range(400):
            log.write("question", number=number)
        log.close()
        files = sorted(tmp_path.iterdir())
        assert len(files) == 1 + audit.OLDER_FILES
        assert all(file.stat().st_size <= 2_000 and file.stat().st_mode & 0o777 == 0o600 for file in files)
        assert '"number": 399' in (tmp_path / audit.FILE).read_text().splitlines()[-1]

    def test_who_does_not_want_it_has_none(self, tmp_path: Path) -> None:
        log = Audit(tmp_path, on=False)
        log.write("question")
        log.close()
        assert list(tmp_path.iterdir()) == []

    def test_what_does_not_fit_is_counted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(audit, "MAX_WAITING", 2)
        log = Audit(tmp_path, on=True)
        monkeypatch.setattr(audit.QueueListener, "start", lambda self: None)  # a disk that is far behind
        for _ in range(5):
            log.write("question")
        assert log._lines.lost + 0 >= 1

    def test_commands_that_change_who_may_are_in_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for words in (["create", "v", "--role", "team_viewer", "--team", "a\nb"], ["revoke", "v"], ["revoke", "v"]):
            with pytest.raises(SystemExit):
                main(["token", *words, "--data", str(tmp_path)])
        secret = capsys.readouterr().out.strip()
        text = (tmp_path / audit.FILE).read_text()
        written = [json.loads(line) for line in text.splitlines()]
        assert [(one["what"], one["name"]) for one in written] == [("token_created", "v"), ("token_revoked", "v")]
        assert written[0]["team"] == "a\nb"
        assert secret.startswith("pyr_")
        assert secret not in text
        assert (tmp_path / audit.FILE).stat().st_mode & 0o777 == 0o600


class TestTokensOfTeams:
    @pytest.mark.parametrize(("role", "team"), [("team_viewer", None), ("viewer", "nlp"), ("team_viewer", "")])
    def test_a_team_viewer_has_a_team_and_nobody_else(self, tmp_path: Path, role: str, team: str | None) -> None:
        with pytest.raises(TokenError):
            Tokens(tmp_path).create("me", role, 0, team)

    def test_one_whose_team_was_taken_out_of_the_file_opens_nothing(self, run: Run) -> None:
        async def test(world: World) -> None:
            path = world.server.access.tokens.path
            path.write_text(path.read_text().replace(json.dumps(TEAM), "null"))
            assert (await world.client.get("/api/v1/cost", headers=world.as_("team_viewer"))).status_code == 401

        run(test)

    def test_a_broken_file_lets_nobody_in_and_names_no_path(self, run: Run) -> None:
        async def test(world: World) -> None:
            world.server.access.tokens.path.write_text("{")
            answer = await world.client.get("/api/v1/cost", headers=world.as_("viewer"))
            assert answer.status_code == 503
            assert str(world.server.core.store.folder) not in answer.text

        run(test)


def test_on_an_open_server_no_other_site_sends_anything(store: Store) -> None:
    forget_tokens(store.folder)

    async def test() -> None:
        async with open_world(store) as client:
            for path in ("/v1/logs", "/v1/traces", "/v1/metrics", "/api/v1/write"):
                for headers in ({"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
                    assert (await client.post(path, headers=headers)).status_code == 403
                assert (await client.post(path)).status_code != 403  # no browser at all
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
    def test_one_that_had_a_token_stays_closed(self, store: Store, ends: str) -> None:
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

    def test_a_folder_of_an_older_version_with_tokens_stays_closed(self, store: Store) -> None:
        forget_tokens(store.folder)
        tokens = Tokens(store.folder)
        tokens.create("me", "viewer", 0)
        (store.folder / token_marker.MARKER).unlink()  # which it did not have

        async def test() -> None:
            async with open_world(store) as client:
                assert (await client.get("/api/v1/session")).status_code == 401
            tokens.path.unlink()
            async with open_world(store) as client:
                assert (await client.get("/api/v1/session")).status_code == 401

        asyncio.run(test())

    @pytest.mark.parametrize("options", [{"open_to_all": False}, {"open_to_all": True, "always_open": True}])
    def test_tokens_are_remembered_by_servers_that_do_not_ask_for_them(
        self, tmp_path: Path, options: dict[str, bool]
    ) -> None:
        """One on another address is closed with and without tokens, and one with `--open` is open."""
        Tokens(tmp_path).create("me", "viewer", 0)
        (tmp_path / token_marker.MARKER).unlink()  # an older version did not have it
        Access(Tokens(tmp_path), Settings(), **options).is_open()
        (tmp_path / token_marker.TOKENS).unlink()
        assert not Access(Tokens(tmp_path), Settings(), open_to_all=True).is_open()

    def test_always_open_is_open_with_tokens_too(self, store: Store) -> None:
        Tokens(store.folder).create("somebody", "viewer", 0)

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
    def test_what_came_through_a_proxy_is_refused(self, store: Store, name: str) -> None:
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

    def test_a_proxy_without_headers_of_its_own_is_refused_by_its_version_of_http(self, store: Store) -> None:
        forget_tokens(store.folder)
        one = Access(Tokens(store.folder), Settings(), open_to_all=True)
        asked = request(host="127.0.0.1:8411")
        assert one.authorize(asked, "view").name == "anybody"
        asked.scope["http_version"] = "1.0"
        with pytest.raises(HttpError, match="proxy"):
            one.authorize(asked, "view")

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
    def test_headers_of_browsers_and_of_senders_are_no_proxy_s(self, name: str) -> None:
        assert auth.PROXY_HEADER.fullmatch(name.lower()) is None

    def test_with_a_token_a_proxy_s_request_is_answered(self, run: Run) -> None:
        async def test(world: World) -> None:
            headers = {"X-Forwarded-For": "203.0.113.9", "Via": "1.1 x"}
            assert (await world.client.get("/api/v1/session", headers=headers | world.as_("viewer"))).status_code == 200

        run(test)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("ab")), max_size=60))
def test_right_tokens_never_wait(tries: list[tuple[bool, str]]) -> None:
    """Whatever wrong ones came before them, and from where."""
    with TemporaryDirectory() as folder:
        tokens = Tokens(Path(folder))
        right = tokens.create("sender", "ingest", 0)
        one = Access(tokens, Settings(), open_to_all=False)
        for number, (is_right, peer) in enumerate(tries):
            asked = request(f"192.0.2.{ord(peer)}", authorization=f"Bearer {right if is_right else f'pyr_{number}'}")
            if is_right:
                assert one.authorize(asked, "ingest").name == "sender"
            else:
                with pytest.raises(HttpError):
                    one.authorize(asked, "ingest")
