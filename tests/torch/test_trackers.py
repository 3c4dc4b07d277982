"""Values that the program logs to W&B, MLflow and TensorBoard are reported, and the call returns as before."""

from __future__ import annotations

import inspect
import math
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="make setup installs torch")
import pyrometer  # noqa: E402
from pyrometer.train.run import boot, identity  # noqa: E402
from tests.support.training_processes import environment, install_hooks, watch_rank  # noqa: E402

heavy = pytest.mark.heavy
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the libraries


def values(watched):
    return [(m["name"], m["step"], m["value"]) for m in watched.messages("metric")]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    install_hooks()
    wandb = pytest.importorskip("wandb", reason="make test-all installs wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    wandb.teardown()  # its client reads variables once: another test may have used it
    return wandb


@pytest.fixture
def mlflow(tmp_path):
    install_hooks()
    mlflow = pytest.importorskip("mlflow", reason="make test-all installs mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("test")
    return mlflow


@heavy
def test_wandb_log_is_reported_and_unchanged(offline, tmp_path):
    with watch_rank(tmp_path) as watched:
        with pytest.raises(offline.Error):
            offline.log({"too": 1.0})  # before init
        run = offline.init(project="x", settings=offline.Settings(disable_git=True))
        assert offline.log({"loss": 0.5, "train": {"acc": torch.tensor(0.75)}, "text": "no number"}) is None
        run.log({"loss": 0.25}, step=7)
        run.log(data={"loss": math.nan}, step=8)
        with pytest.raises(TypeError):
            run.log(3.0)
        run.finish()
        with pytest.raises(offline.Error):
            run.log({"too": 2.0})
        logged = values(watched)
    assert [one for one in logged if one[2] == one[2]] == [("loss", 0, 0.5), ("train.acc", 0, 0.75), ("loss", 7, 0.25)]
    assert [one[:2] for one in logged if one[2] != one[2]] == [("loss", 8)]
    assert "data" in inspect.signature(type(run).log).parameters


@heavy
def test_mlflow_log_functions_are_reported_and_unchanged(mlflow, tmp_path):
    from mlflow.entities import Metric

    with watch_rank(tmp_path) as watched:
        with mlflow.start_run() as run:
            mlflow.log_metric("loss", 0.5, step=3)
            mlflow.log_metrics({"loss": 0.25, "val_acc": 0.5}, step=4)
            mlflow.log_metric(key="late", value=1.0)
            client = mlflow.MlflowClient()
            client.log_metric(run.info.run_id, "f1", 0.1, step=5)
            client.log_batch(run.info.run_id, metrics=[Metric("loss", 0.125, 0, 6), Metric("system/cpu", 9.0, 0, 6)])
            with pytest.raises(mlflow.MlflowException):
                mlflow.log_metric("bad", "text")
        messages = watched.messages("metric")
        history = sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, "loss"))
    assert [(m["name"], m["step"], m["value"], m.get("goal")) for m in messages] == [
        ("loss", 3, 0.5, "min"),
        ("loss", 4, 0.25, "min"),
        ("val_acc", 4, 0.5, "max"),
        ("late", 0, 1.0, None),
        ("f1", 5, 0.1, "max"),
        ("loss", 6, 0.125, "min"),
    ]
    assert history == [(3, 0.5), (4, 0.25), (6, 0.125)]


@heavy
@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_tensorboard_scalars_are_reported(tmp_path, module):
    install_hooks()
    if module == "torch.utils.tensorboard":
        pytest.importorskip("tensorboard", reason="make test-all installs tensorboard")
    board = pytest.importorskip(module, reason=f"pip install {module}")
    with watch_rank(tmp_path) as watched:
        with board.SummaryWriter(str(tmp_path / "board")) as writer:
            writer.add_scalar("train/loss", torch.tensor(0.5), 1)
            writer.add_scalar(tag="train/loss", scalar_value=0.25, global_step=2)
            writer.add_scalars("acc", {"a": 0.5, "b": 0.75}, 2)
            writer.add_text("note", "nothing to count", 2)
        logged = values(watched)
    assert logged == [("train/loss", 1, 0.5), ("train/loss", 2, 0.25), ("acc/a", 2, 0.5), ("acc/b", 2, 0.75)]


@heavy
def test_value_logged_to_two_trackers_is_reported_once(offline, mlflow, tmp_path):
    with watch_rank(tmp_path) as watched:
        run = offline.init(project="x", settings=offline.Settings(disable_git=True))
        with mlflow.start_run():
            for step in range(3):
                run.log({"loss": 0.5})
                mlflow.log_metric("loss", 0.5, step=step)
                mlflow.log_metric("other", 0.5, step=step)
                watched.rank.recorder.count += 1
        run.finish()
        logged = values(watched)
        watched.rank.recorder.count = 0
    assert logged == [(name, step, 0.5) for step in range(3) for name in ("loss", "other")]


def test_pyrometer_log_accepts_tensors_goals_and_counts(tmp_path, monkeypatch):
    with watch_rank(tmp_path) as watched:
        monkeypatch.setattr(boot, "_hooks", watched.hooks)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            pyrometer.log(loss=loss, tokens=100, samples=5, size=step, goals={"size": "max"})
        pyrometer.log(step=40, loss=torch.ones(3))  # more than one number
        messages = watched.messages("metric")
        tokens, counted = watched.ring.column(14, 0, 4), watched.ring.column(13, 0, 4)
        assert (list(tokens), list(counted)) == ([100] * 4, [5] * 4)
    assert [(m["name"], m["step"], m.get("goal")) for m in messages if m["name"] == "size"] == [
        ("size", step, "max") for step in range(4)
    ]
    assert [m["step"] for m in messages if m["name"] == "loss"][-4:] == [0, 1, 2, 3]


def test_backward_loss_is_reported_until_the_program_logs_a_loss(tmp_path, monkeypatch):
    with watch_rank(tmp_path) as watched:
        monkeypatch.setattr(boot, "_hooks", watched.hooks)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(6):
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            if step == 2:
                pyrometer.log(val_loss=1.0)  # not the loss that is minimized
            if step >= 4:
                pyrometer.log(train_loss=loss.item())
        steps = [(m["name"], m["step"]) for m in watched.messages("metric")]
    assert sorted(steps) == [
        *(("loss", step) for step in range(4)),
        ("train_loss", 4),
        ("train_loss", 5),
        ("val_loss", 2),
    ]


def test_losses_that_jump_are_reported_in_a_long_run(tmp_path):
    with watch_rank(tmp_path) as watched:
        for step in range(20_000):
            watched.rank.metrics._loss(1.0 + 0.01 * (step % 7) + 50.0 * (step in (9_000, 15_000)), step)
        logged = {m["step"]: m["value"] for m in watched.messages("metric")}
    assert {9_000, 15_000, *range(500)} <= set(logged)
    assert len(logged) < 600


# -- which run of the tracker it is ------------------------------------------------------------------------------------


def met(watched, kind):
    return [(event["reason"], event["message"]) for event in watched.messages("event") if event["kind"] == kind]


@pytest.fixture
def wanted(monkeypatch):
    """As in a process that is watched: MLflow's plug-in asks whether it is."""
    monkeypatch.setattr(boot, "_hooks", install_hooks())
    monkeypatch.setattr(boot, "_init_arguments", {"experiment": "sft"})


@heavy
def test_mlflow_run_and_rank_name_each_other(mlflow, tmp_path, wanted):
    with mlflow.start_run(run_name="early") as early:  # before there is a rank
        expected = identity.next_launch()
    tags = mlflow.get_run(early.info.run_id).data.tags
    assert tags["pyrometer.experiment"] == "sft"
    assert tags["pyrometer.run"] == tags["pyrometer.launch"] == expected  # what it will be called
    client = mlflow.MlflowClient()
    elsewhere = client.create_run("1")  # as Lightning does: no plug-in is asked
    with watch_rank(tmp_path) as watched:
        with mlflow.start_run(run_name="bold") as run:
            mlflow.log_metric("loss", 0.5)
        with mlflow.start_run(run_id=early.info.run_id):  # gone on with
            pass
        client.log_metric(elsewhere.info.run_id, "loss", 0.25)
        tags = mlflow.get_run(run.info.run_id).data.tags
        assert (tags["pyrometer.run"], tags["pyrometer.launch"]) == ("test", watched.rank.identity["launch"])
        found = dict(met(watched, "mlflow_run"))
    ids = [early.info.run_id, run.info.run_id, elsewhere.info.run_id]
    assert set(ids) <= set(found)
    assert found[run.info.run_id] == f"“bold” in experiment {run.info.experiment_id} at {mlflow.get_tracking_uri()}"


@heavy
def test_wandb_run_and_rank_name_each_other(offline, tmp_path, wanted):
    with watch_rank(tmp_path) as watched:
        run = offline.init(project="x", config={"lr": 0.1}, settings=offline.Settings(disable_git=True))
        run.log({"loss": 0.5})
        assert dict(run.config) == {"lr": 0.1}  # programs hand it on to their models
        summary = {name: run.summary[name] for name in ("pyrometer.run", "pyrometer.launch")}
        run.finish()
        assert summary == {"pyrometer.run": "test", "pyrometer.launch": watched.rank.identity["launch"]}
        ((named, words),) = (one for one in met(watched, "wandb_run") if one[0].endswith(run.id))
    assert named.endswith(f"x/{run.id}")
    assert words.endswith(f"-{run.id}")
    assert "offline in /" in words


@heavy
def test_mlflow_finds_the_installed_plugin_which_adds_no_tags_without_the_sdk(tmp_path):
    """As `pip install` leaves it: the entry point that pyproject.toml declares, in the metadata of a distribution."""
    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    group = "mlflow.run_context_provider"
    metadata = tmp_path / "pyrometer_here-0.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pyrometer-here\nVersion: 0.0\n")
    listed = "".join(f"{name} = {place}\n" for name, place in declared[group].items())
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{listed}")
    program = (
        "import sys, mlflow\nfrom mlflow.tracking.context import registry\n"
        "found = [type(one).__module__ for one in registry._run_context_provider_registry]\n"
        "print('pyrometer.train.run.tracker_links' in found, 'torch' in sys.modules, "
        "'pyrometer.run' in registry.resolve_tags())"
    )
    for spool, says in ((None, "True False False"), (tmp_path / "spool", "True False True")):
        variables = environment(spool, PYTHONWARNINGS="ignore")
        variables["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
        logged = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True
        )
        assert logged.stdout.strip() == says


IMPORTED_FIRST = """
import wandb, torch, pyrometer
pyrometer.init(endpoint="http://127.0.0.1:9", run="mine")
torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
run = wandb.init(project="x", mode="offline", settings=wandb.Settings(disable_git=True, silent=True))
print(run.summary["pyrometer.run"])
run.finish()
"""


@heavy
def test_tracker_imported_before_the_sdk_is_linked(tmp_path):
    pytest.importorskip("wandb", reason="make test-all installs wandb")
    logged = subprocess.run(
        [sys.executable, "-c", IMPORTED_FIRST],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(None, WANDB_DIR=str(tmp_path), PYROMETER_FLUSH_S="0", TMPDIR=str(tmp_path)),
    )
    assert (logged.returncode, logged.stdout) == (0, "mine\n"), logged.stderr
