"""A backup that was made to do harm: it is refused in one sentence, or restored as it is, and nothing else changes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyrometer.cli import main
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.store import Store, StoreError
from pyrometer.store.backups.backup_folder import BackupFolder
from pyrometer.store.backups.backup_members import BackupError, BackupMember, BackupSnapshot, SentFiles, inbox_members
from pyrometer.store.backups.backup_tar import HEADERS, packed, unpacked
from pyrometer.store.backups.restore import restore
from tests.support.histories import AFTER_END_MS, account, node
from tests.support.hostile_names import TEXTS, VALUES, folder_contents, paths_in, rename_at, replace_at

NAME = "2026-11-16T10-00-00Z"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with one backup: two parts, hot rows, small files."""
    data = tmp_path_factory.mktemp("good") / "data"
    place = BackupFolder(data.with_name("backups"))
    with Store(data, create=True) as store:
        for hour in range(2):
            store.append([node(AFTER_END_MS - (60 - hour) * MS_PER_HOUR, 2)], producer="watch", sequence=hour)
            if not hour:
                store.seal()
        account(store)
        (data / "settings.yaml").write_text("timezone: Europe/Berlin\n")
        (data / "inbox").mkdir()
        (data / "inbox" / "1").write_text("body")
        sent: SentFiles = {}
        moment = BackupSnapshot(store)
        with place.locked():
            name = place.receive([*inbox_members(data, sent), *map(whole, moment.members(set(), sent))]).backup.name
        moment.close()
    shutil.move(place.folder / name, place.folder / NAME)
    shutil.move(place.folder / f"{name}.json", place.folder / f"{NAME}.json")
    return place.folder


def whole(member: BackupMember) -> BackupMember:
    return member._replace(chunks=list(member.chunks))


def contents_of(place: Path) -> dict[str, Any]:
    return json.loads((place / f"{NAME}.json").read_text())


def signed(contents: Any) -> Any:
    """Signs the list like an attacker who knows the format."""
    if not isinstance(contents, dict):
        return contents
    rest = {name: value for name, value in contents.items() if name != "sha256"}
    return rest | {"sha256": hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()}


def written(place: Path, contents: Any) -> Path:
    (place / f"{NAME}.json").write_text(json.dumps(contents))
    return place


def outcome(place: Path, into: Path) -> str | None:
    """The error of a restore in one sentence, or None after a restore."""
    error_text = None
    try:
        chosen = BackupFolder(place).newest()
        error_text = next(BackupFolder(place).problems([chosen]), None)
        if error_text is None:
            restore(BackupFolder(place), chosen, into)
    except StoreError as error:
        error_text = str(error)
    assert error_text is None or ("\n" not in error_text and len(error_text) < 1_000)
    return error_text


SAFE = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@SAFE
@given(data=st.data(), knows_how=st.booleans())
def test_a_changed_manifest_is_refused_or_restores_the_same(good, tmp_path_factory, data, knows_how) -> None:
    around = tmp_path_factory.mktemp("around")
    place = shutil.copytree(good, around / "backups")
    contents = contents_of(place)
    at = data.draw(st.sampled_from([one for one in paths_in(contents) if one]))
    if isinstance(at[-1], str) and data.draw(st.booleans()):
        changed = rename_at(contents, at, data.draw(st.sampled_from(TEXTS)))
    else:
        changed = replace_at(contents, at, data.draw(st.sampled_from(VALUES)))
    written(place, signed(changed) if knows_how and at != ("sha256",) else changed)
    (around / "mine").write_text("mine")
    before = folder_contents(around)
    into = around / "restored"
    error_text = outcome(place, into)
    after = folder_contents(around)
    assert {path: body for path, body in after.items() if not path.startswith(f"{into}/")} == before
    if error_text is None:
        for path, file in contents["files"].items():
            if not path.startswith("hot/"):
                body = (into / path).read_bytes()
                assert (len(body), hashlib.sha256(body).hexdigest()) == (file["bytes"], file["sha256"])
        if not knows_how:
            assert changed == contents or at == ("sha256",), "what is not signed anew is not restored"
    shutil.rmtree(around)


HOSTILE = {
    "SQL in the name of a table": lambda contents, text: contents["hot"][0].update(name=text),
    "a kind": lambda contents, text: contents["hot"][0].update(kind=text),
    "the path of a part": lambda contents, text: contents["parts"][0].update(path=text),
    "columns of a part": lambda contents, text: contents["parts"][0].update(columns=text),
    "a file": lambda contents, text: contents["files"].update(
        {text: {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}}
    ),
    "a digest": lambda contents, text: next(iter(contents["files"].values())).update(sha256=text),
    "a name of meta": lambda contents, text: contents["meta"].update(schema_version=text),
}


@pytest.mark.parametrize(
    "text", ["../../outside", "/tmp/outside", "x'; COPY (SELECT 1) TO 'outside'; --", "tokens.json"]
)
@pytest.mark.parametrize("field", HOSTILE)
def test_check_and_restore_refuse_hostile_fields(good, tmp_path, capsys, field, text) -> None:
    place = shutil.copytree(good, tmp_path / "backups")
    contents = contents_of(place)
    HOSTILE[field](contents, text)
    written(place, signed(contents))
    before = folder_contents(tmp_path)
    for command in (["check", str(place)], ["restore", str(place), "--out", str(tmp_path / "restored")]):
        with pytest.raises(SystemExit) as ended:
            main(command)
        assert ended.value.code == 1
        error_text = capsys.readouterr()
        assert len((error_text.out + error_text.err).strip().splitlines()) == 1
        assert "Traceback" not in error_text.err
    assert folder_contents(tmp_path) == before


def test_table_names_are_not_executed_as_sql(good, tmp_path) -> None:
    """The name and the file agree, as those of a backup do that was made for this."""
    place = shutil.copytree(good, tmp_path / "backups")
    contents = contents_of(place)
    path = f"hot/{contents['hot'][0]['name']}.parquet"
    name = "z(a int); COPY (SELECT 1) TO 'outside.csv'; CREATE TABLE hot_node_000000000000"
    contents["hot"][0]["name"] = name
    contents["files"][f"hot/{name}.parquet"] = contents["files"].pop(path)
    (place / NAME / path).rename(place / NAME / "hot" / f"{name}.parquet")
    assert outcome(written(place, signed(contents)), tmp_path / "restored") is not None
    assert not (tmp_path / "restored").exists()


def test_links_in_a_backup_are_refused(good, tmp_path) -> None:
    place = shutil.copytree(good, tmp_path / "backups")
    contents = contents_of(place)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    contents["files"]["settings.yaml"] = {"bytes": 6, "sha256": hashlib.sha256(b"secret").hexdigest()}
    (place / NAME / "settings.yaml").unlink()
    (place / NAME / "settings.yaml").symlink_to(secret)
    error_text = outcome(written(place, signed(contents)), tmp_path / "restored")
    assert error_text is not None
    assert "leads out of" in error_text


def test_pipes_in_a_backup_are_refused(good, tmp_path) -> None:
    place = shutil.copytree(good, tmp_path / "backups")
    (place / NAME / "settings.yaml").unlink()
    os.mkfifo(place / NAME / "settings.yaml")
    assert list(BackupFolder(place).problems(BackupFolder(place).backups())) == [f"{NAME}/settings.yaml is missing."]


# -- streams ------------------------------------------------------------------------------------------------------


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = "") -> bytes:
    about = tarfile.TarInfo(name)
    about.type, about.size, about.linkname = kind, size, link
    return about.tobuf(tarfile.GNU_FORMAT)


MEMBERS = {
    "a link": header("settings.yaml", tarfile.SYMTYPE, link="/etc/passwd"),
    "a hard link": header("settings.yaml", tarfile.LNKTYPE, link="/etc/passwd"),
    "a device": header("settings.yaml", tarfile.CHRTYPE),
    "a pipe": header("settings.yaml", tarfile.FIFOTYPE),
    "a folder": header("settings.yaml", tarfile.DIRTYPE),
    "an absolute name": header("/tmp/outside"),
    "a step back": header("../outside"),
    "a step back in parts": header("parts/../../outside"),
    "tokens": header("tokens.json"),
    "a database": header("pyrometer.duckdb"),
    "a huge file": header("settings.yaml", size=2**62),
    "a huge list": header("backup.json", size=2**40),
    "a negative size": header("settings.yaml").replace(b"00000000000", b"-0000000001", 1),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_hostile_streams_change_nothing(tmp_path, name) -> None:
    place = BackupFolder(tmp_path / "backups")
    (tmp_path / "mine").write_text("mine")
    with place.locked(), pytest.raises(BackupError) as contents:
        place.receive(unpacked([MEMBERS[name], bytes(10_240)]))
    assert "\n" not in str(contents.value)
    assert {path.name for path in tmp_path.iterdir()} == {"backups", "mine"}
    assert place.backups() == []


def test_a_sparse_file_is_refused(tmp_path) -> None:
    """A few bytes that stand for any number of zeros."""
    about = tarfile.TarInfo("settings.yaml")
    about.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**50)}
    about.size = 512
    stream = about.tobuf(tarfile.PAX_FORMAT) + b"0\n".ljust(512, b"\0") + bytes(1_024)
    with BackupFolder(tmp_path / "b").locked(), pytest.raises(BackupError):
        BackupFolder(tmp_path / "b").receive(unpacked([stream]))


def test_overlong_member_names_are_refused(tmp_path) -> None:
    given_away = 0

    def stream():
        nonlocal given_away
        yield header("././@LongLink", tarfile.GNUTYPE_LONGNAME, 2**40)
        while True:
            given_away += 1 << 16
            assert given_away < 4 * HEADERS
            yield bytes(1 << 16)

    with BackupFolder(tmp_path / "b").locked(), pytest.raises(BackupError):
        BackupFolder(tmp_path / "b").receive(unpacked(stream()))


@SAFE
@given(st.binary(max_size=3_000))
def test_arbitrary_bytes_are_refused_as_a_backup(tmp_path_factory, body) -> None:
    place = BackupFolder(tmp_path_factory.mktemp("any"))
    with place.locked(), pytest.raises(BackupError):
        place.receive(unpacked([body]))


@SAFE
@given(at=st.integers(0, 10**9), value=st.integers(1, 255))
def test_a_stream_with_a_changed_byte_is_refused_or_harmless(tmp_path_factory, at, value) -> None:
    body = io.BytesIO(b"".join(packed([BackupMember("settings.yaml", 4, [b"a: 1"])]))).getvalue()
    at %= len(body)
    changed = body[:at] + bytes([body[at] ^ value]) + body[at + 1 :]
    place = BackupFolder(tmp_path_factory.mktemp("one"))
    with place.locked(), pytest.raises(BackupError):  # it has no end, at the least
        place.receive(unpacked([changed]))
    assert {path.name for path in place.folder.iterdir()} <= {".lock", ".taking"}


def test_a_sent_list_is_checked_before_use(good, tmp_path) -> None:
    contents = contents_of(good)
    for at in paths_in(contents):
        for value in ("../outside", -1, None, [], {}):
            changed = json.dumps(replace_at(contents, at, value)).encode()
            place = BackupFolder(tmp_path / "b")
            with place.locked(), pytest.raises(BackupError):
                place.receive([BackupMember("backup.json", len(changed), [changed])])
