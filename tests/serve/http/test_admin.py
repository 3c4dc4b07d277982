"""POST /api/v1/backup: who may, what comes, what is written down; and of a server that is being written to."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from pyrometer.cli import main
from pyrometer.model.settings import Settings
from pyrometer.questions.tokens import Tokens
from pyrometer.serve.core import Core
from pyrometer.serve.http import audit
from pyrometer.serve.main import build_services
from pyrometer.store import Store
from pyrometer.store.backups.backup_folder import BackupFolder
from pyrometer.store.backups.backup_tar import unpacked
from pyrometer.store.backups.restore import restore
from tests.support.exporter_texts import Gpu
from tests.support.remote_write_bodies import body_of, series_of
from tests.support.server_process import serving
from tests.support.two_teams import both

HEADERS = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}


def asked(store: Store, *bodies: bytes, role: str = "admin", at_once: bool = False) -> list[httpx.Response]:
    """What a server in this process answers to somebody with that role."""
    tokens = Tokens(store.folder)
    secret = tokens.create(role, role, 0)

    async def run() -> list[httpx.Response]:
        server = build_services(Core(store, Settings()), open_to_all=False)
        transport = httpx.ASGITransport(server.application())
        headers = {"Authorization": f"Bearer {secret}", "Accept-Encoding": "identity"}
        async with httpx.AsyncClient(transport=transport, base_url="http://pyrometer.test", headers=headers) as client:
            posts = [client.post("/api/v1/backup", content=body) for body in bodies]
            answers = await asyncio.gather(*posts) if at_once else [await post for post in posts]
        await asyncio.to_thread(server.audit.close)
        return answers

    return asyncio.run(run())


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path / "data", create=True) as store:
        store.append(both())
        store.seal()
        yield store


def test_what_an_admin_gets_and_what_is_written_down(store: Store, tmp_path: Path) -> None:
    have = [part.path for part in store.parts()][:3]
    (whole, less) = asked(store, b"", json.dumps({"have": have}).encode())
    assert (whole.status_code, whole.headers["content-type"]) == (200, "application/x-tar")
    paths = [member.path for member in unpacked([less.content])]
    assert paths[-1] == "backup.json"
    assert {path for path in paths if path.startswith("parts/")} == {part.path for part in store.parts()} - set(have)
    place = BackupFolder(tmp_path / "backups")
    with place.locked():
        assert place.receive(unpacked([whole.content])).parts_copied == len(store.parts())
    lines = [json.loads(line) for line in (store.folder / audit.FILE).read_text().splitlines()]
    assert [(line["who"], line["whole"]) for line in lines if line["what"] == "backup"] == [("admin", True)] * 2


@pytest.mark.parametrize("role", ["viewer", "ingest"])
def test_nobody_else_may(store: Store, role: str) -> None:
    assert [answer.status_code for answer in asked(store, b"", role=role)] == [403]


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"have": "parts"}', b'{"have": [1]}', b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_list_of_parts_is_refused(store: Store, body: bytes) -> None:
    (answer,) = asked(store, body)
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        'The body must be empty or list the parts that you have: {"have": ["parts/…", …]}.',
    )


@pytest.mark.parametrize(("made", "says", "required"), [(False, True, False), (True, True, True), (False, False, True)])
def test_a_restored_folder_asks_for_a_token_if_its_original_had_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, made: bool, says: bool, required: bool
) -> None:
    """Tokens are in no backup. One of an older version does not say whether there were any."""
    folder, backups, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"
    with Store(folder, create=True) as store:
        store.append(both())
    if made:
        tokens = Tokens(folder)
        tokens.create("admin", "admin", 0)
        tokens.path.unlink()
    _run("backup", "--data", str(folder), "--out", str(backups))
    if not says:
        (contents,) = backups.glob("*.json")
        told = json.loads(contents.read_text())
        del told["had_tokens"], told["sha256"]  # nor does it have a digest
        contents.write_text(json.dumps(told))
    _run("restore", str(backups), "--out", str(restored))
    assert Tokens(restored).are_required() is required
    capsys.readouterr()


@pytest.mark.heavy
def test_of_a_server_that_is_written_to_everything_acknowledged_before_is_there_once(tmp_path: Path, capsys) -> None:
    folder, backups = tmp_path / "data", tmp_path / "backups"
    with Store(folder, create=True):
        admin = Tokens(folder).create("root", "admin", 0)
        sender = Tokens(folder).create("prometheus", "ingest", 0)
    gpus = [Gpu(number) for number in range(50)]
    began_ms = time.time_ns() // 1_000_000 - 60_000
    acknowledged: list[int] = []
    stop = threading.Event()
    with serving(folder, PYROMETER_TOKEN=admin) as client, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYROMETER_TOKEN", admin)

        def send() -> None:
            while not stop.is_set():
                at_ms = began_ms + 20 * len(acknowledged)
                headers = {**HEADERS, "Authorization": f"Bearer {sender}"}
                said = client.post("/api/v1/write", content=body_of(series_of(gpus, at_ms)), headers=headers)
                if said.status_code == 204:
                    acknowledged.append(at_ms)

        sending = threading.Thread(target=send)
        sending.start()
        known: list[list[int]] = []
        try:
            for _ in range(2):
                while len(acknowledged) < 20 * (len(known) + 1):
                    time.sleep(0.01)
                known.append(list(acknowledged))
                _run("backup", "--server", str(client.base_url), "--out", str(backups))
        finally:
            stop.set()
            sending.join()
    place = BackupFolder(backups)
    for backup, before in zip(place.backups(), known, strict=True):
        restored = tmp_path / backup.name
        restore(place, backup, restored)
        with serving(restored) as answering:  # reads what lay in the inbox
            assert answering.get("/healthz").status_code == 200
        with Store(restored) as store:
            store.expose_all(["gpu_sample"])
            rows = store.connection.execute("SELECT time_ms, count(*) FROM gpu_sample GROUP BY ALL").fetchall()
        assert {count for _, count in rows} == {len(gpus)}
        assert set(before) <= {at_ms for at_ms, _ in rows} <= set(acknowledged)
    capsys.readouterr()


def _run(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 0
