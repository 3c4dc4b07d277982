"""From a jump of the loss to the row of the dataset behind it."""

from __future__ import annotations

import math
import random
from datetime import UTC

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.lineage import NotRecordedError
from pyrometer.answers.runs.spikes import MAX_STEPS, MIN_BEFORE, LossPoint, lineage_of_spikes, spikes
from pyrometer.model.records import Batch, Metric
from tests.support.traced_run import RUN, START_MS, TrainingRecords

EVER = TimeRange(0, 2**62)


def curve(seed: int, count: int = 400, noise: float = 0.02) -> list[float]:
    rng = random.Random(seed)
    return [2.0 + 6.0 * (step + 3) ** -0.4 + rng.gauss(0, noise) for step in range(count)]


def points(values) -> list[LossPoint]:
    return [LossPoint(1, step, START_MS + step, value, None) for step, value in enumerate(values)]


# -- what jumps -------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), noise=st.sampled_from((0.0, 0.001, 0.02, 0.2)))
def test_noisy_falling_loss_has_no_spike(seed, noise):
    assert spikes(points(curve(seed, noise=noise))) == []


@given(
    seed=st.integers(0, 10_000),
    places=st.sets(st.integers(MIN_BEFORE, 399), min_size=1, max_size=4),
    scale=st.sampled_from((1e-6, 1.0, 1e6)),
    up=st.booleans(),
)
def test_spikes_are_found_at_any_scale_and_in_both_directions(seed, places, scale, up):
    values = curve(seed)
    for place in places:
        values[place] += 5.0
    sign = 1 if up else -1
    found = spikes(points([sign * scale * value for value in values]), up=up)
    reported = {step for spike in found for step in range(spike.first.step, spike.last.step + 1)}
    assert reported == places


def test_loss_that_stays_high_is_one_spike():
    values = curve(3)
    values[200:215] = [9.0] * 15
    (spike,) = spikes(points(values))
    assert (spike.first.step, spike.last.step) == (200, 214 - 2)  # then it is usual


@pytest.mark.parametrize("every", [1, 10])
def test_distant_jumps_are_separate_spikes(every):
    values = curve(6)
    places = [100, 160, 240, 241, 242, 390]
    for place in places:
        values[place] = 50.0
    kept = [
        point._replace(step=every * point.step) for point in points(values) if point.step < 90 or point.step in places
    ]
    found = spikes(kept)
    assert [(spike.first.step // every, spike.last.step // every) for spike in found] == [
        (100, 100),
        (160, 160),
        (240, 242),
        (390, 390),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_loss_is_a_spike(value):
    values = curve(4)
    values[100] = value
    values[300] += 5.0
    broken, jump = spikes(points(values))
    assert (broken.first.step, broken.score, jump.first.step) == (100, None, 300)


@pytest.mark.parametrize("values", [[], [1.0], [math.nan], [1.0] * 50])
def test_short_and_constant_curves_have_no_spikes(values):
    assert [spike.score for spike in spikes(points(values))] == [None] * sum(map(math.isnan, values))


# -- the data behind --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_planted_bad_sample_is_found_from_the_loss(tmp_path, seed):
    with TrainingRecords(bad_sample=411 + seed, seed=seed).store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    suspects = answer["suspects"]
    assert suspects["rows"][0]["sample"] == str(411 + seed)
    assert suspects["rows"][0]["spikes"] == suspects["spikes"] > 3
    assert all(row["spikes"] < suspects["spikes"] for row in suspects["rows"][1:])
    assert all(row["spikes"] <= row["measured"] <= row["consumed"] for row in suspects["rows"])
    for spike in answer["spikes"]:
        assert any(str(411 + seed) in update["samples"] for update in spike["updates"])


def test_run_without_a_bad_sample_has_no_suspects(tmp_path):
    with TrainingRecords(bad_sample=None).store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    assert (answer["spikes"], answer["suspects"]["rows"]) == ([], [])


def test_single_spike_lists_its_samples(tmp_path):
    trained = TrainingRecords(attempts=((0, 30),), dataset=4_096, bad_sample=None)
    place = next(n for n, one in enumerate(trained.records) if isinstance(one, Metric) and one.step == 20)
    trained.records[place] = trained.records[place]._replace(value=50.0)
    with trained.store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    (spike,) = answer["spikes"]
    assert (spike["step"], spike["value"], spike["kind"]) == (20, 50.0, "spike")
    assert answer["suspects"]["total"] == len(trained.samples(1, 20)) == 64


def test_spike_names_the_rank_with_the_worst_value(tmp_path):
    trained = TrainingRecords(attempts=((0, 30),), bad_sample=None)
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


def test_spike_without_recorded_data_reports_that(tmp_path):
    trained = TrainingRecords(attempts=((0, 30),), bad_sample=3)
    trained.records = [one for one in trained.records if not (isinstance(one, Batch) and one.step > 10)]
    place = next(n for n, one in enumerate(trained.records) if isinstance(one, Metric) and one.step == 28)
    trained.records[place] = trained.records[place]._replace(value=math.nan)
    with trained.store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    broken = next(spike for spike in answer["spikes"] if spike["kind"] == "nonfinite")
    assert (broken["updates"], broken["nearest"], broken["value"]) == ([], [7, 8, 9, 10], None)


@pytest.mark.parametrize("others", [60, 20, 1])
def test_spikes_use_a_loss_that_leads_to_samples(tmp_path, others):
    """Whatever it is called; unless it has too few values to show a jump."""
    trained = TrainingRecords(attempts=((0, 60),), bad_sample=None)
    trained.records = [one for one in trained.records if not isinstance(one, Metric)]
    for step in range(60):
        trained.records.append(Metric(START_MS + step, RUN, 1, 0, "loss", 1.0, step + 1, None, "wandb"))
        if step < others:
            own = Metric(START_MS + step, RUN, 1, 0, "train_loss", 1.0, step + 1, None, "lightning", step, step)
            trained.records.append(own)
    with trained.store(tmp_path / "data") as store:
        assert lineage_of_spikes(store, RUN, EVER, zone=UTC)["metric"] == ("train_loss" if others == 60 else "loss")


@pytest.mark.parametrize(("metric", "says"), [("accuracy", "It has: loss"), ("", "It has: loss")])
def test_spikes_of_an_unknown_metric_are_rejected(tmp_path, metric, says):
    with (
        TrainingRecords(attempts=((0, 9),)).store(tmp_path / "data") as store,
        pytest.raises(NotRecordedError, match=says),
    ):
        lineage_of_spikes(store, RUN, EVER, zone=UTC, metric=metric)


# -- which steps a value covers ---------------------------------------------------------------------------------------


def logged(trained: TrainingRecords, every: int, **more) -> TrainingRecords:
    """The same training, whose framework logs the mean loss of `every` steps, numbered from 1."""
    losses = [one for one in trained.records if isinstance(one, Metric)]
    trained.records = [one for one in trained.records if not isinstance(one, Metric)]
    for end in range(every, len(losses) + 1, every):
        group = losses[end - every : end]
        mean = sum(one.value for one in group) / every
        covers = {"source": "transformers", "first_step": group[0].step, "last_step": group[-1].step}
        trained.records.append(group[-1]._replace(value=mean, step=group[-1].step + 1, **{**covers, **more}))
    return trained


@settings(max_examples=15)
@given(every=st.integers(1, 10), seed=st.integers(0, 100), bad=st.integers(0, 1_023))
def test_spikes_of_means_contain_the_steps_of_the_bad_sample(tmp_path_factory, every, seed, bad):
    trained = TrainingRecords(attempts=((0, 300),), ranks=2, accumulation=2, bad_sample=bad, seed=seed)
    truth = {step for (_, step) in trained.consumed if bad in trained.samples(1, step)}
    with logged(trained, every).store(tmp_path_factory.mktemp("of") / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    for spike in answer["spikes"]:
        assert spike["step"] == spike["last_step"] + 1 == spike["first_step"] + every
        assert truth & set(range(spike["first_step"], spike["last_step"] + 1))
        assert any(str(bad) in update["samples"] for update in spike["updates"])
        assert spike["reason"] is None
    assert {row["sample"] for row in answer["suspects"]["rows"] if row["stands_out"]} <= {str(bad)}
    if every == 1:
        assert answer["suspects"]["rows"][0]["stands_out"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"source": None, "first_step": None, "last_step": None}, "stored without the training steps"),
        ({"source": "wandb", "first_step": None, "last_step": None}, "given to W&B by the program"),
        ({"source": "mlflow", "first_step": None, "last_step": None}, "given to MLflow by the program"),
        ({"source": "transformers", "first_step": None, "last_step": None}, "The Hugging Face Trainer did not log"),
        ({"source": "of-another", "first_step": 7, "last_step": 3}, "given to of-another by the program"),
        ({"source": "pyrometer", "first_step": 0}, f"at most {MAX_STEPS} steps"),
        ({"name": "val_loss", "first_step": None, "last_step": None}, "val_loss measures an evaluation"),
    ],
)
def test_spikes_of_unknown_steps_name_no_sample_and_give_the_reason(tmp_path, more, says):
    """Values of earlier versions have neither source nor steps."""
    trained = logged(TrainingRecords(attempts=((0, 300),), bad_sample=137), 1, **more)
    with trained.store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    spikes = [spike for spike in answer["spikes"] if spike["reason"] is not None]
    assert spikes
    assert {len(spike["updates"]) + len(spike["nearest"]) for spike in spikes} == {0}
    assert says in spikes[-1]["reason"]
    if more.get("first_step") != 0:
        assert answer["suspects"] == {"total": 0, "spikes": 0, "rows": []}
        assert says in answer["reason"]


def test_spike_in_backward_loss_and_mean_is_one_spike_of_the_exact_step(tmp_path):
    trained = TrainingRecords(attempts=((0, 300),), bad_sample=137)
    own = [one._replace(source="backward") for one in trained.records if isinstance(one, Metric)]
    truth = {step for (_, step) in trained.consumed if 137 in trained.samples(1, step)}
    logged(trained, 10).records += [one for one in own if one.step < 150]
    with trained.store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    steps = {spike["step"] for spike in answer["spikes"] if spike["source"] == "backward"}
    assert steps
    assert steps <= truth
    for spike in answer["spikes"]:
        if spike["source"] == "transformers":
            assert not any(spike["first_step"] <= step <= spike["last_step"] for step in steps)
    assert answer["values"] == 30 + 150


def test_values_of_unknown_steps_are_ignored_next_to_known_steps(tmp_path):
    trained = TrainingRecords(attempts=((0, 300),), bad_sample=137)
    own = [one._replace(source="backward", rank=1) for one in trained.records if isinstance(one, Metric)]
    logged(trained, 1, source="wandb", first_step=None, last_step=None).records += own
    with trained.store(tmp_path / "data") as store:
        answer = lineage_of_spikes(store, RUN, EVER, zone=UTC)
    assert {spike["source"] for spike in answer["spikes"]} == {"backward"}
    assert answer["suspects"]["rows"][0]["stands_out"]


def test_first_backward_losses_are_ignored_if_the_run_logs_another_loss(tmp_path):
    trained = TrainingRecords(attempts=((0, 300),), bad_sample=137)
    own = [one._replace(source="backward") for one in trained.records if isinstance(one, Metric) and one.step < 9]
    logged(trained, 1, name="train_loss").records += own
    with trained.store(tmp_path / "data") as store:
        assert lineage_of_spikes(store, RUN, EVER, zone=UTC)["metric"] == "train_loss"


def test_inseparable_samples_are_both_named_and_uncertain(tmp_path):
    trained = TrainingRecords(attempts=((0, 300),), bad_sample=137)
    for place, one in enumerate(trained.records):
        if isinstance(one, Batch) and 137 in one.rows:
            trained.records[place] = one._replace(rows=(*one.rows, 9_999))
    with trained.store(tmp_path / "data") as store:
        rows = lineage_of_spikes(store, RUN, EVER, zone=UTC)["suspects"]["rows"]
    assert {row["sample"] for row in rows[:2]} == {"137", "9999"}
    assert not any(row["stands_out"] for row in rows)
