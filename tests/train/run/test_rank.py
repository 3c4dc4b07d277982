"""A training rank in this process. `tests/torch` has ranks in processes of their own."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")

from pyrometer.train.steps import ring  # noqa: E402
from tests.support.training_processes import watch_rank  # noqa: E402


def train(steps: int = 4) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_rank_reports_its_run_windows_and_outcome(tmp_path):
    with watch_rank(tmp_path) as watched:
        train()
        messages = watched.close()
    (window,) = (fields for kind, fields in messages if kind == "window")
    assert (window["first_step"], window["steps"], window["samples"]) == (1, 3, 6)
    runs = [fields for kind, fields in messages if kind == "run"]
    assert "first_step_ms" in {name for fields in runs for name in fields}
    assert runs[-1]["outcome"] == "succeeded"
    assert watched.rank.identity["device"] == "cpu"


def test_closed_rank_ignores_a_second_close(tmp_path):
    with watch_rank(tmp_path) as watched:
        assert watched.close()
        count = len(list((watched.spool / "out").iterdir()))
        watched.rank.close()
        assert len(list((watched.spool / "out").iterdir())) == count
        assert watched.ring.view[ring.ENDED] == 1


def test_failed_rank_has_its_exception_and_outcome(tmp_path):
    with watch_rank(tmp_path) as watched:
        train(2)
        watched.rank.failed(ValueError("bad row"))
        messages = watched.close()
    assert [fields["reason"] for _, fields in messages if fields.get("kind") == "exception"] == ["ValueError"]
    assert [fields["outcome"] for _, fields in messages if "outcome" in fields] == ["failed"]


def test_log_counts_samples_and_reports_the_other_values(tmp_path):
    with watch_rank(tmp_path) as watched:
        watched.rank.log({"samples": 6, "val_loss": 0.5}, 3, {"val_loss": "min"})
        watched.rank.log({"samples": 4}, None, None)
        assert watched.rank.recorder.row[ring.SAMPLES] == 10
        (metric,) = watched.messages("metric")
    assert (metric["name"], metric["value"], metric["step"], metric["goal"]) == ("val_loss", 0.5, 3, "min")


def test_framework_names_itself_and_its_first_step(tmp_path):
    with watch_rank(tmp_path) as watched:
        watched.rank.framework_begins("lightning", 40)
        assert watched.rank.identity["framework"] == "lightning"
        assert watched.rank.steps.number(0) == 40


def test_sdk_failure_is_an_event(tmp_path):
    with watch_rank(tmp_path) as watched:
        watched.hooks.disable(ZeroDivisionError("of the SDK"))
        assert watched.hooks.rank is None
        events = watched.messages("event")
    assert [event["reason"] for event in events if event["kind"] == "sdk_error"] == ["ZeroDivisionError"]


def test_nonfinite_loss_is_an_event_of_its_step(tmp_path):
    with watch_rank(tmp_path, first_step=100) as watched:
        watched.rank.log({"loss": math.nan}, None, None)
        events = watched.messages("event")
    assert [(event["kind"], event["step"]) for event in events if "finite" in event["kind"]] == [
        ("nonfinite_loss", 100)
    ]
