"""Reports of saved and restored checkpoints."""

from __future__ import annotations

import pytest

from pyrometer.train.run.checkpoints import CheckpointReports, _common_path
from pyrometer.train.run.outbox import Outbox
from pyrometer.train.run.step_numbers import StepNumbers
from pyrometer.train.steps.recorder import Recorder
from pyrometer.train.steps.ring import Ring


class Rank:
    def __init__(self) -> None:
        self.recorder = Recorder(Ring.in_memory())
        self.outbox = Outbox()
        steps = StepNumbers(self.recorder.ring, self.outbox, 100)
        self.checkpoints = CheckpointReports(self.recorder, self.outbox, steps, {"rank": 1})

    def events(self) -> list[dict]:
        return [fields for _, fields in self.outbox.take()]


def test_files_of_one_step_are_one_checkpoint(tmp_path):
    rank = Rank()
    rank.recorder.count = 4
    for name in ("model.pt", "optimizer.pt"):
        (tmp_path / name).write_bytes(b"x" * 10)
        rank.checkpoints.saved(str(tmp_path / name), 2_000_000)
    rank.checkpoints.report(final=False)
    assert rank.events() == []  # more files may follow
    rank.checkpoints.report(final=True)
    (event,) = rank.events()
    assert (event["kind"], event["step"], event["duration_ms"], event["reason"], event["message"]) == (
        "checkpoint_saved",
        104,
        4,
        "20",
        str(tmp_path),
    )


def test_checkpoint_is_reported_when_the_next_step_is_done(tmp_path):
    rank = Rank()
    rank.recorder.count = 4
    rank.checkpoints.saved(str(tmp_path / "gone.pt"), 1)
    rank.recorder.count = 5
    rank.checkpoints.report(final=False)
    (event,) = rank.events()
    assert "reason" not in event  # its size is unknown
    assert event["step"] == 104


def test_files_saved_before_the_first_step_are_not_checkpoints(tmp_path):
    rank = Rank()
    rank.checkpoints.saved(str(tmp_path), 1)
    rank.checkpoints.report(final=True)
    assert rank.events() == []


def test_only_files_of_this_rank_count_in_a_shared_folder(tmp_path):
    rank = Rank()
    rank.recorder.count = 1
    (tmp_path / "__0_0.distcp").write_bytes(b"x" * 10)
    (tmp_path / "__1_0.distcp").write_bytes(b"x" * 3)
    rank.checkpoints.saved(str(tmp_path), 1)
    rank.checkpoints.report(final=True)
    assert rank.events()[0]["reason"] == "3"


def test_restore_is_reported_once_and_only_before_the_first_step():
    rank = Rank()
    for _ in range(2):
        rank.checkpoints.restored("/c/last.pt", 5, 40)
    (event,) = rank.events()
    assert (event["kind"], event["step"], event["message"], event["duration_ms"]) == ("restored", 40, "/c/last.pt", 5)
    rank.recorder.count = 1
    rank.checkpoints.restored("/c/other.pt", 5, 50)
    assert rank.events() == []


@pytest.mark.parametrize(
    ("paths", "common"),
    [([], ""), (["/a/x"], "/a/x"), (["/a/x", "/a/x"], "/a/x"), (["/a/x", "/a/y"], "/a"), (["/a/x", "y"], "y")],
)
def test_common_path_is_the_file_or_the_folder(paths, common):
    assert _common_path(paths) == common
