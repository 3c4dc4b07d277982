"""A real server under attack refuses attackers and still answers other clients. Compressed bodies of authenticated
senders are tested with their readers in `tests/collect`."""

from __future__ import annotations

import gzip
import json
import resource
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPResponse
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import httpx2 as httpx
import pytest

from pyrometer.questions.tokens import Tokens
from pyrometer.serve.http import guard
from pyrometer.store import Store
from pyrometer.store.backups.backup_tar import unpacked
from tests.support import two_teams
from tests.support.exporter_texts import Gpu
from tests.support.remote_write_bodies import body_of, series_of
from tests.support.server_process import serving

pytestmark = pytest.mark.heavy


class Attacked(NamedTuple):
    """A server that others can reach, with a token of every kind."""

    client: httpx.Client
    folder: Path
    viewer: dict[str, str]
    team_viewer: dict[str, str]

    @property
    def port(self) -> int:
        port = self.client.base_url.port
        assert port is not None
        return port

    @property
    def header(self) -> str:
        return f"Authorization: {self.viewer['Authorization']}"

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def raw(self, request: bytes) -> bytes:
        """What is answered to bytes that no client would send; nothing, when it hangs up."""
        with self.connect() as connection:
            with suppress(OSError):  # it does not read everything
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    def answers(self) -> bool:
        """Whether it answers others, with its data."""
        return self.client.get("/api/v1/cost?all=1", headers=self.viewer).status_code == 200


def read_all(connection: socket.socket) -> bytes:
    read = bytearray()
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            read += part
    return bytes(read)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    with Store(folder, create=True) as store:
        store.append(two_teams.all_records())
    tokens = Tokens(folder)
    viewer = {"Authorization": f"Bearer {tokens.create('viewer', 'viewer', 0)}"}
    team_viewer = {"Authorization": f"Bearer {tokens.create('team', 'team_viewer', 0, two_teams.TEAM)}"}
    with serving(folder, host="0.0.0.0") as client:
        one = Attacked(client, folder, viewer, team_viewer)
        assert one.answers()
        assert client.get("/api/v1/session", headers=team_viewer).json()["team"] == two_teams.TEAM
        yield one
        assert one.answers()  # after all of these


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/../tokens.json",
        "/api/v1/..%2ftokens.json",
        "/%2e%2e/tokens.json",
        "/page/%2e%2e/%2e%2e/tokens.json",
        "/page/..%5c..%5ctokens.json",
        "/page//etc/passwd",
        "//etc/passwd",
        "/api/v1/%00",
        "/api/v1/cost%00.json",
        "/tokens.json",
        "/audit.log",
        "/server.json",
        "/pyrometer.duckdb",
        "/api/v1/%c0%ae%c0%ae/tokens.json",
        "http://127.0.0.1/tokens.json",
    ],
)
def test_paths_cannot_escape_the_page_files(attacked: Attacked, path: str) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\n{attacked.header}\r\nConnection: close\r\n\r\n"
    answer = attacked.raw(request.encode())
    assert answer.split(b" ", 2)[1] in (b"400", b"404")
    for secret in (b"sha256", b"root:", b"pyr_"):
        assert secret not in answer


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\r\n b\x00c\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
        b"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x",
        b"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"GET /api/v1/cost?" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 400_000 + b"\r\n",
    ],
)
def test_invalid_http_is_refused(attacked: Attacked, request_: bytes) -> None:
    answer = attacked.raw(request_)
    assert answer == b"" or answer.split(b" ", 2)[1] in (b"400", b"401", b"431")
    assert b"Traceback" not in answer
    assert attacked.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "NONSENSE"])
def test_other_methods_are_refused(attacked: Attacked, method: str) -> None:
    for path in ("/api/v1/cost", "/", "/metrics", "/healthz"):
        answer = attacked.client.request(method, path, headers=attacked.viewer)
        assert answer.status_code == (400 if method == "NONSENSE" else 405)  # not a method
    overridden = {**attacked.viewer, "X-HTTP-Method-Override": "POST"}
    assert attacked.client.get("/v1/logs", headers=overridden).status_code == 405


def test_parameters_cannot_inject_headers_or_sql(attacked: Attacked) -> None:
    for value in ("x\r\nSet-Cookie: a=b", "'; DROP TABLE meta; --", "') OR 1=1 --", "{rows}", "$team", "%", "\u202e"):
        for name in ("team", "experiment"):
            answer = attacked.client.get("/api/v1/cost", params={name: value}, headers=attacked.viewer)
            assert answer.status_code == 404
            assert "Set-Cookie" not in answer.headers
        answer = attacked.client.get("/api/v1/show", params={"run": value}, headers=attacked.team_viewer)
        assert answer.status_code == 404
    assert attacked.answers()


def test_oversized_requests_are_refused(attacked: Attacked) -> None:
    long = "a" * 50_000
    for query in (f"team={long}", f"by={long}", f"sample={long}&run=x", "&".join(f"p{n}=1" for n in range(5_000))):
        what = "trace" if "sample" in query else "cost"
        assert attacked.client.get(f"/api/v1/{what}?{query}", headers=attacked.viewer).status_code == 400
    assert attacked.client.get("/healthz", headers={"Cookie": f"pyrometer_session={long}"}).status_code == 200


def test_nested_and_compressed_bodies_are_refused(attacked: Attacked) -> None:
    """Who may not send does not get its body read, let alone unpacked."""
    bomb = gzip.compress(b"\x00" * (64 << 20))
    for body, headers in (
        (b"[" * 100_000, {"Content-Type": "application/json"}),
        (bomb, {"Content-Encoding": "gzip", "Content-Type": "application/json"}),
    ):
        began_s = time.monotonic()
        for who, status in ((attacked.viewer, 403), ({}, 401)):
            answer = attacked.client.post("/v1/logs", content=body, headers=headers | who)
            assert answer.status_code == status
        page = {"Origin": str(attacked.client.base_url), "Content-Type": "application/json"}
        assert attacked.client.post("/api/v1/session", content=body, headers=page | headers).status_code == 413
        assert time.monotonic() - began_s < 10


def test_token_guessing_is_slow_and_does_not_lock_others_out(attacked: Attacked) -> None:
    statuses = [
        attacked.client.get("/api/v1/cost", headers={"Authorization": f"Bearer pyr_{number}"}).status_code
        for number in range(40)
    ]
    assert set(statuses) <= {401, 429}
    assert statuses.count(401) <= 15
    assert statuses[-1] == 429
    forwarded = {"Authorization": "Bearer pyr_x", "X-Forwarded-For": "8.8.8.8", "Forwarded": "for=8.8.8.8"}
    assert attacked.client.get("/api/v1/cost", headers=forwarded).status_code == 429  # its headers do not count
    assert attacked.answers()  # valid clients of the same address


def test_proxy_headers_are_ignored_without_settings(attacked: Attacked) -> None:
    forged = {"X-Forwarded-User": "root", "X-Forwarded-Host": "x", "X-Forwarded-Proto": "https", "Remote-User": "root"}
    assert attacked.client.get("/api/v1/cost", headers=forged).status_code == 401


def test_other_teams_data_is_refused_at_every_endpoint(attacked: Attacked) -> None:
    """As over any network: raw bytes of every answer."""
    document = attacked.client.get("/api/v1/openapi.json", headers=attacked.team_viewer).json()
    for path in (*document["paths"], "/", "/metrics", "/readyz", "/healthz", "/api/v1/session"):
        for query in ({"all": "1"}, {"all": "1", "run": two_teams.SAME_RUN}, {"team": two_teams.OTHER_TEAM}):
            answer = attacked.client.get(path, params=query, headers=attacked.team_viewer)
            assert two_teams.THEIRS not in answer.text
            assert answer.status_code < 500


def test_audit_log_describes_attacks_without_secrets(attacked: Attacked) -> None:
    attacked.client.get("/api/v1/cost", params={"team": "a\nb", "token": "hunter2"}, headers=attacked.viewer)
    path = attacked.folder / "audit.log"
    deadline = time.monotonic() + 10
    while r"a\nb" not in path.read_text():  # earlier tests wrote lines, too
        assert time.monotonic() < deadline
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert {"team": "a\nb"} in [line.get("asked") for line in lines]
    text = path.read_text()
    assert "hunter2" not in text
    assert attacked.viewer["Authorization"].removeprefix("Bearer pyr_") not in text


class TestSlowClients:
    """Slow clients lose their connections, and other clients do not."""

    def test_endless_heads_are_closed(self, attacked: Attacked) -> None:
        with ExitStack() as stack:
            slow = [stack.enter_context(closing(attacked.connect())) for _ in range(50)]
            for one in slow:
                one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            began_s = time.monotonic()
            open_ = list(slow)
            while open_:
                assert attacked.client.get("/healthz").status_code == 200
                open_ = [one for one in open_ if not _hung_up(one)]
                assert time.monotonic() - began_s < guard.HEAD_S + 10
                time.sleep(0.5)  # a byte now and then, as such clients do
            assert time.monotonic() - began_s > guard.HEAD_S / 2
        assert attacked.answers()

    def test_incomplete_second_request_is_closed(self, attacked: Attacked) -> None:
        with attacked.connect() as slow:
            slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal")
            began_s = time.monotonic()
            assert b"200" in read_all(slow)
            assert time.monotonic() - began_s < guard.HEAD_S + 10

    def test_trickling_unread_body_is_closed(self, attacked: Attacked) -> None:
        with attacked.connect() as slow:
            slow.sendall(b"POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
            began_s = time.monotonic()
            while not _hung_up(slow):
                assert time.monotonic() - began_s < guard.HEAD_S + 10
                time.sleep(0.5)
        assert attacked.answers()

    def test_excess_connections_are_closed(self, attacked: Attacked) -> None:
        with ExitStack() as stack:
            idle = [stack.enter_context(closing(attacked.connect())) for _ in range(guard.MAX_CONNECTIONS + 50)]
            with httpx.Client(base_url=attacked.client.base_url, timeout=30) as another:
                assert another.get("/api/v1/cost?all=1", headers=attacked.viewer).status_code == 200
            assert len(idle) > guard.MAX_CONNECTIONS
        assert attacked.answers()

    def test_unread_answer_is_closed(self, attacked: Attacked) -> None:
        request = f"GET /api/v1/why?all=1 HTTP/1.1\r\nHost: x\r\n{attacked.header}\r\n\r\n"
        with attacked.connect() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            for _ in range(20):
                lazy.sendall(request.encode())
            assert attacked.answers()

    def test_excess_listeners_are_refused(self, attacked: Attacked) -> None:
        request = f"GET /api/v1/live HTTP/1.1\r\nHost: x\r\n{attacked.header}\r\n\r\n"
        statuses = []
        with ExitStack() as stack:
            for _ in range(220):
                listener = stack.enter_context(closing(attacked.connect()))
                listener.sendall(request.encode())
                statuses.append(listener.recv(4096).split(b" ", 2)[1])
            assert statuses.count(b"200") == 200
            assert set(statuses[200:]) == {b"429"}
            assert attacked.answers()


PLOTLY = f"/page/plotly-{version('plotly')}.js"
HOSTILE = 1_000
ANSWER_S = 20.0  # within which an honest request is answered on a machine that others use too
MAX_GROWTH_MIB = 250  # of memory; unread answers took 2,300 MiB before they were written in pieces


class Kind(NamedTuple):
    """What hostile clients do: what they send, and what they do each second."""

    sends: str
    each_second: Callable[[socket.socket], object] | None = None


def _send_a_byte(hostile: socket.socket) -> None:
    hostile.send(b"x")


def _read_a_byte(hostile: socket.socket) -> None:
    hostile.recv(1)


KINDS = {
    "silent": Kind(""),
    "half a head": Kind("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "),
    "a byte of a head a second": Kind("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", _send_a_byte),
    "sign-in without a body": Kind(
        "POST /api/v1/session HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nContent-Type: application/json\r\n"
        "Content-Length: 100\r\n\r\n"
    ),
    "a byte of a sign-in a second": Kind(
        "POST /api/v1/session HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nContent-Type: application/json\r\n"
        "Content-Length: 100\r\n\r\n",
        _send_a_byte,
    ),
    "records without a token or a body": Kind(
        "POST /v1/logs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    ),
    "a file that is not read": Kind(f"GET {PLOTLY} HTTP/1.1\r\nHost: x\r\n\r\n"),
    "a file of which a byte a second is read": Kind(f"GET {PLOTLY} HTTP/1.1\r\nHost: x\r\n\r\n", _read_a_byte),
    "answers that are not read": Kind(f"GET {PLOTLY} HTTP/1.1\r\nHost: x\r\n\r\n" * 5),
    "too many requests at once": Kind(f"GET {PLOTLY} HTTP/1.1\r\nHost: x\r\n\r\n" * 50),
    "wrong tokens": Kind("GET /api/v1/cost?all=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer pyr_x\r\n\r\n"),
}


class Flood:
    """Many hostile clients of several kinds, which come back when the server closes their connections."""

    def __init__(self, port: int, kinds: list[Kind]) -> None:
        self.made = 0
        self.all_there = threading.Event()
        self._port, self._kinds = port, kinds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        poll, clients = select.poll(), dict[int, tuple[socket.socket, Kind]]()
        try:
            while True:
                while len(clients) < HOSTILE and not self._stop.is_set():
                    self._connect(poll, clients)
                self.all_there.set()
                if self._stop.wait(1):
                    return
                for client, kind in clients.values():
                    if kind.each_second is not None:
                        with suppress(OSError):
                            kind.each_second(client)
                for handle, _ in poll.poll(0):
                    poll.unregister(handle)
                    clients.pop(handle)[0].close()
        finally:
            for client, _ in clients.values():
                client.close()

    def _connect(self, poll: select.poll, clients: dict[int, tuple[socket.socket, Kind]]) -> None:
        kind = self._kinds[self.made % len(self._kinds)]
        self.made += 1
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        client.settimeout(5)
        try:
            client.connect(("127.0.0.1", self._port))
            client.sendall(kind.sends.replace("HOST", f"127.0.0.1:{self._port}").encode())
        except OSError:
            client.close()
            return
        client.setblocking(False)
        poll.register(client, select.POLLRDHUP)  # and whatever else ends a connection
        clients[client.fileno()] = client, kind


class Honest:
    """Clients with valid tokens, and whoever probes: what they are answered during an attack, and how soon."""

    def __init__(self, client: httpx.Client, folder: Path, sender: str) -> None:
        self.longest_s, self.failed = 0.0, list[str]()
        self.counts: Counter[str] = Counter()
        self.acknowledged: list[int] = []
        self.gpus = [Gpu(number) for number in range(20)]
        self.peak_mib = 0.0
        self._kept, self._url = client, str(client.base_url)
        self._pid = json.loads((folder / "server.json").read_text())["pid"]
        self._headers = {
            "Content-Encoding": "snappy",
            "Content-Type": "application/x-protobuf",
            "Authorization": f"Bearer {sender}",
        }
        self._began_ms = time.time_ns() // 1_000_000 - 60_000
        self._sent = 0

    def memory_mib(self) -> float:
        """What the server has in memory."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def ask_for(self, seconds: float) -> None:
        """One after the other; each of them is answered."""
        until_s = time.monotonic() + seconds
        with httpx.Client(base_url=self._url, timeout=ANSWER_S, headers={"Connection": "close"}) as anew:
            while time.monotonic() < until_s:
                self._answered("probe", anew.get, "/healthz")
                self._send("sender", self._kept)
                self._send("new sender", anew)
                self.peak_mib = max(self.peak_mib, self.memory_mib())

    def _send(self, who: str, client: httpx.Client) -> None:
        self._sent += 1
        at_ms = self._began_ms + 20 * self._sent
        body = body_of(series_of(self.gpus, at_ms))
        if self._answered(who, client.post, "/api/v1/write", content=body, headers=self._headers):
            self.acknowledged.append(at_ms)

    def _answered(self, who: str, ask: Callable[..., httpx.Response], *about: Any, **more: Any) -> bool:
        began_s = time.monotonic()
        try:
            ask(*about, **more).raise_for_status()
        except httpx.HTTPError as error:
            self.failed.append(f"{who}: {error!r}")
            return False
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            self.counts[who] += 1
        return True


@pytest.fixture
def many_files() -> Iterator[None]:
    """As many open files as a thousand clients need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * HOSTILE)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("kinds", [[kind] for kind in KINDS] + [list(KINDS)], ids=lambda kinds: ", ".join(kinds))
def test_honest_clients_are_served_during_a_connection_flood(tmp_path: Path, kinds: list[str]) -> None:
    folder = tmp_path / "data"
    with Store(folder, create=True) as store:
        store.append(two_teams.all_records())
    tokens = Tokens(folder)
    sender, admin = tokens.create("sender", "ingest", 0), tokens.create("admin", "admin", 0)
    with serving(folder, host="0.0.0.0") as client:
        client.get(PLOTLY)  # it is read once, for all
        client.get("/api/v1/cost?all=1", headers={"Authorization": f"Bearer {admin}"}).raise_for_status()
        honest = Honest(client, folder, sender)
        honest.ask_for(1)
        before_mib = honest.memory_mib()
        assert client.base_url.port is not None
        with Flood(client.base_url.port, [KINDS[kind] for kind in kinds]) as flood:
            assert flood.all_there.wait(60)
            with slow_backup(client.base_url.port, admin) as backup:
                honest.ask_for(10)
                assert [member.path for member in unpacked([backup()])][-1] == "backup.json"  # whole
            assert client.get("/api/v1/cost?all=1", headers={"Authorization": f"Bearer {admin}"}).status_code == 200
        print(  # for whoever looks at the figures: pytest -s
            f"\n{kinds}: {flood.made:,} hostile connections; {dict(honest.counts)} honest requests, the longest "
            f"{honest.longest_s:.1f} s; memory {before_mib:.0f} -> {honest.peak_mib:.0f} MiB"
        )
        assert honest.failed == []
        assert min(honest.counts.values()) > 2
        assert honest.peak_mib - before_mib < MAX_GROWTH_MIB
    with Store(folder) as store:
        store.expose_all(["gpu_sample"])
        rows = store.connection.execute("SELECT time_ms, count(*) FROM gpu_sample GROUP BY ALL").fetchall()
    stored = dict(rows)
    assert {stored.get(at_ms) for at_ms in honest.acknowledged} == {len(honest.gpus)}


@contextmanager
def slow_backup(port: int, admin: str) -> Iterator[Callable[[], bytes]]:
    """A backup that an honest client takes over a slow line; what is returned waits for it."""
    read = bytearray()

    def take() -> None:
        with socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            line.settimeout(60)
            line.connect(("127.0.0.1", port))
            line.sendall(
                f"POST /api/v1/backup HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {admin}\r\nConnection: close\r\n"
                "Content-Length: 0\r\n\r\n".encode()
            )
            with HTTPResponse(line, method="POST") as answer:
                answer.begin()
                assert answer.status == 200
                while part := answer.read(16_384):
                    read.extend(part)
                    time.sleep(0.1)

    taking = threading.Thread(target=take)
    taking.start()

    def whole() -> bytes:
        taking.join()
        return bytes(read)

    try:
        yield whole
    finally:
        taking.join()


def _hung_up(connection: socket.socket) -> bool:
    """Sends one byte more; whether the server has had enough."""
    try:
        connection.sendall(b"x")
        connection.settimeout(0.01)
        read = connection.recv(4096)
        while read:
            read = connection.recv(4096)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True
