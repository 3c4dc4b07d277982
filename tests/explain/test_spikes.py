"""From a jump of the loss to the row of the dataset behind it."""

from __future__ import annotations

import math
import random
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.sums import Window
from pyrometer.explain.lineage import NotRecordedError
from pyrometer.explain.spikes import LEAST_BEFORE, Point, lineage_of_spikes, spikes
from pyrometer.model.records import Batch, Metric
from traced import RUN, START_MS, Trained

EVER = Window(0, 2**62)


def curve(seed: int, count: int = 400, noise: float = 0.02) -> list[float]:
    rng = random.Random(seed)
    return [2.0 + 6.0 * (step + 3) ** -0.4 + rng.gauss(0, noise) for step in range(count)]


def points(values) -> list[Point]:
    return [Point(1, step, START_MS + step, value, None) for step, value in enumerate(values)]


# -- what jumps -------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), noise=st.sampled_from((0.0, 0.001, 0.02, 0.2)))
def test_a_loss_that_falls_with_noise_does_not_jump(seed, noise):
    assert spikes(points(curve(seed, noise=noise))) == []


@given(
    seed=st.integers(0, 10_000),
    places=st.sets(st.integers(LEAST_BEFORE, 399), min_size=1, max_size=4),
    scale=st.sampled_from((1e-6, 1.0, 1e6)),
    up=st.booleans(),
)
def test_jumps_are_found_where_they_are_at_any_scale_and_in_both_directions(seed, places, scale, up):
    values = curve(seed)
    for place in places:
        values[place] += 5.0
    sign = 1 if up else -1
    found = spikes(points([sign * scale * value for value in values]), up=up)
    told = {step for spike in found for step in range(spike.first.step, spike.last.step + 1)}
    assert told == places


def test_a_loss_that_stays_high_is_one_jump_from_its_beginning():
    values = curve(3)
    values[200:215] = [9.0] * 15
    (spike,) = spikes(points(values))
    assert (spike.first.step, spike.last.step) == (200, 214 - 2)  # then it is usual


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_found(value):
    values = curve(4)
    values[100] = value
    values[300] += 5.0
    broken, jump = spikes(points(values))
    assert (broken.first.step, broken.score, jump.first.step) == (100, None, 300)


@pytest.mark.parametrize("values", [[], [1.0], [math.nan], [1.0] * 50])
def test_little_and_constant_values_do_no_harm(values):
    assert [spike.score for spike in spikes(points(values))] == [None] * sum(map(math.isnan, values))


# -- the data behind --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_bad_sample_is_found_from_the_loss_alone(tmp_path, seed):
    with Trained(bad_sample=411 + seed, seed=seed).store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    suspects = answer["suspects"]
    assert suspects["rows"][0]["sample"] == str(411 + seed)
    assert suspects["rows"][0]["spikes"] == suspects["spikes"] > 3
    assert all(row["spikes"] < suspects["spikes"] for row in suspects["rows"][1:])
    assert all(row["spikes"] <= row["measured"] <= row["consumed"] for row in suspects["rows"])
    for spike in answer["spikes"]:
        assert any(str(411 + seed) in update["samples"] for update in spike["updates"])


def test_a_run_without_a_bad_sample_has_no_suspects(tmp_path):
    with Trained(bad_sample=None).store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    assert (answer["spikes"], answer["suspects"]["rows"]) == ([], [])


def test_a_single_spike_lists_what_is_behind_it(tmp_path):
    trained = Trained(attempts=((0, 30),), dataset=4_096, bad_sample=None)
    place = next(n for n, one in enumerate(trained.records) if isinstance(one, Metric) and one.step == 20)
    trained.records[place] = trained.records[place]._replace(value=50.0)
    with trained.store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    (spike,) = answer["spikes"]
    assert (spike["step"], spike["value"], spike["kind"]) == (20, 50.0, "spike")
    assert answer["suspects"]["total"] == len(trained.samples(1, 20)) == 64


def test_the_rank_with_the_worst_value_is_named(tmp_path):
    trained = Trained(attempts=((0, 30),), bad_sample=None)
    trained.records = [one for one in trained.records if not isinstance(one, Metric)]
    trained.records += [
        Metric(
            START_MS + step,
            RUN,
            1,
            rank,
            "train/loss",
            90.0 if (step, rank) == (25, 3) else 1.0 + step % 2 / 50,
            step,
            None,
            "pyrometer",
            step,
            step,
        )
        for step in range(30)
        for rank in range(4)
    ]
    with trained.store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    assert (answer["metric"], answer["spikes"][0]["step"], answer["spikes"][0]["worst_rank"]) == ("train/loss", 25, 3)


def test_a_spike_whose_data_was_not_recorded_says_so(tmp_path):
    trained = Trained(attempts=((0, 30),), bad_sample=3)
    trained.records = [one for one in trained.records if not (isinstance(one, Batch) and one.step > 10)]
    place = next(n for n, one in enumerate(trained.records) if isinstance(one, Metric) and one.step == 28)
    trained.records[place] = trained.records[place]._replace(value=math.nan)
    with trained.store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    broken = next(spike for spike in answer["spikes"] if spike["kind"] == "nonfinite")
    assert (broken["updates"], broken["nearest"], broken["value"]) == ([], [7, 8, 9, 10], None)


@pytest.mark.parametrize(("metric", "says"), [("accuracy", "It has: loss"), ("", "It has: loss")])
def test_a_metric_that_is_not_there_is_told(tmp_path, metric, says):
    with (
        Trained(attempts=((0, 9),)).store(tmp_path / "data") as store,
        pytest.raises(NotRecordedError, match=says),
    ):
        lineage_of_spikes(store, RUN, EVER, zone=UTC, metric=metric)
