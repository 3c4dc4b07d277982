"""Which pauses of a source are gaps, and which are its usual loss of samples."""

from __future__ import annotations

import numpy as np
import pytest

from pyrometer.causes._telemetry_gaps import Observations, Times, pauses

SECOND_MS, MINUTE_MS = 1_000, 60_000


def every(interval_ms: int, *parts: tuple[int, int]) -> Observations:
    """Observations at a fixed interval, in parts of time."""
    times = [np.arange(from_ms, to_ms, interval_ms, dtype=np.int64) for from_ms, to_ms in parts]
    return Observations(np.concatenate(times) if times else np.array([], dtype=np.int64))


def test_usual_interval_is_the_median_around_a_time() -> None:
    seen = every(15 * SECOND_MS, (0, 60 * MINUTE_MS))
    assert seen.usual_ms(30 * MINUTE_MS) == 15 * SECOND_MS
    assert seen.usual_ms(0) is None  # nothing before it


def test_usual_interval_is_the_longer_one_after_a_change() -> None:
    first = np.arange(0, 30 * MINUTE_MS, 10 * SECOND_MS, dtype=np.int64)
    second = np.arange(30 * MINUTE_MS, 90 * MINUTE_MS, MINUTE_MS, dtype=np.int64)
    assert Observations(np.concatenate([first, second])).usual_ms(30 * MINUTE_MS) == MINUTE_MS


def test_long_pause_of_a_regular_source_is_a_gap() -> None:
    seen = every(15 * SECOND_MS, (0, 60 * MINUTE_MS), (80 * MINUTE_MS, 120 * MINUTE_MS))
    (gap,) = pauses(seen, 120 * MINUTE_MS, 1_000)
    assert gap.is_gap
    assert (gap.last_ms, gap.next_ms) == (60 * MINUTE_MS - 15 * SECOND_MS, 80 * MINUTE_MS)
    assert gap.last_ms < gap.detectable_ms < 80 * MINUTE_MS


def test_pause_at_the_end_is_open() -> None:
    (gap,) = pauses(every(15 * SECOND_MS, (0, 60 * MINUTE_MS)), 120 * MINUTE_MS, 1_000)
    assert (gap.next_ms, gap.is_gap) == (None, True)


@pytest.mark.parametrize("pause_min", [1, 4])
def test_short_pause_is_not_listed(pause_min: int) -> None:
    seen = every(15 * SECOND_MS, (0, 60 * MINUTE_MS), ((60 + pause_min) * MINUTE_MS, 120 * MINUTE_MS))
    assert pauses(seen, 120 * MINUTE_MS, 1_000) == []


def test_pause_of_a_lossy_source_is_not_a_gap() -> None:
    chance = np.random.default_rng(5)
    times: Times = np.arange(0, 240 * MINUTE_MS, MINUTE_MS, dtype=np.int64)
    kept = times[chance.random(len(times)) < 0.4]
    assert not any(pause.is_gap for pause in pauses(Observations(kept), int(kept[-1]) + MINUTE_MS, 100))


def test_source_with_too_few_observations_has_no_gaps() -> None:
    assert pauses(Observations(np.array([0, MINUTE_MS], dtype=np.int64)), 120 * MINUTE_MS, 10) == []


def test_losses_of_peers_make_a_pause_less_surprising() -> None:
    seen = every(MINUTE_MS, (0, 60 * MINUTE_MS), (67 * MINUTE_MS, 70 * MINUTE_MS))
    lossy = [every(MINUTE_MS, *((at * MINUTE_MS, (at + 2) * MINUTE_MS) for at in range(0, 70, 4))) for _ in range(9)]
    (alone,) = pauses(seen, 70 * MINUTE_MS, 10)
    (among,) = pauses(seen, 70 * MINUTE_MS, 10, peers=lossy)
    assert alone.detectable_ms < among.detectable_ms
