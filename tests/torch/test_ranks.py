"""Real programs of several ranks: their results are the same to the last bit, and the late rank is found."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from pyrometer.train.steps.ring import PHASES, Ring
from tests.support.training_processes import command_answer, run_training, spool_parts, start_run, torchrun

pytest.importorskip("torch", reason="make setup installs torch")
PROGRAMS = Path(__file__).parent / "programs"


def run_program(folder: Path, program: str, *arguments: str, spool: Path | None, ranks: int) -> list:
    """Runs a program, and returns the results of each rank."""
    folder.mkdir(exist_ok=True)
    done = run_training(PROGRAMS / program, str(folder), *arguments, spool=spool, ranks=ranks, PYROMETER_DEBUG="1")
    assert done.returncode == 0, done.stderr
    assert "pyrometer:" not in done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]


def messages(spool: Path, kind: str) -> list[tuple[int, dict]]:
    """The messages of one kind, with the rank of each."""
    return [(who["rank"], words) for who, found in spool_parts(spool) for name, words in found if name == kind]


def events(spool: Path, kind: str) -> list[tuple[int, dict]]:
    return [(rank, words) for rank, words in messages(spool, "event") if words["kind"] == kind]


def rings(spool: Path) -> dict[int, Ring]:
    """The rings that ranks have left, by rank."""
    ranks = {who["pid"]: who["rank"] for who, _ in spool_parts(spool)}
    return {ranks[int(path.stem)]: Ring.open(path) for path in (spool / "ranks").glob("*.ring")}


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_compute_the_same_to_the_last_bit(tmp_path, ranks):
    spool = tmp_path / "spool"
    without = run_program(tmp_path / "without", "equal.py", spool=None, ranks=ranks)
    watched = run_program(tmp_path / "watched", "equal.py", spool=spool, ranks=ranks)
    assert watched == without
    assert not events(spool, "sdk_error")
    assert len(rings(spool)) == ranks


@pytest.mark.heavy
def test_sharded_models_compute_the_same_and_report_late_rank_and_checkpoints(tmp_path):
    spools = [tmp_path / "first", tmp_path / "second"]
    without = run_program(tmp_path / "without", "sharded.py", spool=None, ranks=2)
    watched = run_program(tmp_path / "watched", "sharded.py", "late", spool=spools[0], ranks=2)
    assert watched == without
    comm = {rank: median(ring.column(PHASES.index("comm"), 2, 10)) for rank, ring in rings(spools[0]).items()}
    assert comm[0] > comm[1] + 25_000_000  # half of what rank 1 is late by
    assert sorted((rank, words["first_step"], words["steps"]) for rank, words in messages(spools[0], "window")) == [
        (0, 1, 9),
        (1, 1, 9),
    ]
    checkpoint = str(tmp_path / "watched" / "checkpoint")
    saved = events(spools[0], "checkpoint_saved")
    assert sorted((rank, words["step"], words["message"]) for rank, words in saved) == [
        (0, 10, checkpoint),
        (1, 10, checkpoint),
    ]
    for rank, words in saved:
        files = Path(checkpoint).glob(f"__{rank}_*")
        assert int(words["reason"]) == sum(file.stat().st_size for file in files) > 0
    run_program(tmp_path / "watched", "sharded.py", "resume", spool=spools[1], ranks=2)
    restored = events(spools[1], "restored")
    assert sorted((rank, words["step"], words["message"]) for rank, words in restored) == [
        (0, 10, checkpoint),
        (1, 10, checkpoint),
    ]
    resumed = [words["resumed_step"] for _, words in messages(spools[1], "run") if "resumed_step" in words]
    firsts = {words["first_step"] for _, words in messages(spools[1], "window")}
    assert (resumed, min(firsts)) == ([10, 10], 11)  # creating the optimizer's state does not count as a step


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [2, 4])
def test_late_rank_and_its_phase_are_found(tmp_path, ranks):
    phases, steps = ["data", "copy", "forward", "backward", "garbage", "optimizer"], 12
    run_program(tmp_path, "late.py", str(steps), *phases, spool=tmp_path / "spool", ranks=ranks)
    left = rings(tmp_path / "spool")
    for number, late in enumerate(phases):
        first, after = number * steps + 2, (number + 1) * steps - 1
        took = {
            rank: {name: median(ring.column(phase, first, after)) for phase, name in enumerate(PHASES[:-1])}
            for rank, ring in left.items()
        }
        culprit = min(took, key=lambda rank: took[rank]["comm"])
        others = [of_rank for rank, of_rank in took.items() if rank != culprit]
        excess = {
            name: took[culprit][name] - median(other[name] for other in others)
            for name in PHASES[:-1]
            if name != "comm"
        }
        assert (culprit, max(excess, key=excess.__getitem__)) == (number % ranks, late), took


@pytest.mark.heavy
def test_straggler_is_a_finding_of_why(tmp_path):
    data = tmp_path / "data"
    command = torchrun(PROGRAMS / "late.py", str(tmp_path), "60", "nothing", "backward", ranks=2)
    process = start_run(command, "--data", str(data), PYROMETER_RUN="late")
    _, error = process.communicate(timeout=180)
    assert process.returncode == 0, error
    found = command_answer(data, "why", "--all", PYROMETER_FINDING_MIN_MS="0")["findings"]
    (straggler,) = (finding for finding in found if finding["cause"] == "straggler")
    assert (straggler["culprit"]["rank"], straggler["culprit"]["phase"]) == (1, "backward")
