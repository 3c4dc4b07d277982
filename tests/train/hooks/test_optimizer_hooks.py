"""Steps of optimizers in this process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")

from pyrometer.train.hooks.optimizer_hooks import SETTLED_STEPS  # noqa: E402
from pyrometer.train.steps.ring import FLAGS, SKIPPED  # noqa: E402
from tests.support.training_processes import watch_rank  # noqa: E402


def test_every_optimizer_step_is_a_step_of_the_rank(tmp_path):
    model = torch.nn.Linear(4, 1)
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert watched.rank.recorder.expected == {id(optimizer)}
        for _ in range(SETTLED_STEPS + 1):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert watched.hooks.optimizer_steps == SETTLED_STEPS + 1
        assert list(watched.hooks.models.roots.modules.values()) == [model]
        watched.close()
    assert watched.rank.recorder.count == SETTLED_STEPS + 1


def test_step_that_the_scaler_skips_is_flagged(tmp_path):
    model = torch.nn.Linear(4, 1)
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for factor in (1.0, float("inf")):
            scaler.scale(model(torch.ones(2, 4)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        watched.close()
        flags = list(watched.ring.column(FLAGS, 0, 2))
    assert flags == [0, SKIPPED]


def test_ignored_steps_do_not_count(tmp_path):
    parameter = torch.nn.Parameter(torch.zeros(1))
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        parameter.grad = torch.zeros(1)
        watched.hooks.optimizers._ignore_steps(optimizer.step)
        assert watched.hooks.optimizer_steps == 0
        optimizer.step()
        assert watched.hooks.optimizer_steps == 1
