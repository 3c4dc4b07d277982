"""The callback for Lightning. `tests/torch/test_lightning.py` has real Trainers."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

from pyrometer.train.run import boot, lightning
from pyrometer.train.steps.recorder import Recorder
from pyrometer.train.steps.ring import Ring


class Callback:
    """Like the base class of Lightning's callbacks."""


def test_callbacks_are_empty_without_a_target(monkeypatch):
    monkeypatch.setattr(boot, "_hooks", None)
    for variable in ("PYROMETER_ENDPOINT", "PYROMETER_SPOOL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(boot, "_init_arguments", {})
    assert lightning.callbacks() == []
    assert lightning.callbacks_of_pytorch_lightning() == []


def test_callback_marks_validations_in_the_recorder(monkeypatch):
    recorder = Recorder(Ring.in_memory())
    monkeypatch.setattr(boot, "_hooks", SimpleNamespace(rank=SimpleNamespace(recorder=recorder)))
    callback = lightning._callback(Callback)
    callback.on_validation_start(None, None)
    assert recorder.evaluating
    callback.on_validation_end(None, None)
    assert not recorder.evaluating


def test_callback_survives_errors_of_the_sdk(monkeypatch):
    monkeypatch.setattr(boot, "_hooks", SimpleNamespace(rank=SimpleNamespace(recorder=None)))
    lightning._callback(Callback).on_test_start(None, None)


def test_pickled_callback_is_a_plain_one():
    callback = pickle.loads(pickle.dumps(lightning._callback(Callback)))
    assert type(callback) is Callback
