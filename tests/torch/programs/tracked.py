"""Trains on several ranks. Rank 0 logs its loss to MLflow and W&B in every step, and waits for a file at the end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mlflow
import torch
import torch.distributed as dist
import wandb
from torch import nn
from torch.nn.parallel import DistributedDataParallel

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
run = None
if rank == 0:
    mlflow.set_experiment("both-worlds")
    run = wandb.init(project="both-worlds", dir=folder, config={"lr": 0.01}, settings=wandb.Settings(disable_git=True))
    mlflow.start_run(run_name="bold-carp")
    mlflow.log_param("lr", 0.01)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    loss = (model(torch.randn(16, 8)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        mlflow.log_metric("loss", loss.item(), step=step)
        run.log({"loss": loss.item()}, step=step)
    time.sleep(0.02)
if rank == 0:
    (folder / "trained").touch()
    deadline_s = time.monotonic() + 60
    while not (folder / "go").exists() and time.monotonic() < deadline_s and "--wait" in sys.argv:
        mlflow.log_metric("loss", loss.item(), step=steps)
        time.sleep(0.2)
    mlflow.end_run()
    run.finish()
dist.barrier()
dist.destroy_process_group()
