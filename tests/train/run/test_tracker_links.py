"""Links between runs of experiment trackers and this run."""

from __future__ import annotations

from types import SimpleNamespace

from pyrometer.train.run import tracker_links
from pyrometer.train.run.outbox import Outbox


def test_without_secrets_removes_user_password_and_query():
    assert (
        tracker_links.without_secrets("https://u:p@mlflow.example.com:5000/x?token=t")
        == "https://mlflow.example.com:5000/x"
    )
    assert tracker_links.without_secrets("sqlite:////data/mlflow.db") == "sqlite:////data/mlflow.db"
    assert tracker_links.without_secrets("postgresql://u:p/a?s#s@db/x") == "postgresql://db/x"


def test_unknown_tracker_version_does_not_break_its_init():
    class Module:
        @staticmethod
        def init() -> str:
            return "a run without anything that a run has"

    hooks = SimpleNamespace(rank=None, tracked={})
    tracker_links.wandb_runs(Module, hooks)
    assert Module.init() == "a run without anything that a run has"


def test_record_run_reports_each_run_once():
    outbox = Outbox()
    hooks = SimpleNamespace(rank=SimpleNamespace(outbox=outbox), tracked={})
    for _ in range(2):
        tracker_links.record_mlflow_run(hooks, "r1", "http://me:word@mlflow:5000")
    ((kind, event),) = outbox.take()
    assert (kind, event["kind"], event["reason"]) == ("event", "mlflow_run", "r1")
    assert event["message"] == "at http://mlflow:5000"


def test_record_run_without_a_rank_is_kept_for_later():
    hooks = SimpleNamespace(rank=None, tracked={})
    tracker_links.record_run(hooks, "wandb_run", "x/1", "offline")
    assert hooks.tracked == {("wandb_run", "x/1"): "offline"}


def test_names_are_those_of_the_rank(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    identity = {"launch": "ab12", "rank": 0, "host": "box", "pid": 7}
    hooks = SimpleNamespace(rank=SimpleNamespace(identity=identity))
    expected = {"pyrometer.run": "ab12", "pyrometer.launch": "ab12", "pyrometer.host": "box"}
    assert tracker_links.names(hooks, {}) == expected
    identity["rank"] = 1  # rank 0 decides the name of the launch
    assert tracker_links.names(hooks, {}) == {"pyrometer.host": "box"}


def test_names_before_the_rank_are_configured_or_of_the_next_launch(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    found = tracker_links.names(SimpleNamespace(rank=None), {"run": "sft", "experiment": "e"})
    assert (found["pyrometer.run"], found["pyrometer.experiment"]) == ("sft", "e")
    assert found["pyrometer.launch"]


def test_report_result_survives_errors_of_the_report():
    def fails(_: object) -> None:
        raise OSError("of the SDK")

    class Module:
        @staticmethod
        def start() -> int:
            return 7

    tracker_links.report_result(Module, "start", fails)
    tracker_links.report_result(Module, "missing", fails)
    assert Module.start() == 7
