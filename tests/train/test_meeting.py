"""Where windows end: at the same steps on all ranks, and about as long as they should be."""

from __future__ import annotations

from itertools import accumulate

from pyrometer.train.meeting import Meeting


def windows(lengths_s: list[float], window_s: float = 10.0) -> list[int]:
    """The sizes of the windows of one rank whose steps take so long, as its thread would find them each second."""
    ends = list(accumulate(lengths_s, initial=0.0))
    meeting, sizes, first, now_s = Meeting(None, window_s), [], 1, 0.0

    def steps_s(begin: int, after: int) -> float:
        return ends[after] - ends[begin]

    while now_s < ends[-1]:
        now_s += 1.0
        count = sum(end <= now_s for end in ends) - 1
        while (after := meeting.window_end(first, count, steps_s)) is not None and after <= count:
            sizes.append(after - first)
            first = after
    return sizes


def test_a_hang_does_not_change_the_length_of_windows():
    steady = windows([0.5] * 400)
    assert set(steady[1:]) == {20}
    hung = windows([0.5] * 100 + [600.0] + [0.5] * 299)
    assert set(hung[1:]) == {20}


def test_steps_that_become_slower_for_good_do():
    sizes = windows([0.5] * 100 + [5.0] * 100)
    assert sizes[1] == 20
    assert sizes[-1] <= 4
