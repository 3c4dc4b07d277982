"""How long a newcomer takes: `python benchmarks/newcomer.py [WHEEL]`.

Builds the wheel of this checkout, or takes one, and types docs/first-ten-minutes.md from top to bottom in an empty
folder: a new virtual environment, what the package index gives, a training run of two processes, the answers. Prints
seconds by step, as a table for that page. What a person reads and types is not in it.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
sys.path[:0] = [str(REPOSITORY / "tools")]
from written import Block, blocks  # noqa: E402 - of tools/

PAGE = REPOSITORY / "docs" / "first-ten-minutes.md"
FIRST_ANSWER = "pyrometer why"


def built(folder: Path) -> Path:
    """The wheel of this checkout."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, REPOSITORY]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


class Shell:
    """A newcomer's: it remembers which environment is active."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self.wheel = folder, wheel
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYROMETER_", "VIRTUAL"))
        } | {"PIP_NO_CACHE_DIR": "1"}  # newcomers have not been here before

    def type(self, text: str) -> float:
        """Seconds that a command takes; of a server, until its page is there."""
        text = text.replace("'pyrometer[server]'", f"'{self.wheel}[server]'")
        begun = time.perf_counter()
        if text.startswith(". "):
            path = self.folder / text[2:].removesuffix("/activate")
            self.variables["PATH"] = f"{path}{os.pathsep}{self.variables['PATH']}"
        elif text.startswith("pyrometer serve"):
            return self.served(text)
        else:
            command = ["bash", "-c", text]
            result = subprocess.run(command, cwd=self.folder, env=self.variables, capture_output=True, text=True)
            if result.returncode:
                sys.exit(f"{text}: {result.stdout[-2000:]}{result.stderr[-2000:]}")
        return time.perf_counter() - begun

    def served(self, text: str) -> float:
        """Until the server answers; then it is stopped."""
        begun = time.perf_counter()
        process = subprocess.Popen(
            ["bash", "-c", f"exec {text}"], cwd=self.folder, env=self.variables, stderr=subprocess.PIPE, text=True
        )
        with process:
            listening = next((line for line in process.stderr if "Listening" in line), "")
            page = ["curl", "--silent", "--fail", "--output", os.devnull, listening.split("on ", 1)[1].split(",")[0]]
            subprocess.run(page, check=True)
            took_s = time.perf_counter() - begun
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
        return took_s


def timed(page: list[Block], shell: Shell) -> list[tuple[str, float]]:
    """Every command of the page with its seconds."""
    rows = []
    for block in page:
        if block.title:
            (shell.folder / block.title).write_text(block.text)
        for command in block.commands():
            rows.append((command.text, shell.type(command.text)))
            print(f"{rows[-1][1]:7.1f} s  {command.text}", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "newcomer"
        folder.mkdir()
        wheel = Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else built(Path(place))
        rows = timed(blocks(PAGE), Shell(folder, wheel))
    answered = next(number for number, (text, _) in enumerate(rows) if text.startswith(FIRST_ANSWER))
    print("| typed | seconds |\n|---|---:|")
    for number, (text, took_s) in enumerate(rows):
        print(f"| `{text}` | {took_s:.1f} |")
        if number == answered:
            print(f"| **to the first answer** | **{sum(took for _, took in rows[: number + 1]):.0f}** |")
    print(f"| **total** | **{sum(took for _, took in rows):.0f}** |")
    print(f"\n{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}", file=sys.stderr)


if __name__ == "__main__":
    main()
