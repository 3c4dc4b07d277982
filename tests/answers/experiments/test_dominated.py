"""When a run was already beaten: compared with the definition, value by value."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyrometer.answers.experiments.dominated import ReachedValue, beaten_since

small = st.integers(0, 6)


@st.composite
def sweeps(draw: st.DrawFn) -> dict[str, list[ReachedValue]]:
    """Runs whose values come in time, and which never get cheaper."""
    runs = {}
    for name in "abcd"[: draw(st.integers(1, 4))]:
        count = draw(st.integers(0, 6))
        times = sorted(draw(st.lists(small, min_size=count, max_size=count)))
        costs = sorted(draw(st.lists(small, min_size=count, max_size=count)))
        badness = draw(st.lists(small.map(float), min_size=count, max_size=count))
        runs[name] = [ReachedValue(*one) for one in zip(times, costs, badness, strict=True)]
    return runs


@given(sweeps())
def test_beaten_since_is_the_first_of_the_last_worse_values(runs):
    def is_behind(run: str, place: int) -> bool:
        now = runs[run][place]
        so_far = [one.badness for one in runs[run] if one.time_ms <= now.time_ms]
        best = min(so_far)
        return any(
            one.time_ms <= now.time_ms
            and one.cost <= now.cost
            and one.badness <= best
            and (one.cost < now.cost or one.badness < best)
            for other, values in runs.items()
            if other != run
            for one in values
        )

    expected = {}
    for run, values in runs.items():
        behind = [is_behind(run, place) for place in range(len(values))]
        if behind and behind[-1]:
            expected[run] = len(behind) - next((n for n, one in enumerate(reversed(behind)) if not one), len(behind))
    assert beaten_since(runs) == expected


def test_beaten_since_ignores_later_values_of_other_runs():
    early = [ReachedValue(1, 10, 3.0), ReachedValue(2, 20, 2.0)]
    late = [ReachedValue(11, 5, 1.0)]
    assert beaten_since({"early": early, "late": late}) == {}
    assert beaten_since({"early": early, "late": [ReachedValue(2, 5, 1.0)]}) == {"early": 1}


def test_run_that_catches_up_is_not_beaten():
    other = [ReachedValue(0, 10, 3.0), ReachedValue(1, 20, 2.5)]
    assert beaten_since({"other": other, "slow": [ReachedValue(5, 12, 5.0), ReachedValue(6, 22, 2.0)]}) == {}
    assert beaten_since({"other": other, "slow": [ReachedValue(5, 12, 2.0), ReachedValue(6, 22, 2.0)]}) == {}
    assert beaten_since({"other": other, "slow": [ReachedValue(5, 12, 2.9), ReachedValue(6, 22, 2.9)]}) == {"slow": 1}
