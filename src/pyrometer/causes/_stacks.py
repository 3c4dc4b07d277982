"""Stacks of programs as evidence, in a few short lines."""

from __future__ import annotations

import re

# As `traceback` writes a frame, and as `faulthandler` does (without the comma).
_FRAME = re.compile(
    r'^\s*File "(?P<path>[^"\n]{1,500})", line (?P<line>\d{1,9}),? in (?P<function>[^\n]{1,200})$', re.M
)
_INNERMOST_FIRST = "(most recent call first)"
MAX_FRAMES = 3


def innermost(text: str, most: int = MAX_FRAMES) -> list[str]:
    """The innermost frames of a stack, innermost first: "reader.py:88 in fetch". Empty when it holds none.

    `faulthandler` writes all threads, the main one last: the others are loaders' and libraries' own.
    """
    first = _INNERMOST_FIRST in text
    thread = text.rpartition(_INNERMOST_FIRST)[2] if first else text
    frames = [f"{_short(path)}:{line} in {function.strip()}" for path, line, function in _FRAME.findall(thread)]
    return frames[:most] if first else frames[::-1][:most]


def _short(path: str) -> str:
    """The last two names of a path: enough to find the file, and no machine's folders."""
    return "/".join(re.split(r"[\\/]", path)[-2:])
