"""`pyrometer run -- CMD…`: runs a training command instrumented. It needs only the base install.

The command is a child process with this terminal and these signals. A thread of this process sends its telemetry. If
telemetry fails, the command still runs, and its exit code is always the exit code of `run`.
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

from pyrometer.train.run import environment
from pyrometer.train.ship.nvidia_smi import GpuWatch
from pyrometer.train.ship.otlp_json import REDACTIONS
from pyrometer.train.ship.sender import FLUSH_S, FlushResult, Sender
from pyrometer.train.ship.spool import Spool, spool_folder
from pyrometer.train.ship.target import TargetError, target_of

DEFAULT_FOLDER = "pyrometer-data"
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # the exit codes of shells
_FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_SENT_BY_KERNEL = 0x80  # si_code of signals from a terminal, which go to the whole process group


class UsageError(Exception):
    """An invalid command line. The text is one sentence."""


class _Parser(argparse.ArgumentParser):
    def format_help(self) -> str:
        return super().format_help().replace("usage: ", "Usage: ", 1)  # like the other commands

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:]}. See `pyrometer run --help`.")


def parser() -> argparse.ArgumentParser:
    """The options, in the order of the help text."""
    parser = _Parser(
        prog="pyrometer run",
        usage="pyrometer run [OPTIONS] -- CMD...",
        description="Runs a training command instrumented, without changes to its code: "
        "`pyrometer run -- torchrun train.py`. Its telemetry goes to a server or into a data folder on this machine.",
        allow_abbrev=False,
        add_help=False,
    )
    parser.add_argument(
        "--server", metavar="URL", help="Send to this server or OpenTelemetry Collector. Default: PYROMETER_ENDPOINT."
    )
    parser.add_argument(
        "--data", metavar="DIR", help=f"Store telemetry in this folder, without a server. Default: {DEFAULT_FOLDER}."
    )
    parser.add_argument("--run", metavar="NAME", help="The name of the run. Default: a generated name.")
    parser.add_argument("--experiment", metavar="NAME", help="The experiment of the run.")
    parser.add_argument(
        "--redact", metavar="LIST", help=f"Do not record these, comma-separated: {', '.join(REDACTIONS)}."
    )
    parser.add_argument("--no-gpus", action="store_true", help="Do not sample the GPUs of this machine.")
    parser.add_argument("--help", "-h", action="help", help="Show this message and exit.")
    parser.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="The command and its arguments.")
    return parser


class _Plan(NamedTuple):
    """What the command line requests."""

    endpoint: str
    source_option: str  # with which other commands find the answer
    is_default_folder: bool  # neither a server nor a folder was passed
    variables: dict[str, str]
    watch_gpus: bool
    command: list[str]


def command(arguments: Sequence[str]) -> int:
    """Runs the command. Returns its exit code, or 128 plus the number of the signal that ended it."""
    try:
        plan = _planned(arguments)
    except UsageError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except SystemExit:  # --help
        return 0
    os.environ.update(plan.variables)
    try:
        telemetry = _Telemetry(plan)
    except OSError as error:
        _print(f"{error} The command runs without telemetry.")
        return _Child(plan.command, dict(os.environ)).wait()
    child = _Child(plan.command, telemetry.variables())
    if child.pid is not None:
        telemetry.begin(child.pid)
    code = child.wait()
    if child.pid is not None:
        telemetry.end(child.pid, child.status)
    return code


class _Telemetry:
    """Collects and sends telemetry while the command runs. Once the command has started, nothing here may raise."""

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._spool = Spool(spool_folder()).make()
        self._spool.acquire()  # before the first rank checks whether a sender exists
        self._sender = Sender(self._spool, target_of())
        self._gpus = GpuWatch(self._spool)

    def variables(self) -> dict[str, str]:
        """The environment of the command, in which every Python imports our `sitecustomize` first."""
        from pyrometer import train

        site = str(Path(train.__file__).parent / "site")
        before = os.environ.get("PYTHONPATH")
        path = f"{site}{os.pathsep}{before}" if before else site
        return {**os.environ, "PYROMETER_SPOOL": str(self._spool.folder), "PYTHONPATH": path}

    def begin(self, child: int) -> None:
        """Starts threads, after the child: threads do not survive its fork, and signals are blocked in them by now."""
        try:
            self._sender.watcher.child = child
            self._sender.start()
            if (
                self._plan.watch_gpus and self._spool.held
            ):  # one of several `pyrometer run` on a machine samples its GPUs
                self._gpus.start()
        except Exception as error:
            _print(f"{error}. The command runs without telemetry.")

    def end(self, child: int, status: int) -> None:
        """Sends what is left, within a time limit or until the user interrupts, and prints where to look."""
        try:
            self._sender.watcher.exited(child, status)
            self._gpus.close()
            limit_s = environment.read_number("PYROMETER_FLUSH_S", FLUSH_S)
            left = self._sender.flush(limit_s, given_up=lambda: bool(signal.sigpending() & _FORWARDED))
            _print(_summary(self._plan, left, self._spool, list(self._sender.watcher.runs)))
            self._sender.close()
        except Exception as error:
            _print(f"{error}. Unsent telemetry is in {self._spool.folder}.")


def _planned(arguments: Sequence[str]) -> _Plan:
    ours, dashes, rest = _split(arguments)
    parsed = parser().parse_args(ours)
    words = [*parsed.command, *(["--"] if parsed.command and dashes else []), *rest]
    if not words:
        raise UsageError("No command: pass it after two dashes, like pyrometer run -- torchrun train.py")
    if parsed.server and parsed.data:
        raise UsageError("Pass --server or --data, not both.")
    if parsed.redact and (unknown := set(parsed.redact.replace(" ", "").split(",")) - set(REDACTIONS)):
        raise UsageError(
            f"--redact {','.join(sorted(unknown))!r} is not supported. Choose from {', '.join(REDACTIONS)}."
        )
    endpoint = parsed.server or ("" if parsed.data else os.environ.get("PYROMETER_ENDPOINT", ""))
    folder = parsed.data or os.environ.get("PYROMETER_DATA")
    if not endpoint:
        endpoint = Path(folder or DEFAULT_FOLDER).absolute().as_uri()
    try:
        target = target_of({**os.environ, "PYROMETER_ENDPOINT": endpoint})
    except TargetError as error:
        raise UsageError(str(error)) from None
    local = endpoint.startswith("file:")
    variables = {"PYROMETER_ENDPOINT": endpoint}
    for name, value in (("RUN", parsed.run), ("EXPERIMENT", parsed.experiment), ("REDACT", parsed.redact)):
        if value:
            variables[f"PYROMETER_{name}"] = value
    if os.environ.get("PYROMETER_ENDPOINT", endpoint) != endpoint:
        os.environ.pop("PYROMETER_SPOOL", None)  # it belongs to an outer `pyrometer run` that sends elsewhere
    return _Plan(
        endpoint=endpoint,
        source_option=f"--data {shlex.quote(_near(target.display_url))}" if local else f"--server {target.display_url}",
        is_default_folder=local and not folder,
        variables=variables,
        watch_gpus=not parsed.no_gpus and (local or "KUBERNETES_SERVICE_HOST" not in os.environ),
        command=words,
    )


def _split(arguments: Sequence[str]) -> tuple[list[str], bool, list[str]]:
    """Splits arguments at the first `--`."""
    arguments = list(arguments)
    if "--" not in arguments:
        return arguments, False, []
    dashes = arguments.index("--")
    return arguments[:dashes], True, arguments[dashes + 1 :]


def _near(path: str) -> str:
    """A path relative to the working directory if it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


class _Child:
    """The command, in our terminal. Signals that only we receive are forwarded to it. As PID 1 we also reap orphans."""

    def __init__(self, words: list[str], variables: dict[str, str]) -> None:
        self._awaited = {*(n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN), signal.SIGCHLD}
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if our parent ignores it, exit codes are lost
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)
        self.pid: int | None = None
        self.status = 0  # its exit code, or the signal that ended it as a negative number
        try:
            # keep the object: `subprocess` reaps children whose objects are gone, and loses their exit codes
            self._process = subprocess.Popen(  # noqa: S603 - the command of the user
                words, env=variables, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
            )
            self.pid = self._process.pid
        except OSError as error:
            self.status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
            _print(f"{words[0]} cannot be run: {error.strerror}.")

    def wait(self) -> int:
        """Waits until the command ends, and returns its exit code."""
        while self.pid is not None and not self._reaped(self.pid):
            number, from_terminal = _next_signal(self._awaited)
            if number != signal.SIGCHLD and not from_terminal:
                with contextlib.suppress(OSError):  # a `sudo` child cannot be signalled
                    os.kill(self.pid, number)  # not reaped yet, so the PID is still its own
        return self.status if self.status >= 0 else 128 - self.status

    def _reaped(self, child: int) -> bool:
        """Whether the command has ended. As PID 1, other processes that ended are reaped too."""
        while True:
            pid, status = os.waitpid(-1 if os.getpid() == 1 else child, os.WNOHANG)
            if pid == child:
                self.status = os.waitstatus_to_exitcode(status)
                return True
            if pid == 0:
                return False


def _next_signal(awaited: set[signal.Signals]) -> tuple[int, bool]:
    """The next signal, and whether a terminal sent it to the whole process group."""
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(awaited)
        return info.si_signo, info.si_code == _SENT_BY_KERNEL
    number = signal.sigwait(awaited)  # macOS
    return number, number in (signal.SIGINT, signal.SIGQUIT) and os.isatty(0)


def _summary(plan: _Plan, left: FlushResult, spool: Spool, runs: list[str]) -> str:
    destination = plan.source_option.partition(" ")[2]
    if left.files:
        why = f": {left.error}" if left.error else ""
        return (
            f"{destination} does not accept telemetry{why}. Unsent files in {spool.folder}: {left.files}. "
            "The next `pyrometer run` with the same destination sends them."
        )
    if left.refused:
        return f"{destination} refused telemetry: {left.error}. Refused files in {spool.refused}: {left.refused}."
    if not runs:
        return f"no PyTorch training was detected in {shlex.quote(plan.command[0])}."
    next_command = f"show {shlex.quote(runs[0])}" if len(runs) == 1 else "runs"
    note = (
        f" Stored in {DEFAULT_FOLDER}, because neither --server nor --data was passed."
        if plan.is_default_folder
        else ""
    )
    return f"`pyrometer {next_command} {plan.source_option}` shows what happened.{note}"


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr may be closed
        sys.stderr.write(f"pyrometer: {text}\n")
        sys.stderr.flush()
