"""Benign patterns: each changes a night, plants nothing, and leaves consistent jobs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pyrometer.simulate.benign_patterns import LONG_PULLS_MS, PATTERNS
from pyrometer.simulate.scenarios import SCENARIOS, _draft


@pytest.mark.parametrize("habit", PATTERNS, ids=lambda habit: habit.__name__)
@pytest.mark.parametrize("gpus", [None, 80])
def test_benign_pattern_changes_one_job_without_gaps(habit, gpus) -> None:
    draft, plain = (_draft("quiet", 7, gpus, 24) for _ in range(2))
    habit(draft)
    assert draft.night.planted == []
    changed = [(job, was) for job, was in zip(draft.night.jobs, plain.night.jobs, strict=True) if job != was]
    assert len(changed) == 1
    for job, was in changed:
        assert {attempt.phase for attempt in job.attempts} <= {"Running", "Succeeded"}
        assert job.attempts[-1].activities[-1].to_ms == was.attempts[-1].activities[-1].to_ms
        for attempt in job.attempts:
            assert all(before.to_ms == after.from_ms for before, after in pairwise(attempt.activities))


def test_every_third_quiet_night_has_slow_image_pulls() -> None:
    def pulls(seed: int) -> list[int]:
        jobs = SCENARIOS["quiet"].make(seed, 80).jobs
        return [e["duration_ms"] for j in jobs for a in j.attempts for e in a.events if e["kind"] == "image_pulled"]

    assert sorted(pulls(3))[len(pulls(3)) // 2] >= LONG_PULLS_MS[0]
    assert max(pulls(4)) < LONG_PULLS_MS[0]
