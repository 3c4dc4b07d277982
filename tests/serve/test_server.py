"""The server as a process: answers, tokens, clean stops, and the lock of the folder."""

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
from pyrometer.questions.tokens import FILE, Tokens
from pyrometer.serve.core import Core
from pyrometer.serve.http.http_error import HttpError
from pyrometer.serve.main import Services, build_services
from pyrometer.store import Store, StoreBusyError
from tests.support import clusters
from tests.support.kube_server import free_port
from tests.support.server_process import serving
from tests.support.traced_run import RUN, TrainingRecords


def small_night(folder: Path) -> Path:
    with Store(folder, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
    return folder


@pytest.fixture
def night(tmp_path: Path) -> Path:
    return small_night(tmp_path / "data")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, httpx.Client]]:
    """A server that tests only read, and its folder. Starting one takes a second."""
    folder = small_night(tmp_path_factory.mktemp("served") / "data")
    with serving(folder) as client:
        yield folder, client


def test_server_is_ready_and_answers_like_the_commands(served: tuple[Path, httpx.Client]) -> None:
    _, client = served
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").json() == {"ready": True, "waiting_for": [], "shortcomings": []}
    total = client.get("/api/v1/cost", params={"by": "workload", "all": "1"}).json()["total"]
    assert total["gpu_hours"] == 8.0
    answer = client.get("/api/v1/why", params={"all": "1"}).json()
    assert answer["total"]["gpu_hours"] == 8.0
    assert "<html" in client.get("/report").text


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/api/v1/why?last=3x", "--last '3x' is not a length of time"),
        ("/api/v1/why?color=red", "Parameter 'color' is unknown"),
        ("/api/v1/cost?by=color", "--by 'color' is not a grouping"),
        ("/api/v1/cost?tz=Mars", "There is no time zone 'Mars'"),
    ],
)
def test_invalid_question_gets_400_with_a_reason(served: tuple[Path, httpx.Client], path: str, reason: str) -> None:
    answer = served[1].get(path)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]


@pytest.mark.heavy
def test_server_locks_its_folder_until_it_stops(night: Path) -> None:
    with serving(night) as client:
        address = json.loads((night / "server.json").read_text())
        assert address["url"] == str(client.base_url).rstrip("/")
        with pytest.raises(StoreBusyError):
            Store(night)
        client.get("/api/v1/why")
    assert not (night / "server.json").exists()
    with Store(night) as store:
        assert store.parts("ledger_row")


class CommandResult(NamedTuple):
    """The output and the exit status of a command."""

    returncode: int
    stdout: str
    stderr: str


RunCommand = Callable[..., CommandResult]


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Runs a command in this process, because starting another takes a second."""

    def run(*arguments: str, **variables: str) -> CommandResult:
        capsys.readouterr()
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main(list(arguments))
        return CommandResult(ended.value.code, *capsys.readouterr())  # type: ignore[arg-type]

    return run


@pytest.mark.heavy
def test_server_whose_tokens_are_deleted_opens_only_with_the_option(night: Path, run_command: RunCommand) -> None:
    run_command("token", "create", "me", "--data", str(night))
    result = run_command("token", "revoke", "me", "--data", str(night)).stdout
    assert "last token" in result
    assert "--open" in result
    (night / FILE).unlink()
    assert "--open" in run_command("token", "list", "--data", str(night)).stdout
    with serving(night) as client:
        assert client.get("/api/v1/session").status_code == 401
        assert client.get("/healthz").status_code == 200
        assert (
            run_command("cost", "--all", "--data", str(night)).returncode == 0
        )  # the owner of the folder needs no token
    with serving(night, "--open") as client:
        assert client.get("/api/v1/session").json()["sign_in"] == "open"
        forwarded = client.get("/api/v1/session", headers={"X-Forwarded-For": "203.0.113.9"})
        assert forwarded.status_code == 403
        with socket.create_connection(("127.0.0.1", client.base_url.port)) as old:  # like nginx by default
            old.sendall(b"GET /api/v1/session HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert b" 403 " in old.recv(4096)


@pytest.mark.heavy
def test_metrics_are_scraped_with_a_token(night: Path) -> None:
    secret = Tokens(night).create("prometheus", "viewer", 0)
    with serving(night) as client:
        assert client.get("/metrics").status_code == 401
        answer = client.get("/metrics", headers={"Authorization": f"Bearer {secret}"})
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        assert families["pyrometer_ready"].samples[0].value == 1
        assert families["pyrometer_build_info"].samples[0].labels == {"version": __version__}
        assert "pyrometer_gpu_seconds" in families


def test_slow_question_does_not_delay_senders(night: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that takes long is questions of the store as it was; meanwhile rows are stored and others answered."""
    began, proceed = threading.Event(), threading.Event()
    why = registry.why

    def slow_why(*args: Any, **kwargs: Any) -> dict[str, Any]:
        began.set()
        assert proceed.wait(30)
        return why(*args, **kwargs)

    async def meanwhile(server: Services) -> tuple[dict[str, Any], dict[str, Any]]:
        slow = asyncio.create_task(server.answering.ask("why", {"all": "1"}))
        await asyncio.to_thread(began.wait, 30)
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
        proceed.set()
        return await slow, quick

    with Store(night) as store:
        server = build_services(Core(store, Settings()), open_to_all=True)
        before = asyncio.run(server.answering.ask("why", {"all": "1", "tz": "UTC"}))
        monkeypatch.setattr(registry, "why", slow_why)
        slow, quick = asyncio.run(meanwhile(server))
    assert slow == before
    assert "later" in str(quick["rows"])


def test_stopping_server_interrupts_answers(night: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    def endless(store: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        began.set()
        while True:
            store.connection.execute("SELECT count(*) FROM range(1000000)").fetchall()

    async def test(server: Services) -> None:
        asking = asyncio.create_task(server.answering.ask("why", {"all": "1"}))
        await asyncio.to_thread(began.wait, 30)
        await server.end()
        with pytest.raises(HttpError, match="The server is stopping"):
            await asking

    monkeypatch.setattr(registry, "why", endless)
    with Store(night) as store:
        asyncio.run(test(build_services(Core(store, Settings()), open_to_all=True)))


@pytest.mark.heavy
class TestCommands:
    QUESTIONS = (["why", "--all"], ["cost", "--by", "workload,state", "--all"], ["cost", "--by", "cause"], ["runs"])

    def test_commands_on_a_served_folder_ask_the_server(self, night: Path, run_command: RunCommand) -> None:
        def answers(*target: str) -> list[str]:
            results = [run_command(*question, *target, "-o", "json") for question in self.QUESTIONS]
            assert [one.stderr for one in results] == [""] * len(results)
            return [one.stdout for one in results]

        before = answers("--data", str(night))
        with serving(night) as client:
            assert answers("--data", str(night)) == before
            assert answers("--server", str(client.base_url)) == before
        assert "hung" not in before[0]
        assert json.loads(before[1])["total"]["gpu_hours"] == 8.0

    def test_folder_owner_needs_no_token(self, night: Path, run_command: RunCommand) -> None:
        secret = Tokens(night).create("me", "viewer", 0)
        with serving(night, host="0.0.0.0") as client:
            assert (night / "server.json").stat().st_mode & 0o077 == 0
            assert run_command("cost", "--data", str(night)).returncode == 0
            url = str(client.base_url)
            refused = run_command("cost", "--server", url)
            assert refused.returncode == 1
            assert refused.stderr.startswith("Error: A token is needed")
            assert run_command("cost", "--server", url, PYROMETER_TOKEN=secret).returncode == 0

    def test_stale_server_address_is_ignored(self, night: Path, run_command: RunCommand) -> None:
        (night / "server.json").write_text(json.dumps({"url": f"http://127.0.0.1:{free_port()}", "token": "x"}))
        assert run_command("cost", "--data", str(night)).returncode == 0

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["cost", "--by", "teem"], 2, "Error: --by 'teem' is not a grouping. Did you mean 'team'?"),
            (["why", "--last", "soon"], 2, "Error: --last 'soon' is not a length of time: 90m, 12h, 7d."),
            (["show", "nothing"], 1, "Error: Run 'nothing' not found in this time range. `pyrometer runs` lists them."),
        ],
    )
    def test_errors_are_the_same_over_http_and_locally(
        self, served: tuple[Path, httpx.Client], run_command: RunCommand, arguments: list[str], code: int, words: str
    ) -> None:
        folder, client = served
        for target in (["--server", str(client.base_url)], ["--data", str(folder)]):
            result = run_command(*arguments, *target)
            assert (result.returncode, result.stderr.strip()) == (code, words)

    def test_unreachable_server_is_named(self, run_command: RunCommand) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        result = run_command("why", "--server", url)
        assert result.returncode == 1
        assert result.stderr.startswith(f"Error: {url} does not answer: ")
        assert run_command("why", "--server", "here").stderr.startswith("Error: --server 'here' is not a URL")
        assert run_command("why", "--server", url, "--data", "x").returncode == 2


KUBECONFIG = """
current-context: away
clusters: [{name: away, cluster: {server: "https://127.0.0.1:%d"}}]
users: [{name: me, user: {token: secret-token}}]
contexts: [{name: away, context: {cluster: away, user: me}}]
"""


@pytest.mark.heavy
def test_unreachable_cluster_is_named_in_readyz(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(KUBECONFIG % free_port())
    with serving(tmp_path / "data", "--kube", KUBECONFIG=str(tmp_path / "config")) as client:
        assert client.get("/healthz").status_code == 200
        while "does not answer" not in (result := client.get("/readyz")).text:  # until the first attempt ends
            assert result.status_code == 503
        assert result.json()["ready"] is False
        assert "secret-token" not in result.text


@pytest.mark.heavy
def test_missing_kubeconfig_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyrometer", "serve", "--kube", "--data", str(tmp_path), "--listen"]
    result = subprocess.run(
        [*command, f"127.0.0.1:{free_port()}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "KUBECONFIG": str(tmp_path / "missing")},
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: No cluster found: there is no kubeconfig at")


class TestTokens:
    def test_reachable_server_requires_a_token(self, night: Path) -> None:
        with serving(night, host="0.0.0.0") as client:
            assert client.get("/healthz").status_code == 200
            refused = client.get("/api/v1/why")
            assert refused.status_code == 401
            assert refused.headers["WWW-Authenticate"] == "Bearer"
            secret = Tokens(night).create("me", "viewer", 0)  # a running server accepts it at once
            headers = {"Authorization": f"Bearer {secret}"}
            assert client.get("/api/v1/why?all=1", headers=headers).status_code == 200
            assert client.get("/api/v1/why", headers={"Authorization": f"Bearer {secret}x"}).status_code == 401
            assert client.get("/api/v1/why", headers={"Authorization": f"Basic {secret}"}).status_code == 401
            Tokens(night).revoke("me")
            assert client.get("/api/v1/why", headers=headers).status_code == 401

    @pytest.mark.heavy
    def test_ingest_token_cannot_ask_questions(self, night: Path) -> None:
        secret = Tokens(night).create("agent", "ingest", 0)
        with serving(night) as client:
            assert client.get("/api/v1/why", headers={"Authorization": f"Bearer {secret}"}).status_code == 403
            assert client.get("/api/v1/why").status_code == 401  # there is a token, so loopback needs one, too

    def test_loopback_server_refuses_other_host_names(self, served: tuple[Path, httpx.Client]) -> None:
        assert served[1].get("/api/v1/why", headers={"Host": "evil.example"}).status_code == 403


@pytest.mark.heavy
def test_traces_and_lineage_equal_local_answers(tmp_path: Path) -> None:
    with TrainingRecords(attempts=((0, 21),)).store(tmp_path / "data"):
        pass
    questions: list[tuple[str, dict[str, str]]] = [
        ("trace", {}),
        ("trace", {"step": "20"}),
        ("trace", {"sample": "137"}),
        ("lineage", {"step": "20"}),
        ("lineage", {"checkpoint": "20"}),
        ("lineage", {"spikes": "1"}),
    ]
    with serving(tmp_path / "data") as client:
        over_http = [client.get(f"/api/v1/{what}", params={"run": RUN, **about}).json() for what, about in questions]
        assert client.get("/api/v1/lineage", params={"run": RUN}).status_code == 400
        assert client.get("/api/v1/lineage", params={"run": RUN, "checkpoint": "7"}).status_code == 404
        assert client.get("/api/v1/trace", params={"run": "nobody"}).status_code == 404
    settings = Settings()
    with Store(tmp_path / "data") as store:
        covered = bring_up_to_date(store, settings, now_ms=time.time_ns() // 1_000_000)
        assert covered is not None
        for (what, about), answer in zip(questions, over_http, strict=True):
            assert question(what, {"run": RUN, **about}, settings)(store, covered) == answer
