"""The `pyrometer` command. Each command has its own module; this one starts fast, with the standard library alone."""

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
    extra: str = "server"  # what must be installed, like pyrometer[server]; empty: the base install


COMMANDS = {
    "demo": _Listed("demo", "simulate a night on 304 GPUs, explain it, and serve it as a page"),
    "why": _Listed("why", "GPU time by state, and findings: who, when, how much, what to do"),
    "cost": _Listed("cost", "GPU-hours and dollars by team, experiment, workload, state, day, …"),
    "export": _Listed("export", "files for chargeback (CSV, FOCUS); the cost of runs into MLflow and W&B"),
    "close": _Listed("close", "freeze the charges of a month; later corrections adjust the next month"),
    "rebuild": _Listed("rebuild", "rebuild a month of the ledger under the rules of this version"),
    "reconcile": _Listed("reconcile", "compare a cloud invoice with the ledger, by day and instance type"),
    "top": _Listed("top", "live view: who holds GPUs, with state, dollars per hour and progress"),
    "prices": _Listed("prices", "which price applies to which GPUs, and which GPUs have none"),
    "runs": _Listed("runs", "training runs: attempts, steps, cost, goodput"),
    "show": _Listed("show", "one run: cost, speed, lifecycle, metrics, findings"),
    "worth": _Listed("worth", "experiments and their runs: cost, best result, Pareto front"),
    "run": _Listed("run", "run a training command instrumented, without changes to its code", extra=""),
    "trace": _Listed("trace", "the lifecycle of a run, one step on all ranks, or one sample"),
    "lineage": _Listed("lineage", "the data behind a step, a checkpoint or a loss spike"),
    "import": _Listed("import_", "import a data set, a recording, or runs of MLflow and W&B"),
    "simulate": _Listed("simulate", "simulate a cluster with known truth into a data folder"),
    "score": _Listed("score", "compare the answer of `why` about a simulated cluster with its truth"),
    "serve": _Listed("serve", "run the server: follow a cluster, keep the ledger, answer over HTTP"),
    "agent": _Listed("agent", "export GPU metrics of a node, like dcgm-exporter but without DCGM", extra="agent"),
    "doctor": _Listed("doctor", "check what Pyrometer can read, and what missing evidence costs"),
    "token": _Listed("token", "manage access tokens of a server"),
    "backup": _Listed("backup", "back up a data folder or a running server"),
    "restore": _Listed("restore", "make a data folder from a backup"),
    "check": _Listed("check", "verify a data folder or its backups"),
    "completion": _Listed("completion", "shell completion for bash, zsh and fish"),
}
COMPLETE = "_PYROMETER_COMPLETE"  # set by a shell that completes a line

_NEEDS = {"": (), "server": ("click", "duckdb"), "agent": ("click", "pynvml", "h2")}  # absent from the base install

_HELP = """Usage: pyrometer COMMAND [OPTIONS]

What your GPU cluster burned, on which experiment, why, and whether it was worth it.

Commands:
{commands}

`pyrometer COMMAND --help` shows the options. `pyrometer --version` shows the installed version."""


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits: 0 for success, 2 for a usage error, 1 for a failure."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if COMPLETE in os.environ:
        sys.exit(_complete(os.environ[COMPLETE]))
    sys.exit(_run(arguments))


def _run(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        width = max(map(len, COMMANDS)) + 2
        lines = [f"  {command:<{width}}{listed.help}" for command, listed in COMMANDS.items()]
        _print(_HELP.format(commands="\n".join(lines)))
        return 0
    if name in ("--version", "-V", "version"):
        _print(f"pyrometer {__version__}")
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"Did you mean `pyrometer {near[0]}`?" if near else "List commands with `pyrometer --help`."
        return _fail(f"Unknown command {name!r}. {hint}", 2)
    listed = COMMANDS[name]
    try:
        for module in _NEEDS[listed.extra]:
            importlib.import_module(module)
    except ImportError:
        return _fail(f"`pyrometer {name}` needs more than the base install: pip install 'pyrometer[{listed.extra}]'", 1)
    command = importlib.import_module(f"pyrometer.cli.commands.{listed.module}").command
    if not listed.extra:
        return int(command(arguments[1:]))
    if listed.extra == "agent":
        from pyrometer.cli.command_errors import finish as run
    else:
        from pyrometer.cli.command_support import run_command as run
    return run(command, name, arguments[1:])


def _complete(instruction: str) -> int:
    try:
        from pyrometer.cli.commands.completion import complete
    except ImportError:
        return 1  # the base install has no completion
    return complete(instruction)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"Error: {text}\n")
    return code
