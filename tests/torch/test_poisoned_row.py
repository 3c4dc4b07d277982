"""From a spike of the loss to the row of the data behind it, with one command before the training and one after it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.training_processes import environment

pytest.importorskip("torch", reason="make setup installs torch")

POISONED = 77
TRAIN = f"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
x[{POISONED}] *= 1e4
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for _ in range(3):
    for features, target in DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True):
        loss = nn.functional.huber_loss(model(features), target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
"""


@pytest.mark.heavy
def test_lineage_names_the_row_behind_loss_spikes(tmp_path):
    """Three epochs, in three orders: what all jumps have in common is that row."""
    (tmp_path / "train.py").write_text(TRAIN)
    data = ["--data", str(tmp_path / "data")]
    pyrometer = [sys.executable, "-m", "pyrometer"]

    def run(*arguments: str) -> str:
        ran = subprocess.run(
            [*pyrometer, *arguments],
            env=environment(None, PYROMETER_RUN="poisoned"),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    run("run", "--no-gpus", *data, "--", sys.executable, str(tmp_path / "train.py"))
    answer = json.loads(run("lineage", "poisoned", "--spikes", *data, "-o", "json"))
    assert answer["values"] >= 119
    assert len(answer["spikes"]) == 3
    first = answer["suspects"]["rows"][0]
    assert (first["sample"], first["spikes"], first["of"], first["consumed"]) == (str(POISONED), 3, 3, 3)
    assert [row["sample"] for row in answer["suspects"]["rows"] if row["spikes"] == 3] == [str(POISONED)]
