"""Which training steps a logged value covers."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.train.steps.metrics import Metrics, MetricValue


class Program:
    """Trains step after step, each with a loss of its own, and logs."""

    def __init__(self) -> None:
        self.count = 0
        self.trained: tuple[int, int] | None = None  # None: nothing yet, or another thread logs
        self.metrics = Metrics(lambda: self.count, lambda *_: None, lambda: self.trained)
        self.losses: list[float] = []

    def train(self, loss: float) -> None:
        self.losses.append(loss)
        self.trained = (self.count, self.count)
        self.metrics.backward(SimpleNamespace(is_cpu=True, item=lambda: loss), None)

    def close(self) -> None:
        self.metrics.step_closed(self.count)
        self.count += 1

    def log(self, value: float, name: str = "train_loss", **more) -> MetricValue | None:
        self.metrics.waiting.clear()
        self.metrics.log({name: value}, **more)
        return self.metrics.waiting[-1] if self.metrics.waiting else None


@given(
    logs=st.lists(st.sampled_from([None, "value", "mean", "scaled", "late", "before"]), min_size=1, max_size=40),
    seed=st.integers(0, 1_000),
)
def test_covered_steps_include_the_steps_of_a_value(logs, seed):
    """Whatever is logged when: this step's loss, the last one's, or a mean that starts again at each log."""
    program, since, rng = Program(), 0, random.Random(seed)
    for step, kind in enumerate(logs):
        loss = rng.random()
        if kind == "before":  # the next batch was drawn, and its forward is not seen
            program.trained = (step - 1, step) if step else None
            value, truth = (program.losses[-1], {step - 1}) if step else (loss, {0})
            logged = program.log(value)
        program.train(loss)
        if kind == "value":
            logged, truth = program.log(loss), {step}
        elif kind == "scaled":
            logged, truth = program.log(100 * loss), {step}
        elif kind == "late":
            logged, truth = program.log(program.losses[-2:][0]), {max(step - 1, 0)}
        elif kind == "mean":
            mean = sum(program.losses[since:]) / (step + 1 - since)
            logged, truth = program.log(mean), set(range(since, step + 1))
        if kind is not None:
            if logged is not None and logged.covers is not None:
                first, last = logged.covers
                assert truth <= set(range(first, last + 1))
                assert last <= step
                if kind == "value" or (kind == "late" and since):  # the first log is what makes it remember losses
                    assert first == last
            since = step if kind == "before" else step + 1
        program.close()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
@pytest.mark.parametrize("every", [1, 3, 10])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stays", [False, True])
def test_nonfinite_value_covers_the_first_nonfinite_step(broken, every, late, stays):
    program, bad, since = Program(), 14, 0
    program.train(1.0)
    program.log(1.0)  # the first log is what makes it remember losses
    program.close()
    for step in range(1, 30):
        program.train(broken if step == bad or (stays and step > bad) else 1.0 / step)
        if step % every == 0:
            logged = program.log(sum(program.losses[since : step + 1 - late]))
            since = step + 1 - late
            if logged.value != logged.value or logged.value == broken:
                assert logged.covers == (bad, bad)
                return
        program.close()
    pytest.fail("no value was broken")


def test_nonfinite_value_covers_all_steps_if_losses_are_unknown():
    program = Program()
    program.train(1.0)
    program.log(1.0)
    for step in range(1, 200):
        program.close()
        program.train(float("nan") if step in (3, 190) else 1.0)
    assert program.log(float("nan")).covers == (1, 199)


def test_logs_within_a_step_cover_the_same_step():
    program = Program()
    for step in range(5):
        program.train(2.0 + step)
        assert [program.log(9.0 * part).covers for part in range(1, 4)] == [(step, step)] * 3
        program.close()
    for old in range(3):  # afterwards, everything that was kept
        assert program.log(50.0 + old, "other_loss").covers == (0, 4)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("val_loss", {}),
        ("eval/loss", {}),
        ("testLoss", {}),
        ("train_loss", {"step": 3}),
        ("train_loss", {"step": 3, "of_training": False}),
        ("train_loss", {"of_training": False}),
    ],
)
def test_evaluation_and_numbered_values_cover_no_known_steps(name, more):
    program = Program()
    program.train(1.0)
    assert program.log(5.0, name, **more).covers is None


def test_framework_step_number_is_kept_with_known_steps():
    program = Program()
    for step in range(10):
        program.train(1.0 + step)
        if step < 9:
            program.close()
    logged = program.log(99.0, "loss", step=10, of_training=True, source="transformers")
    assert (logged.step, logged.covers, logged.source) == (10, (0, 9), "transformers")


def test_values_from_another_thread_cover_no_known_steps():
    program = Program()
    program.train(1.0)
    program.trained = None
    assert program.log(5.0).covers is None


@pytest.mark.parametrize("every", [1, 10])
def test_loss_spikes_are_kept_at_any_logging_rate(every):
    program, rng, planted = Program(), random.Random(1), {700, 1_400, 1_900}
    for step in range(2_000):
        program.train(100.0 if step in planted else 2.0 + rng.random())
        if step % every == every - 1:
            program.metrics.log({"train_loss": sum(program.losses[-every:]) / every})
        program.close()
    logged = [value for value in program.metrics.waiting if value.name == "train_loss"]
    covered = [value.covers for value in logged if value.value > 5.0]
    assert len(covered) == len(planted)
    assert all(first <= step <= last for (first, last), step in zip(covered, sorted(planted), strict=True))
    assert every > 1 or len(logged) < 1_000  # others are thinned


def test_number_of_metric_names_is_bounded():
    program = Program()
    program.train(1.0)
    for number in range(2_000):
        program.log(1.0, f"loss_{number}")
    assert len(program.metrics._logged) <= 500


def test_infinities_of_both_signs_in_one_step_are_accepted():
    program = Program()
    program.train(float("inf"))
    program.metrics.backward(SimpleNamespace(is_cpu=True, item=lambda: float("-inf")), None)
    assert program.log(1.0).covers == (0, 0)
    program.close()


def test_nonfinite_loss_is_reported_by_a_rank_whose_curve_another_rank_logs():
    events = []
    metrics = Metrics(lambda: 0, lambda *what: events.append(what))
    metrics.logged_by_another_rank(["train/loss"])
    for step, loss in enumerate((1.0, math.nan, math.nan, 2.0)):
        metrics.backward(SimpleNamespace(is_cpu=True, item=lambda loss=loss: loss), None)
        metrics.step_closed(step)
    assert [(kind, step) for kind, step, _ in events] == [("nonfinite_loss", 1), ("finite_loss", 3)]
    assert not metrics.waiting
