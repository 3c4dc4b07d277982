"""What catching a finding would have saved: never more than it cost, never before anybody could have known."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.query.sums import Sum, added
from pyrometer.causes.hang import LIMITS_MS
from pyrometer.causes.straggler import ELAPSED
from pyrometer.findings.counterfactual import caught, saved_usd_micro
from pyrometer.model.units import round_rows
from pyrometer.simulate.jobs import Activity, Effect, Job, JobAttempt
from pyrometer.simulate.rank_steps import steps_of
from pyrometer.train.run.stall_limits import LIMITS_S
from tests.support.clusters import MINUTE, all_ranks, at, cluster, event, explain, job, minutes, only_finding, run

# -- when, and how much -----------------------------------------------------------------------------------------------

PRICES = st.sampled_from([None, 0, 1, 2_990_001, 40_000_000])


@st.composite
def claims(draw):
    """What a finding claims: parts in the order of time, priced or not, to be saved or not."""
    places = sorted(draw(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=12, unique=True)))
    parts = []
    for minute, saves in places:
        ms, price = draw(st.integers(1, 10**9)), draw(PRICES)
        parts.append(Sum((minute * MINUTE, saves), ms, ms * (price or 0), ms if price is None else 0))
    return parts


early, late = st.integers(0, 12 * MINUTE), st.integers(8 * MINUTE, 32 * MINUTE)


@given(claims(), early, late, early | st.none(), st.integers(0, 2 * 10**9), late)
def test_saved_time_is_after_the_detection(parts, from_ms, to_ms, known_ms, least_ms, later_ms):
    def enough(so_far):
        return so_far.gpu_ms >= least_ms

    at_ms, saved = caught(parts, MINUTE, from_ms, to_ms, known_ms, enough)
    assert at_ms >= max(from_ms, to_ms if known_ms is None else known_ms)
    before = added((), [part for part in parts if part.key[0] + MINUTE <= at_ms])
    assert enough(before) or at_ms >= to_ms
    after = [part for part in parts if part.key[0] >= at_ms and part.key[1]]
    assert saved == added((), after if at_ms < to_ms else [])
    assert before.gpu_ms + saved.gpu_ms <= added((), parts).gpu_ms
    known_later = caught(parts, MINUTE, from_ms, to_ms, max(later_ms, known_ms or to_ms), enough)
    assert known_later.at_ms >= at_ms
    assert known_later.saved.gpu_ms <= saved.gpu_ms  # who knows later saves no more


@given(st.lists(claims(), min_size=1, max_size=5), early)
def test_saved_dollars_are_part_of_the_cost(found, known_ms):
    wholes = [added((), parts) for parts in found]
    for parts, whole, micro in zip(found, wholes, round_rows([w.ms_price for w in wholes]), strict=True):
        saved = caught(parts, MINUTE, 0, 40 * MINUTE, known_ms, lambda so_far: True).saved
        stated_micro = saved_usd_micro(whole, micro, saved)
        nothing_priced = saved.gpu_ms > 0 and saved.unpriced_gpu_ms == saved.gpu_ms
        assert (stated_micro is None) == nothing_priced
        assert 0 <= (stated_micro or 0) <= micro
        assert saved_usd_micro(whole, micro, whole) == (None if whole.unpriced_gpu_ms == whole.gpu_ms else micro)
        assert saved_usd_micro(whole, None, saved) is None


def test_total_savings_are_the_sum_of_the_findings(tmp_path):
    """An ongoing hang, and before it steps that another attempt repeated: none of those could be saved."""
    ended = run(ended_ms=at(40), outcome="failed")
    again = [*run(attempt=2, started_min=41, resumed_step=3000), *all_ranks(41, 60, attempt=2, first_step=3000)]
    stuck = [event("stuck", 60, rank, attempt=2, step=4899, reason="forward") for rank in range(4)]
    answer = explain(tmp_path, [*cluster(), *job(), *ended, *all_ranks(0, 40), *again, *stuck])
    assert {finding["cause"] for finding in answer["findings"]} == {"hang", "lost_work"}
    assert (
        only_finding("lost_work", answer)["what_if"]["detected"] == minutes(41, 0)[0]
    )  # when the next attempt resumed
    assert only_finding("lost_work", answer)["what_if"]["saved_gpu_ms"] == 0
    saved = answer["saved_if_caught"]
    hung = only_finding("hang", answer)["what_if"]
    assert (saved["gpu_ms"], saved["usd_micro"]) == (hung["saved_gpu_ms"], hung["saved_usd_micro"])
    assert saved["gpu_ms"] == 4 * 59 * MINUTE
    assert saved["sentence"] == "Acting as soon as each problem was detectable would have saved $14 of $17."


def test_detection_of_a_hang_waits_for_ten_slow_steps(tmp_path):
    steps = all_ranks(0, 40, step_max_us=45_000_000)
    stuck = [event("stuck", 40, rank, step=3999, reason="forward") for rank in range(4)]
    finding = only_finding("hang", explain(tmp_path, [*cluster(), *job(), *run(), *steps, *stuck]))
    assert finding["what_if"]["detect_s"] == 450  # ten of them


def test_hang_limits_are_those_of_the_sdk():
    assert {phase: limit / 1000 for phase, limit in LIMITS_MS.items()} == LIMITS_S


# -- without the slow rank --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def elapsed():
    """The time of steps, and what they would have taken without a rank, of windows with each rank's own time."""
    with duckdb.connect() as connection:

        def of(windows, slowest):
            """A window is how long all ranks take, and of that each rank's exposed communication."""
            rows, now_ms = [], 0
            for number, (length_ms, comm_ms) in enumerate(windows):
                rows += [(rank, 10 * number, now_ms, now_ms + length_ms, ms) for rank, ms in enumerate(comm_ms)]
                now_ms += length_ms
            connection.execute(
                "CREATE OR REPLACE TABLE step_window AS SELECT 'run' AS run, 1 AS attempt, unnest($1) AS rank, "
                "unnest($2) AS first_step, 10 AS steps, unnest($3) AS time_ms, unnest($4) AS to_ms, "
                "unnest($5) AS comm_ms",
                [list(column) for column in zip(*rows, strict=True)],
            )
            connection.execute(
                "CREATE OR REPLACE TABLE stretch AS SELECT 0 AS number, 'run' AS run, 1 AS attempt, "
                f"{slowest} AS slowest, 0 AS from_ms, {now_ms} AS to_ms"
            )
            ((_, ms, without_ms),) = connection.execute(ELAPSED).fetchall()
            return ms, without_ms

        yield of


@st.composite
def stepping(draw):
    """Windows of some ranks that do their own part, wait for the slowest of them, and communicate."""
    ranks = draw(st.integers(2, 5))
    windows = []
    for _ in range(draw(st.integers(1, 5))):
        own = draw(st.lists(st.integers(1, 10_000), min_size=ranks, max_size=ranks))
        together = draw(st.integers(0, 2_000))
        windows.append((max(own) + together, [max(own) - ms + together for ms in own]))
    return ranks, windows


@given(stepping(), st.data())
def test_elapsed_without_a_rank_is_not_longer(elapsed, steps, data):
    ranks, windows = steps
    slowest = data.draw(st.integers(0, ranks - 1))
    ms, without_ms = elapsed(windows, slowest)
    assert ms == sum(length for length, _ in windows)
    assert 0 <= without_ms <= ms
    # it gives back what all others wait for it, in the windows in which they do
    waits = [min(c for rank, c in enumerate(comm) if rank != slowest) - min(comm) for _, comm in windows]
    assert ms - without_ms == sum(waits)


@given(st.integers(2, 6), st.integers(1, 10_000), st.integers(0, 2_000), st.integers(1, 5))
def test_elapsed_without_one_of_equal_ranks_is_unchanged(elapsed, ranks, own_ms, together_ms, count):
    ms, without_ms = elapsed([(own_ms + together_ms, [together_ms] * ranks)] * count, 0)
    assert ms == without_ms


@given(st.integers(2, 6), st.integers(1_000, 10_000), st.floats(1.01, 4))
def test_elapsed_without_a_slow_rank_saves_its_slowdown(elapsed, ranks, own_ms, factor):
    slow_ms = round(own_ms * factor)
    ms, without_ms = elapsed([(slow_ms, [0, *[slow_ms - own_ms] * (ranks - 1)])], 0)
    assert without_ms / ms == pytest.approx(1 / factor, rel=0.001)


@pytest.mark.parametrize(("size", "phase"), [(0.2, "forward"), (0.6, "data")])
def test_elapsed_agrees_with_the_simulated_slow_rank(elapsed, size, phase):
    """Steps as simulated nights have them, with their noise: without the rank they take what they would have taken."""
    length_ms, rank = 30 * MINUTE, 3
    stretch = Activity("steps", 0, length_ms)
    attempt = JobAttempt(1, [], [], [], [stretch], effects=[Effect("slow", 0, length_ms, size, (rank,), phase)])
    job_ = Job("job", "Job", "ml", "nlp", "job", "ada", "queue", pods=2, gpus=4, created_ms=0, attempts=[attempt])
    steps = steps_of(np.random.default_rng(7), job_, attempt, np.ones(8), 0, length_ms, 30_000)
    windows = [
        (int(over - begin), [round(ms) for ms in steps.wait[:, n] + steps.comm[:, n]])
        for n, (begin, over) in enumerate(zip(steps.starts, steps.ends, strict=True))
    ]
    own = steps.data + steps.copy + steps.forward + steps.backward
    truth = sum(np.delete(own, rank, 0).max(0) + steps.comm[0] + steps.optimizer[0])
    ms, without_ms = elapsed(windows, rank)
    assert ms == length_ms
    assert without_ms == pytest.approx(truth, rel=0.0002)
    assert without_ms / ms == pytest.approx(1 / (1 + size), rel=0.03)
