"""Single keys from a terminal, as words; the terminal is as it was afterwards, however it ends."""

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

# What terminals send for keys without a character of their own.
_SEQUENCES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page_up", "\x1b[6~": "page_down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace",
}  # fmt: skip
_LONGEST = max(map(len, _SEQUENCES))


class Keys:
    """What is typed, a key at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def wait(self, timeout_s: float) -> list[str]:
        """The keys that were pressed, after a while at most. Raises EOFError when the terminal is gone."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return []
        typed = os.read(self._fd, 1024)
        if not typed:
            raise EOFError
        return list(keys_of(typed.decode(errors="ignore")))


def keys_of(typed: str) -> Iterator[str]:
    """Characters as they are, sequences by their names; one that is not known is no key."""
    place = 0
    while place < len(typed):
        for length in range(_LONGEST, 0, -1):
            if typed[place : place + length] in _SEQUENCES:
                sequence = typed[place : place + length]
                break
        else:
            sequence = typed[place]
        if sequence == "\x1b" and typed[place + 1 : place + 2] in ("[", "O"):  # some other key: to its final letter
            end = place + 2
            while end < len(typed) and not typed[end].isalpha() and typed[end] != "~":
                end += 1
            place = end + 1
            continue
        place += len(sequence)
        if sequence in _SEQUENCES:
            yield _SEQUENCES[sequence]
        elif sequence.isprintable():
            yield sequence


@contextmanager
def typed_keys() -> Iterator[Keys]:
    """Keys come as they are pressed and are not shown. Ctrl-C still interrupts; Ctrl-Z is no key, and being told to end
    (SIGTERM) ends it in order, so that nobody is left with a terminal in this mode."""
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
