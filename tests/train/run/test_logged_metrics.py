"""Values that the program logs to trackers, through the functions of small stand-ins."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyrometer.train.run import logged_metrics


def test_ray_worker_survives_an_error_of_the_sdk():
    class Module:
        class ThreadRunner:
            def run(self, target):
                return target()

    def fails(*_):
        raise OSError("of ours")

    hooks = SimpleNamespace(rank=SimpleNamespace(close=fails, failed=fails))
    logged_metrics._ray_worker(Module, None, hooks)
    assert Module.ThreadRunner().run(lambda: 7) == 7
    with pytest.raises(KeyError, match="of theirs"):
        Module.ThreadRunner().run(lambda: {}["of theirs"])


class Received:
    """Hooks whose rank keeps what it receives."""

    def __init__(self) -> None:
        self.values: list[tuple] = []
        self.tracked: dict[tuple[str, str], str] = {}
        self.rank = SimpleNamespace(log_received=lambda *values: self.values.append(values))


def test_flat_joins_nested_names_with_dots():
    assert logged_metrics._flat({"loss": 1, "train": {"acc": 2, "more": {"f1": 3}}}) == {
        "loss": 1,
        "train.acc": 2,
        "train.more.f1": 3,
    }


@pytest.mark.parametrize(
    ("step", "number"),
    [(3, 3), (3.0, 3), ("3", None), (None, None), (float("inf"), None), (SimpleNamespace(is_cuda=True), None)],
)
def test_step_number_is_an_int_or_unknown(step, number):
    assert logged_metrics._step_number(step) == number


def test_values_logged_to_wandb_are_received():
    class Run:
        def log(self, data: dict, step: int | None = None) -> str:
            return "logged"

    hooks = Received()
    logged_metrics.install(hooks, "wandb.sdk.wandb_run", SimpleNamespace(Run=Run))
    assert Run().log({"loss": 0.5}, step=4) == "logged"
    assert hooks.values == [({"loss": 0.5}, 4, "wandb", False)]


def test_error_of_the_call_reaches_the_program_and_nothing_is_received():
    class Run:
        def log(self, data: dict) -> None:
            raise TypeError("of theirs")

    hooks = Received()
    logged_metrics.install(hooks, "wandb.sdk.wandb_run", SimpleNamespace(Run=Run))
    with pytest.raises(TypeError, match="of theirs"):
        Run().log({"loss": 0.5})
    assert hooks.values == []


def test_install_ignores_unknown_modules():
    logged_metrics.install(Received(), "json", SimpleNamespace())
