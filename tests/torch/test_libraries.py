"""The environment of the SDK's tests: the expected PyTorch version, and libraries that work next to it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXTRAS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]

# How to check that each library is installed: an import that reaches its compiled parts.
IMPORTS = {
    "transformers": "from transformers import Trainer",
    "accelerate": "from accelerate import Accelerator",
    "datasets": "from datasets import Dataset",
    "lightning": "from lightning import Trainer",
    "mlflow": "import mlflow",
    "sqlalchemy": "import sqlalchemy",
    "alembic": "import alembic",
    "flask": "import flask",
    "flask_cors": "import flask_cors",
    "graphene": "import graphene",
    "wandb": "import wandb",
    "playwright": "from playwright.sync_api import sync_playwright",
    "axe_playwright_python": "from axe_playwright_python.sync_playwright import Axe",
    "schemathesis": "import schemathesis",
    "nbclient": "from nbclient import NotebookClient",
    "ipykernel": "import ipykernel",
    "tensorboard": "from torch.utils.tensorboard import SummaryWriter",
    "ray": "from ray.train.torch import TorchTrainer",
    "moto": "from moto.server import ThreadedMotoServer",
    "torchdata": "from torchdata.stateful_dataloader import StatefulDataLoader",
    "webdataset": "import webdataset",
    "opentelemetry": "from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest",
    "rotel": "import rotel",
    "traceml_ai": "import traceml_ai",
}


def test_pytorch_has_the_pinned_version_and_trains_without_warnings():
    import torch

    (wanted,) = (one for one in EXTRAS["dev"] if one.startswith("torch"))
    assert f"torch=={torch.__version__.partition('+')[0]}" == wanted
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(3):
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


def test_every_library_of_the_heavy_extra_has_an_import_check():
    names = [re.split(r"[<>=[]", wanted)[0] for wanted in EXTRAS["heavy"]]
    assert len(names) == len(IMPORTS)
    for name in names:
        assert any(name.replace("-", "_").startswith(library) for library in IMPORTS), name


@pytest.mark.heavy
@pytest.mark.parametrize("library", [pytest.param(name, marks=pytest.mark.needs(name)) for name in IMPORTS])
def test_library_can_be_imported(library, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", IMPORTS[library]], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
