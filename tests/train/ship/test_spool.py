"""The folder between ranks and their sender."""

from __future__ import annotations

import marshal
import os
import stat
import time
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.train.ship.spool import REFUSED_BYTES, Spool, SpoolError, spool_folder
from tests.support.rank_processes import python

WHO = {"run": "r", "rank": 0}


def event(number: int) -> tuple[str, dict]:
    return "event", {"time_ms": number, "kind": "checkpoint_saved", "step": number}


def held(spool: Spool) -> list[tuple[dict, list]]:
    return [spool.read(part) for part in spool.parts()]


@pytest.fixture
def spool(tmp_path) -> Spool:
    return Spool(tmp_path / "spool").make()


def test_put_keeps_order_and_makes_private_files(spool):
    for number in range(12):
        assert spool.put(WHO, [event(number), event(number + 100)])
    assert held(spool) == [(WHO, [event(number), event(number + 100)]) for number in range(12)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in spool.folder.iterdir() if path.is_dir()} == {0o700}
    assert stat.S_IMODE(spool.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(part.stat().st_mode) for part in spool.parts()} == {0o600}


def test_put_keeps_order_when_the_clock_is_set_back(spool, monkeypatch):
    spool.put(WHO, [event(1)])
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    spool.put(WHO, [event(2)])
    assert [messages for _, messages in held(spool)] == [[event(1)], [event(2)]]


def test_put_converts_values_of_other_types(spool):
    message = {
        "value": np.float32(0.5),
        "step": np.int64(7),
        "price": Decimal("1.5"),
        "what": object,
        "list": [np.int8(1)],
    }
    spool.put(WHO, [("metric", message)])
    ((_, [(_, read)]),) = held(spool)
    assert read == {"value": 0.5, "step": 7, "price": 1.5, "what": "<class 'object'>", "list": [1]}


def test_unreadable_part_is_set_aside(spool):
    spool.put(WHO, [event(1)])
    (spool.out / "00000000000000000001-1-000000.part").write_bytes(b"\x00nonsense")
    (spool.out / "00000000000000000002-1-000000.part").write_bytes(b"")
    (spool.out / "00000000000000000003-1-000000.part").write_bytes(marshal.dumps((1, 2)))
    assert [one for one in held(spool) if one] == [(WHO, [event(1)])]
    assert len(list(spool.refused.iterdir())) == 3


def test_messages_that_could_not_be_written_are_counted_and_reported(spool):
    spool.out.rename(spool.folder / "away")
    assert not spool.put(WHO, [event(1), event(2)])
    assert not spool.put(WHO, [("span", {}), event(3)])
    (spool.folder / "away").rename(spool.out)
    assert spool.put(WHO, [event(4)])
    ((_, [first, (kind, dropped)]),) = held(spool)
    assert first == event(4)
    assert (kind, dropped["kind"], dropped["reason"], dropped["count"]) == (
        "event",
        "telemetry_dropped",
        "write_failed",
        4,
    )


def test_spool_of_another_user_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="PYROMETER_SPOOL"):
        Spool(tmp_path / "file").make()
    (tmp_path / "open").mkdir(mode=0o777)
    Spool(tmp_path / "open").make()
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o700
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(SpoolError, match="belongs to another user"):
        Spool(tmp_path / "link").make()


def test_spool_folder_depends_on_the_target(tmp_path):
    there = {"PYROMETER_ENDPOINT": "http://a:1", "PYROMETER_TOKEN": "secret", "TMPDIR": str(tmp_path)}
    assert spool_folder(there) == spool_folder(dict(there))
    assert spool_folder(there).parent == tmp_path / f"pyrometer-{os.geteuid()}"
    assert "secret" not in str(spool_folder(there))
    assert (
        len(
            {spool_folder({**there, **other}) for other in ({}, {"PYROMETER_ENDPOINT": "b"}, {"PYROMETER_REDACT": "x"})}
        )
        == 3
    )
    assert spool_folder({**there, "PYROMETER_SPOOL": "/named"}).as_posix() == "/named"


def test_acquire_is_exclusive_until_the_process_dies(spool, tmp_path):
    script = """
import sys
from pyrometer.train.ship.spool import Spool, spool_folder
assert Spool(spool_folder()).acquire()
print("held", flush=True)
sys.stdin.read()
"""
    other = python(
        "spool = None" + script.replace("Spool(spool_folder())", "(spool := Spool(spool_folder()))"), tmp_path
    )
    assert other.stdout.readline() == "held\n", other.stderr.read()
    assert not spool.acquire()
    other.kill()
    other.wait()
    assert spool.acquire()
    assert spool.held
    other.communicate()


# -- the limit --------------------------------------------------------------------------------------------------------

KINDS = ("span", "batch", "window", "metric", "run", "event")


@given(parts=st.lists(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8), max_size=30), limit=st.integers(2, 40))
def test_trim_drops_the_least_valuable_messages_and_counts_them(tmp_path_factory, parts, limit):
    spool = Spool(tmp_path_factory.mktemp("spool")).make()
    number = 0
    for kinds in parts:
        spool.put(WHO, [(kind, {"n": (number := number + 1), "x": "x" * 200}) for kind in kinds])
    spool.limit_bytes = limit * 1000
    dropped = spool.trim()
    kept = [message for one in held(spool) for message in one[1]]
    events = [message for kind, message in kept if kind == "event" and message.get("kind") == "telemetry_dropped"]
    rest = [(kind, message["n"]) for kind, message in kept if "n" in message]
    assert dropped == sum(message["count"] for message in events) == number - len(rest)
    assert sum(part.stat().st_size for part in spool.parts()) <= spool.limit_bytes or not dropped
    assert [n for _, n in rest] == sorted(n for _, n in rest)
    gone = set(range(1, number + 1)) - {n for _, n in rest}
    value = {n: min(KINDS.index(kind) // 2, 2) for n, kind in enumerate((k for kinds in parts for k in kinds), 1)}
    if gone:
        most = max(value[n] for n in gone)
        # of less value than the most valuable that went, nothing is left
        assert not [n for _, n in rest if value[n] < most]
        # of that value, what is left is in later parts than what went
        of_part = {n: place for place, n in ((p, n) for p, ns in enumerate(numbered(parts)) for n in ns)}
        assert max(of_part[n] for n in gone if value[n] == most) < min(
            (of_part[n] for _, n in rest if value[n] == most), default=10**9
        )


def numbered(parts: list[list[str]]) -> list[list[int]]:
    numbers = iter(range(1, 10**6))
    return [[next(numbers) for _ in kinds] for kinds in parts]


def test_writer_trims_unless_a_sender_holds_the_spool(tmp_path):
    writer = Spool(tmp_path / "spool", limit_bytes=64_000).make()
    sender = Spool(tmp_path / "spool", limit_bytes=64_000)
    assert sender.acquire()
    for number in range(100):
        writer.put(WHO, [("span", {"n": number, "x": "x" * 1000})])
    size = sum(part.stat().st_size for part in writer.parts())
    assert size > 100_000
    sender.tidy()
    assert sum(part.stat().st_size for part in writer.parts()) < 64_000
    sender.release()
    for number in range(500):
        writer.put(WHO, [("span", {"n": number, "x": "x" * 1000})])
    assert sum(part.stat().st_size for part in writer.parts()) < 64_000 + 64_000 // 64 + 2_000


def test_refused_files_have_a_size_limit(spool):
    for number in range(5):
        path = spool.send / f"{number:020d}-000000.logs.json.gz"
        with path.open("wb") as file:
            file.truncate(REFUSED_BYTES // 3)
        spool.refuse(path)
    assert [path.name[19] for path in sorted(spool.refused.iterdir())] == ["2", "3", "4"]


def test_tidy_removes_old_temporary_files(spool):
    old, new = spool.out / "1-1-1.part.tmp", spool.out / "2-2-2.part.tmp"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (1, 1))
    spool.tidy()
    assert list(spool.out.iterdir()) == [new]
    assert spool.parts() == []


def test_set_aside_renames_the_files_of_a_reused_pid(spool):
    (spool.ranks / "7.ring").write_bytes(b"old")
    (spool.ranks / "7.json").write_bytes(b"{}")
    (spool.ranks / "77.ring").write_bytes(b"other")
    spool.set_aside(7)
    names = sorted(path.name for path in spool.ranks.iterdir())
    assert "77.ring" in names
    assert not {"7.ring", "7.json"} & set(names)
    assert len({path.stem for path in spool.ranks.glob("7-*")}) == 1
    assert len(list(spool.ranks.glob("7-*"))) == 2


def test_first_launch_is_kept_while_the_launcher_lives(tmp_path):
    """The launcher here is this process: the parent of all of these."""
    script = "import sys; from pathlib import Path; from pyrometer.train.ship.spool import Spool; "
    script += "print(Spool(Path(sys.argv[1])).make().first_launch(sys.argv[2]))"

    def launched(name: str) -> str:
        return python(script, tmp_path, str(tmp_path / "spool"), name).communicate()[0].strip()

    assert launched("first") == "first"
    assert launched("second") == "first"
    Spool(tmp_path / "spool").tidy()
    assert launched("third") == "first"  # kept while the launcher lives
    (kept,) = (tmp_path / "spool" / "ranks").glob("*.launch")
    kept.rename(kept.with_name("4194305-7.launch"))  # of one that cannot be
    Spool(tmp_path / "spool").tidy()
    assert launched("fourth") == "fourth"
