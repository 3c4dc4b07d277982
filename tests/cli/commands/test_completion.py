"""`pyrometer completion`: a real bash completes commands, options and choices."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest


def completed(tmp_path, *words: str) -> list[str]:
    """The completions of bash for the last word of a line."""
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    command = tmp_path / "pyrometer"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pyrometer "$@"\n')
    command.chmod(0o755)
    script = f"""
        eval "$(pyrometer completion bash)"
        COMP_WORDS=({" ".join(repr(word) for word in words)}) COMP_CWORD={len(words) - 1}
        _pyrometer_completion pyrometer 2>/dev/null
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=environment)
    return result.stdout.split()


def test_bash_completes_commands_options_and_choices(tmp_path):
    assert completed(tmp_path, "pyrometer", "wo") == ["worth"]
    assert completed(tmp_path, "pyrometer", "why", "--pro") == ["--prometheus"]
    assert "json" in completed(tmp_path, "pyrometer", "cost", "-o", "")
    assert completed(tmp_path, "pyrometer", "token", "cr") == ["create"]
    assert completed(tmp_path, "pyrometer", "run", "--no") == ["--no-gpus"]  # the command without click


def test_completion_scripts_of_zsh_and_fish(pyrometer):
    assert pyrometer("completion", "zsh").lines[0] == "#compdef pyrometer"
    assert pyrometer("completion", "fish").lines[0].startswith("function")
    assert "'tcsh'" in pyrometer("completion", "tcsh").failed(2)
