"""Truncated or changed files: the damaged file is named and repaired where possible, and no sum is silently wrong."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path

import pytest

from pyrometer.store import Store
from pyrometer.store.data_folder import DATABASE
from tests.support.crashing_process import Faults
from tests.support.fault_harness import (
    Sender,
    ServerProcess,
    deliveries,
    prepare_folder,
    read_folder,
    run_command,
    run_without_faults,
)

DERIVED = ("ledger_row", "carry", "energy")
QUESTIONS = ("why", "cost", "runs", "check")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    """A folder whose hours are sealed, and what it says."""
    folder = tmp_path_factory.mktemp("sealed") / "data"
    found = run_without_faults(folder, deliveries(60, 5))
    return folder, found


@pytest.fixture
def folder(sealed, tmp_path):
    return Path(shutil.copytree(sealed[0], tmp_path / "data"))


def cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def flip(path: Path, chance: random.Random) -> None:
    body = bytearray(path.read_bytes())
    body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    path.write_bytes(body)


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


HARMS = {"cut": cut, "flip": flip, "empty": empty}


def run_question(what: str, folder: Path):
    """What a command says of the folder: an answer, or one sentence."""
    arguments = [what, str(folder)] if what == "check" else [what, "--data", str(folder), "--all", "-o", "json"]
    completed = run_command(*arguments)
    assert completed.process.exitcode in (0, 1), completed.log
    assert "Traceback" not in completed.log
    if what != "check" and completed.process.exitcode:
        assert completed.log.startswith("Error: ")
        assert completed.log.count("\n") == 1
    return completed


@pytest.mark.parametrize("kind", ["gpu_sample", "step_window", "ledger_row", "pod"])
@pytest.mark.parametrize("harm", HARMS)
def test_check_finds_every_damaged_part(folder, sealed, harm, kind):
    """Most flipped bits change a number and nothing else: only a digest tells."""
    chance = random.Random(f"{harm} {kind}")
    parts = sorted((folder / "parts" / kind).rglob("*.parquet"))
    HARMS[harm](chance.choice(parts), chance)
    completed = run_question("check", folder)
    assert completed.process.exitcode == 1
    assert f"parts/{kind}/" in completed.out
    mended = run_command("check", folder, "--repair")
    assert (mended.process.exitcode, mended.log) == (0, "")
    assert mended.out.endswith(": no problems found.\n")
    again = read_folder(folder)
    assert again.wrong == []
    if kind in DERIVED:
        assert (again.rows, again.ledger) == (sealed[1].rows, sealed[1].ledger)
    else:
        assert list((folder / "lost").rglob("*.parquet"))
        assert "rows are lost with" in mended.out


@pytest.mark.heavy
@pytest.mark.parametrize("harm", HARMS)
def test_every_command_answers_or_names_the_damaged_file(folder, harm):
    chance = random.Random(harm)
    paths = [DATABASE, "manifest.json", *(str(p.relative_to(folder)) for p in (folder / "parts").rglob("*.parquet"))]
    before = {what: run_question(what, folder).out for what in ("why", "cost")}
    for place in chance.sample(sorted(paths), 5):
        kept = (folder / place).read_bytes()
        HARMS[harm](folder / place, chance)
        for what in QUESTIONS:
            run_question(what, folder)
        if place == "manifest.json":
            assert run_question("cost", folder).out == before["cost"]
        shutil.rmtree(folder / "tmp", ignore_errors=True)
        (folder / place).write_bytes(kept)


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_catalog_is_usable_or_refused_and_keeps_parts(folder, sealed, harm):
    """What DuckDB does not read (free blocks) may be anything; what it reads has checksums."""
    if harm == "cut":  # within its headers; of one that is cut further on, an error comes when that is read
        (folder / DATABASE).write_bytes((folder / DATABASE).read_bytes()[:8_000])
    else:
        HARMS[harm](folder / DATABASE, random.Random(harm))
    parts = {path: path.read_bytes() for path in (folder / "parts").rglob("*.parquet")}
    served = ServerProcess(folder)
    if not served.listens:
        assert served.end() == 1
        assert served.log.count("\n") == 1
        assert "check" in served.log
        assert {path: path.read_bytes() for path in (folder / "parts").rglob("*.parquet")} == parts
        assert run_command("check", folder, "--repair").process.exitcode == 0
    else:
        served.stop()
        assert "Traceback" not in served.log
    again = read_folder(folder)
    assert (again.rows, again.ledger, again.wrong) == (sealed[1].rows, sealed[1].ledger, [])


def test_parts_without_a_catalog_are_not_removed(folder, sealed):
    (folder / DATABASE).unlink()
    served = ServerProcess(folder)
    assert not served.listens
    assert served.end() == 1
    assert "--repair" in served.log
    assert run_command("check", folder, "--repair").process.exitcode == 0
    assert read_folder(folder).rows == sealed[1].rows


def test_a_killed_first_start_leaves_a_usable_folder(tmp_path):
    (tmp_path / DATABASE).write_bytes(b"")
    with Store(tmp_path, create=True) as store:
        assert store.parts() == []


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_bodies_are_set_aside_and_others_are_read(tmp_path, harm):
    chance = random.Random(harm)
    folder = prepare_folder(tmp_path / "data")
    served = ServerProcess(folder, faults=_patient())
    assert served.listens
    sender = Sender(deliveries(30, 5))
    assert sender.send(served.client)
    served.kill()
    bodies = sorted(path for path in (folder / "inbox").rglob("*") if path.is_file())
    sent, from_ranks = ([one for one in bodies if (one.parent.name == "otlp") == otlp] for otlp in (False, True))
    assert sent
    assert from_ranks
    for one in (sent[0], from_ranks[0]):
        HARMS[harm](one, chance)
    with ServerProcess(folder) as served:
        pass
    assert "Traceback" not in served.log
    found = set(read_folder(folder).keys)
    lost = sender.acknowledged - found
    # of one body: two samples, forty windows; of a file that is cut, what was behind the other in it
    assert len(lost) <= (42 if harm == "flip" else 2 * 30 + 40)
    assert not [path for path in (folder / "inbox").rglob("*") if path.is_file() and path.suffix != ".refused"]


def _patient() -> Faults:
    """A server that never stores its inbox."""
    return Faults(
        set={
            "pyrometer.serve.ingest.remote_write_receiver.SETTLE_S": 60.0,
            "pyrometer.serve.ingest.otlp_receiver.STORE_EVERY_S": 60.0,
        }
    )


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_notification_file_is_tolerated(folder, harm):
    (folder / "told.json").write_text(json.dumps({"findings": {}, "reports": {"file": "2026-11-01"}}))
    HARMS[harm](folder / "told.json", random.Random(harm))
    with ServerProcess(folder) as served:
        assert served.ready()["ready"]
    assert "Traceback" not in served.log


def test_a_server_names_a_part_that_was_damaged_later(folder):
    part = max((folder / "parts").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    flip(part, random.Random(7))
    with ServerProcess(folder) as served:
        ends_s = time.monotonic() + 20
        while not any("is damaged" in text for text in served.ready()["shortcomings"]):
            assert time.monotonic() < ends_s, served.log
            time.sleep(0.05)
        assert part.relative_to(folder).as_posix() in served.log
