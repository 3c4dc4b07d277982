"""The step numbers that a program or a framework shows, and the training steps whose data is behind a jump of the loss.

Real programs with one poisoned row. Each writes down in which steps it trained on that row.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.training_processes import command_answer, environment

pytestmark = [pytest.mark.heavy, pytest.mark.needs("transformers", "lightning", "wandb", "tensorboard")]

POISONED = "77"
DATA = f"""
import json, sys, warnings
warnings.filterwarnings("ignore")
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

out, *options = sys.argv[1:]
torch.manual_seed(5)
every, accumulation = map(int, options) if len(options) > 1 else (1, 1)
x = torch.randn(160 * accumulation, 8)  # 40 steps an epoch
y = x.sum(1)
x[{POISONED}] *= 1e4
truth = []

def loss_of(model, features, target, step):
    if features.abs().max() > 1000:
        truth.append(step)
    return nn.functional.huber_loss(model(features)[:, 0], target)
"""
TRANSFORMERS = """
import transformers

class Rows(Dataset):
    def __len__(self):
        return len(x)
    def __getitem__(self, row):
        return {"x": x[row], "labels": y[row]}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
    def forward(self, x, labels):
        return {"loss": loss_of(self.layer, x, labels, trainer.state.global_step)}

transformers.set_seed(5)
arguments = transformers.TrainingArguments(
    output_dir=out, num_train_epochs=6, per_device_train_batch_size=4, report_to=[],
    gradient_accumulation_steps=accumulation, logging_steps=every, logging_first_step=every > 1, use_cpu=True,
    disable_tqdm=True, save_strategy="no", remove_unused_columns=False, learning_rate=1e-3, seed=5,
)
trainer = transformers.Trainer(Net(), arguments, train_dataset=Rows())
trainer.train()
json.dump([[one["step"], one["loss"]] for one in trainer.state.log_history if "loss" in one], open(out + "/own", "w"))
"""
LIGHTNING = """
import lightning.pytorch as pl

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)
    def training_step(self, batch, number):
        loss = loss_of(self.layer, *batch, self.trainer.global_step)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss
    def validation_step(self, batch, number):
        self.log("val_loss", nn.functional.huber_loss(self.layer(batch[0])[:, 0], batch[1]))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-5)

pl.seed_everything(5)
rows, validation = TensorDataset(x, y), TensorDataset(x[:8], y[:8])
pl.Trainer(
    max_epochs=6, accelerator="cpu", devices=1, log_every_n_steps=every,
    logger=pl.loggers.CSVLogger(out, name="csv", version=0), enable_progress_bar=False, enable_model_summary=False,
    enable_checkpointing=False, accumulate_grad_batches=accumulation,
).fit(Module(), DataLoader(rows, batch_size=4, shuffle=True), DataLoader(validation, batch_size=4))
"""
LOOP = """
import pyrometer

(habit,) = options
if habit == "wandb":
    import wandb
    run = wandb.init(project="x", dir=out, settings=wandb.Settings(disable_git=True))
if habit == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(out)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batches = (batch for _ in range(6) for batch in DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True))
step, losses, batch = 0, [], next(batches)
while batch is not None:
    loss = loss_of(model, *batch, step)
    if habit == "late" and losses:
        pyrometer.log(loss=losses[-1])
    loss.backward()
    if habit == "before":
        pyrometer.log(loss=loss)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if habit != "ahead":
        batch = None
    else:
        batch = next(batches, None)
        pyrometer.log(loss=loss)
    losses.append(loss.item())
    step += 1
    if habit == "wandb":
        run.log({"loss": loss.item()}, step=step)
    elif habit == "tensorboard":
        writer.add_scalar("loss", loss.item(), torch.tensor(step))
    elif habit == "numbered":
        pyrometer.log(loss=loss.item(), step=step)
    elif habit == "scaled":
        pyrometer.log(loss=10 * loss.item())
    elif habit == "mean" and step % 10 == 0:
        pyrometer.log(loss=sum(losses[-10:]) / 10)
    elif habit == "some" and step % 3 == 0:
        pyrometer.log(loss=loss.item())
    if habit != "ahead":
        batch = next(batches, None)
"""
END = """
json.dump(truth, open(out + "/truth", "w"))
"""


def run(folder: Path, program: str, *options: object) -> SimpleNamespace:
    """A program under `pyrometer run`, and what is found about it afterwards."""
    path, data = folder / "program.py", folder / "data"
    path.write_text(DATA + program + END)
    variables = environment(None, PYROMETER_RUN="run", WANDB_MODE="offline", WANDB_SILENT="true")
    command = [sys.executable, str(path), str(folder), *map(str, options)]
    ran = subprocess.run(
        [sys.executable, "-m", "pyrometer", "run", "--no-gpus", "--data", str(data), "--", *command],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    text = subprocess.run(
        [sys.executable, "-m", "pyrometer", "lineage", "run", "--spikes", "--data", str(data)],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return SimpleNamespace(data=data, text=text, truth=json.loads((folder / "truth").read_text()))


def found(ran: SimpleNamespace, *metric: str) -> dict:
    """The jumps of a metric: each is about steps with the poisoned row, and no other row is singled out."""
    lineage = command_answer(ran.data, "lineage", "run", "--spikes", *metric)
    assert lineage["spikes"], lineage
    for spike in lineage["spikes"]:
        assert any(spike["first_step"] <= step <= spike["last_step"] for step in ran.truth), (spike, ran.truth)
        assert POISONED in {sample for update in spike["updates"] for sample in update["samples"]}
        assert {update["step"] for update in spike["updates"]} == {*range(spike["first_step"], spike["last_step"] + 1)}
    rows = lineage["suspects"]["rows"]
    most = max(row["spikes"] for row in rows)
    assert POISONED in {row["sample"] for row in rows if row["spikes"] == most} or lineage["suspects"]["total"] > len(
        rows
    )
    assert {row["sample"] for row in rows if row["stands_out"]} <= {POISONED}
    return lineage


def shown(ran: SimpleNamespace, name: str) -> list[tuple[int, float]]:
    return [(step, value) for step, _, value, *_ in command_answer(ran.data, "show", "run")["metrics"][name]]


@pytest.mark.parametrize(("every", "accumulation"), [(1, 1), (10, 1), (1, 4), (10, 4)])
def test_hugging_face_trainer_losses_are_attributed_to_their_steps(tmp_path, every, accumulation):
    ran = run(tmp_path, TRANSFORMERS, every, accumulation)
    own = [tuple(one) for one in json.loads((tmp_path / "own").read_text())]
    values = shown(ran, "loss")
    assert set(values) <= set(own)  # the Trainer's own numbers, and none of the losses that backward begins with
    assert every == 1 or values == own
    lineage = found(ran)
    lengths = {spike["last_step"] - spike["first_step"] + 1 for spike in lineage["spikes"]}
    assert lengths <= {1, every}
    if every == 1:
        assert all(spike["step"] == spike["first_step"] + 1 for spike in lineage["spikes"])
    if (every, accumulation) == (1, 1):
        assert lineage["suspects"]["rows"][0]["stands_out"]


@pytest.mark.parametrize(("every", "accumulation"), [(1, 1), (10, 1), (1, 4), (10, 4)])
def test_lightning_losses_are_attributed_to_their_steps(tmp_path, every, accumulation):
    ran = run(tmp_path, LIGHTNING, every, accumulation)
    with (tmp_path / "csv" / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in ("train_loss_step", "train_loss_epoch", "val_loss"):
        own = [(int(row["step"]), float(row[name])) for row in rows if row[name]]
        values = shown(ran, name)
        assert set(values) <= set(own)
        assert every == 1 or values == own
    sampled = [value for _, value in shown(ran, "train_loss_step")]
    assert accumulation > 1 or max(sampled[6:]) > 20
    if max(sampled[6:]) > 20:  # Lightning logs one step in some, and of that one the last micro-batch
        lineage = found(ran, "--metric", "train_loss_step")
        assert {spike["last_step"] - spike["first_step"] for spike in lineage["spikes"]} <= {0, every - 1}
        assert all(spike["step"] == spike["last_step"] for spike in lineage["spikes"])
        assert every * accumulation > 1 or lineage["suspects"]["rows"][0]["stands_out"]


@pytest.mark.parametrize("habit", ["before", "ahead", "late", "scaled", "some", "mean", "nothing"])
def test_unnumbered_losses_are_attributed_to_their_steps(tmp_path, habit):
    ran = run(tmp_path, LOOP, habit)
    lineage = found(ran)
    assert lineage["reason"] is None
    lengths = {spike["last_step"] - spike["first_step"] + 1 for spike in lineage["spikes"]}
    assert lengths == ({10} if habit == "mean" else {1})
    if habit not in ("mean", "some"):
        assert lineage["suspects"]["rows"][0]["stands_out"]
        assert f"Sample {POISONED} of TensorDataset is behind all" in ran.text


@pytest.mark.parametrize(
    ("habit", "source"), [("wandb", "W&B"), ("tensorboard", "TensorBoard"), ("numbered", "pyrometer.log")]
)
def test_program_step_numbers_leave_the_samples_unknown(tmp_path, habit, source):
    """As after `step += 1`: the number is that of the next step."""
    ran = run(tmp_path, LOOP, habit)
    lineage = command_answer(ran.data, "lineage", "run", "--spikes")
    assert lineage["spikes"]
    assert {spike["step"] for spike in lineage["spikes"]} <= {step + 1 for step in ran.truth}  # the program's own
    assert lineage["suspects"] == {"total": 0, "spikes": 0, "rows": []}
    assert [spike["updates"] for spike in lineage["spikes"]] == [[]] * len(lineage["spikes"])
    assert lineage["reason"] == (
        f"The step number was given to {source} by the program, and which training steps it stands for is unknown."
    )
    assert f"The samples behind it are unknown. {lineage['reason'][:40]}" in " ".join(ran.text.split())
    assert "TensorDataset" not in ran.text
