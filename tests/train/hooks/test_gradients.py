"""The last gradient of a model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")

from pyrometer.train.hooks.gradients import LastGradients  # noqa: E402


@pytest.fixture
def ready() -> list[int]:
    return []


@pytest.fixture
def gradients(ready) -> LastGradients:
    recorder = SimpleNamespace(ready=lambda: ready.append(1))
    return LastGradients(SimpleNamespace(rank=SimpleNamespace(recorder=recorder)))


def test_ready_is_called_once_per_backward_after_the_first(gradients, ready):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    gradients.watch(model)
    gradients.watch(model)
    assert len(gradients.searching) == 1
    model(torch.ones(2, 4)).sum().backward()
    gradients.search()
    assert gradients.searching == []
    assert ready == []
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    assert ready == [1, 1]


def test_model_without_a_backward_is_still_searched(gradients):
    gradients.watch(torch.nn.Linear(4, 1))
    gradients.search()
    assert len(gradients.searching) == 1
    gradients.forget()
    assert gradients.searching == []
