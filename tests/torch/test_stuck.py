"""Stuck ranks, from end to end: they are found in time, with the stack of the rank that the others wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.training_processes import SentRecord, command_answer, sent_records, start_run, torchrun

pytest.importorskip("torch", reason="make setup installs torch")
PROGRAM = Path(__file__).parent / "programs" / "stuck.py"
LIMIT_S = 2.0
SOON_S = 20.0  # a machine that many share; where it has nothing else to do, it is one to eight seconds
NAMES = {"asleep": "fall_asleep", "in_c": "hold_the_interpreter", "stopped": "stopped by a signal (state T)"}


def ran(folder: Path, *ways: str, ranks: int, length_s: float) -> tuple[list[SentRecord], Path]:
    """The records by and about all ranks, and the data folder."""
    command = torchrun(PROGRAM, str(folder), "1", str(length_s), *ways, ranks=ranks)
    process = start_run(
        command, "--data", str(folder / "data"), PYROMETER_HANG_LIMIT_S=str(LIMIT_S), PYROMETER_RUN="stuck"
    )
    _, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    return [record for record in sent_records(folder / "data") if record.name in ("event", "run")], folder / "data"


def of_kind(records: list[SentRecord], kind: str) -> list[SentRecord]:
    return [one for one in records if one.fields.get("kind") == kind]


def check(records: list[SentRecord], ways: list[str], ranks: int, every: int = 40) -> None:
    """Each rank is stuck once in each way, and continues; the rank that the others wait for reports the reason."""
    stuck = of_kind(records, "stuck")
    assert {one.rank: [o.fields["step"] for o in stuck if o.rank == one.rank] for one in stuck} == {
        rank: [every * (number + 1) for number in range(len(ways))] for rank in range(ranks)
    }
    for one in stuck:
        assert one.at_ms - one.fields["time_ms"] < (LIMIT_S + SOON_S) * 1000
        way = ways[one.fields["step"] // every - 1]
        if one.rank == 1:
            assert one.fields["reason"] == "data"
            assert NAMES[way] in one.fields["message"]
        else:
            assert one.fields["reason"] == "comm"
            assert "run_backward" in one.fields["message"]
    for one in of_kind(records, "unstuck"):
        assert any(o.rank == one.rank and o.fields["time_ms"] < one.fields["time_ms"] for o in stuck)
    assert len(of_kind(records, "unstuck")) == ranks * len(ways)
    ends = [(one.rank, one.fields["outcome"]) for one in records if "outcome" in one.fields]
    assert sorted(ends) == [(rank, "succeeded") for rank in range(ranks)]


def hangs(data: Path) -> list[dict]:
    limits = {"PYROMETER_HANG_LIMIT_MS": str(int(LIMIT_S * 1000)), "PYROMETER_FINDING_MIN_MS": "0"}
    return [one for one in command_answer(data, "why", "--all", **limits)["findings"] if one["cause"] == "hang"]


@pytest.mark.heavy
def test_sleeping_rank_is_stuck_and_an_ended_loop_is_not(tmp_path):
    records, data = ran(tmp_path, "asleep", "sleep_on", ranks=2, length_s=10.0)
    check(records, ["asleep"], 2)
    assert sorted(one.rank for one in of_kind(records, "loop_ended")) == [0, 1]
    assert {one["culprit"]["rank"] for one in hangs(data)} == {1}


@pytest.mark.heavy
def test_rank_blocked_in_c_and_stopped_rank_are_found_from_outside(tmp_path):
    ways = ["in_c", "stopped"]
    records, data = ran(tmp_path, *ways, ranks=3, length_s=14.0)
    check(records, ways, 3)
    assert {one["culprit"]["rank"] for one in hangs(data)} == {1}


@pytest.mark.heavy
def test_long_evaluation_and_checkpoint_are_not_stuck(tmp_path):
    records, data = ran(tmp_path, "evaluate", "checkpoint", ranks=2, length_s=10.0)
    assert not of_kind(records, "stuck")
    assert len(of_kind(records, "checkpoint_saved")) == 2
    assert hangs(data) == []
