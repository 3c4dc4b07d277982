"""How long steps take: the percentiles of a run are those of all its steps, however they were cut into windows."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.query.names import open_names
from pyrometer.answers.runs.throughput import nothing, throughput
from pyrometer.cli.commands.show import _speed
from pyrometer.collect.otlp.readers import MAX_STEP_LENGTHS_BYTES
from pyrometer.model.columns import schema_of
from pyrometer.model.records import StepWindow
from pyrometer.store import Store
from pyrometer.train.steps.fold import MAX_STEP_US, RELATIVE_ERROR, step_lengths
from tests.support.clusters import at, run

TOLERANCE = 0.02  # what documents promise: rounding in the window, and when windows are merged
steps_us = st.one_of(
    st.lists(st.integers(1, MAX_STEP_US), min_size=1, max_size=60),
    st.lists(st.integers(90_000, 110_000), min_size=1, max_size=300),
    st.builds(  # a usual length, and a few steps that are far longer
        lambda usual, slow, seed: [*np.random.default_rng(seed).normal(usual, usual / 50, 400).astype(int), *slow],
        st.integers(100, 10**7),
        st.lists(st.integers(1, 10**8), max_size=12),
        st.integers(0, 99),
    ),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with Store(tmp_path_factory.mktemp("lengths"), create=True) as store:
        store.append(run())
        open_names(store)
        store.expose_all(["slot"])
        yield store


def window(took_us: list[int], rank: int = 0, name: str = "run") -> StepWindow:
    return StepWindow(
        at(0),
        at(1),
        name,
        1,
        rank,
        "n0",
        rank,
        steps=len(took_us),
        step_max_us=max(took_us),
        step_p50_us=sorted(took_us)[len(took_us) // 2],
        step_lengths=tuple(step_lengths([1000 * us for us in took_us])),
    )


def figures(store: Store, windows: list[StepWindow]) -> dict[str, Any]:
    """The answer about a run that has these windows."""
    store.connection.register("some_window", schema_of(StepWindow).table(windows))
    return throughput(store, "some_window")["run"]


def cut(took_us: list[int], places: list[int]) -> list[list[int]]:
    """The same steps as several windows."""
    edges = sorted({0, len(took_us), *(place % len(took_us) for place in places)})
    return [took_us[begin:end] for begin, end in pairwise(edges)]


@given(steps_us)
def test_step_lengths_of_a_window_are_complete_and_small(took_us):
    took_us = [max(int(us), 1) for us in took_us]
    listed = step_lengths([1000 * us for us in took_us])
    lengths = np.repeat(listed[::2], listed[1::2])
    assert len(lengths) == len(took_us)
    assert np.all(np.abs(lengths - np.sort(took_us)) <= RELATIVE_ERROR * np.sort(took_us) + 0.5001)
    assert len(json.dumps(listed, separators=(",", ":"))) <= MAX_STEP_LENGTHS_BYTES // 2


def test_step_lengths_stay_within_the_limit_of_the_server():
    everything = np.unique(np.exp(np.linspace(0, np.log(MAX_STEP_US), 8_192)).astype(int))
    listed = step_lengths([int(us) * 1000 for us in everything])
    assert len(listed) // 2 <= 840
    assert len(json.dumps(listed, separators=(",", ":"))) <= MAX_STEP_LENGTHS_BYTES // 2


def test_few_step_lengths_are_exact():
    took_us = [123_457, 123_456, 123_457, 7]
    assert step_lengths([1000 * us for us in took_us]) == [7, 1, 123_456, 1, 123_457, 2]


@given(took_us=steps_us, places=st.lists(st.integers(0, 1000), max_size=6), seed=st.randoms(use_true_random=False))
def test_percentiles_are_those_of_all_steps(store, took_us, places, seed):
    took_us = [max(int(us), 1) for us in took_us]
    windows = [window(part, rank) for rank, part in enumerate(cut(took_us, places))]
    answer = figures(store, windows)
    for name, percent in (("step_p50_ms", 50), ("step_p99_ms", 99)):
        assert answer[name] * 1000 == pytest.approx(np.percentile(took_us, percent), rel=TOLERANCE, abs=1)
    assert answer["step_max_ms"] == max(took_us) / 1000
    assert answer["step_p50_ms"] <= answer["step_p99_ms"] <= answer["step_max_ms"]
    seed.shuffle(windows)
    assert figures(store, windows) == answer


def test_percentiles_do_not_depend_on_windows(store):
    took_us = [int(us) for us in np.random.default_rng(1).gamma(9, 10_000, 2_000)]
    whole = figures(store, [window(took_us)])
    lengths = ("step_p50_ms", "step_p99_ms", "step_max_ms")
    for size in (2_000, 1_000, 100, 9):
        parts = [window(took_us[begin : begin + size]) for begin in range(0, 2_000, size)]
        if all(part.steps > 8 for part in parts):  # those of fewer steps are not rounded
            answer = figures(store, parts)
            assert [answer[name] for name in lengths] == [whole[name] for name in lengths]


def test_percentile_without_lengths_is_unknown(store):
    old = window([100_000] * 90 + [400_000] * 10)._replace(step_lengths=None)
    answer = figures(store, [old])
    assert (answer["step_p50_ms"], answer["step_p99_ms"], answer["step_max_ms"]) == (100.0, None, 400.0)
    assert next(_speed(answer)) == "step time: median 100 ms, p99 not recorded, slowest 400 ms"
    both = figures(store, [old, window([100_000] * 100)])
    assert (both["step_p50_ms"], both["step_p99_ms"]) == (pytest.approx(100, rel=TOLERANCE), None)
    assert list(_speed(nothing())) == []
