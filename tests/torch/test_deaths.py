"""Ranks that end early: their steps are not lost, and how they ended is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.training_processes import SentRecord, command_answer, sent_records, start_run, torchrun

pytest.importorskip("torch", reason="make setup installs torch")
PROGRAM = Path(__file__).parent / "programs" / "mortal.py"


# How rank 1 ends, and its outcome.
ENDS = {
    "kill": "killed",
    "term": "killed",
    "exit": "failed",
    "leave": "failed",
    "system_exit": "failed",
    "raise": "failed",
    "own_hook": "failed",
    "out_of_memory": "failed",
}
ERRORS = {"raise": "ValueError", "own_hook": "ValueError", "out_of_memory": "OutOfMemoryError"}


def steps_of(records: list[SentRecord], launch: str, rank: int) -> list[int]:
    """The steps in the windows of a rank."""
    windows = [one.fields for one in records if (one.name, one.launch, one.rank) == ("window", launch, rank)]
    return [step for window in windows for step in range(window["first_step"], window["first_step"] + window["steps"])]


@pytest.mark.heavy
def test_rank_that_dies_loses_no_steps_and_its_end_is_reported(tmp_path):
    """Two ranks live as often as there are ways to die for the second, and once more."""
    restarts = ("--max-restarts", str(len(ENDS)))
    command = torchrun(PROGRAM, str(tmp_path), *ENDS, ranks=2, more=restarts)
    process = start_run(command, "--data", str(tmp_path / "data"), PYROMETER_RUN="mortal")
    _, error = process.communicate(timeout=600)
    assert process.returncode == 0, error
    records = sent_records(tmp_path / "data")
    *deadly, last = dict.fromkeys(one.launch for one in records)
    first = 1  # step of a life
    for launch, way in zip(deadly, ENDS, strict=True):
        for rank in (0, 1):
            steps = steps_of(records, launch, rank)
            assert steps == list(range(first, first + len(steps)))  # none twice, none lost
            assert steps[-1] in ((25, 26) if rank else (26,))  # the last one of rank 1 may not have been closed
        of_dead = [one for one in records if (one.launch, one.rank) == (launch, 1)]
        assert [one.fields["outcome"] for one in of_dead if "outcome" in one.fields] == [ENDS[way]]
        errors = [
            one.fields
            for one in of_dead
            if one.name == "event" and one.fields["kind"] in ("exception", "out_of_memory")
        ]
        assert [error["reason"] for error in errors] == ([ERRORS[way]] if way in ERRORS else [])
        assert all("in run_out_of_" in error["message"] for error in errors)
        first = 21
    assert [steps_of(records, last, rank) for rank in (0, 1)] == [list(range(21, 40))] * 2
    assert [one.fields["resumed_step"] for one in records if "resumed_step" in one.fields] == [20, 20] * len(ENDS)
    (run,) = command_answer(tmp_path / "data", "runs")["rows"]
    assert (run["run"], run["attempts"], run["ranks"], run["outcome"]) == ("mortal", len(ENDS) + 1, 2, "succeeded")
    found = command_answer(tmp_path / "data", "why", "--all", PYROMETER_FINDING_MIN_MS="0")["findings"]
    assert "lost_work" in {finding["cause"] for finding in found}
