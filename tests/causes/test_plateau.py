"""`plateau`: a loss that has stopped falling is found, one that falls slowly is not, whatever its noise."""

from __future__ import annotations

import math
import random
from datetime import UTC

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.causes.plateau import _Point, flat_since
from pyrometer.model.records import Metric, Price
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import at, cluster, event, job, run, steps

MINUTE, HOUR = clusters.MINUTE, clusters.HOUR
STEPS = 40_000


def power_law(step, exponent=0.3):
    return 1.8 + 8 * step**-exponent


def points(loss, *, noise=0.01, seed=0, count=256, hours=12, first_step=0):
    """A run's loss in parts, each the median of some twenty noisy values."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        step = first_step + 1 + (STEPS - 1) * (number + 0.5) / count
        value = loss(step)
        spread = noise * value * 1.25 / math.sqrt(20)
        found.append(_Point(step, round((step - first_step) / STEPS * hours * HOUR), value + chance.gauss(0, spread)))
    return found


class TestCurves:
    @pytest.mark.parametrize("exponent", [0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0])
    @pytest.mark.parametrize("noise", [0.0, 0.002, 0.01, 0.03, 0.1])
    def test_power_law_is_not_flat(self, exponent, noise):
        for seed in range(5):
            assert flat_since(points(lambda step: power_law(step, exponent), noise=noise, seed=seed), 0) is None

    @pytest.mark.parametrize("exponent", [0.05, 0.1, 0.2, 0.3])
    @pytest.mark.parametrize(
        ("share", "noise"), [(0.3, 0.0), (0.3, 0.002), (0.3, 0.01), (0.5, 0.002), (0.5, 0.01), (0.7, 0.0), (0.7, 0.002)]
    )
    def test_curve_that_stops_falling_is_flat_from_there(self, exponent, noise, share):
        for seed in range(3):
            loss = points(lambda step: power_law(min(step, share * STEPS), exponent), noise=noise, seed=seed)
            flat = flat_since(loss, 0)
            assert flat is not None
            assert flat.since.x == pytest.approx(share * STEPS, abs=0.1 * STEPS)

    @pytest.mark.parametrize("noise", [0.002, 0.01])
    def test_converged_curve_is_flat(self, noise):
        flat = flat_since(points(lambda step: 1.8 + 6 * math.exp(-step / 3_000), noise=noise), 0)
        assert flat is not None
        assert 0.4 * STEPS < flat.since.x < 0.65 * STEPS  # from there on its fall is less than its noise

    def test_rising_loss_has_not_improved(self):
        assert flat_since(points(lambda step: power_law(min(step, 2e4)) + max(0, step - 2e4) / 1e6), 0) is not None

    def test_loss_that_never_fell_is_not_a_plateau(self):
        assert flat_since(points(lambda step: 2.0), 0) is None

    def test_loss_that_falls_again_is_not_flat(self):
        halves = points(lambda step: power_law(min(step, 15_000)) - 0.3 * (step > 30_000) * (step - 30_000) / 10_000)
        assert flat_since(halves, 0) is None

    def test_wandering_loss_is_not_flat(self):
        for seed in range(20):
            chance = random.Random(seed)
            value = 0.0
            wandering = []
            for point in points(lambda step: 2.0, noise=0):
                value = 0.9 * value + chance.gauss(0, 0.05)
                wandering.append(point._replace(loss=point.loss + value))
            assert flat_since(wandering, 0) is None

    def test_noisy_curve_is_not_a_plateau(self):
        for seed in range(10):
            assert flat_since(points(lambda step: power_law(min(step, 2e4)), noise=1.0, seed=seed), 0) is None

    def test_late_plateau_of_a_long_run_is_found(self):
        late = points(lambda step: power_law(min(step, 120_000), 0.2), noise=0.002, first_step=100_000)
        flat = flat_since(late, 0)
        assert flat is not None
        assert flat.since.x == pytest.approx(120_000, abs=4_000)

    @pytest.mark.parametrize(("hours", "found"), [(1.5, False), (3, True)])
    def test_short_flat_part_is_not_a_plateau(self, hours, found):
        loss = points(lambda step: power_law(min(step, 2e4)), noise=0.002, hours=hours)
        assert (flat_since(loss, 0) is not None) == found

    @pytest.mark.parametrize(("share", "found"), [(0.9, False), (0.6, True)])
    def test_flat_part_with_few_steps_is_not_a_plateau(self, share, found):
        loss = points(lambda step: power_law(min(step, share * STEPS)), noise=0.002, hours=48)
        assert (flat_since(loss, 0) is not None) == found

    def test_curve_with_few_values_is_not_a_plateau(self):
        assert flat_since(points(lambda step: power_law(min(step, 2e4)), noise=0, count=20), 0) is None
        assert flat_since([], 0) is None


# -- a night of four hours --------------------------------------------------------------------------------------------


def losses(loss=power_law, *, name="loss", until_min=240, rank=0, goal=None, flat_min=120, stepless=False, noise=0.005):
    chance = random.Random(3)
    return [
        Metric(
            at(minute + share),
            "run",
            1,
            rank,
            name,
            loss(100 * min(minute + share, flat_min) + 100) * (1 + chance.gauss(0, noise)),
            None if stepless else round(100 * (minute + share)),
            goal,
        )
        for minute in range(until_min)
        for share in (0.25, 0.5, 0.75)
    ]


def training(to_min=240, **more):
    windows = [w for rank in range(4) for w in steps(rank, 0, to_min, forward_ms=60_000)]
    return [*cluster(hours=4), *job(), *run(**more), *windows]


def findings_in(folder, records, from_min=0, to_min=240):
    with Store(folder, create=True) as store:
        store.append(list(records))
        build(store, Settings(), now_ms=at(240))
        return why(store, TimeRange(at(from_min), at(to_min)), Settings(), zone=UTC)["findings"]


def since_min(finding):
    from datetime import datetime

    return (datetime.fromisoformat(finding["from"]).timestamp() * 1000 - at(0)) / MINUTE


def test_training_on_a_flat_loss_is_a_plateau(tmp_path):
    (finding,) = findings_in(tmp_path, [*training(), *losses()])
    assert finding["cause"] == "plateau"
    assert finding["workload"]["uid"] == "llama"
    assert finding["culprit"] is None
    assert since_min(finding) == pytest.approx(120, abs=12)
    assert finding["to"] == iso(at(240), UTC)
    assert finding["gpu_ms"] == round(4 * (240 - since_min(finding)) * MINUTE)  # train, on all of its GPUs
    assert finding["confidence"] == 0.7
    assert finding["title"].startswith("llama has not lowered its loss for ")
    assert finding["evidence"][0].startswith("loss has stayed at 2.2")
    assert "per hour (between" in finding["evidence"][1]
    assert finding["evidence"][2].endswith("GPU-hours of training since")


def test_slowly_falling_loss_is_not_a_plateau(tmp_path):
    assert findings_in(tmp_path, [*training(), *losses(flat_min=1e9)]) == []


@pytest.mark.parametrize("stepless", [False, True])
@pytest.mark.parametrize("name", ["train_loss", "Loss", "train/loss", "nll_loss"])
def test_plateau_recognizes_names_of_losses(tmp_path, name, stepless):
    found = findings_in(tmp_path, [*training(), *losses(name=name, stepless=stepless)])
    assert [finding["cause"] for finding in found] == ["plateau"]


@pytest.mark.parametrize(("name", "goal"), [("lr", None), ("loss_scale", None), ("loss", "max")])
def test_other_metrics_are_not_a_plateau(tmp_path, name, goal):
    assert findings_in(tmp_path, [*training(), *losses(name=name, goal=goal)]) == []


def test_plateau_uses_the_training_loss(tmp_path):
    falling = losses(flat_min=1e9)
    assert findings_in(tmp_path, [*training(), *falling, *losses(name="val_loss")]) == []


def test_run_without_a_loss_has_no_plateau(tmp_path):
    assert findings_in(tmp_path, training()) == []


def test_nonfinite_loss_is_diverged_and_not_a_plateau(tmp_path):
    broken = [m._replace(value=math.nan) if m.time_ms > at(200) else m for m in losses()]
    reports = [event("nonfinite_loss", 200, 0, step=20_000)]
    assert [f["cause"] for f in findings_in(tmp_path, [*training(), *broken, *reports])] == ["diverged"]


def test_plateau_ends_with_the_run(tmp_path):
    records = [*training(220, ended_ms=at(220), outcome="succeeded"), *losses(until_min=220)]
    found = {finding["cause"]: finding for finding in findings_in(tmp_path, records)}
    assert found["plateau"]["to"] == iso(at(220), UTC)


def test_plateau_is_cut_at_the_time_range(tmp_path):
    (finding,) = findings_in(tmp_path, [*training(), *losses()], 150, 230)
    assert (finding["from"], finding["to"]) == (iso(at(150), UTC), iso(at(230), UTC))
    assert finding["gpu_ms"] == 4 * 80 * MINUTE


def test_plateau_is_not_found_before_its_start(tmp_path):
    assert findings_in(tmp_path, [*training(), *losses()], 0, 120) == []


def test_plateau_without_prices_is_found(tmp_path):
    records = [r for r in training() if not isinstance(r, Price)]
    (finding,) = findings_in(tmp_path, [*records, *losses()])
    assert finding["usd_micro"] is None
