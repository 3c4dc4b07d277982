"""Runs that compute the same have the same digest, and others have not."""

from __future__ import annotations

import sys

import pytest

from pyrometer.train.run.configuration import Configuration, arguments

torch = pytest.importorskip("torch", reason="make setup installs torch")


def test_arguments_omit_output_locations(tmp_path):
    words = ["data.batch=4", "logging.dir=z", "--lr", "1e-3", "--run_name=x", "--output-dir", "a", str(tmp_path), "-v"]
    assert arguments(words) == ["data.batch", "4", "--lr", "--lr", "1e-3", "--output-dir", "-v"]


def test_file_argument_is_compared_by_content(tmp_path):
    for name, text in (("one", "lr: 1"), ("two", "lr: 1"), ("three", "lr: 2")):
        (tmp_path / name).write_text(text)
    one, two, three = (arguments(["--config", str(tmp_path / name)]) for name in ("one", "two", "three"))
    assert one == two != three


def configured(monkeypatch, *words, seed=1, width=4, lr=0.1, ranks=2, samples=(1, 2), scheduled=False):
    monkeypatch.setattr(sys, "argv", [__file__, *words])
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(torch.nn.Linear(width, width).parameters(), lr=lr)
    configuration = Configuration(torch, optimizer, ranks)
    if scheduled:
        optimizer.param_groups[0]["lr"] = 0.0
    batches = [{"dataset": "Rows", "step": step, "micro_batch": 0, "samples": list(samples)} for step in range(4)]
    assert configuration.text(batches).endswith(f"seed {seed}, the first batches of Rows")
    return configuration.digest(batches)


def test_digest_is_stable_across_launches(monkeypatch):
    assert configured(monkeypatch) == configured(monkeypatch) == configured(monkeypatch, scheduled=True)


@pytest.mark.parametrize(
    "other",
    [{"seed": 2}, {"width": 5}, {"lr": 0.2}, {"ranks": 4}, {"samples": (1, 3)}],
    ids=lambda one: next(iter(one)),
)
def test_digest_differs_with_each_setting(monkeypatch, other):
    assert configured(monkeypatch) != configured(monkeypatch, **other)


def test_digest_differs_with_an_argument(monkeypatch):
    assert configured(monkeypatch, "--dropout", "0.1") != configured(monkeypatch, "--dropout", "0.2")
