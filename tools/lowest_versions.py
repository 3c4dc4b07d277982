"""Runs tests with the lowest versions of dependencies that `pyproject.toml` allows: `make test-lowest`.

Creates an environment with the lowest version of each direct dependency of `server` and `agent`, and the newest version
of indirect ones. The tools of the tests are installed on top, and may not change a version.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-lowest"
TOOLS = ("pytest>=8.3", "pytest-xdist>=3.6", "hypothesis>=6.115", "cramjam>=2.9", "grpcio>=1.66")
# Tests that use each dependency: the store and its SQL, the server and its routes, sources and their formats, the commands.
TESTS = (
    "tests/store",
    "tests/collect/prometheus/test_exposition.py",
    "tests/collect/prometheus/test_remote_write.py",
    "tests/serve/test_server.py",
    "tests/serve/http/test_auth.py",
    "tests/questions/test_cache.py",
    "tests/serve/http/test_admin.py",
    "tests/serve/ingest/test_otlp_receiver.py",
    "tests/serve/ingest/test_remote_write_receiver.py",
    "tests/agent/test_server.py",
    "tests/cli/commands/test_run.py",
    "tests/cli/commands/test_answers.py",
)


def run(*command: str | Path) -> None:
    """Runs a command, and exits if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def environment() -> Path:
    """Creates the environment, and returns its Python."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    run(sys.executable, "-m", "venv", FOLDER)
    python, uv, lowest = FOLDER / "bin/python", FOLDER / "bin/uv", FOLDER / "lowest.txt"
    run(python, "-m", "pip", "install", "--quiet", "uv>=0.5")
    into = ("pip", "install", "--quiet", "--python", python)
    run(uv, *into, "--resolution", "lowest-direct", "--editable", ".[server,agent]")
    versions = subprocess.run(
        [uv, "pip", "freeze", "--exclude-editable", "--python", python], check=True, capture_output=True, text=True
    )
    lowest.write_text(versions.stdout)
    run(uv, *into, "--constraint", lowest, *TOOLS)
    return python


def main() -> None:
    """Creates the environment, and runs the chosen or the named tests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS, help="tests to run instead of the chosen ones")
    tests = parser.parse_args().tests
    python = environment()
    print((FOLDER / "lowest.txt").read_text())
    run(python, "-m", "pytest", "-q", "-p", "no:randomly", "-m", "not heavy", *tests)


if __name__ == "__main__":
    main()
