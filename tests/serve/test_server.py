"""The server as a process: it answers, asks for tokens, stops cleanly, and leaves the folder to others."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyrometer import __version__
from pyrometer.cli import main
from pyrometer.model.settings import Settings
from pyrometer.questions import registry
from pyrometer.questions.registry import bring_up_to_date, question
from pyrometer.questions.tokens import FILE, TokenError, Tokens, digest_of
from pyrometer.serve.core import Core
from pyrometer.serve.http.http_error import HttpError
from pyrometer.serve.main import AuthenticationConflictError, Services, build_services, warn_about_access
from pyrometer.serve.tasks import accounting
from pyrometer.store import Store, StoreBusyError
from tests.support import clusters
from tests.support.kube_server import free_port
from tests.support.server_process import serving
from tests.support.traced_run import RUN, Trained


def small_night(folder: Path) -> Path:
    with Store(folder, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
    return folder


@pytest.fixture
def night(tmp_path: Path) -> Path:
    return small_night(tmp_path / "data")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, httpx.Client]]:
    """A server that tests only ask, and its folder: starting one takes a second."""
    folder = small_night(tmp_path_factory.mktemp("served") / "data")
    with serving(folder) as client:
        yield folder, client


def test_it_is_well_and_says_what_the_commands_say(served: tuple[Path, httpx.Client]) -> None:
    _, client = served
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").json() == {"ready": True, "waiting_for": [], "shortcomings": []}
    total = client.get("/api/v1/cost", params={"by": "workload", "all": "1"}).json()["total"]
    assert total["gpu_hours"] == 8.0
    answer = client.get("/api/v1/why", params={"all": "1"}).json()
    assert answer["total"]["gpu_hours"] == 8.0
    assert "<html" in client.get("/report").text


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/v1/why?last=3x", "--last '3x' is not a length of time"),
        ("/api/v1/why?colour=red", "Parameter 'colour' is unknown"),
        ("/api/v1/cost?by=colour", "--by 'colour' is not a grouping"),
        ("/api/v1/cost?tz=Mars", "There is no time zone 'Mars'"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(served: tuple[Path, httpx.Client], path: str, said: str) -> None:
    answer = served[1].get(path)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


@pytest.mark.heavy
def test_the_folder_is_the_server_s_while_it_runs_and_free_afterwards(night: Path) -> None:
    with serving(night) as client:
        address = json.loads((night / "server.json").read_text())
        assert address["url"] == str(client.base_url).rstrip("/")
        with pytest.raises(StoreBusyError):
            Store(night)
        client.get("/api/v1/why")
    assert not (night / "server.json").exists()
    with Store(night) as store:
        assert store.parts("ledger_row")


class Said(NamedTuple):
    """What a command said, and how it ended."""

    returncode: int
    stdout: str
    stderr: str


Told = Callable[..., Said]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """Runs a command in this process: one of its own would take a second to start."""

    def run(*arguments: str, **variables: str) -> Said:
        capsys.readouterr()
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(list(arguments))
        return Said(ended.value.code, *capsys.readouterr())  # type: ignore[arg-type]

    return run


@pytest.mark.heavy
def test_a_server_whose_tokens_are_gone_is_open_only_when_it_is_told_so(night: Path, told: Told) -> None:
    told("token", "create", "me", "--data", str(night))
    said = told("token", "revoke", "me", "--data", str(night)).stdout
    assert "last token" in said
    assert "--open" in said
    (night / FILE).unlink()
    assert "--open" in told("token", "list", "--data", str(night)).stdout
    with serving(night) as client:
        assert client.get("/api/v1/session").status_code == 401
        assert client.get("/healthz").status_code == 200
        assert told("cost", "--all", "--data", str(night)).returncode == 0  # the folder's owner asks as before
    with serving(night, "--open") as client:
        assert client.get("/api/v1/session").json()["sign_in"] == "open"
        forwarded = client.get("/api/v1/session", headers={"X-Forwarded-For": "203.0.113.9"})
        assert forwarded.status_code == 403
        with socket.create_connection(("127.0.0.1", client.base_url.port)) as old:  # as nginx asks by default
            old.sendall(b"GET /api/v1/session HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert b" 403 " in old.recv(4096)


class TestWhoMayAskIsSaidInOneLine:
    @staticmethod
    def lines(folder: Path, caplog: pytest.LogCaptureFixture, host: str = "127.0.0.1", **about: Any) -> list[str]:
        with Store(folder, create=True) as store:
            settings = about.pop("settings", Settings())
            server = build_services(Core(store, settings), open_to_all=host == "127.0.0.1", **about)
            warn_about_access(server.access, store, host, always_open=about.get("always_open", False))
        return [record.getMessage() for record in caplog.records]

    def test_nothing_as_long_as_it_is_as_usual(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert self.lines(tmp_path, caplog) == []
        Tokens(tmp_path).create("me", "viewer", 0)
        assert self.lines(tmp_path, caplog) == self.lines(tmp_path, caplog, "0.0.0.0") == []

    @pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
    def test_closed(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str) -> None:
        if host == "127.0.0.1":
            tokens = Tokens(tmp_path)
            tokens.create("me", "viewer", 0)
            tokens.revoke("me")
        (line,) = self.lines(tmp_path, caplog, host)
        assert "refuses every request" in line
        assert f"pyrometer token create NAME --data {tmp_path}" in line
        assert "--open" in line

    @pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
    def test_open(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str) -> None:
        (line,) = self.lines(tmp_path, caplog, host, always_open=True)
        assert "admin" in line

    def test_open_and_a_proxy_that_signs_people_in_contradict_each_other(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        settings = Settings(proxy_addresses=("10.0.0.0/8",), proxy_user_header="X-Forwarded-User")
        with pytest.raises(AuthenticationConflictError, match="Use one of them"):
            self.lines(tmp_path, caplog, always_open=True, settings=settings)


@pytest.mark.heavy
def test_prometheus_finds_its_metrics(night: Path) -> None:
    secret = Tokens(night).create("prometheus", "viewer", 0)
    with serving(night) as client:
        assert client.get("/metrics").status_code == 401
        answer = client.get("/metrics", headers={"Authorization": f"Bearer {secret}"})
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        assert families["pyrometer_ready"].samples[0].value == 1
        assert families["pyrometer_build_info"].samples[0].labels == {"version": __version__}
        assert "pyrometer_gpu_seconds" in families


@pytest.mark.heavy
def test_hours_that_are_over_are_sealed_whoever_brought_them(night: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "SEAL_EVERY_S", 0.0)
    with Store(night) as store:
        server = build_services(Core(store, Settings()), open_to_all=True)
        assert store.hot_tables("pod")
        asyncio.run(server.accounting.update())
        assert not store.hot_tables("pod")
        assert store.parts("pod")


def test_who_sends_does_not_wait_for_an_answer(night: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that takes long is asked of the store as it was; meanwhile rows are stored and others answered."""
    begun, go_on = threading.Event(), threading.Event()
    why = registry.why

    def slow_why(*args: Any, **kwargs: Any) -> dict[str, Any]:
        begun.set()
        assert go_on.wait(30)
        return why(*args, **kwargs)

    async def meanwhile(server: Services) -> tuple[dict[str, Any], dict[str, Any]]:
        slow = asyncio.create_task(server.answering.ask("why", {"all": "1"}))
        await asyncio.to_thread(begun.wait, 30)
        async with server.core.lock:
            later = [
                *clusters.cluster(nodes=3),
                *clusters.job("later", pods=0),
                *clusters.pod("later-0", "later", "n2"),
            ]
            await asyncio.to_thread(server.core.store.append, later)
            await asyncio.to_thread(server.core.store.seal)
        quick = await server.answering.ask("cost", {"all": "1", "by": "workload"})
        assert not slow.done()
        go_on.set()
        return await slow, quick

    with Store(night) as store:
        server = build_services(Core(store, Settings()), open_to_all=True)
        before = asyncio.run(server.answering.ask("why", {"all": "1", "tz": "UTC"}))
        monkeypatch.setattr(registry, "why", slow_why)
        slow, quick = asyncio.run(meanwhile(server))
    assert slow == before
    assert "later" in str(quick["rows"])


def test_a_server_that_stops_waits_for_no_answer(night: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def endless(store: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        begun.set()
        while True:
            store.connection.execute("SELECT count(*) FROM range(1000000)").fetchall()

    async def test(server: Services) -> None:
        asked = asyncio.create_task(server.answering.ask("why", {"all": "1"}))
        await asyncio.to_thread(begun.wait, 30)
        await server.end()
        with pytest.raises(HttpError, match="The server is stopping"):
            await asked

    monkeypatch.setattr(registry, "why", endless)
    with Store(night) as store:
        asyncio.run(test(build_services(Core(store, Settings()), open_to_all=True)))


@pytest.mark.heavy
class TestCommands:
    QUESTIONS = (["why", "--all"], ["cost", "--by", "workload,state", "--all"], ["cost", "--by", "cause"], ["runs"])

    def test_on_a_folder_that_a_server_has_they_ask_it_and_say_the_same(self, night: Path, told: Told) -> None:
        def answers(*whom: str) -> list[str]:
            said = [told(*question, *whom, "-o", "json") for question in self.QUESTIONS]
            assert [one.stderr for one in said] == [""] * len(said)
            return [one.stdout for one in said]

        before = answers("--data", str(night))
        with serving(night) as client:
            assert answers("--data", str(night)) == before
            assert answers("--server", str(client.base_url)) == before
        assert "hung" not in before[0]
        assert json.loads(before[1])["total"]["gpu_hours"] == 8.0

    def test_who_may_read_the_folder_needs_no_token(self, night: Path, told: Told) -> None:
        secret = Tokens(night).create("me", "viewer", 0)
        with serving(night, host="0.0.0.0") as client:
            assert (night / "server.json").stat().st_mode & 0o077 == 0
            assert told("cost", "--data", str(night)).returncode == 0
            url = str(client.base_url)
            refused = told("cost", "--server", url)
            assert refused.returncode == 1
            assert refused.stderr.startswith("Error: A token is needed")
            assert told("cost", "--server", url, PYROMETER_TOKEN=secret).returncode == 0

    def test_an_address_that_a_killed_server_left_is_no_obstacle(self, night: Path, told: Told) -> None:
        (night / "server.json").write_text(json.dumps({"url": f"http://127.0.0.1:{free_port()}", "token": "x"}))
        assert told("cost", "--data", str(night)).returncode == 0

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["cost", "--by", "teem"], 2, "Error: --by 'teem' is not a grouping. Did you mean 'team'?"),
            (["why", "--last", "soon"], 2, "Error: --last 'soon' is not a length of time: 90m, 12h, 7d."),
            (["show", "nothing"], 1, "Error: Run 'nothing' not found in this time range. `pyrometer runs` lists them."),
        ],
    )
    def test_a_mistake_is_said_in_the_same_words(
        self, served: tuple[Path, httpx.Client], told: Told, arguments: list[str], code: int, words: str
    ) -> None:
        folder, client = served
        for whom in (["--server", str(client.base_url)], ["--data", str(folder)]):
            said = told(*arguments, *whom)
            assert (said.returncode, said.stderr.strip()) == (code, words)

    def test_a_server_that_is_not_there_is_named(self, told: Told) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        said = told("why", "--server", url)
        assert said.returncode == 1
        assert said.stderr.startswith(f"Error: {url} does not answer: ")
        assert told("why", "--server", "here").stderr.startswith("Error: --server 'here' is not a URL")
        assert told("why", "--server", url, "--data", "x").returncode == 2


KUBECONFIG = """
current-context: away
clusters: [{name: away, cluster: {server: "https://127.0.0.1:%d"}}]
users: [{name: me, user: {token: secret-token}}]
contexts: [{name: away, context: {cluster: away, user: me}}]
"""


@pytest.mark.heavy
def test_a_cluster_that_does_not_answer_is_waited_for_and_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(KUBECONFIG % free_port())
    with serving(tmp_path / "data", "--kube", KUBECONFIG=str(tmp_path / "config")) as client:
        assert client.get("/healthz").status_code == 200
        while "does not answer" not in (said := client.get("/readyz")).text:  # the first attempt takes its time
            assert said.status_code == 503
        assert said.json()["ready"] is False
        assert "secret-token" not in said.text


@pytest.mark.heavy
def test_without_any_cluster_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyrometer", "serve", "--kube", "--data", str(tmp_path), "--listen"]
    said = subprocess.run(
        [*command, f"127.0.0.1:{free_port()}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KUBECONFIG": str(tmp_path / "missing")},
    )
    assert said.returncode == 1
    assert said.stderr.startswith("Error: No cluster found: there is no kubeconfig at")


class TestTokens:
    def test_a_server_that_others_can_reach_answers_nobody_without_one(self, night: Path) -> None:
        with serving(night, host="0.0.0.0") as client:
            assert client.get("/healthz").status_code == 200
            refused = client.get("/api/v1/why")
            assert refused.status_code == 401
            assert refused.headers["WWW-Authenticate"] == "Bearer"
            secret = Tokens(night).create("me", "viewer", 0)  # a running server knows it at once
            headers = {"Authorization": f"Bearer {secret}"}
            assert client.get("/api/v1/why?all=1", headers=headers).status_code == 200
            assert client.get("/api/v1/why", headers={"Authorization": f"Bearer {secret}x"}).status_code == 401
            assert client.get("/api/v1/why", headers={"Authorization": f"Basic {secret}"}).status_code == 401
            Tokens(night).revoke("me")
            assert client.get("/api/v1/why", headers=headers).status_code == 401

    @pytest.mark.heavy
    def test_one_for_sending_records_may_not_ask(self, night: Path) -> None:
        secret = Tokens(night).create("agent", "ingest", 0)
        with serving(night) as client:
            assert client.get("/api/v1/why", headers={"Authorization": f"Bearer {secret}"}).status_code == 403
            assert client.get("/api/v1/why").status_code == 401  # there is a token: loopback is no exception

    def test_on_loopback_another_site_s_name_for_this_machine_is_refused(
        self, served: tuple[Path, httpx.Client]
    ) -> None:
        assert served[1].get("/api/v1/why", headers={"Host": "evil.example"}).status_code == 403

    def test_only_a_digest_is_kept(self, tmp_path: Path) -> None:
        secret = Tokens(tmp_path).create("me", "admin", 0)
        assert secret.startswith("pyr_")
        assert len(secret) > 40
        assert secret not in (tmp_path / FILE).read_text()
        assert (tmp_path / FILE).stat().st_mode & 0o077 == 0

    def test_names_are_used_once(self, tmp_path: Path) -> None:
        tokens = Tokens(tmp_path)
        tokens.create("me", "viewer", 0)
        with pytest.raises(TokenError, match="already"):
            tokens.create("me", "viewer", 0)
        with pytest.raises(TokenError, match=r"Token 'you' not found\. Existing tokens: me"):
            tokens.revoke("you")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "{}",
            "[]",
            "null",
            '{"tokens": 1}',
            '{"tokens": [1]}',
            '{"tokens": [{}]}',
            "[" * 100_000,
            '{"tokens": [{"name": "a", "role": "admin", "sha256": null, "created_ms": 0}]}',
            '{"tokens": [{"name": "a", "role": ["admin"], "sha256": "' + 64 * "0" + '", "created_ms": 0}]}',
            '{"tokens": [{"name": "a", "role": "admin", "sha256": "' + 64 * "é" + '", "created_ms": 0}]}',
        ],
        ids=lambda text: text[:60],
    )
    def test_a_file_that_is_broken_lets_nobody_in(self, tmp_path: Path, text: str) -> None:
        (tmp_path / FILE).write_text(text)
        with pytest.raises(TokenError, match="cannot be read"):
            Tokens(tmp_path).of(digest_of("pyr_any"))

    @pytest.mark.parametrize("kind", ["folder", "pipe", "link to itself"])
    def test_something_else_in_its_place_lets_nobody_in(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / FILE
        make = {"folder": path.mkdir, "pipe": lambda: os.mkfifo(path), "link to itself": lambda: path.symlink_to(path)}
        make[kind]()
        assert Tokens(tmp_path).are_required()
        with pytest.raises(TokenError, match="cannot be read"):
            Tokens(tmp_path).of(digest_of("pyr_any"))

    def test_a_link_to_a_missing_file_requires_tokens(self, tmp_path: Path) -> None:
        (tmp_path / FILE).symlink_to(tmp_path / "unmounted" / FILE)
        assert Tokens(tmp_path).are_required()
        assert Tokens(tmp_path).of(digest_of("pyr_any")) is None


@pytest.mark.heavy
def test_traces_and_lineage_are_what_the_commands_say(tmp_path: Path) -> None:
    with Trained(attempts=((0, 21),)).store(tmp_path / "data"):
        pass
    asked: list[tuple[str, dict[str, str]]] = [
        ("trace", {}),
        ("trace", {"step": "20"}),
        ("trace", {"sample": "137"}),
        ("lineage", {"step": "20"}),
        ("lineage", {"checkpoint": "20"}),
        ("lineage", {"spikes": "1"}),
    ]
    with serving(tmp_path / "data") as client:
        over_http = [client.get(f"/api/v1/{what}", params={"run": RUN, **about}).json() for what, about in asked]
        assert client.get("/api/v1/lineage", params={"run": RUN}).status_code == 400
        assert client.get("/api/v1/lineage", params={"run": RUN, "checkpoint": "7"}).status_code == 404
        assert client.get("/api/v1/trace", params={"run": "nobody"}).status_code == 404
    settings = Settings()
    with Store(tmp_path / "data") as store:
        covered = bring_up_to_date(store, settings, now_ms=time.time_ns() // 1_000_000)
        assert covered is not None
        for (what, about), answer in zip(asked, over_http, strict=True):
            assert question(what, {"run": RUN, **about}, settings)(store, covered) == answer
