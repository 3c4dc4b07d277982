"""The lifecycle of a run in text: attempts, events, and traced steps."""

from __future__ import annotations

import copy
from datetime import UTC

import pytest

from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.runs.lifecycle import trace_run
from pyrometer.render.lifecycle_text import MAX_ATTEMPTS, run_lines
from pyrometer.render.why_text import plain
from tests.support.traced_run import RUN, TrainingRecords


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    with TrainingRecords().store(tmp_path_factory.mktemp("trained") / "data") as store:
        return trace_run(store, RUN, TimeRange(0, 2**62), zone=UTC)


def test_run_lines_show_attempts_events_and_traces(answer):
    lines = list(run_lines(answer, plain, 100))
    text = "\n".join(lines)
    assert lines[0].startswith(f"{RUN}: 2 attempts in ")
    assert "✗ failed" in text
    assert "20 of them repeated later" in text
    assert "resumed at 60" in text
    assert f"pyrometer trace {RUN} --step" in lines[-1]


def test_run_lines_fold_frequent_events(answer):
    folded = copy.deepcopy(answer)
    attempt = folded["attempts"][0]
    checkpoint = next(piece for piece in attempt["pieces"] if piece["name"] == "checkpoint")
    attempt["pieces"] += [copy.deepcopy(checkpoint) for _ in range(5)]
    assert any(" × checkpoint, " in line for line in run_lines(folded, plain, 100))


def test_run_lines_limit_the_number_of_attempts(answer):
    many = copy.deepcopy(answer)
    many["attempts"] = [copy.deepcopy(many["attempts"][0]) for _ in range(MAX_ATTEMPTS + 3)]
    assert "  … and 3 earlier attempts: `-o json`." in list(run_lines(many, plain, 100))


def test_run_lines_without_traces_say_so(answer):
    untraced = copy.deepcopy(answer)
    untraced["traced"]["count"] = 0
    assert list(run_lines(untraced, plain, 100))[-1] == "No step of this run was traced."
