"""Counting the floating-point operations of one micro-batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")

from pyrometer.train.steps.flops import countable, counter  # noqa: E402


def test_counter_adds_up_the_operations_of_forward_and_backward():
    model = torch.nn.Linear(8, 4, bias=False)
    with counter() as counting:
        model(torch.ones(2, 8)).sum().backward()
    assert counting.total == 2 * (2 * 2 * 8 * 4)  # forward, and the gradient of the weights


def test_countable_accepts_plain_modules_only():
    assert countable([torch.nn.Linear(2, 2)])
    assert not countable([])
    compiled = torch.nn.Linear(2, 2)
    compiled._compiled_call_impl = lambda: None
    assert not countable([torch.nn.Sequential(compiled)])


def test_countable_rejects_distributed_parameters():
    parameter = type("DTensor", (), {})()
    module = SimpleNamespace(modules=list, parameters=lambda: [parameter])
    assert not countable([module])
