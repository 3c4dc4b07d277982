"""Ranks that end before their time: what they did is not lost, and how they ended is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from trained import Heard, answer, heard, running, torchrun

pytest.importorskip("torch", reason="make setup installs torch")
PROGRAM = Path(__file__).parent / "programs" / "mortal.py"


def ran(folder: Path, way: str) -> list[Heard]:
    """What was said by and for two ranks, the second of which dies that way, and both of which live again."""
    command = torchrun(PROGRAM, str(folder), way, ranks=2, more=("--max-restarts", "1"))
    process = running(command, "--data", str(folder / "data"), PYROMETER_RUN="mortal")
    _, error = process.communicate(timeout=180)
    assert process.returncode == 0, error
    return heard(folder / "data")


def steps_of(said: list[Heard], launch: str, rank: int) -> list[int]:
    """The steps in the windows of a rank."""
    windows = [one.said for one in said if (one.name, one.launch, one.rank) == ("window", launch, rank)]
    return [step for window in windows for step in range(window["first_step"], window["first_step"] + window["steps"])]


def check(said: list[Heard], outcome: str) -> list[dict]:
    """Two attempts without a gap; what rank 1 said of its end."""
    first, second = dict.fromkeys(one.launch for one in said)
    for rank in (0, 1):
        reached = len(steps_of(said, first, rank)) + 1
        assert steps_of(said, first, rank) == list(range(1, reached))  # none twice, none lost
        assert reached in ((26, 27) if rank else (27,))  # the last one of rank 1 may not have been closed
        assert steps_of(said, second, rank) == list(range(21, 40))
    of_dead = [one for one in said if (one.launch, one.rank) == (first, 1)]
    assert [one.said["outcome"] for one in of_dead if "outcome" in one.said] == [outcome]
    resumed = [one.said["resumed_step"] for one in said if "resumed_step" in one.said]
    assert resumed == [20, 20]
    return [one.said for one in of_dead if one.name == "event"]


@pytest.mark.heavy
def test_a_rank_that_is_killed_is_salvaged_and_its_lost_work_named(tmp_path):
    said = ran(tmp_path, "kill")
    check(said, "killed")
    (run,) = answer(tmp_path / "data", "runs")["rows"]
    assert (run["run"], run["attempts"], run["ranks"], run["outcome"]) == ("mortal", 2, 2, "succeeded")
    found = answer(tmp_path / "data", "why", "--all", PYROMETER_FINDING_MIN_MS="0")["findings"]
    assert "lost_work" in {finding["cause"] for finding in found}


@pytest.mark.heavy
@pytest.mark.parametrize(("way", "outcome"), [("term", "killed"), ("exit", "killed"), ("leave", "failed")])
def test_other_ends_lose_nothing_either(tmp_path, way, outcome):
    check(ran(tmp_path, way), outcome)


@pytest.mark.heavy
@pytest.mark.parametrize(("way", "kind"), [("raise", "ValueError"), ("out_of_memory", "OutOfMemoryError")])
def test_an_error_is_told_with_where_it_was(tmp_path, way, kind):
    events = check(ran(tmp_path, way), "failed")
    (error,) = (event for event in events if event["kind"] in ("exception", "out_of_memory"))
    assert error["reason"] == kind
    assert "in run_out_of_" in error["message"]
