"""Backups: whatever happens before and after one, restored it answers as the folder did at that moment."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyrometer.model.columns import SCHEMAS
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR
from pyrometer.questions.registry import NotFoundError, question
from pyrometer.store import Store
from pyrometer.store.backups.backup_folder import BackupFolder, ReceivedBackup
from pyrometer.store.backups.backup_members import BackupError, BackupMember, BackupSnapshot, SentFiles, inbox_members
from pyrometer.store.backups.backup_tar import packed, unpacked
from pyrometer.store.backups.restore import restore
from pyrometer.store.data_folder import DATABASE
from tests.support.histories import AFTER_END_MS, History, account, folder, law, node, rows_of

QUESTIONS = {"cost": {"all": "1", "by": "team,experiment,workload,node,state,hour"}, "why": {"all": "1"}, "runs": {}}


def members(store: Store, have: set[str]) -> Iterator[BackupMember]:
    sent: SentFiles = {}
    yield from inbox_members(store.folder, sent)
    moment = BackupSnapshot(store)
    try:
        yield from moment.members(have, sent)
    finally:
        moment.close()


def back_up(store: Store, place: BackupFolder, *, over_a_wire: bool = False) -> ReceivedBackup:
    with place.locked():
        taken = members(store, place.parts())
        return place.receive(unpacked(packed(taken)) if over_a_wire else taken)


def answers(store: Store, now_ms: int = AFTER_END_MS) -> dict[str, Any]:
    """What a folder says, as the commands say it."""
    covered = account(store, now_ms)
    expected: dict[str, Any] = {}
    for what, parameters in QUESTIONS.items():
        try:
            expected[what] = covered and question(what, dict(parameters), Settings())(store, covered)
        except NotFoundError as error:
            expected[what] = str(error)
    store.expose_all(SCHEMAS)
    expected["rows"] = {
        kind: sorted(map(repr, store.connection.execute(f"FROM {kind}").fetchall()))
        for kind in SCHEMAS
        if store.has(kind)
    }
    expected["marks"] = store.connection.execute("FROM marks ORDER BY ALL").fetchall()
    expected["rejections"] = store.rejections()
    return expected


@law(1)
def test_every_backup_is_the_folder_at_its_moment(history: History) -> None:
    chance = random.Random(len(history.records))
    with folder() as store:
        place = BackupFolder(store.folder.with_name(f"{store.folder.name}-backups"))
        records = list(history.records)
        chance.shuffle(records)
        looked_at = chance.randrange(3)
        try:
            for sequence in range(3):
                batch, records = records[: len(records) // (3 - sequence)], records[len(records) // (3 - sequence) :]
                store.append(batch, producer="p", sequence=sequence)
                store.append(batch[:3])  # repeated, without a producer
                if chance.random() < 0.6:
                    store.seal(None if chance.random() < 0.5 else AFTER_END_MS - 29 * MS_PER_HOUR)
                if sequence == looked_at:
                    expected, taken = answers(store, history.now_ms), batch
                back_up(store, place, over_a_wire=chance.random() < 0.5)
            assert list(place.problems(place.backups())) == []
            restore(place, place.backups()[looked_at], place.folder / "restored")
            with Store(place.folder / "restored") as restored:
                covered = account(restored, history.now_ms)
                assert covered is None or covered.chunks_built == 0  # the ledger came with it
                assert answers(restored, history.now_ms) == expected
                assert not restored.append(taken, producer="p", sequence=looked_at)  # acknowledged before
        finally:
            shutil.rmtree(place.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hours of two GPUs, one of which is sealed; a body in the inbox, a closed month, settings, tokens."""
    made = tmp_path_factory.mktemp("made") / "data"
    with Store(made, create=True) as store:
        for hour in range(2):
            store.append([node(AFTER_END_MS - (60 - hour) * MS_PER_HOUR, 2)], producer="watch", sequence=hour)
            if not hour:
                store.seal()
        account(store)
    for name, text in {
        "settings.yaml": "timezone: Europe/Berlin\n",
        "told.json": "{}",
        "closed/2026-08.json": "{}",
        "inbox/00000000000000000001": "body",
        "inbox/otlp/2.logs.http.json.gz": "other",
        "inbox/3.tmp": "half",
        "tokens.json": "secret",
        "audit.log": "who",
        "server.json": "password",
    }.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Store]:
    with Store(shutil.copytree(made, tmp_path / "data")) as store:
        yield store


@pytest.fixture
def place(tmp_path: Path) -> BackupFolder:
    return BackupFolder(tmp_path / "backups")


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_backup_contains_data_but_no_secrets(store, place, tmp_path) -> None:
    backup = back_up(store, place).backup
    restore(place, backup, tmp_path / "restored")
    there = files_in(tmp_path / "restored")
    assert there - {part.path for part in store.parts()} == {
        DATABASE,
        "settings.yaml",
        "told.json",
        "closed/2026-08.json",
        "inbox/00000000000000000001",
        "inbox/otlp/2.logs.http.json.gz",
        "tokens-required",
    }
    assert (tmp_path / "restored" / "settings.yaml").read_text() == "timezone: Europe/Berlin\n"
    kept = b"".join(path.read_bytes() for path in place.folder.rglob("*") if path.is_file())
    assert not any(word in kept for word in (b"secret", b"password"))
    assert (place.folder.stat().st_mode & 0o777, oct((place.folder / f"{backup.name}.json").stat().st_mode)[-2:]) == (
        0o700,
        "00",
    )


def test_parts_are_copied_once(store, place) -> None:
    first = back_up(store, place)
    second = back_up(store, place)
    assert (first.parts_copied, second.parts_copied) == (len(store.parts()), 0)
    assert first.backup.name != second.backup.name
    store.seal()
    assert back_up(store, place).parts_copied == 1


def test_an_interrupted_backup_leaves_earlier_ones_intact(store, place) -> None:
    first = back_up(store, place).backup
    store.seal()
    everything = [(member.path, b"".join(member.chunks)) for member in members(store, place.parts())]
    for length in range(len(everything)):
        torn = (BackupMember(path, len(body), [body]) for path, body in everything[:length])
        with place.locked(), pytest.raises(BackupError, match="ended before it was whole"):
            place.receive(torn)
        assert place.backups() == [first]
        assert list(place.problems([first])) == []
    later = back_up(store, place)  # parts that came are not copied again
    assert later.parts_copied == 0
    assert list(place.problems(place.backups())) == []
    with place.locked():
        place.prune(1)
    assert {path for path in files_in(place.folder) if path.startswith("parts/")} == {
        part.path for part in store.parts()
    }


def test_truncated_and_changed_streams_are_refused(store, place) -> None:
    whole = b"".join(packed(members(store, set())))
    for torn in (whole[: len(whole) // 2], whole[:100], b"garbage" * 500, b""):
        with place.locked(), pytest.raises(BackupError, match=r"broke off|ended before"):
            place.receive(unpacked([torn]))
    position = whole.index(b"timezone: Europe")
    with place.locked(), pytest.raises(BackupError, match=r"settings\.yaml is not as it was sent"):
        place.receive(unpacked([whole[:position] + b"T" + whole[position + 1 :]]))
    assert place.backups() == []


@pytest.mark.parametrize("path", ["../outside", "/etc/outside", "parts/../../outside", "a/./b", ""])
def test_no_stream_writes_outside(store, place, path, tmp_path) -> None:
    with place.locked(), pytest.raises(BackupError, match="not the name of a file"):
        place.receive([BackupMember(path, 1, [b"x"])])
    assert not list(tmp_path.rglob("outside"))


def test_pruning_removes_old_backups_and_unreferenced_parts(store, place) -> None:
    names = []
    for hour in range(2, 5):
        store.append([node(AFTER_END_MS - (60 - hour) * MS_PER_HOUR, 2)])
        store.drop_parts(store.parts("ledger_row")[:1])  # as a ledger does that is built again
        store.seal()
        names.append(back_up(store, place).backup.name)
    with place.locked():
        assert place.prune(2) == names[:1]
    assert [backup.name for backup in place.backups()] == names[1:]
    assert list(place.problems(place.backups())) == []
    named = {path for backup in place.backups() for path in backup.files if path.startswith("parts/")}
    assert {path for path in files_in(place.folder) if path.startswith("parts/")} == named


def test_a_part_that_was_damaged_in_the_backup_is_copied_again(store, place) -> None:
    backup = back_up(store, place).backup
    path = place.folder / store.parts()[0].path
    path.write_bytes(path.read_bytes()[:-1])
    assert [store.parts()[0].path in text for text in place.problems([backup])] == [True]
    assert back_up(store, place).parts_copied == 1
    assert list(place.problems(place.backups())) == []


def test_a_changed_part_does_not_replace_an_older_one(store, place) -> None:
    backup = back_up(store, place).backup
    part = store.parts("node")[0]
    path = store.folder / part.path
    path.write_bytes(path.read_bytes() + b"more")
    store.relist(part, part._replace(bytes=path.stat().st_size))
    with pytest.raises(BackupError, match="another than in the backups before"):
        back_up(store, place)
    assert list(place.problems([backup])) == []


def test_a_broken_folder_is_not_backed_up(store, place) -> None:
    (store.folder / store.parts()[0].path).unlink()
    with pytest.raises(BackupError, match="is listed and missing: no backup was taken"):
        back_up(store, place)
    assert place.backups() == []


def test_an_interrupted_restore_can_be_repeated(store, place, tmp_path) -> None:
    backup = back_up(store, place).backup
    into = tmp_path / "restored"
    damaged = place.folder / backup.name / "told.json"
    damaged.write_text("{ }")
    with pytest.raises(BackupError, match=re.escape("told.json") + " changed"):
        restore(place, backup, into)
    assert not (into / DATABASE).exists()
    damaged.write_text("{}")
    restore(place, backup, into)
    with Store(into) as restored:
        assert rows_of(restored) == rows_of(store)
    with pytest.raises(BackupError, match="is not empty"):
        restore(place, backup, into)


def test_backup_folder_has_one_writer_at_a_time(place) -> None:
    with place.locked(), pytest.raises(BackupError, match="Another backup is being written"), place.locked():
        pass


@pytest.mark.parametrize("name", ["format", "schema_version"])
def test_backup_of_a_newer_version_is_refused(store, place, name) -> None:
    backup = back_up(store, place).backup
    path = place.folder / f"{backup.name}.json"
    path.write_text(json.dumps({**backup.contents, name: 99}))
    with pytest.raises(BackupError, match=r"newer Pyrometer .*: upgrade Pyrometer"):
        place.backups()


def test_parts_replaced_during_a_backup_are_in_it(store, place) -> None:
    before = {part.path for part in store.parts()}

    def meanwhile() -> Iterator[BackupMember]:
        for member in members(store, set()):
            yield member
            if member.path == "settings.yaml":  # the snapshot is taken; parts follow
                store.drop_parts(store.parts("ledger_row"))  # as a ledger that is built again does
                store.seal()

    with place.locked():
        backup = place.receive(meanwhile()).backup
    assert {part["path"] for part in backup.contents["parts"]} == before
    assert list(place.problems([backup])) == []
    assert {path for path in before if not (store.folder / path).exists()}  # they are gone now
    assert list((store.folder / "tmp").iterdir()) == []
