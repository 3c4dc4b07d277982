"""Shows that one version of the code is not slower than another: `python tools/compare_speed.py BASE NEW`.

BASE and NEW are checkouts or git revisions. Both run the same small benchmarks of ingestion, the ledger and questions,
in turns (BASE, NEW, BASE, NEW, …), so that whatever else the machine does affects both. What counts is the CPU time of
each run, user and system, its child processes included: it varies less than elapsed time. Prints medians and ratios, and
exits with status 1 when NEW takes more than `--limit` times the CPU time of BASE. Each checkout runs its own files in
`benchmarks/`, and is otherwise used through its command line, so modules may move between the versions.

    python tools/compare_speed.py main .                      # about 15 minutes on two idle cores
    python tools/compare_speed.py main . --only ledger --rounds 9
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parent)]
from compare_answers import checked_out, environment_of  # noqa: E402


class Benchmark(NamedTuple):
    """A command that is run again and again."""

    name: str
    program: str  # a file of the checkout, or `pyrometer`
    # A number is a size, which `--scale` multiplies; {night} is a folder that was built before, {scratch} an empty one.
    arguments: tuple[str | int, ...]


BENCHMARKS = (
    Benchmark("ingest: scrapes to records", "benchmarks/scrape.py", ("--one", "records", "--exporters", 1_500)),
    Benchmark("ingest: remote write", "benchmarks/remote_write.py", ("--rounds", "4", "--exporters", 1_500)),
    Benchmark("ingest: OTLP", "benchmarks/otlp.py", ("--rounds", "3", "--ranks", 4_000)),
    Benchmark("ingest: a simulated night", "pyrometer", ("simulate", "overnight", "--out", "{scratch}/night")),
    Benchmark(
        "ledger: build and ask",
        "benchmarks/ledger.py",
        ("--hours", "12", "--folder", "{scratch}/ledger", "--one", 1_000),
    ),
    Benchmark("question: why", "pyrometer", ("why", "--all", "--data", "{night}", "-o", "json")),
    Benchmark(
        "question: cost", "pyrometer", ("cost", "--all", "--by", "pod,state,hour", "--data", "{night}", "-o", "json")
    ),
    Benchmark("question: runs", "pyrometer", ("runs", "--all", "--data", "{night}", "-o", "json")),
    Benchmark("question: worth", "pyrometer", ("worth", "--all", "--data", "{night}", "-o", "json")),
    Benchmark("start: --help", "pyrometer", ("--help",)),
)


class Side:
    """One version of the code, and the CPU seconds of its runs by benchmark."""

    def __init__(self, root: Path, python: str, scratch: Path) -> None:
        self.root, self.python, self.scratch = root, python, scratch
        self.took: dict[str, list[float]] = {}
        scratch.mkdir()
        # Without the path of other servers: benchmarks measure those too where they are installed.
        self._environment = environment_of(root) | {"PATH": str(Path(python).parent)}
        night = Benchmark("", "pyrometer", ("simulate", "overnight", "--out", str(scratch / "night")))
        self._run(night, scale=1.0)

    def measure(self, benchmark: Benchmark, scale: float) -> None:
        """Runs a benchmark once."""
        self.took.setdefault(benchmark.name, []).append(self._run(benchmark, scale))

    def _run(self, benchmark: Benchmark, scale: float) -> float:
        with tempfile.TemporaryDirectory(dir=self.scratch) as empty:
            arguments = [
                str(max(8, round(one * scale)))
                if isinstance(one, int)
                else one.format(night=self.scratch / "night", scratch=empty)
                for one in benchmark.arguments
            ]
            how = ["-m", "pyrometer"] if benchmark.program == "pyrometer" else [str(self.root / benchmark.program)]
            with tempfile.TemporaryFile() as errors:
                process = subprocess.Popen(
                    [self.python, *how, *arguments],
                    cwd=empty,
                    env=self._environment,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
                _, status, used = os.wait4(process.pid, 0)  # including all children that it waited for
                process.returncode = os.waitstatus_to_exitcode(status)
                if process.returncode:
                    errors.seek(0)
                    message = errors.read().decode(errors="replace").strip()[-2_000:]
                    raise SystemExit(f"{self.root}: {benchmark.name or 'building the night'} failed:\n{message}")
        return used.ru_utime + used.ru_stime


def slower(base: Side, new: Side, limit: float) -> list[str]:
    """Prints medians and their ratios; returns the names of benchmarks in which NEW takes more than the limit."""
    found = []
    print(f"{'CPU seconds, median (least to most)':<36}{'BASE':>22}{'NEW':>22}{'ratio':>8}")
    for name, before in base.took.items():
        after = new.took[name]
        ratio = median(after) / median(before)
        figures = [f"{median(one):.2f} ({min(one):.2f}-{max(one):.2f})" for one in (before, after)]
        print(f"{name:<36}{figures[0]:>22}{figures[1]:>22}{ratio:>8.3f}{'  slower' if ratio > limit else ''}")
        if ratio > limit:
            found.append(name)
    return found


def measure_in_turns(sides: Sequence[Side], benchmarks: Sequence[Benchmark], rounds: int, scale: float) -> None:
    """Runs everything, each benchmark of one version right after that of the other; who is first changes."""
    for number in range(rounds):
        for benchmark in benchmarks:
            for side in sides if number % 2 == 0 else reversed(sides):
                side.measure(benchmark, scale)
        print(f"round {number + 1} of {rounds} is done", file=sys.stderr, flush=True)


def main() -> None:
    """Compares two versions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", help="a checkout or a git revision of this repository")
    parser.add_argument("new", metavar="NEW", help="likewise")
    parser.add_argument("--python", default=sys.executable, help="the Python for both; default: this one")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--limit", type=float, default=1.10, help="the highest ratio that passes; default: 1.10")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the sizes; default: 1")
    parser.add_argument("--only", metavar="WORD", default="", help="only benchmarks whose name contains this")
    args = parser.parse_args()
    wanted = [one for one in BENCHMARKS if args.only in one.name]
    if not wanted:
        parser.error(f"no benchmark has {args.only!r} in its name: {', '.join(one.name for one in BENCHMARKS)}")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-speed-")))
        roots = [stack.enter_context(checked_out(v, scratch / f"v{n}")) for n, v in enumerate((args.base, args.new))]
        base, new = (Side(root, args.python, scratch / f"data{n}") for n, root in enumerate(roots))
        measure_in_turns((base, new), wanted, args.rounds, args.scale)
    sys.exit(1 if slower(base, new, args.limit) else 0)


if __name__ == "__main__":
    main()
