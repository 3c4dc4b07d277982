"""Stacks of programs as short lines of evidence."""

from __future__ import annotations

import pytest

from pyrometer.causes._stacks import innermost

STOPPED = "stopped by a signal (state T)"


@pytest.mark.parametrize("text", ["", "no stack (state D)", STOPPED, 'File "x", line y, in z'])
def test_innermost_of_a_stack_without_frames_is_empty(text):
    assert innermost(text) == []


def test_innermost_shortens_a_windows_path():
    assert innermost('  File "C:\\me\\work\\train.py", line 3, in <module>\n') == ["work/train.py:3 in <module>"]
