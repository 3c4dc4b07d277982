"""Writers of run summaries: unavailable trackers are tried again, and deleted runs block nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from pyrometer.account.query.answer_json import iso
from pyrometer.act.summary_writers import MlflowSummaryWriter, WandbSummaryWriter
from pyrometer.collect.trackers.mlflow import Mlflow
from tests.support.clusters import at
from tests.support.kube_server import free_port
from tests.support.run_summaries import FINDING, shown


class RecordingAnswers:
    """Answers of a server that records the questions."""

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
    """MLflow with a deleted run `gone`, which can be read but not written."""

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


def test_wandb_writer_reports_the_error_of_its_client_process():
    async def looked() -> WandbSummaryWriter:
        writer = WandbSummaryWriter(RecordingAnswers(), lambda: (f"http://127.0.0.1:{free_port()}", "secret"))
        await writer.write_changed()
        return writer

    writer = asyncio.run(looked())
    assert writer.counts == {"failed": 1}
    assert "does not answer" in (writer.trouble or "")
    assert "secret" not in (writer.trouble or "")
