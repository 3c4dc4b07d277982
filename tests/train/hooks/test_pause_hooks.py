"""Compilations and garbage collections as phases."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyrometer.train.hooks.pause_hooks import PauseHooks
from pyrometer.train.steps import ring
from pyrometer.train.steps.recorder import Recorder


@pytest.fixture
def hooks() -> SimpleNamespace:
    compiled: list[int] = []
    recorder = Recorder(ring.Ring.in_memory())
    rank = SimpleNamespace(recorder=recorder, compiled=lambda: compiled.append(1), compilations=compiled)
    return SimpleNamespace(rank=rank)


def test_only_full_collections_are_marked(hooks):
    collect = PauseHooks(hooks)._collection_hook()
    for generation in (0, 1):
        collect("start", {"generation": generation})
        assert not hooks.rank.recorder.inside
    collect("start", {"generation": 2})
    assert hooks.rank.recorder.phase == ring.GARBAGE
    collect("stop", {"generation": 2})
    assert hooks.rank.recorder.row[ring.GARBAGE] > 0
    assert not hooks.rank.recorder.inside


def test_collection_without_a_rank_is_ignored():
    PauseHooks(SimpleNamespace(rank=None))._collection_hook()("start", {"generation": 2})


def test_compilation_is_a_phase_and_is_reported(hooks):
    class CompilationCallbackHandler:
        def run_start_callbacks(self) -> str:
            return "started"

        def run_end_callbacks(self) -> str:
            return "ended"

    PauseHooks(hooks).install_dynamo(SimpleNamespace(CompilationCallbackHandler=CompilationCallbackHandler))
    handler = CompilationCallbackHandler()
    assert handler.run_start_callbacks() == "started"
    assert hooks.rank.recorder.phase == ring.COMPILE
    assert handler.run_end_callbacks() == "ended"
    assert hooks.rank.recorder.row[ring.COMPILE] > 0
    assert hooks.rank.compilations == [1]
    assert handler.run_end_callbacks() == "ended"  # without a start: the SDK began in between
    assert hooks.rank.compilations == [1]
