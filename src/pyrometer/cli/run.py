"""`pyrometer run -- CMD…`: runs a training command instrumented. It works with the base install, in a training image.

The command is a child with this terminal and these signals; the sender is a thread beside it. Whatever goes wrong with
telemetry, the command runs, and its exit code is the exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from pyrometer.train import environment
from pyrometer.train.gpus import GpuWatch
from pyrometer.train.otlp import REDACTIONS
from pyrometer.train.sender import FLUSH_S, FlushResult, Sender
from pyrometer.train.spool import Spool, spool_folder
from pyrometer.train.target import TargetError, target_of

DEFAULT_FOLDER = "pyrometer-data"
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as shells say it
_FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_OF_THE_KERNEL = 0x80  # si_code of what a terminal sends: the whole process group has it already


class UsageError(Exception):
    """A command line that says nothing that can be done; the text is one sentence."""


class _Parser(argparse.ArgumentParser):
    def format_help(self) -> str:
        return super().format_help().replace("usage: ", "Usage: ", 1)  # as the other commands have it

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}. `pyrometer run --help` says more.")


def parser() -> argparse.ArgumentParser:
    """The options, in the order of their help."""
    made = _Parser(
        prog="pyrometer run",
        usage="pyrometer run [OPTIONS] -- CMD...",
        description="Runs a training command instrumented, with no change to its code: "
        "`pyrometer run -- torchrun train.py`. Its telemetry goes to a server, or into a data folder on this machine.",
        allow_abbrev=False,
        add_help=False,
    )
    made.add_argument(
        "--server", metavar="URL", help="Send to this server or OpenTelemetry Collector. Default: PYROMETER_ENDPOINT."
    )
    made.add_argument(
        "--data", metavar="DIR", help=f"Keep everything in this folder; no server is needed. Default: {DEFAULT_FOLDER}."
    )
    made.add_argument("--run", metavar="NAME", help="The run's name. Default: one of its own.")
    made.add_argument("--experiment", metavar="NAME", help="The experiment that it belongs to.")
    made.add_argument("--redact", metavar="LIST", help=f"What is not kept, of: {', '.join(REDACTIONS)}.")
    made.add_argument("--no-gpus", action="store_true", help="Do not watch the GPUs of this machine.")
    made.add_argument("--help", "-h", action="help", help="Show this.")
    made.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="The command and its arguments.")
    return made


class _Plan(NamedTuple):
    """What was asked for."""

    endpoint: str
    where: str  # the option by which the answer is found
    assumed: bool  # nobody named a place
    variables: dict[str, str]
    watch_gpus: bool
    command: list[str]


def command(arguments: Sequence[str]) -> int:
    """Runs the command; its exit code, or 128 and the number of the signal that ended it."""
    try:
        plan = _planned(arguments)
    except UsageError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except SystemExit:  # --help
        return 0
    os.environ.update(plan.variables)
    try:
        beside = _Beside(plan)
    except OSError as error:
        _say(f"{error} The command runs without telemetry.")
        return _Child(plan.command, dict(os.environ)).wait()
    child = _Child(plan.command, beside.variables())
    if child.pid is not None:
        beside.begin(child.pid)
    code = child.wait()
    if child.pid is not None:
        beside.end(child.pid, child.status)
    return code


class _Beside:
    """What goes on beside the command. Once that runs, nothing here may raise."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._spool = Spool(spool_folder()).make()
        self._spool.acquire()  # before the first rank asks whether anybody sends
        self._sender = Sender(self._spool, target_of())
        self._gpus = GpuWatch(self._spool)

    def variables(self) -> dict[str, str]:
        """The environment in which every Python finds our `sitecustomize` first."""
        from pyrometer import train

        site = str(Path(train.__file__).parent / "site")
        before = os.environ.get("PYTHONPATH")
        path = f"{site}{os.pathsep}{before}" if before else site
        return {**os.environ, "PYROMETER_SPOOL": str(self._spool.folder), "PYTHONPATH": path}

    def begin(self, child: int) -> None:
        """Threads begin after the child: they would not survive its fork, and signals are blocked in them by now."""
        try:
            self._sender.watcher.child = child
            self._sender.start()
            if self._plan.watch_gpus and self._spool.held:  # of several on a machine, one does
                self._gpus.start()
        except Exception as error:
            _say(f"{error}. The command runs without telemetry.")

    def end(self, child: int, status: int) -> None:
        """Brings home what there is, within a limit, or until the user has seen enough; says where to look."""
        try:
            self._sender.watcher.exited(child, status)
            self._gpus.close()
            limit_s = environment.read_number("PYROMETER_FLUSH_S", FLUSH_S)
            left = self._sender.flush(limit_s, given_up=lambda: bool(signal.sigpending() & _FORWARDED))
            _say(_summary(self._plan, left, self._spool, list(self._sender.watcher.runs)))
            self._sender.close()
        except Exception as error:
            _say(f"{error}. What is left is in {self._spool.folder}.")


def _planned(arguments: Sequence[str]) -> _Plan:
    ours, dashes, rest = _split(arguments)
    asked = parser().parse_args(ours)
    words = [*asked.command, *(["--"] if asked.command and dashes else []), *rest]
    if not words:
        raise UsageError("Which command? Say it after two dashes: pyrometer run -- torchrun train.py")
    if asked.server and asked.data:
        raise UsageError("Say --server or --data, not both.")
    if asked.redact and (unknown := set(asked.redact.replace(" ", "").split(",")) - set(REDACTIONS)):
        raise UsageError(f"--redact {','.join(sorted(unknown))!r} is none of {', '.join(REDACTIONS)}.")
    endpoint = asked.server or ("" if asked.data else os.environ.get("PYROMETER_ENDPOINT", ""))
    folder = asked.data or os.environ.get("PYROMETER_DATA")
    if not endpoint:
        endpoint = Path(folder or DEFAULT_FOLDER).absolute().as_uri()
    try:
        target = target_of({**os.environ, "PYROMETER_ENDPOINT": endpoint})
    except TargetError as error:
        raise UsageError(str(error)) from None
    local = endpoint.startswith("file:")
    variables = {"PYROMETER_ENDPOINT": endpoint}
    for name, value in (("RUN", asked.run), ("EXPERIMENT", asked.experiment), ("REDACT", asked.redact)):
        if value:
            variables[f"PYROMETER_{name}"] = value
    if os.environ.get("PYROMETER_ENDPOINT", endpoint) != endpoint:
        os.environ.pop("PYROMETER_SPOOL", None)  # of a `pyrometer run` around this one, which sends elsewhere
    return _Plan(
        endpoint,
        f"--data {shlex.quote(_near(target.display_url))}" if local else f"--server {target.display_url}",
        local and not folder,
        variables,
        not asked.no_gpus and (local or "KUBERNETES_SERVICE_HOST" not in os.environ),
        words,
    )


def _split(arguments: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    """What is before the first two dashes, and what is after them."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, False, []
    place_ = arguments.index("--")
    return arguments[:place_], True, arguments[place_ + 1 :]


def _near(path: str) -> str:
    """A path as short as it can be from here."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


class _Child:
    """The command, with our terminal. Signals that we get alone are handed on; as PID 1 we bury all orphans."""

    def __init__(self, words: list[str], variables: dict[str, str]) -> None:
        self._awaited = {*(n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN), signal.SIGCHLD}
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by whoever started us, it would take the exit code away
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        self.pid: int | None = None
        self.status = 0  # its exit code, or the signal that ended it as a negative number
        try:
            # kept: `subprocess` buries children whose objects are gone, and their exit codes with them
            self._process = subprocess.Popen(  # noqa: S603 - what was asked for
                words, env=variables, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
            )
            self.pid = self._process.pid
        except OSError as error:
            self.status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            _say(f"{words[0]} cannot be run: {error.strerror}.")

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        while self.pid is not None and not self._buried(self.pid):
            number, from_terminal = _next_signal(self._awaited)
            if number != signal.SIGCHLD and not from_terminal:
                with contextlib.suppress(OSError):  # `sudo` is not ours to signal
                    os.kill(self.pid, number)  # not buried yet: the number is still its own
        return self.status if self.status >= 0 else 128 - self.status

    def _buried(self, child: int) -> bool:
        """Whether the command has ended. Whatever else has ended meanwhile is buried, too, where nobody else would."""
        while True:
            pid, status = os.waitpid(-1 if os.getpid() == 1 else child, os.WNOHANG)
            if pid == child:
                self.status = os.waitstatus_to_exitcode(status)
                return True
            if pid == 0:
                return False


def _next_signal(awaited: set[signal.Signals]) -> tuple[int, bool]:
    """The next one, and whether a terminal sent it to all of the process group."""
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(awaited)
        return info.si_signo, info.si_code == _OF_THE_KERNEL
    number = signal.sigwait(awaited)  # macOS
    return number, number in (signal.SIGINT, signal.SIGQUIT) and os.isatty(0)


def _summary(plan: _Plan, left: FlushResult, spool: Spool, runs: list[str]) -> str:
    if left.files:
        why = f": {left.error}" if left.error else ""
        return (
            f"{left.files} files of telemetry wait in {spool.folder}, because {plan.where.partition(' ')[2]} does not "
            f"take them{why}. The next `pyrometer run` to the same place sends them."
        )
    if left.refused:
        return f"{left.refused} files of telemetry were refused ({left.error}); they lie in {spool.refused}."
    if not runs:
        return f"no training with PyTorch was seen in {shlex.quote(plan.command[0])}."
    look = f"show {shlex.quote(runs[0])}" if len(runs) == 1 else "runs"
    assumed = f" Kept in {DEFAULT_FOLDER}, since no --server and no --data was named." if plan.assumed else ""
    return f"`pyrometer {look} {plan.where}` shows what happened.{assumed}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # there may be no stderr any more
        sys.stderr.write(f"pyrometer: {text}\n")
        sys.stderr.flush()
