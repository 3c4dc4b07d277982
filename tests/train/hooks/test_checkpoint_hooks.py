"""Saves and loads as checkpoints."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyrometer.train.hooks.checkpoint_hooks import CheckpointHooks, _path_in, _step_in, _steps_of_optimizer
from pyrometer.train.steps import ring
from pyrometer.train.steps.recorder import Recorder


class Rank:
    """A rank that keeps what the hooks report."""

    def __init__(self) -> None:
        self.recorder = Recorder(ring.Ring.in_memory())
        self.saved: list[str] = []
        self.restored: list[tuple] = []
        self.checkpoints = SimpleNamespace(
            saved=lambda path, duration_ns: self.saved.append(path),
            restored=lambda path, duration_ms, step: self.restored.append((path, step)),
        )


@pytest.fixture
def rank() -> Rank:
    return Rank()


@pytest.fixture
def hooks(rank) -> CheckpointHooks:
    def disable(error: BaseException) -> None:
        raise error

    return CheckpointHooks(SimpleNamespace(rank=rank, disable=disable))


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        (({}, "/c/last.pt"), {}, "/c/last.pt"),
        (({},), {"f": Path("/c/last.pt")}, "/c/last.pt"),
        (({}, b"/c/last.pt"), {}, ""),
        (({}, io.BytesIO()), {}, ""),
        (({}, SimpleNamespace(name="/c/open.pt", write=print)), {}, "/c/open.pt"),
    ],
)
def test_path_in_finds_paths_and_open_files(args, kwargs, path):
    assert _path_in(args, kwargs) == path


@pytest.mark.parametrize(
    ("state", "step"),
    [({"step": 4}, 4), ({"global_step": 7, "step": 4}, 7), ({"step": True}, None), ({"step": "4"}, None), ([4], None)],
)
def test_step_in_reads_common_names(state, step):
    assert _step_in(state) == step


def test_steps_of_optimizer_are_the_largest_of_its_parameters():
    on_gpu = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    assert _steps_of_optimizer({"state": {0: {"step": 3.0}, 1: {"step": 5.0}, 2: {"step": on_gpu}}}) == 5
    assert _steps_of_optimizer({"state": {0: {"momentum_buffer": None}}}) is None


def test_save_is_a_phase_and_is_reported_by_the_outer_call(rank, hooks):
    def save(obj: object, f: str) -> str:
        assert rank.recorder.phase == ring.CHECKPOINT
        return hooks._save(lambda *_: "written", obj, f)

    assert hooks._save(save, {}, "/c/last.pt") == "written"
    assert rank.saved == ["/c/last.pt"]
    assert rank.recorder.row[ring.CHECKPOINT] > 0


def test_failed_save_raises_the_error_of_the_program(hooks):
    def save(obj: object) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        hooks._save(save, {})


def test_restored_optimizer_has_the_path_and_step_of_the_loaded_file(rank, hooks):
    hooks._load(lambda f: {"step": 40}, "/c/last.pt")
    hooks._restore(lambda optimizer, state: None, object(), {"state": {}})
    hooks._restore(lambda optimizer, state: None, object(), {"state": {0: {"step": 41}}})
    assert rank.restored == [("/c/last.pt", 40), ("/c/last.pt", 41)]


def test_state_without_a_loaded_file_is_restored_only_if_it_has_content(rank, hooks):
    hooks._restore(lambda optimizer, state: None, object(), {"state": {}})
    assert rank.restored == []
    hooks._restore(lambda optimizer, state_dict: None, object(), state_dict={"state": {0: {"step": 2}}})
    assert rank.restored == [("", 2)]
