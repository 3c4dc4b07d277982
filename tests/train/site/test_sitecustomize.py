"""The `sitecustomize` of `pyrometer run`, in a real interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyrometer

SITE = Path(pyrometer.__file__).parent / "train" / "site"


def run_python(script: str, *folders: Path, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYROMETER_")}
    environment |= {"PYTHONPATH": os.pathsep.join(map(str, folders)), **variables}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_sitecustomize_starts_the_sdk_and_runs_the_replaced_one(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('replaced one')")
    script = (
        "import sys; from pyrometer.train.run import boot; "
        f"print(boot.hooks() is not None, {str(SITE)!r} in sys.path, 'torch' in sys.modules)"
    )
    output = run_python(script, SITE, tmp_path, PYROMETER_SPOOL=str(tmp_path / "spool"))
    assert output.splitlines() == ["replaced one", "True False False"]
    assert not (tmp_path / "spool").exists()


def test_sitecustomize_without_a_target_starts_nothing():
    assert run_python("from pyrometer.train.run import boot; print(boot.hooks())", SITE) == "None\n"
