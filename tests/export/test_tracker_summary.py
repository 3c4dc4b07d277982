"""What a tracker's run is told of itself, and that it is told once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from datetime import UTC
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from pyrometer.account.query.answer_json import iso
from pyrometer.act.summary_writers import MlflowSummaryWriter, WandbSummaryWriter
from pyrometer.collect.trackers.common import TrackedRun
from pyrometer.collect.trackers.mlflow import FoundRun, Mlflow
from pyrometer.export.mlflow import new_metrics
from pyrometer.export.tracker_summary import MAX_TAG_CHARS, RunSummary, summarize_run
from pyrometer.export.wandb import wandb_summary
from tests.support.clusters import at
from tests.support.kube_server import free_port
from tests.support.training_processes import SOURCES

WORKLOAD = {"uid": "llama", "kind": "PyTorchJob", "namespace": "ml", "name": "llama"}
FINDING = {"id": "f1", "cause": "hang", "usd_micro": 2_000_000, "title": "llama hung for 4 min.", "workload": WORKLOAD}


def shown(ended_min: float | None = 60, **more):
    """The answer of `show`, of a run that pays a dollar every ten minutes and speaks twice a minute."""
    points = [
        [step, at(step / 2), 1 / (step + 1), 60_000 * step, 50_000 * step] for step in range(2 * int(ended_min or 60))
    ]
    return {
        "run": "carp",
        "experiment": "sft",
        "team": "nlp",
        "workload": WORKLOAD,
        "attempts": 2,
        "outcome": "succeeded",
        "ended": None if ended_min is None else iso(at(ended_min), UTC),
        "gpu_ms": 7_200_000,
        "gpu_hours": 2.0,
        "usd_micro": 6_000_001,
        "usd": 6.0,
        "goodput": 0.75,
        "steps": 119,
        "metrics": {"loss": points, "lr": points[:1]},
        "states": [
            {"state": "train", "family": "useful", "gpu_ms": 5_400_000, "usd_micro": 4_500_001},
            {"state": "hang", "family": "waste", "gpu_ms": 1_800_000, "usd_micro": 1_500_000},
        ],
        **more,
    }


def run(run_summary: RunSummary | None = None) -> FoundRun:
    """A run in MLflow, stamped before or not."""
    tracked = TrackedRun("mlflow", "abc", "carp", None, at(0), None, None)
    points = new_metrics(run_summary, FoundRun(tracked, {}, {})) if run_summary else []
    last = {}
    for point in points:  # as MLflow has it: the last step, then the last time
        last[point["key"]] = max(
            last.get(point["key"], (0, -1, 0.0)), (point["timestamp"], point["step"], point["value"])
        )
    return FoundRun(tracked, run_summary.tags if run_summary else {}, last)


def test_summary_has_owner_cost_and_findings():
    run_summary = summarize_run(shown(), [FINDING], at_ms=at(90), public_url="https://p.example.com/")
    assert run_summary.tags == {
        "pyrometer.run": "carp",
        "pyrometer.workload": "PyTorchJob ml/llama",
        "pyrometer.experiment": "sft",
        "pyrometer.team": "nlp",
        "pyrometer.attempts": "2",
        "pyrometer.outcome": "succeeded",
        "pyrometer.causes": "hang",
        "pyrometer.findings": "$2.00 hang: llama hung for 4 min.",
        "pyrometer.url": "https://p.example.com/run?run=carp",
    }
    assert run_summary.metrics == {
        "pyrometer/wasted_usd": 1.5,
        "pyrometer/goodput": 0.75,
        "pyrometer/attempts": 2.0,
        "pyrometer/share/train": 0.75,
        "pyrometer/share/hang": 0.25,
    }
    assert run_summary.totals == {"pyrometer/gpu_hours": 2.0, "pyrometer/usd": 6.000001}
    assert (run_summary.at_ms, run_summary.step) == (at(60), 119)


def test_summary_has_one_cost_point_per_minute():
    run_summary = summarize_run(shown(), [], at_ms=at(90))
    assert [(cost.time_ms, cost.step) for cost in run_summary.cost_curve] == [
        (at(minute), 2 * minute) for minute in range(60)
    ]
    assert [cost.usd for cost in run_summary.cost_curve] == pytest.approx([0.1 * minute for minute in range(60)])


def test_summary_of_a_running_run_omits_the_last_minutes():
    run_summary = summarize_run(shown(ended_min=None, outcome="running"), [], at_ms=at(30))
    assert max(cost.time_ms for cost in run_summary.cost_curve) == at(28)
    assert run_summary.totals == {}


def test_mlflow_gets_only_new_tags_and_points():
    run_summary = summarize_run(shown(), [FINDING], at_ms=at(90))
    assert len(new_metrics(run_summary, run())) == 2 * 60 + 5 + 2
    assert new_metrics(run_summary, run(run_summary)) == []
    early = summarize_run(shown(ended_min=None), [], at_ms=at(30))
    later = [point for point in new_metrics(run_summary, run(early)) if point["key"] == "pyrometer/usd"]
    assert [point["timestamp"] for point in later] == [at(minute) for minute in range(29, 61)]


def test_mlflow_changed_total_becomes_the_latest_point():
    run_summary = summarize_run(shown(), [], at_ms=at(90))
    dearer = summarize_run(shown(usd_micro=7_000_000), [], at_ms=at(90))
    (point,) = new_metrics(dearer, run(run_summary))
    assert point == {"key": "pyrometer/usd", "value": 7.0, "timestamp": at(60) + 1, "step": 119}


def test_summary_without_a_price_has_no_dollars():
    unpriced = [[step, time_ms, value, gpu_ms, None] for step, time_ms, value, gpu_ms, _ in shown()["metrics"]["loss"]]
    states = [{**state, "usd_micro": None} for state in shown()["states"]]
    run_summary = summarize_run(
        shown(usd_micro=None, usd=None, metrics={"loss": unpriced}, states=states), [], at_ms=at(90)
    )
    assert not any("usd" in point["key"] for point in new_metrics(run_summary, run()))


def test_many_findings_fit_into_one_tag():
    many = [{**FINDING, "title": "x" * 1_000, "usd_micro": number} for number in range(100)]
    tag = summarize_run(shown(), many, at_ms=at(90)).tags["pyrometer.findings"]
    assert len(tag) <= MAX_TAG_CHARS


def test_wandb_summary_has_tags_metrics_and_totals():
    run_summary = summarize_run(shown(), [FINDING], at_ms=at(90))
    summary = wandb_summary(run_summary)
    assert summary["pyrometer/usd"] == 6.000001
    assert summary["pyrometer/stamped_ms"] == at(60)
    assert set(run_summary.tags) < set(summary)


class RecordingAnswers:
    """A server's answers."""

    def __init__(self) -> None:
        self.questions: list[str] = []

    async def __call__(self, what, parameters):
        self.questions.append(what)
        row = {**shown(), "trackers": [{"tracker": "mlflow", "id": "abc"}, {"tracker": "wandb", "id": "x/y"}]}
        return {
            "runs": {"rows": [row, {**row, "ended": iso(at(-3_000), UTC)}]},
            "why": {"window": {"to": iso(at(90), UTC)}, "findings": [FINDING]},
            "show": row,
        }[what]


def test_unavailable_tracker_costs_one_question_and_is_tried_again():
    async def twice() -> MlflowSummaryWriter:
        mlflow = Mlflow(f"http://127.0.0.1:{free_port()}")
        writer = MlflowSummaryWriter(mlflow, answers)
        await writer.write_changed()
        await writer.write_changed()
        await mlflow.close()
        return writer

    answers = RecordingAnswers()
    writer = asyncio.run(twice())
    assert writer.counts == {"failed": 2}
    assert "does not answer" in (writer.trouble or "")
    assert answers.questions == ["runs", "why", "show"] * 2


class Deleted(BaseHTTPRequestHandler):
    """What MLflow answers of runs, of which `gone` was deleted: it may be read, and takes nothing."""

    stamped: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        run_id = self.path.rpartition("=")[2]
        self.say(200, {"run": {"info": {"run_id": run_id, "start_time": at(0)}}})

    def do_POST(self) -> None:
        run_id = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["run_id"]
        if run_id == "gone":
            words = "The run gone must be in the 'active' state. Current state is deleted."
            self.say(400, {"error_code": "INVALID_PARAMETER_VALUE", "message": words})
        else:
            self.stamped.append(run_id)
            self.say(200, {})

    def say(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def test_deleted_run_does_not_block_the_summaries_of_other_runs():
    class Several(RecordingAnswers):
        async def __call__(self, what, parameters):
            answer = await super().__call__(what, parameters)
            if what == "runs":
                row = answer["rows"][0]
                ids = ("gone", "there")
                return {"rows": [{**row, "trackers": [{"tracker": "mlflow", "id": one}]} for one in ids]}
            return answer

    async def twice() -> MlflowSummaryWriter:
        mlflow = Mlflow(f"http://127.0.0.1:{server.server_port}")
        writer = MlflowSummaryWriter(mlflow, Several())
        await writer.write_changed()
        await writer.write_changed()
        await mlflow.close()
        return writer

    with ThreadingHTTPServer(("127.0.0.1", 0), Deleted) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        writer = asyncio.run(twice())
        server.shutdown()
    assert Deleted.stamped == ["there"]
    assert writer.counts == {"refused": 1, "sent": 1}
    assert writer.trouble is None


class Wandb(BaseHTTPRequestHandler):
    """What W&B's server would answer to its client, for one run."""

    summary: ClassVar[dict[str, Any]] = {"loss": 0.5}
    changes: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        variables = request.get("variables") or {}
        viewer = {"id": "1", "entity": "us", "username": "u", "email": "e", "flags": "{}", "teams": {"edges": []}}
        answer: dict[str, Any] = {"viewer": viewer}
        if "mutation" in request.get("query", ""):
            self.changes.append(variables["id"])
            self.summary.update(json.loads(variables["summaryMetrics"]))
            answer = {"upsertBucket": {"bucket": {"id": variables["id"]}}}
        elif "run(" in request.get("query", ""):
            named = {
                "id": "r1",
                "name": variables["name"],
                "displayName": "carp",
                "state": "finished",
                "projectId": "1",
            }
            texts = {"config": "{}", "systemMetrics": "{}", "summaryMetrics": json.dumps(self.summary)}
            found = {**named, **texts, "tags": [], "user": {"name": "u", "username": "u"}, "internalId": "aW50"}
            found |= dict.fromkeys(("sweepName", "group", "jobType", "commit", "description", "notes", "historyKeys"))
            found |= {"readOnly": False, "createdAt": "2026-11-16T00:00:00", "heartbeatAt": "2026-11-16T00:00:00"}
            answer = {"project": {"internalId": "cDE=", "run": found if variables["name"] == "abc" else None}}
        body = json.dumps({"data": answer}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


STAMPING = """
import sys
sys.path[:0] = [".", "tests/export"]
from test_stamps import FINDING, shown, at
from pyrometer.export.tracker_summary import summarize_run
from pyrometer.export.wandb import write_summaries_online
run_summary = summarize_run(shown(), [FINDING], at_ms=at(90))
for _ in range(2):
    print(*write_summaries_online({"us/vision/abc": run_summary, "us/vision/gone": run_summary}))
"""


@pytest.mark.heavy
def test_wandb_client_changes_the_summary_of_a_run_once(tmp_path):
    pytest.importorskip("wandb", reason="make test-all installs wandb")
    with ThreadingHTTPServer(("127.0.0.1", 0), Wandb) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        variables = {
            "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}",
            "WANDB_API_KEY": "0" * 40,
            "WANDB_DIR": str(tmp_path),
            "HOME": str(tmp_path),
            "PYTHONPATH": str(SOURCES),
        }
        result = subprocess.run(
            [sys.executable, "-c", STAMPING],
            env={**os.environ, **variables},
            cwd=SOURCES.parent,
            text=True,
            capture_output=True,
            check=False,
        )
        server.shutdown()
    assert result.stdout.splitlines() == ["1 1", "1 1"], result.stderr
    assert Wandb.changes == ["r1"]
    assert Wandb.summary["loss"] == 0.5
    assert Wandb.summary["pyrometer/usd"] == 6.000001
    assert Wandb.summary["pyrometer.findings"] == "$2.00 hang: llama hung for 4 min."


def test_wandb_writer_reports_the_error_of_its_client_process():
    async def looked() -> WandbSummaryWriter:
        writer = WandbSummaryWriter(RecordingAnswers(), lambda: (f"http://127.0.0.1:{free_port()}", "secret"))
        await writer.write_changed()
        return writer

    writer = asyncio.run(looked())
    assert writer.counts == {"failed": 1}
    assert "does not answer" in (writer.trouble or "")
    assert "secret" not in (writer.trouble or "")
