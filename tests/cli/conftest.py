"""Runs commands in the test process, and the data folders for them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyrometer.cli import main
from pyrometer.model.records import Allocation, Node, Pod, Workload
from pyrometer.model.units import MS_PER_HOUR, SHARE_WHOLE
from pyrometer.store import Store


class CommandResult(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its JSON answer. NaN and Infinity are errors."""

        def refuse(word):
            raise ValueError(f"{word} is not JSON")

        assert (self.code, self.err) == (0, ""), self
        return json.loads(self.out, parse_constant=refuse)

    @property
    def lines(self) -> list[str]:
        assert (self.code, self.err) == (0, ""), self
        return self.out.splitlines()

    def failed(self, code: int) -> str:
        """Its error: one line on stderr, nothing on stdout."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("Error: "), self
        assert self.err.endswith("\n"), self
        assert self.err.count("\n") == 1, self
        assert "Traceback" not in self.err
        return self.err.removeprefix("Error: ").rstrip("\n")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    """Removes PYROMETER_ variables of the environment, and sets a terminal of 80 columns."""
    for name in os.environ:
        if name.startswith("PYROMETER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def pyrometer(capsys):
    """Runs a command in this process."""

    def run(*arguments) -> CommandResult:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return CommandResult(ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def _cached_results() -> dict[tuple[str, ...], CommandResult]:
    return {}


@pytest.fixture
def cached_pyrometer(pyrometer, _cached_results):
    """Runs a command on a folder that no test changes. The result is cached for all tests of the session."""

    def run(*arguments) -> CommandResult:
        words = tuple(str(argument) for argument in arguments)
        if words not in _cached_results:
            _cached_results[words] = pyrometer(*words)
        return _cached_results[words]

    return run


# -- the recording ----------------------------------------------------------------------------------------------------


def _imported(h200: Path, folder: Path, *options: str) -> Path:
    with pytest.raises(SystemExit) as ended:
        main(["import", "recording", str(h200), "--out", str(folder), *options])
    assert ended.value.code == 0
    return folder


@pytest.fixture(scope="session")
def recorded(h200, tmp_path_factory) -> Path:
    """The recording with its steps, in a data folder. A test that changes it takes a copy."""
    return _imported(h200, tmp_path_factory.mktemp("recorded") / "data")


@pytest.fixture(scope="session")
def recorded_without_steps(h200, tmp_path_factory) -> Path:
    """The recording with only its GPU telemetry."""
    return _imported(h200, tmp_path_factory.mktemp("recorded") / "data", "--without-steps")


@pytest.fixture
def copy_of_recorded(recorded, tmp_path) -> Path:
    """A copy of the recording's data folder that a test can change."""
    return shutil.copytree(recorded, tmp_path / "copy")


# -- hand-made folders ------------------------------------------------------------------------------------------------

MIDNIGHT_MS = round(datetime(2025, 10, 25, 22, tzinfo=UTC).timestamp() * 1000)  # 26 October in Berlin: 25 hours long
HOURS = 30


def _node(name: str, gpus: int, gpu_model: str) -> list[Node]:
    ends = (MIDNIGHT_MS, MIDNIGHT_MS + HOURS * MS_PER_HOUR - 1)
    return [Node(at_ms, "lab", name, name, gpus, gpu_model, pool=f"pool-{name}") for at_ms in ends]


def _pod(name: str, node: str, first_hour: int, last_hour: int, **more: Any) -> list[tuple[Any, ...]]:
    from_ms, to_ms = MIDNIGHT_MS + first_hour * MS_PER_HOUR, MIDNIGHT_MS + last_hour * MS_PER_HOUR
    return [
        Pod(
            to_ms,
            "lab",
            name,
            "ml",
            name,
            "Succeeded",
            workload_uid=f"job-{name}",
            node_uid=node,
            user=f"{name}@lab",
            queue="night",
            created_ms=from_ms,
            scheduled_ms=from_ms,
            started_ms=from_ms,
            ended_ms=to_ms,
        ),
        Workload(to_ms, "lab", f"job-{name}", "Job", "ml", f"job-{name}", **more),
        Allocation(to_ms, name, node, 0, from_ms, to_ms, SHARE_WHOLE),
    ]


def _folder(path: Path, records: Iterable[tuple[Any, ...]]) -> Path:
    with Store(path, create=True) as store:
        store.append(records)
    return path


@pytest.fixture(scope="session")
def autumn(tmp_path_factory) -> Path:
    """Thirty hours over the end of summer time: two GPUs with a price and one without, and two pods."""
    return _folder(
        tmp_path_factory.mktemp("autumn") / "data",
        [
            *_node("known", 2, "NVIDIA-H100-80GB-HBM3"),
            *_node("strange", 1, "Contoso X1"),
            *_pod("llama", "known", 1, 9, team="nlp", experiment="sft"),
            *_pod("yolo", "strange", 2, 5, team="vision", experiment="detect"),
        ],
    )


@pytest.fixture(scope="session")
def unpriced(tmp_path_factory) -> Path:
    """A GPU without a known price."""
    return _folder(
        tmp_path_factory.mktemp("unpriced") / "data",
        [*_node("strange", 1, "Contoso X1"), *_pod("yolo", "strange", 2, 5, team="vision", experiment="detect")],
    )


@pytest.fixture
def nothing(tmp_path) -> Path:
    """An empty data folder."""
    return _folder(tmp_path / "nothing", [])
