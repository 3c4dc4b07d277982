"""Runs every example with the command in its first line, and checks phases, loss, lineage and cost of two ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyrometer.cli import main
from tests.support.training_processes import SOURCES

pytestmark = pytest.mark.heavy
REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
TORCHTITAN = REPOSITORY / ".venv-torchtitan" / "bin"
PHASES = ("data", "forward", "backward", "comm", "optimizer")


class Example(NamedTuple):
    """What an example does, and what Pyrometer must record."""

    library: str
    steps: int
    metric: str
    dataset: str
    rows: int = 512  # of an epoch
    epochs: int = 3
    sampled: bool = True  # by PyTorch's DistributedSampler with seed 0: so the rows of a step are known
    printed_loss: str = r"step\s*:?\s*(\d+)\s+loss\s*:?\s*([\d.]+)"
    first: int = 1  # what the metric calls the first step


IN = {
    "ddp": Example("torch", 48, "loss", "Rings", first=0),  # the loss of `backward` counts from 0
    "fsdp2": Example("torch", 48, "loss", "Rings", first=0),
    "lightning": Example("lightning", 48, "train_loss", "Rings", first=0),  # like its own loggers
    "huggingface": Example("transformers", 32, "loss", "Counting", 256, 2, sampled=False),
    "accelerate": Example("accelerate", 48, "train_loss", "Rings", sampled=False),
    "torchtitan": Example("torchtitan", 12, "loss_metrics/global_avg_loss", "Counting", 256, 1),
    "ray_train": Example("ray", 48, "loss", "Rings", printed_loss=r"epoch (\d+) loss ([\d.]+)"),
}


def missing(library: str) -> str | None:
    """The reason why an example cannot run here."""
    if library == "torchtitan":
        made = (TORCHTITAN / "python").exists()
        return None if made else "needs torchtitan, in an environment of its own: `make peers` makes it"
    if importlib.util.find_spec(library) is None:
        return f"needs {library}: `make test-all` installs it (extra `heavy`)"
    return None


def run(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in the first line of an example in its own folder."""
    script = EXAMPLES / name / "train.py"
    first = script.read_text().splitlines()[0]
    assert first.startswith("# pyrometer run --data runs -- ")
    words = shlex.split(first.removeprefix("# pyrometer run --data runs -- "))
    assert words[-1] == f"examples/{name}/train.py"
    bin_folders = [str(TORCHTITAN)] if name == "torchtitan" else []
    if words[0] == "torchrun":
        words[:1] = ["python", "-m", "torch.distributed.run"]  # that of the environment
    path = os.pathsep.join([*bin_folders, str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYROMETER_", "RAY_"))}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pyrometer",
            "run",
            "--data",
            "runs",
            "--run",
            "it",
            "--no-gpus",
            "--",
            *words[:-1],
            str(script),
        ],
        env={
            **kept,
            "PATH": path,
            "PYTHONPATH": os.pathsep.join([str(SOURCES), str(registered(folder))]),
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_TMPDIR": "/tmp",
        },  # its sockets have names in there, and no name may be long
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def registered(folder: Path) -> Path:
    """A folder with the entry points that pyproject.toml declares, whichever version is installed."""
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["entry-points"]
    made = folder / "registered"
    info = made / "pyrometer-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pyrometer\nVersion: 0.1.0\n")
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in of.items()) for group, of in declared.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))
    return made


@pytest.mark.parametrize("name", list(IN))
def test_example_run_is_recorded_completely(name, tmp_path, capsys):
    """One run of two ranks: its steps, phases, loss, data, checkpoint and cost. One test, so that it runs once."""
    example = IN[name]
    if reason := missing(example.library):
        pytest.skip(reason)
    result = run(name, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "`pyrometer show it --data runs` shows what happened" in result.stderr

    def ask(*words: str) -> Any:
        """Runs a command on the folder of the run."""
        capsys.readouterr()
        with suppress(SystemExit):
            main([*words, "--data", str(tmp_path / "runs"), "-o", "json"])
        out, err = capsys.readouterr()
        assert out, err
        return json.loads(out)

    shown = ask("show", "it", "--price", "2.50")
    seen_whole(example, shown)
    printed = result.stdout + result.stderr
    same_loss(example, shown["metrics"], printed)
    if example.library == "lightning":
        assert "1 callbacks from entry point 'pyrometer': Pyrometer" in printed

    traced = ask("trace", "it", "--step", "4")
    assert {rank["rank"] for rank in traced["ranks"]} == {0, 1}
    assert {"data", "forward", "backward", "optimizer"} <= {span["name"] for span in traced["spans"]}

    costs = ask("cost", "--by", "experiment", "--price", "2.50", "--all")
    why = ask("why", "--price", "2.50", "--all")
    assert costs["total"]["usd_micro"] == why["total"]["usd_micro"] == shown["usd_micro"]
    assert {"train", "startup"} <= {row["state"] for row in why["states"]}
    right_rows(example, ask)


def seen_whole(example: Example, shown: dict[str, Any]) -> None:
    """Both ranks, all steps, time in every phase, the last checkpoint, a cost."""
    assert (shown["outcome"], shown["ranks"], shown["steps"]) == ("succeeded", 2, example.steps)
    for rank in (0, 1):
        windows = [window for window in shown["windows"] if window["rank"] == rank]
        assert sum(window["steps"] for window in windows) == example.steps - 1  # the first one is startup
        for phase in PHASES:
            assert sum(window[f"{phase}_ms"] for window in windows) > 0, (rank, phase)
        if example.library in ("lightning", "transformers"):  # they validate
            assert sum(window["evaluate_ms"] for window in windows) > 0
    assert shown["usd_micro"] > 0
    assert "sdk_error" not in {one["what"] for one in shown["lifecycle"]}
    saved = [one["step"] for one in shown["lifecycle"] if one["what"] == "checkpoint_saved"]
    assert saved[-1] == example.steps


def same_loss(example: Example, metrics: dict[str, list], printed: str) -> None:
    """The curve has the losses that the program printed, at the same steps."""
    printed_losses = {int(step): float(loss) for step, loss in re.findall(example.printed_loss, printed)}
    curve: dict[int, list[float]] = {}
    for step, _, value, *_ in metrics[example.metric]:
        curve.setdefault(step, []).append(value)
    if example.library == "ray":  # by epoch, and by every worker: with the last step of the epoch, counted from 0
        every = example.steps // example.epochs
        printed_losses = {(epoch + 1) * every - 1: loss for epoch, loss in printed_losses.items()}
        assert len(printed_losses) == example.epochs
    else:
        assert set(printed_losses) == set(range(1, example.steps + 1))
        assert set(curve) == set(range(example.first, example.first + example.steps))
        printed_losses = {step - 1 + example.first: loss for step, loss in printed_losses.items()}
    for step, loss in printed_losses.items():
        assert any(abs(value - loss) < 0.6e-4 + 0.5e-3 * loss for value in curve[step]), (step, loss, curve[step])


def right_rows(example: Example, ask: Any) -> None:
    """The rows behind a step are those of the sampler, and each row is used once per epoch."""
    step = 5
    used = ask("lineage", "it", "--step", str(step))
    updates = {update["rank"]: update for update in used["updates"]}
    assert set(updates) == {0, 1}
    assert {update["dataset"] for update in updates.values()} == {example.dataset}
    rows = {rank: [int(row) for row in update["samples"]] for rank, update in updates.items()}
    if example.sampled:
        torch = pytest.importorskip("torch")
        order = torch.randperm(example.rows, generator=torch.Generator().manual_seed(0)).tolist()
        size = len(rows[0])
        assert rows == {rank: order[rank::2][step * size : (step + 1) * size] for rank in (0, 1)}
    assert not set(rows[0]) & set(rows[1])
    again = ask("lineage", "it", "--sample", str(rows[1][0]))
    assert (step, 1) in {(update["step"], update["rank"]) for update in again["updates"]}
    assert len(again["updates"]) == (1 if example.library == "torchtitan" else example.epochs)
    assert used["unknown_batches"] == 0


def test_readme_table_has_every_example():
    """The table has the command of every example, and no others."""
    table = (EXAMPLES / "README.md").read_text()
    scripts = sorted(EXAMPLES.glob("*/train.py"))
    assert [script.parent.name for script in scripts] == sorted(IN)
    for script in scripts:
        assert script.read_text().splitlines()[0].removeprefix("# ") in table
