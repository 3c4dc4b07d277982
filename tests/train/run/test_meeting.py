"""Windows end at the same steps on all ranks, and have about the requested length."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import accumulate

from pyrometer.train.run.meeting import MAX_STEPS, Meeting
from pyrometer.train.steps.ring import DEFAULT_ROWS


def windows(lengths_s: list[float], window_s: float = 10.0, meeting: Meeting | None = None) -> list[int]:
    """The sizes of the windows of one rank with these step times, as its thread would find them every second."""
    ends = list(accumulate(lengths_s, initial=0.0))
    meeting, sizes, first, now_s = meeting or Meeting(None, window_s), [], 1, 0.0

    def steps_s(begin: int, after: int) -> float:
        return ends[after] - ends[begin]

    while now_s < ends[-1]:
        now_s += 1.0
        count = bisect_right(ends, now_s) - 1
        while (after := meeting.window_end(first, count, steps_s)) is not None and after <= count:
            sizes.append(after - first)
            first = after
    return sizes


def test_hang_does_not_change_the_window_size():
    steady = windows([0.5] * 400)
    assert set(steady[1:]) == {20}
    hung = windows([0.5] * 100 + [600.0] + [0.5] * 299)
    assert set(hung[1:]) == {20}


def test_permanently_slower_steps_shrink_windows():
    sizes = windows([0.5] * 100 + [5.0] * 100)
    assert sizes[1] == 20
    assert sizes[-1] <= 4


def test_sudden_change_of_step_time_begins_a_new_window():
    sizes = windows([0.2] * 132 + [0.3] * 80 + [0.2] * 100)
    ends = list(accumulate(sizes, initial=1))
    assert 132 in ends  # the steps before the change are in a window of their own,
    assert any(138 <= end <= 142 for end in ends)  # the change is known after six steps and a beat,
    assert 212 in ends  # and so is its end
    assert sum(size < 30 for size in sizes) <= 6


def test_window_fits_twice_into_the_ring():
    for step_s in (0.0005, 0.0002):
        sizes = windows([step_s] * int(20 / step_s))
        assert max(sizes) <= MAX_STEPS <= DEFAULT_ROWS // 2
        assert set(sizes[1:]) == {MAX_STEPS}


def test_sudden_short_steps_are_planned_once():
    """Every plan is a key in the store of the process group, which keeps it until the training ends."""
    for slow in (500, 620, 5_003):
        meeting = Meeting(None, 10.0)
        sizes = windows([0.05] * slow + [0.0002] * 250_000, meeting=meeting)
        assert max(sizes) <= MAX_STEPS
        assert sizes[-2] > MAX_STEPS / 3
        assert len(meeting._plans) <= 3


def test_noise_and_single_slow_steps_do_not_end_windows():
    noise = random.Random(1)
    lengths = [0.2 * noise.lognormvariate(0, 0.15) + (2.0 if step % 25 == 0 else 0.0) for step in range(2_000)]
    sizes = windows(lengths)
    assert all(size >= 20 for size in sizes[1:-1])
