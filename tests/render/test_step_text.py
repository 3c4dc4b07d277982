"""One step on all ranks in text: waiting, the critical path, and the data behind it."""

from __future__ import annotations

import copy
from datetime import UTC

import pytest

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.trace import trace_step
from pyrometer.render.step_text import length, span_chain, step_lines
from pyrometer.render.why_text import plain
from tests.support.traced_run import RUN, TrainingRecords


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    with TrainingRecords().store(tmp_path_factory.mktemp("trained") / "data") as store:
        return trace_step(store, RUN, 70, TimeRange(0, 2**62), zone=UTC)


def test_step_lines_show_the_slow_rank_and_the_critical_path(answer):
    text = "\n".join(step_lines(answer, plain, 100))
    assert text.startswith(f"{RUN}, step 70: ")
    assert "3 ranks waited 24.0 ms for rank 2: its backward took 56.0 ms, 24.0 ms more than" in text
    assert "Critical path (" in text
    assert "▶ rank 2" in text
    assert "Attempt 1 also did this step: --attempt 1." in text


def test_step_lines_fit_their_width(answer):
    for width in (80, 120):
        bars = [line for line in step_lines(answer, plain, width) if "rank" in line and "·" in line]
        assert all(len(line) <= width for line in bars)


def test_step_lines_without_batches_say_that_data_is_unknown(answer):
    unknown = copy.deepcopy(answer)
    for rank in unknown["ranks"]:
        rank["batches"] = []
    assert "The data behind this step was not recorded." in list(step_lines(unknown, plain, 100))


def test_span_chain_ends_with_the_checkpoint():
    spans = [{"name": "data", "duration_ms": 2.0}, {"name": "forward", "duration_ms": 9.0}]
    checkpoint = {"step": 60, "attempt": 1}
    (line,) = span_chain(spans, checkpoint, plain, 100)
    assert line == f"  data {length(2.0)} → forward {length(9.0)} → checkpoint of step 60 (attempt 1)"
    assert list(span_chain([], None, plain, 100, lost=True)) == ["  its step was not traced → in no checkpoint"]
