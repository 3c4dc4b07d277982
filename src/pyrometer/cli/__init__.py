"""The `pyrometer` command: one file a command. This one starts fast and needs only the standard library."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import NamedTuple

from pyrometer import __version__


class _Listed(NamedTuple):
    module: str
    help: str
    extra: str = "server"  # what must be installed: `pip install pyrometer[server]`; nothing: the base install will do


COMMANDS = {
    "demo": _Listed("demo", "a simulated night on 304 GPUs: what burned, why, and the report as a page"),
    "why": _Listed("why", "what burned, by state, and the findings: who, since when, how much, what to do"),
    "cost": _Listed("cost", "GPU-hours and dollars by team, experiment, workload, state, day, …"),
    "export": _Listed("export", "files for chargeback: csv, FOCUS; what runs cost, into MLflow and W&B"),
    "close": _Listed("close", "a month's charges, frozen for good; corrections go into the next one"),
    "rebuild": _Listed("rebuild", "rebuild a month of the ledger under the rules of this version"),
    "reconcile": _Listed("reconcile", "a cloud invoice against the ledger, by day and instance type"),
    "top": _Listed("top", "live: who holds GPUs, in which state, for how much an hour, how far it is"),
    "prices": _Listed("prices", "which price applies to which GPUs, from where, and which have none"),
    "runs": _Listed("runs", "the training runs: attempts, steps, cost, goodput"),
    "show": _Listed("show", "one run: lifecycle, loss, windows, findings"),
    "worth": _Listed("worth", "experiments and their runs: how good for how much, and which of them another one beat"),
    "run": _Listed("run", "run a training command instrumented, with no change to its code", extra=""),
    "trace": _Listed("trace", "a run's life, one step over all ranks, or a sample's way through steps"),
    "lineage": _Listed("lineage", "which data is behind a step, a checkpoint or a loss spike; where a sample went"),
    "import": _Listed("import_", "read a trace, a recording, or runs of MLflow and W&B into a data folder"),
    "simulate": _Listed("simulate", "a cluster whose truth is known, as a data folder"),
    "score": _Listed("score", "compare what `why` says of a simulated cluster with its truth"),
    "serve": _Listed("serve", "the server: follows a cluster, keeps the ledger, answers over HTTP"),
    "agent": _Listed("agent", "GPU exporter on a node: dcgm-exporter's metrics without DCGM", extra="agent"),
    "doctor": _Listed("doctor", "what is connected, and what missing evidence costs"),
    "token": _Listed("token", "who may ask a server: bearer tokens by role"),
    "backup": _Listed("backup", "a data folder as it is now, beside the backups before: of a running server, too"),
    "restore": _Listed("restore", "a data folder from a backup, to the last digit"),
    "check": _Listed("check", "verify a data folder, or its backups: files, sums, nothing twice"),
    "completion": _Listed("completion", "what bash, zsh or fish need to complete commands and options"),
}
COMPLETE = "_PYROMETER_COMPLETE"  # set by a shell that asks how a line goes on

_NEEDS = {"": (), "server": ("click", "duckdb"), "agent": ("click", "pynvml", "h2")}  # absent from the base install

_HELP = """Usage: pyrometer COMMAND [OPTIONS]

What your GPU cluster burned, on which experiment, why, and whether it was worth it.

Commands:
{commands}

`pyrometer COMMAND --help` says more. `pyrometer --version` says which this is."""


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits: 0 when all went well, 2 for a usage error, 1 for a failure."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if COMPLETE in os.environ:
        sys.exit(_complete(os.environ[COMPLETE]))
    sys.exit(_run(arguments))


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        width = max(map(len, COMMANDS)) + 2
        lines = [f"  {command:<{width}}{listed.help}" for command, listed in COMMANDS.items()]
        _say(_HELP.format(commands="\n".join(lines)))
        return 0
    if name in ("--version", "-V", "version"):
        _say(f"pyrometer {__version__}")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"Did you mean `pyrometer {near[0]}`?" if near else "`pyrometer --help` lists them."
        return _fail(f"There is no command {name!r}. {hint}", 2)
    listed = COMMANDS[name]
    try:
        for module in _NEEDS[listed.extra]:
            importlib.import_module(module)
    except ImportError:
        return _fail(
            f"`pyrometer {name}` needs what the base install leaves out: pip install 'pyrometer[{listed.extra}]'", 1
        )
    command = importlib.import_module(f"pyrometer.cli.{listed.module}").command
    if not listed.extra:
        return int(command(arguments[1:]))
    if listed.extra == "agent":
        from pyrometer.cli.errors import finish as run
    else:
        from pyrometer.cli.running import run_command as run
    return run(command, name, arguments[1:])


def _complete(instruction: str) -> int:
    try:
        from pyrometer.cli.completion import complete
    except ImportError:
        return 1  # the base install completes nothing
    return complete(instruction)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"Error: {text}\n")
    return code
