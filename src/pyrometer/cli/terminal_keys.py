"""Reads single keys from a terminal by name, and restores the terminal afterwards, however the program ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# What terminals send for keys that have no character.
_SEQUENCES = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page_up",
    "\x1b[6~": "page_down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
}
_MAX_LENGTH = max(map(len, _SEQUENCES))


class Keys:
    """The keys that are typed, one at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def wait(self, timeout_s: float) -> list[str]:
        """The keys that were pressed, or none after the timeout. Raises EOFError if the terminal is gone."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return []
        typed = os.read(self._fd, 1024)
        if not typed:
            raise EOFError
        return list(keys_of(typed.decode(errors="ignore")))


def keys_of(typed: str) -> Iterator[str]:
    """Characters as they are, sequences by name. Unknown sequences are skipped."""
    position = 0
    while position < len(typed):
        for length in range(_MAX_LENGTH, 0, -1):
            if typed[position : position + length] in _SEQUENCES:
                sequence = typed[position : position + length]
                break
        else:
            sequence = typed[position]
        if sequence == "\x1b" and typed[position + 1 : position + 2] in (
            "[",
            "O",
        ):  # an unknown sequence: skip to its final letter
            end = position + 2
            while end < len(typed) and not typed[end].isalpha() and typed[end] != "~":
                end += 1
            position = end + 1
            continue
        position += len(sequence)
        if sequence in _SEQUENCES:
            yield _SEQUENCES[sequence]
        elif sequence.isprintable():
            yield sequence


@contextmanager
def typed_keys() -> Iterator[Keys]:
    """Delivers keys as they are pressed, without echo. Ctrl-C still interrupts, Ctrl-Z does nothing, and SIGTERM exits
    in order, so that the terminal is never left in this mode."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    ended_by = signal.signal(signal.SIGTERM, end)
    try:
        tty.setcbreak(fd, termios.TCSADRAIN)
        now = termios.tcgetattr(fd)
        now[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(fd, termios.TCSADRAIN, now)
        yield Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, ended_by)
