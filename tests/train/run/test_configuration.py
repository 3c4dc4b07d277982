"""Runs that compute the same have the same digest, and others have not."""

from __future__ import annotations

import sys

import pytest

from pyrometer.train.run.configuration import Configuration, arguments

torch = pytest.importorskip("torch", reason="make setup installs torch")


def test_arguments_say_what_is_computed_not_where_it_goes(tmp_path):
    told = ["data.batch=4", "logging.dir=z", "--lr", "1e-3", "--run_name=x", "--output-dir", "a", str(tmp_path), "-v"]
    assert arguments(told) == ["data.batch", "4", "--lr", "--lr", "1e-3", "--output-dir", "-v"]


def test_a_file_counts_by_its_content(tmp_path):
    for name, text in (("one", "lr: 1"), ("two", "lr: 1"), ("three", "lr: 2")):
        (tmp_path / name).write_text(text)
    one, two, three = (arguments(["--config", str(tmp_path / name)]) for name in ("one", "two", "three"))
    assert one == two != three


def configured(monkeypatch, *words, seed=1, width=4, lr=0.1, ranks=2, samples=(1, 2), scheduled=False):
    monkeypatch.setattr(sys, "argv", [__file__, *words])
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(torch.nn.Linear(width, width).parameters(), lr=lr)
    told = Configuration(torch, optimizer, ranks)
    if scheduled:
        optimizer.param_groups[0]["lr"] = 0.0
    batches = [{"dataset": "Rows", "step": step, "micro_batch": 0, "samples": list(samples)} for step in range(4)]
    assert told.text(batches).endswith(f"seed {seed}, the first batches of Rows")
    return told.digest(batches)


def test_the_same_has_the_same_digest_whatever_comes_later(monkeypatch):
    assert configured(monkeypatch) == configured(monkeypatch) == configured(monkeypatch, scheduled=True)


@pytest.mark.parametrize(
    "other",
    [{"seed": 2}, {"width": 5}, {"lr": 0.2}, {"ranks": 4}, {"samples": (1, 3)}],
    ids=lambda one: next(iter(one)),
)
def test_what_differs_in_anything_has_another(monkeypatch, other):
    assert configured(monkeypatch) != configured(monkeypatch, **other)


def test_an_argument_makes_a_difference(monkeypatch):
    assert configured(monkeypatch, "--dropout", "0.1") != configured(monkeypatch, "--dropout", "0.2")
