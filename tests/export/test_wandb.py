"""Run summaries in Weights & Biases: their values, and the real client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from pyrometer.export.tracker_summary import summarize_run
from pyrometer.export.wandb import wandb_summary
from tests.support.clusters import at
from tests.support.run_summaries import FINDING, shown
from tests.support.training_processes import SOURCES


def test_wandb_summary_has_tags_metrics_and_totals():
    run_summary = summarize_run(shown(), [FINDING], at_ms=at(90))
    summary = wandb_summary(run_summary)
    assert summary["pyrometer/usd"] == 6.000001
    assert summary["pyrometer/stamped_ms"] == at(60)
    assert set(run_summary.tags) < set(summary)


class Wandb(BaseHTTPRequestHandler):
    """The answers of the W&B server to its client, for one run."""

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
        """Silences the log."""


STAMPING = """
import sys
sys.path.insert(0, ".")
from pyrometer.export.tracker_summary import summarize_run
from pyrometer.export.wandb import write_summaries_online
from tests.support.clusters import at
from tests.support.run_summaries import FINDING, shown
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
