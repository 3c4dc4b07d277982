"""The server under arbitrary requests: never an internal error, never another team's data.

In this process, so that an error comes here with its traceback; `tests/serve/http/test_attacks.py` has a real one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrometer.account.query.time_range import TimeRangeError
from pyrometer.model.settings import Settings
from pyrometer.questions.parameters import COMMON_PARAMETERS, OWN_PARAMETERS, QuestionError
from pyrometer.questions.registry import NotFoundError, question, question_names
from pyrometer.questions.tokens import Tokens
from pyrometer.serve.core import Core
from pyrometer.serve.http.downloads import DOWNLOADS
from pyrometer.serve.main import Services, build_services
from pyrometer.store import Store
from tests.fuzz.test_bytes import KEPT
from tests.support import two_teams
from tests.support.effort import EFFORT
from tests.support.mangle import as_json, mangled, mangled_value
from tests.support.two_teams import OUR_RUN, SAME_RUN, TEAM, THEIR_RUN, THEIRS

HOST = "http://pyrometer.test"
EXAMPLES = settings(max_examples=40 * EFFORT, suppress_health_check=list(HealthCheck))
CHECKED = settings(max_examples=100 * EFFORT, suppress_health_check=list(HealthCheck))
RIGHT: dict[str, tuple[str, ...]] = {
    "last": ("12h", "90m", "7d"),
    "since": ("2026-10-08", "2026-10-08 20:00"),
    "until": ("2027-01-01",),
    "all": ("1",),
    "month": ("2026-10",),
    "tz": ("Europe/Berlin", "UTC"),
    "price": ("2.5", "$3"),
    "team": (TEAM,),
    "step": ("12", "0"),
    "experiment": (f"{two_teams.OURS}-sft", f"{two_teams.OURS}-baseline"),
    "by": ("team,experiment", "day", "state,cause"),
    "run": (OUR_RUN, SAME_RUN, THEIR_RUN),
    "attempt": ("1", "2"),
    "metric": ("loss",),
    "sample": ("7",),
    "limit": ("5",),
    "target": ("0.5",),
    "share_platform": ("even",),
    "without": ("windows",),
    "spikes": ("1",),
    "checkpoint": ("10",),
    "offset": ("3",),
    "at": ("2026-10-08 20:00",),
    "stale": ("ok",),
    "as": ("parquet",),
}
WRONG = (
    "",
    " ",
    "0",
    "-1",
    "-0",
    "NaN",
    "inf",
    "1e400",
    "1e999999999",
    "9" * 30,
    "9" * 5_000,
    "1" * 4_400 + "h",
    "0h",
    "9" * 20 + "d",
    "\x00",
    "\ud7ff",
    "\u202e",
    "٣",
    "½",
    "a" * 3_000,
    ",",
    ",,",
    "team,team",
    "..",
    "../../etc/passwd",
    "%",
    "'",
    '"',
    "\\",
    "'; DROP TABLE run; --",
    "*",
    "{}",
    "[]",
    "$1",
    "Europe",
    "Europe/",
    "/etc/passwd",
    "UTC\x00",
    "0001-01-01",
    "9999-12-31",
    "2026-13-45",
    "2026-10-08T20:00:00+99:99",
    "2026-W41",
    "1970-01-01",
    "9998-12",
    "0000-00",
    "2026-10-25 02:30",
    "true",
    "null",
)
NAMES = (
    *COMMON_PARAMETERS,
    *{name for names in OWN_PARAMETERS.values() for name in names},
    "stale",
    "as",
    "page",
    "unknown",
    "",
)


@st.composite
def parameters(draw: st.DrawFn) -> list[tuple[str, str]]:
    """A few parameters, most of them right; the same one may be there twice."""
    drawn = []
    for name in draw(st.lists(st.sampled_from(NAMES), max_size=5)):
        right = draw(st.booleans()) and name in RIGHT
        drawn.append((name, draw(st.sampled_from(RIGHT[name] if right else WRONG))))
    return drawn


def checked(what: str, parameters: dict[str, str]) -> None:
    """Whether it could be asked; whatever else goes wrong is a mistake."""
    with suppress(QuestionError, NotFoundError, TimeRangeError):
        assert callable(question(what, parameters, Settings()))


@CHECKED
@given(st.sampled_from((*question_names(), "nothing")), parameters())
def test_question_parameters_are_accepted_or_refused(what, parameters):
    checked(what, dict(parameters))


@pytest.mark.parametrize("what", question_names())
def test_every_parameter_with_every_wrong_value(what):
    needed = {"run": OUR_RUN} if "run" in OWN_PARAMETERS.get(what, ()) else {}
    for name in (*COMMON_PARAMETERS, *OWN_PARAMETERS.get(what, ())):
        for value in WRONG:
            checked(what, needed | {name: value})


# -- a server ---------------------------------------------------------------------------------------------------------


class Served(NamedTuple):
    """A server, and who may what."""

    loop: asyncio.Runner
    client: httpx.AsyncClient
    tokens: dict[str, str]

    def ask(self, method: str, path: str, role: str, **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if role in self.tokens:
            headers["Authorization"] = f"Bearer {self.tokens[role]}"
        return self.loop.run(self.client.request(method, path, headers=headers, **more))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("fuzzed")
    with Store(folder, create=True) as store, asyncio.Runner() as loop:
        store.append(two_teams.all_records())
        tokens = Tokens(folder)
        made = {role: tokens.create(role, role, 0) for role in ("admin", "ingest")}
        made["team"] = tokens.create("team", "team_viewer", 0, TEAM)

        async def serve() -> tuple[Services, httpx.AsyncClient]:
            server = build_services(Core(store, Settings()), open_to_all=False)
            transport = httpx.ASGITransport(server.application(), client=("192.0.2.7", 4711))
            return server, httpx.AsyncClient(transport=transport, base_url=HOST)

        server, client = loop.run(serve())
        yield Served(loop, client, made)
        loop.run(client.aclose())
        loop.run(server.end())
        server.audit.close()


ANSWERS = (
    *(f"/api/v1/{what}" for what in (*question_names(), "nothing")),
    *(f"/api/v1/export/{form}" for form in (*DOWNLOADS, "x")),
    "/report",
)
HEADERS = st.dictionaries(
    st.sampled_from(
        (
            "If-None-Match",
            "Accept",
            "Accept-Encoding",
            "Range",
            "Cookie",
            "Origin",
            "Sec-Fetch-Site",
            "Content-Type",
            "X-Forwarded-For",
            "X-HTTP-Method-Override",
            "Authorization",
            "Host",
        )
    ),
    st.sampled_from(
        (
            "",
            "*",
            '"x"',
            "W/",
            "gzip;q=nan",
            "bytes=0-99999999999999999999",
            "pyrometer_session=x; ;=;",
            "null",
            "Bearer",
            "Bearer " + "x" * 3_000,
            "Basic !!!",
            "cross-site",
            "a" * 3_000,
            "\xff",
            "text/html;q=1e400",
        )
    ),
    max_size=3,
)


@EXAMPLES
@given(st.sampled_from(ANSWERS), parameters(), st.sampled_from(("admin", "team", "ingest", "nobody")), HEADERS)
def test_get_routes_with_random_parameters(served, path, parameters, role, headers):
    given_headers = {name: value.encode("latin-1") for name, value in headers.items()}
    answer = served.ask("GET", path, role, params=parameters, headers=given_headers)
    assert answer.status_code < 500
    if role in ("nobody", "ingest"):
        assert answer.status_code in (400, 401, 403, 429)
    if role == "team" and not any(THEIRS in value for _, value in parameters):
        assert THEIRS not in answer.text
    if answer.status_code >= 400:
        assert len(answer.content) < 20_000


BODIES = {
    "/v1/logs": ("otlp_json", "application/json"),
    "/v1/traces": ("otlp_protobuf", "application/x-protobuf"),
    "/v1/metrics": ("otlp_json", "application/json"),
    "/api/v1/write": ("remote_write_packed", "application/x-protobuf"),
}


@EXAMPLES
@given(
    st.data(),
    st.sampled_from(sorted(BODIES)),
    st.sampled_from(("", "gzip", "snappy", "zstd", "identity", "gzip, gzip")),
)
def test_ingest_routes_with_mangled_bodies(served, data, path, encoding):
    kept, kind = BODIES[path]
    body = data.draw(mangled(KEPT[kept]))[1 if "otlp" in kept else 0 :]
    headers = {"Content-Type": kind} | ({"Content-Encoding": encoding} if encoding else {})
    assert served.ask("POST", path, "ingest", content=body, headers=headers).status_code in (200, 204, 400, 413, 415)
    assert served.ask("POST", path, "nobody", content=body, headers=headers).status_code in (401, 429)


@EXAMPLES
@given(
    mangled_value([{"token": "x"}, {"month": "2026-10", "force": True}, ["x"]]), st.sampled_from(("session", "close"))
)
def test_post_routes_with_mangled_json(served, body, path):
    for role, kind in (("admin", "application/json"), ("nobody", "application/json"), ("admin", "text/plain")):
        answer = served.ask("POST", f"/api/v1/{path}", role, content=as_json(body), headers={"Content-Type": kind})
        assert 400 <= answer.status_code < 500


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff", b"{}" * 5_000, b'"\\ud800"', b"1" * 10_000, b""])
def test_invalid_json_is_reported(served, body):
    for path in ("/api/v1/session", "/api/v1/close"):
        answer = served.ask("POST", path, "admin", content=body, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500
        assert json.loads(answer.text)["error"]
