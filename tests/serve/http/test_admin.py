"""POST /api/v1/backup: permissions, content, audit log, and backups during writes."""

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
from tests.support.two_teams import all_records

HEADERS = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}


def post_backups(store: Store, *bodies: bytes, role: str = "admin", at_once: bool = False) -> list[httpx.Response]:
    """Posts bodies to a server in this process with a role. Returns the responses."""
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
        store.append(all_records())
        store.seal()
        yield store


def test_backup_contains_all_parts_and_is_audited(store: Store, tmp_path: Path) -> None:
    have = [part.path for part in store.parts()][:3]
    (whole, less) = post_backups(store, b"", json.dumps({"have": have}).encode())
    assert (whole.status_code, whole.headers["content-type"]) == (200, "application/x-tar")
    paths = [member.path for member in unpacked([less.content])]
    assert paths[-1] == "backup.json"
    assert {path for path in paths if path.startswith("parts/")} == {part.path for part in store.parts()} - set(have)
    backup_folder = BackupFolder(tmp_path / "backups")
    with backup_folder.locked():
        assert backup_folder.receive(unpacked([whole.content])).parts_copied == len(store.parts())
    lines = [json.loads(line) for line in (store.folder / audit.FILE).read_text().splitlines()]
    assert [(line["who"], line["whole"]) for line in lines if line["what"] == "backup"] == [("admin", True)] * 2


@pytest.mark.parametrize("role", ["viewer", "ingest"])
def test_backup_requires_the_admin_role(store: Store, role: str) -> None:
    assert [answer.status_code for answer in post_backups(store, b"", role=role)] == [403]


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"have": "parts"}', b'{"have": [1]}', b"[" * 100_000, b"\xff"])
def test_backup_rejects_invalid_lists_of_parts(store: Store, body: bytes) -> None:
    (answer,) = post_backups(store, body)
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        'The body must be empty or list the parts that you have: {"have": ["parts/…", …]}.',
    )


@pytest.mark.parametrize(
    ("had_tokens", "is_recorded", "required"), [(False, True, False), (True, True, True), (False, False, True)]
)
def test_restored_folder_requires_tokens_like_its_original(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, had_tokens: bool, is_recorded: bool, required: bool
) -> None:
    """Backups have no tokens. Those of older versions do not record whether there were any."""
    folder, backups, restored = tmp_path / "data", tmp_path / "backups", tmp_path / "restored"
    with Store(folder, create=True) as store:
        store.append(all_records())
    if had_tokens:
        tokens = Tokens(folder)
        tokens.create("admin", "admin", 0)
        tokens.path.unlink()
    _run("backup", "--data", str(folder), "--out", str(backups))
    if not is_recorded:
        (contents,) = backups.glob("*.json")
        saved = json.loads(contents.read_text())
        del saved["had_tokens"], saved["sha256"]  # nor does it have a digest
        contents.write_text(json.dumps(saved))
    _run("restore", str(backups), "--out", str(restored))
    assert Tokens(restored).are_required() is required
    capsys.readouterr()


@pytest.mark.heavy
def test_backup_during_writes_has_acknowledged_data_exactly_once(tmp_path: Path, capsys) -> None:
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
                response = client.post("/api/v1/write", content=body_of(series_of(gpus, at_ms)), headers=headers)
                if response.status_code == 204:
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
    backup_folder = BackupFolder(backups)
    for backup, before in zip(backup_folder.backups(), known, strict=True):
        restored = tmp_path / backup.name
        restore(backup_folder, backup, restored)
        with serving(restored) as answering:  # reads the restored inbox
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
