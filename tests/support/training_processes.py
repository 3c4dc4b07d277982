"""Training processes for tests: the SDK in this process as one rank, and programs of several ranks."""

from __future__ import annotations

import gzip
import json
import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.train.hooks.hook_installer import Hooks
from pyrometer.train.run import boot
from pyrometer.train.run.rank import TrainingRank
from pyrometer.train.run.sdk_settings import SdkSettings
from pyrometer.train.steps import ring

SOURCES = Path(boot.__file__).parents[3]


class WatchedRank:
    """This process as a rank."""

    def __init__(self, hooks: Hooks, rank: TrainingRank) -> None:
        self.hooks, self.rank = hooks, rank
        self.spool = rank.spool.folder
        self.ring = rank.ring

    def close(self) -> list[tuple[str, dict[str, Any]]]:
        """Ends the rank, and returns all of its messages."""
        self.rank.close()
        return [message for _, messages in spool_parts(self.spool) for message in messages]

    def messages(self, kind: str) -> list[dict[str, Any]]:
        """Ends the rank, and returns its messages of one kind."""
        return [message for name, message in self.close() if name == kind]

    def amounts(self, number: int) -> dict[str, int]:
        """Nanoseconds of a step by phase."""
        return {name: self.ring.column(phase, number, number + 1)[0] for phase, name in enumerate(ring.PHASES[:-1])}


_hooks: list[Hooks] = []


def install_hooks() -> Hooks:
    """The hooks of this process. They apply to libraries that are imported later, like in a real process."""
    if not _hooks:
        _hooks.append(Hooks(lambda: None))
        boot._watch_imports(_hooks[0])
    return _hooks[0]


@contextmanager
def watch_rank(folder: Path, **settings: Any) -> Iterator[WatchedRank]:
    """The SDK in this process, with a spool of its own. PyTorch is hooked once, as in a real process."""
    import torch
    import torch._dynamo.callback

    torch.set_num_threads(1)  # tests run side by side
    hooks = install_hooks()
    hooks.detach()
    hooks.tracked.clear()  # of other tests
    hooks.stack_timer.is_taken = True  # pytest's
    identity = {"run": "test", **settings.pop("identity", {})}
    hooks.rank = TrainingRank(hooks, SdkSettings(folder / "spool", None, identity, **settings), torch)
    rank = hooks.rank
    try:
        yield WatchedRank(hooks, rank)
    finally:
        rank.close()
        hooks.detach()


def spool_parts(spool: Path) -> list[tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]]:
    """The parts that ranks have put into a spool, in order: the identity of the rank, and its messages."""
    return [marshal.loads(path.read_bytes()) for path in sorted((spool / "out").glob("*.part"))]


def environment(spool: Path | None, **more: str) -> dict[str, str]:
    """The environment of a program, which is watched if a spool is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYROMETER_")}
    kept |= {"PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1", **more}
    if spool is not None:
        site = SOURCES / "pyrometer" / "train" / "site"
        kept |= {"PYROMETER_SPOOL": str(spool), "PYTHONPATH": f"{site}{os.pathsep}{SOURCES}"}
    return kept


def run_training(
    program: Path, *arguments: str, spool: Path | None, ranks: int = 1, timeout_s: float = 180.0, **more: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, alone or as several ranks like torchrun starts them."""
    command = [sys.executable, str(program), *arguments]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1]), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            command,
            env=environment(spool, **more, **meeting, RANK=str(rank), LOCAL_RANK=str(rank)),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    code = next((process.returncode for process in processes if process.returncode), 0)
    return subprocess.CompletedProcess(command, code, "", "".join(outputs))


def torchrun(program: Path, *arguments: str, ranks: int, more: tuple[str, ...] = ()) -> list[str]:
    """The command that launches several ranks of a program."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *more]
    return [sys.executable, *launcher, str(program), *arguments]


def start_run(command: list[str], *where: str, **variables: str) -> subprocess.Popen[str]:
    """Starts `pyrometer run` of a command."""
    return subprocess.Popen(
        [sys.executable, "-m", "pyrometer", "run", "--no-gpus", *where, "--", *command],
        env=environment(None, PYROMETER_WINDOW_S="1", **variables),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class SentRecord(NamedTuple):
    """A log record that `pyrometer run --data` left in its data folder."""

    at_ms: int  # when it was written to the inbox
    rank: int | None
    launch: str
    name: str  # run, window, batch, event
    fields: dict[str, Any]


def sent_records(data: Path) -> list[SentRecord]:
    """The log records in the inbox of a data folder, before a server has read them."""
    found = []
    for path in sorted((data / "inbox" / "otlp").glob("*.logs.json.gz")):
        at_ms = int(path.name.partition("-")[0]) // 1_000_000
        for resource in json.loads(gzip.decompress(path.read_bytes()))["resourceLogs"]:
            who = _plain(resource["resource"]["attributes"])
            for scope in resource["scopeLogs"]:
                for record in scope["logRecords"]:
                    fields = {name.removeprefix("pyrometer."): v for name, v in _plain(record["attributes"]).items()}
                    fields["time_ms"] = int(record["timeUnixNano"]) // 1_000_000
                    name = record["eventName"].removeprefix("pyrometer.")
                    found.append(
                        SentRecord(at_ms, who.get("pyrometer.rank"), who.get("pyrometer.launch", ""), name, fields)
                    )
    return found


def _plain(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    plain = {}
    for one in attributes:
        ((kind, value),) = one["value"].items()
        plain[one["key"]] = int(value) if kind == "intValue" else value
    return plain


def command_answer(data: Path, *words: str, **variables: str) -> Any:
    """What a command answers about a data folder."""
    command = [sys.executable, "-m", "pyrometer", *words, "--data", str(data), "-o", "json"]
    result = subprocess.run(command, env=environment(None, **variables), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)
