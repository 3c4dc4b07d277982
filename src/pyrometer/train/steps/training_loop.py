"""The training loop in the program's own code: whether it still runs."""

from __future__ import annotations

import dis
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import NamedTuple


class Loop(NamedTuple):
    """A loop, by the instructions from its head to its last jump back."""

    code: CodeType
    first: int
    last: int

    def contains(self, frame: FrameType | None) -> bool:
        """Whether a thread with this innermost frame is inside of the loop."""
        while frame is not None:
            if frame.f_code is self.code and self.first <= frame.f_lasti <= self.last:
                return True
            frame = frame.f_back
        return False


def enclosing_loops(frame: FrameType | None, excluded_folders: Iterable[str] = ()) -> list[Loop]:
    """The loops around a frame and its callers, the innermost first, except in files of some folders."""
    folders = tuple(excluded_folders)
    loops = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(folders):
            found = _outermost_loop(frame.f_code, frame.f_lasti)
            if found is not None:
                loops.append(Loop(frame.f_code, *found))
        frame = frame.f_back
    return loops


def _outermost_loop(code: CodeType, at: int) -> tuple[int, int] | None:
    """The outermost loop of a function around an instruction."""
    jumps = [(i.argval, i.offset) for i in dis.get_instructions(code) if "JUMP" in i.opname]
    loops = [(target, offset) for target, offset in jumps if isinstance(target, int) and target < offset]
    enclosing = [(first, last) for first, last in loops if first <= at <= last]
    return (min(first for first, _ in enclosing), max(last for _, last in enclosing)) if enclosing else None
