"""The steps that are in a model, over all attempts of a run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyrometer.answers.runs.effective_steps import RunHistory, SavedCheckpoint


@st.composite
def trainings(draw):
    """Attempts that each begin anew or from any checkpoint before, and save now and then: history and truth."""
    saved: list[tuple[SavedCheckpoint, list[tuple[int, int]]]] = []
    model: list[tuple[int, int]] = []
    begins = {}
    for attempt in range(1, draw(st.integers(1, 5)) + 1):
        begin, model = 0, []
        if saved and draw(st.booleans()):
            newest = {checkpoint.step: (checkpoint, held) for checkpoint, held in saved}  # of a step, the last one
            checkpoint, held = draw(st.sampled_from(sorted(newest.values())))
            begin, model = checkpoint.step, list(held)
        begins[attempt] = begin
        for step in range(begin, begin + draw(st.integers(1, 8))):
            model.append((attempt, step))
            if draw(st.booleans()):
                saved.append((SavedCheckpoint(attempt, step + 1, 0, None), list(model)))
    return RunHistory(begins, tuple(checkpoint for checkpoint, _ in saved)), saved, model


@given(training=trainings())
def test_checkpoint_contains_the_steps_of_the_attempts_it_resumed_from(training):
    history, saved, model = training
    every = {(attempt, step) for attempt, begin in history.begins.items() for step in range(begin, begin + 9)}
    for checkpoint, held in saved:
        assert {place for place in every if checkpoint in history.containing(*place)} == set(held)
    assert {place for place in every if history.counts(*place) and place[1] <= model[-1][1]} == set(model)


@given(begins=st.dictionaries(st.integers(1, 6), st.integers(0, 50), min_size=1), before=st.integers(0, 60))
def test_line_has_every_step_once(begins, before):
    parts = list(RunHistory(begins, ()).line(None, before))
    steps = [step for part in parts for step in range(part.from_step, part.to_step)]
    assert len(steps) == len(set(steps))
    assert sorted(steps) == list(range(min(begins.values()), before))
    assert [part.attempt for part in parts] == sorted((part.attempt for part in parts), reverse=True)
