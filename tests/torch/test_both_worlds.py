"""One training in MLflow (a real server), in W&B (offline) and in Pyrometer: all of them have the same values."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import httpx2 as httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.cli import main
from pyrometer.collect.trackers.common import TrackedPoint
from pyrometer.collect.trackers.mlflow import Mlflow
from pyrometer.serve.ingest.tracker_sync import MlflowFollower
from pyrometer.store import Store
from tests.support.kube_server import free_port
from tests.support.server_process import serving
from tests.support.training_processes import start_run, torchrun

pytest.importorskip("torch", reason="make setup installs torch")
PROGRAM = Path(__file__).parent / "programs" / "tracked.py"
STEPS = 80
pytestmark = [pytest.mark.heavy, pytest.mark.needs("mlflow", "wandb", "flask", "graphene")]


class Trained(NamedTuple):
    """A training that has ended, and where its records are."""

    data: Path
    folder: Path
    uri: str
    during: dict[str, Any]  # what was observed while it ran

    def mlflow(self) -> dict[str, Any]:
        return only_run(self.uri)

    def curve(self) -> list[tuple[int, int, float]]:
        """The loss in MLflow: step, time, value."""
        query = {"run_id": self.mlflow()["info"]["run_id"], "metric_key": "loss"}
        found = httpx.get(f"{self.uri}/api/2.0/mlflow/metrics/get-history", params=query).json()["metrics"]
        return sorted((one["step"], one["timestamp"], one["value"]) for one in found)


def only_run(uri: str) -> dict[str, Any]:
    """The only run in MLflow; empty while there is none."""
    query = {"experiment_ids": ["1"], "max_results": 10}
    runs = httpx.post(f"{uri}/api/2.0/mlflow/runs/search", json=query).json().get("runs", [])
    return runs[0] if runs else {}


def until(found: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    """Waits until the function returns something, and returns it."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    return value


@contextmanager
def tracking_server(folder: Path) -> Iterator[str]:
    """`mlflow server`, as it is installed."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    variables = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONWARNINGS": "ignore"}
    with (folder / "mlflow.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=variables, start_new_session=True)
    uri = f"http://127.0.0.1:{port}"

    def healthy() -> bool:
        assert process.poll() is None, (folder / "mlflow.log").read_text()[-2_000:]
        try:
            return httpx.get(f"{uri}/health").is_success
        except httpx.HTTPError:
            return False

    try:
        until(healthy)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)  # its own session: the server and its workers
        process.wait(timeout=30)


def gauges(client: httpx.Client) -> dict[str, dict[str, float]]:
    """The newest loss and step of each run, as Prometheus would scrape them."""
    wanted = ("pyrometer_run_step", "pyrometer_run_metric")
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            if sample.name in wanted and sample.labels.get("name", "loss") == "loss":
                found.setdefault(sample.labels["run"], {})[sample.name] = sample.value
    return {run: values for run, values in found.items() if len(values) == len(wanted)}


@contextmanager
def training(folder: Path) -> Iterator[Trained]:
    """Two ranks under `pyrometer run`, which log to MLflow and W&B, while a server runs."""
    data = folder / "data"
    with tracking_server(folder) as uri:
        variables = {
            "MLFLOW_TRACKING_URI": uri,
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "PYROMETER_RUN": "carp",
            "PYROMETER_EXPERIMENT": "both-worlds",
        }
        command = torchrun(PROGRAM, str(folder), str(STEPS), "--wait", ranks=2)
        process = start_run(command, "--data", str(data), **variables)
        try:
            # A file in the inbox before the server starts is from this machine, and its ranks have devices.
            until((folder / "trained").exists, 120.0)
            until(lambda: any((data / "inbox" / "otlp").glob("*.metrics.*")))
            with serving(data) as client:
                shown = until(lambda: gauges(client))
                seen_ms = time.time_ns() // 1_000_000
                tracked = only_run(uri)
                (folder / "go").touch()
                _, error = process.communicate(timeout=120)
                assert process.returncode == 0, error
        finally:
            process.kill()
            process.communicate()
        yield Trained(data, folder, uri, {"gauges": shown, "mlflow": tracked, "at_ms": seen_ms})


def printed(*arguments: str) -> str:
    """The output of a command, run in this process because a new one would take a second."""
    with redirect_stdout(io.StringIO()) as output, pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0
    return output.getvalue()


def answer(*arguments: str) -> Any:
    return json.loads(printed(*arguments, "-o", "json"))


# -- what must be true ------------------------------------------------------------------------------------------------


def loss_is_in_mlflow_and_prometheus_within_a_minute(trained):
    assert list(trained.during["gauges"]) == ["carp"]
    values = trained.during["gauges"]["carp"]
    (loss,) = (one for one in trained.during["mlflow"]["data"]["metrics"] if one["key"] == "loss")
    assert 0 < values["pyrometer_run_step"] <= STEPS
    assert values["pyrometer_run_metric"] > 0
    assert trained.during["at_ms"] - loss["timestamp"] < 60_000


def runs_of_trackers_and_of_pyrometer_name_each_other(trained):
    found = trained.mlflow()
    tags = {tag["key"]: tag["value"] for tag in found["data"]["tags"]}
    (row,) = answer("runs", "--data", str(trained.data))["rows"]
    assert (tags["pyrometer.run"], tags["pyrometer.experiment"]) == ("carp", "both-worlds")
    assert tags["pyrometer.host"]
    known = {one["tracker"]: one["id"] for one in row["trackers"]}
    assert known["mlflow"] == found["info"]["run_id"]
    (offline,) = (trained.folder / "wandb").glob("offline-run-*")
    assert known["wandb"].endswith(f"both-worlds/{offline.name.rpartition('-')[2]}")


def imported_values_are_equal_to_the_last_digit(trained):
    curve = trained.curve()
    printed("import", "mlflow", trained.uri, "--out", str(trained.folder / "of-mlflow"))
    shown = answer("show", trained.mlflow()["info"]["run_id"], "--data", str(trained.folder / "of-mlflow"))
    assert sorted((step, time_ms, value) for step, time_ms, value, *_ in shown["metrics"]["loss"]) == curve
    assert (shown["experiment"], shown["outcome"]) == ("both-worlds", "succeeded")
    printed("import", "wandb", str(trained.folder), "--out", str(trained.folder / "of-wandb"))
    (row,) = answer("runs", "--data", str(trained.folder / "of-wandb"))["rows"]
    of_wandb = answer("show", row["run"], "--data", str(trained.folder / "of-wandb"))["metrics"]["loss"]
    steps = {step: value for step, _, value in curve if step < STEPS}
    assert {step: value for step, _, value, *_ in of_wandb} == steps


def import_into_the_folder_of_the_run_adds_nothing(trained):
    before = answer("show", "carp", "--data", str(trained.data))
    outputs = [printed("import", "mlflow", trained.uri, "--out", str(trained.data))]
    outputs.append(printed("import", "wandb", str(trained.folder), "--out", str(trained.data)))
    assert all("1 joined by records of their processes" in text for text in outputs)
    assert len(answer("runs", "--data", str(trained.data))["rows"]) == 1
    assert answer("show", "carp", "--data", str(trained.data)) == before


def server_stamps_the_run(trained):
    stamping = {"PYROMETER_MLFLOW_TRACKING_URI": trained.uri, "PYROMETER_MLFLOW_STAMP": "yes"}
    with serving(trained.data, PYROMETER_PUBLIC_URL="https://pyrometer.example.com", **stamping) as client:
        until(lambda: "pyrometer/goodput" in {one["key"] for one in trained.mlflow()["data"]["metrics"]}, 30.0)
        assert 'pyrometer_tracker_stamps_total{outcome="sent",tracker="mlflow"} 1.0' in client.get("/metrics").text
        assert client.get("/readyz").json()["shortcomings"] == []
    found = trained.mlflow()["data"]
    tags = {tag["key"]: tag["value"] for tag in found["tags"]}
    assert tags["pyrometer.workload"] == "Run local/carp"
    assert tags["pyrometer.url"] == "https://pyrometer.example.com/run?run=carp"
    assert {"pyrometer.findings", "pyrometer.causes", "pyrometer.attempts", "pyrometer.team"} <= set(tags)


def manual_stamp_has_dollars_and_is_idempotent(trained):
    stamping = ("export", "mlflow", "--tracking-uri", trained.uri, "--data", str(trained.data), "--price", "2.5")
    assert printed(*stamping) == "1 run stamped.\n"
    row = answer("show", "carp", "--data", str(trained.data), "--price", "2.5")
    found = trained.mlflow()["data"]
    values = {one["key"]: one["value"] for one in found["metrics"]}
    assert values["pyrometer/usd"] == row["usd_micro"] / 1e6 > 0
    assert values["pyrometer/gpu_hours"] == row["gpu_ms"] / 3_600_000
    assert values["pyrometer/goodput"] == row["goodput"]
    shares = {name: value for name, value in values.items() if name.startswith("pyrometer/share/")}
    assert sum(shares.values()) == pytest.approx(1.0)
    printed(*stamping)
    assert trained.mlflow()["data"] == found


def wandb_client_reads_the_summary_of_a_stamped_run(trained):
    from wandb.proto.wandb_internal_pb2 import Record

    from pyrometer.collect.trackers.wandb import records

    place = trained.folder / "wandb"
    (offline,) = place.glob("offline-run-*")
    before = (offline / f"run-{offline.name.rpartition('-')[2]}.wandb").read_bytes()
    stamping = ("export", "wandb", "--wandb-dir", str(place), "--data", str(trained.data), "--price", "2.5")
    assert printed(*stamping).startswith("1 run stamped.")
    printed(*stamping)  # nothing is new
    (part,) = set(place.glob("offline-run-*")) - {offline}
    assert (place / "latest-run").resolve() == offline.resolve()
    with next(part.glob("*.wandb")).open("rb") as stream:
        read = [Record.FromString(record) for record in records(stream)]
    own_run = next(record.run for record in read if record.HasField("run"))
    assert (own_run.project, own_run.resume) == ("both-worlds", True)
    summary = {item.key: item.value_json for record in read for item in record.summary.update if item.key}
    row = answer("show", "carp", "--data", str(trained.data), "--price", "2.5")
    assert float(summary["pyrometer/usd"]) == row["usd_micro"] / 1e6
    assert json.loads(summary["pyrometer.run"]) == "carp"
    assert (offline / f"run-{offline.name.rpartition('-')[2]}.wandb").read_bytes() == before
    listed = subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--dry-run"],
        cwd=trained.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert part.name in listed.stderr + listed.stdout


def server_reads_only_new_values(trained):
    """Runs of another program, made with MLflow's REST API, which began before the follower."""
    ask = httpx.Client(base_url=f"{trained.uri}/api/2.0/mlflow/")
    begun_ms = time.time_ns() // 1_000_000 - 600_000
    experiment = ask.post("experiments/create", json={"name": "others"}).json()["experiment_id"]
    made = ask.post("runs/create", json={"experiment_id": experiment, "start_time": begun_ms, "run_name": "old-trout"})
    run_id = made.json()["run"]["info"]["run_id"]

    def say(*steps: int) -> None:
        metrics = [{"key": "loss", "value": 1 / (s + 3), "timestamp": begun_ms + s, "step": s} for s in steps]
        assert ask.post("runs/log-batch", json={"run_id": run_id, "metrics": metrics}).is_success

    class CountingClient(Mlflow):
        requested: ClassVar[list[int]] = []  # how many values were known at each request

        async def history(self, run_id: str, name: str, after: int = 0) -> list[TrackedPoint]:
            self.requested.append(after)
            return await super().history(run_id, name, after)

    async def look() -> None:
        await following.look()

    with Store(trained.folder / "followed", create=True) as store, asyncio.Runner() as runner:
        following = MlflowFollower(store, asyncio.Lock(), mlflow := CountingClient(trained.uri))

        def read() -> list[tuple[int, float]]:
            runner.run(look())
            store.expose_all(["metric"])
            query = "SELECT step, value FROM metric WHERE run = ? ORDER BY ALL"
            return store.connection.execute(query, [run_id]).fetchall()

        say(*range(3))
        assert read() == [(s, 1 / (s + 3)) for s in range(3)]
        say(*range(3, 2_000, 2))
        assert len(read()) == 1_002
        assert CountingClient.requested[-1] == 3
        count = len(CountingClient.requested)
        assert len(read()) == 1_002
        assert len(CountingClient.requested) == count  # nothing is new, nothing is requested
        say(4)  # out of order, and the last word
        ask.post("runs/update", json={"run_id": run_id, "status": "FINISHED", "end_time": begun_ms + 60_000})
        assert read() == sorted((s, 1 / (s + 3)) for s in (0, 1, 2, 4, *range(3, 2_000, 2)))
        store.expose_all(["run"])
        ((outcome, ended_ms),) = store.connection.execute(
            "SELECT outcome, ended_ms FROM run WHERE run = ? ORDER BY time_ms DESC LIMIT 1", [run_id]
        ).fetchall()
        assert (outcome, ended_ms) == ("succeeded", begun_ms + 60_000)
        count = len(CountingClient.requested)
        read()
        assert len(CountingClient.requested) == count
        runner.run(mlflow.close())
    ask.close()


def test_trackers_and_pyrometer_have_the_same_runs_and_values(tmp_path):
    with training(tmp_path) as trained:  # once: it takes most of a minute
        loss_is_in_mlflow_and_prometheus_within_a_minute(trained)
        runs_of_trackers_and_of_pyrometer_name_each_other(trained)
        imported_values_are_equal_to_the_last_digit(trained)
        import_into_the_folder_of_the_run_adds_nothing(trained)
        server_stamps_the_run(trained)
        manual_stamp_has_dollars_and_is_idempotent(trained)
        wandb_client_reads_the_summary_of_a_stamped_run(trained)
        server_reads_only_new_values(trained)
