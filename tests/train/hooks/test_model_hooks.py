"""Forwards, backwards and losses of a model in this process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")

from pyrometer.train.steps import ring  # noqa: E402
from tests.support.training_processes import watch_rank  # noqa: E402


def train(model, optimizer, steps: int, *, scaler=None) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = model(torch.ones(2, 4)).square().mean()
        losses.append(loss.item())
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    return losses


def test_forward_and_backward_are_phases(tmp_path):
    model = torch.nn.Linear(4, 1)
    with watch_rank(tmp_path) as watched:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 6)
        watched.close()
        amounts = watched.amounts(4)
    assert amounts["forward"] > 0
    assert amounts["backward"] > 0


def test_call_without_gradients_is_an_evaluation(tmp_path):
    model = torch.nn.Linear(4, 1)
    with watch_rank(tmp_path) as watched:
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 6)
        with torch.no_grad():
            model(torch.ones(2, 4))
        assert watched.rank.recorder.evaluating
        assert watched.rank.recorder.row[ring.EVALUATE] > 0


def test_scaled_loss_is_reported_without_its_scale(tmp_path):
    model = torch.nn.Linear(4, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch_rank(tmp_path) as watched:
        losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), 4, scaler=scaler)
        reported = [message["value"] for message in watched.messages("metric") if message["name"] == "loss"]
    assert reported == pytest.approx(losses)


def test_model_works_unwatched_after_the_rank_has_ended(tmp_path):
    model = torch.nn.Linear(4, 1)
    with watch_rank(tmp_path) as watched:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train(model, optimizer, 4)
        watched.close()
        train(model, optimizer, 2)
    assert watched.rank.recorder.count == 4
