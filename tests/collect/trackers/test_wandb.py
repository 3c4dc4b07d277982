"""Weights & Biases files: the log of records, and runs that the real client wrote."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
import zlib
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.collect.source import SourceError
from pyrometer.collect.trackers.wandb import _RECORD, BLOCK, STAMPED, Folder, folders, read, records


def written(bodies: list[bytes]) -> bytes:
    """A file as LevelDB's log has it: pieces that never cross the end of a block."""
    file = bytearray(pack("<4sHB", b":W&B", 0xBEE1, 0))
    for body in bodies:
        first = True
        while True:
            left = BLOCK - len(file) % BLOCK
            if left < 7:
                file += bytes(left)
                left = BLOCK
            piece, body = body[: left - 7], body[left - 7 :]
            kind = (1 if first else 4) if not body else (2 if first else 3)
            file += pack("<IHB", zlib.crc32(bytes([kind]) + piece), len(piece), kind) + piece
            first = False
            if not body:
                break
    return bytes(file)


def stream(file: bytes) -> io.BytesIO:
    found = io.BytesIO(file)
    found.name = "run.wandb"
    return found


SIZES = st.one_of(st.integers(0, 100), st.integers(BLOCK - 20, BLOCK + 20), st.integers(2 * BLOCK, 3 * BLOCK))


@given(st.lists(SIZES, max_size=12), st.data())
def test_wandb_records_of_truncated_file_are_the_complete_ones(sizes, data):
    bodies = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    file = written(bodies)
    assert list(records(stream(file))) == bodies
    cut = data.draw(st.integers(7, len(file)))
    found = list(records(stream(file[:cut])))
    assert found == bodies[: len(found)]
    wrong = data.draw(st.integers(7, len(file) - 1)) if len(file) > 7 else None
    if wrong is not None:  # a bit of a piece that changed ends it there, and nothing is made up
        broken = bytearray(file)
        broken[wrong] ^= 1
        assert list(records(stream(bytes(broken)))) in [bodies[:count] for count in range(len(bodies) + 1)]


def test_wandb_error_for_other_file(tmp_path):
    with pytest.raises(SourceError, match="is not a Weights & Biases file"):
        list(records(stream(b"PK\3\4")))
    with pytest.raises(SourceError, match="Pass the folder `wandb`"):
        folders(tmp_path)


PROGRAM = """
import math, sys, wandb
settings = wandb.Settings(disable_git=True, silent=True)
config = {"lr": 0.1, "net": {"d": 3}}
run = wandb.init(project="vision", entity="us", dir=sys.argv[1], mode="offline", config=config, settings=settings)
for step in range(50):
    run.log({"loss": 1 / (step + 3), "val": {"acc": step / 7}, "note": "text", "yes": True}, step=2 * step)
run.log({"loss": math.nan}, step=200)
run.finish(exit_code=int(sys.argv[2]))
"""


@pytest.mark.heavy
def test_wandb_run_of_real_client_is_read_exactly(tmp_path):
    pytest.importorskip("wandb", reason="make test-all installs wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), "3"], check=True, capture_output=True)
    ((run, points, left_out),) = read(tmp_path, lambda done, total: None)
    assert (run.name, run.experiment, run.outcome, left_out) == (run.run_id.rpartition("/")[2], "vision", "failed", 0)
    assert run.run_id.startswith("us/vision/")
    assert "lr=0.1, net.d=3" in run.description
    assert run.started_ms <= points[0].time_ms <= run.ended_ms
    curve = [(point.step, point.value) for point in points if point.name == "loss"]
    assert curve[:-1] == [(2 * step, 1 / (step + 3)) for step in range(50)]
    assert curve[-1][0] == 200
    assert math.isnan(curve[-1][1])
    assert [p.value for p in points if p.name == "val.acc"] == [step / 7 for step in range(50)]
    assert {point.name for point in points} == {"loss", "val.acc"}
    # the client's own messages say the same
    (folder,) = folders(tmp_path)
    with next(folder.glob("*.wandb")).open("rb") as file:
        theirs = [Record.FromString(record) for record in records(file)]
    values = [
        json.loads(item.value_json)
        for record in theirs
        for item in record.history.item
        if list(item.nested_key) == ["loss"] and item.value_json != "NaN"
    ]
    assert values[:50] == [value for _, value in curve[:-1]]
    assert [record.num for record in theirs] == list(range(1, len(theirs) + 1))
    assert Folder(folder).read()


def folder_of(path, *records) -> Folder:
    path.mkdir(parents=True)
    (path / "run-x.wandb").write_bytes(written([record.SerializeToString() for record in records]))
    return Folder(path)


def begun(seconds: int = 1_790_000_000) -> Any:
    record = _RECORD()
    record.run.run_id = "x"
    record.run.start_time.seconds = seconds
    return record


def record_of(what: str, **values: str) -> Any:
    record = _RECORD()
    for name, text in values.items():
        getattr(record, what).item.add(key=name, value_json=text)
    return record


def test_wandb_strange_values_are_tolerated(tmp_path):
    deep = '{"a":' * 900 + "1" + "}" * 900
    strange = {"huge": "1" + "0" * 400, "deep": deep, "endless": "[" * 100_000, "loss": "0.5"}
    folder = folder_of(
        tmp_path / "run-x",
        begun(),
        record_of("summary", **strange),
        record_of("config", **strange),
        record_of("history", _timestamp="1790000001.5", _step="1" + "0" * 40, **strange),
        record_of("history", _timestamp="1" + "0" * 400, _step="2", loss="0.4"),
    )
    assert folder.read()
    assert [(point.name, point.value, point.step) for point in folder.points] == [
        ("huge", math.inf, None),
        ("loss", 0.5, None),
    ]


def test_wandb_run_without_time_is_ignored(tmp_path):
    assert not folder_of(tmp_path / "before", begun(0)).read()
    assert not folder_of(tmp_path / "after", begun(2**62)).read()


def test_wandb_run_resumed_after_stamp_is_read(tmp_path):
    """Online, a stamp is in the summary of the run itself; whoever resumes it has it in theirs."""
    stamped = record_of("summary", **{STAMPED: "1790000000000"})
    alone = folder_of(tmp_path / "stamp", begun(), stamped)
    assert (alone.read(), alone.is_stamp) == (False, True)
    resumed = folder_of(tmp_path / "work", begun(), stamped, record_of("history", _timestamp="1790000001", loss="0.5"))
    assert (resumed.read(), resumed.is_stamp) == (True, False)
