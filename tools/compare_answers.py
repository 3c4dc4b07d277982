"""Shows that two versions of the code give the same answers: `python tools/compare_answers.py BASE NEW`.

BASE and NEW are checkouts or git revisions; a revision is checked out into a temporary git worktree. Each version builds
its own data folders from scratch, so that ingestion and the ledger are compared too: five simulated nights and the
recordings in BASE's tests. Then both answer the same questions with `-o json`, and the answers are compared value by
value. Added fields and reworded texts (`TEXTS`) are allowed; any other difference is printed with its path, and the exit
status is 1. Only the command line is used, so modules may move between the versions.

    python tools/compare_answers.py main .              # three minutes on two idle cores
    python tools/compare_answers.py v0.1.0 HEAD --exact  # texts and fields must be equal as well
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).parent.parent
MAX_SHOWN = 20  # differences of one answer
MAX_RUNS_SHOWN = 8  # runs of one folder that `show` and `trace` are asked about, spread over all of them

# Scenario and seed: with all evidence (twice), without the SDK, with Kubernetes alone, and with pipelines and sweeps.
NIGHTS = (("overnight", 1), ("overnight", 2), ("gpu_only", 3), ("kube_only", 4), ("kubeflow", 5))

# The finest groupings compare the ledger itself, row by row.
GROUPINGS = (
    "team,experiment",
    "workload,state",
    "pod,state,hour",
    "node,gpu_model,pool,cluster",
    "user,queue,namespace,outcome",
    "cause,state",
    "pipeline,pipeline_run,pipeline_step,sweep,trial",
    "day,team",
)
QUESTIONS = (
    ("why", "--all"),
    ("why", "--last", "3h"),
    *(("cost", "--all", "--by", by) for by in GROUPINGS),
    ("cost", "--all", "--by", "team", "--share-platform", "proportional", "--tz", "Europe/Berlin"),
    ("runs", "--all"),
    ("worth", "--all"),
    ("prices",),
)
QUESTIONS_ABOUT_A_RUN = ("show", "trace")

# Where an answer has sentences for people, as paths with `[]` for each of a list. Their wording may change; that they
# exist, and how many there are, may not.
TEXTS = {
    "findings[].evidence[]",
    "findings[].suggestion",
    "findings[].title",
    "findings[].what_if.sentence",
    "saved_if_caught.sentence",
}


class Answer(NamedTuple):
    """What one version answered: parsed JSON, or None when the command failed."""

    value: Any
    error: str = ""


class Difference(NamedTuple):
    """A place at which two answers differ; `allowed` when only a text or an added field is different."""

    path: str
    base: str
    new: str
    allowed: bool = False


class Checkout:
    """One version of the code, run through its command line."""

    def __init__(self, root: Path, python: str, scratch: Path) -> None:
        self.root, self.python, self.scratch = root, python, scratch
        scratch.mkdir(parents=True)
        self._environment = environment_of(root)
        loaded = self._run("-c", "import pyrometer; print(pyrometer.__file__)").stdout.strip()
        if root / "src" not in Path(loaded).parents:
            raise SystemExit(f"{python} loads {loaded!r} instead of the code in {root}/src.")

    def build(self, name: str, command: tuple[str, ...]) -> None:
        """Makes a data folder."""
        done = self._run("-m", "pyrometer", *command, "--out", str(self.scratch / name))
        if done.returncode:
            raise SystemExit(f"{self.root}: `pyrometer {' '.join(command)}` failed: {done.stderr.strip()}")

    def ask(self, name: str, question: tuple[str, ...]) -> Answer:
        """The answer to a question about a folder that was built before."""
        done = self._run("-m", "pyrometer", *question, "--data", str(self.scratch / name), "-o", "json")
        if done.returncode:
            return Answer(None, f"exit status {done.returncode}: {done.stderr.strip()}")
        return Answer(json.loads(done.stdout))

    def answer_all(self, name: str, command: tuple[str, ...]) -> dict[str, Answer]:
        """Builds a folder and asks everything about it."""
        self.build(name, command)
        answers = {" ".join(question): self.ask(name, question) for question in QUESTIONS}
        runs = [row["run"] for row in (answers["runs --all"].value or {"rows": []})["rows"]]
        for run in runs[:: max(1, -(-len(runs) // MAX_RUNS_SHOWN))]:
            for question in QUESTIONS_ABOUT_A_RUN:
                answers[f"{question} {run}"] = self.ask(name, (question, run))
        return answers

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # In the scratch folder: `-m` would find a package in the current one first.
        return subprocess.run(
            [self.python, *arguments], cwd=self.scratch, env=self._environment, capture_output=True, text=True
        )


def environment_of(root: Path) -> dict[str, str]:
    """The environment in which Python runs the code of a checkout, whatever settings this shell has."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYROMETER_")}
    return kept | {"PYTHONPATH": str(root / "src"), "PYTHONHASHSEED": "0", "TZ": "UTC"}


@contextmanager
def checked_out(version: str, folder: Path) -> Iterator[Path]:
    """The root of a checkout, or of a temporary worktree of a git revision."""
    if (Path(version) / "src" / "pyrometer").is_dir():
        yield Path(version).resolve()
        return
    git = ["git", "-C", str(REPOSITORY), "worktree"]
    added = subprocess.run([*git, "add", "--detach", str(folder), version], capture_output=True, text=True)
    if added.returncode:
        raise SystemExit(f"{version!r} is neither a checkout of Pyrometer nor a revision: {added.stderr.strip()}")
    try:
        yield folder.resolve()
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True, capture_output=True)


def compare(base: Any, new: Any, path: str = "") -> Iterator[Difference]:
    """The differences of two JSON values."""
    if isinstance(base, dict) and isinstance(new, dict):
        for name in base:
            below = f"{path}.{name}" if path else name
            if name in new:
                yield from compare(base[name], new[name], below)
            else:
                yield Difference(below, shorten(base[name]), "missing")
        for name in new.keys() - base.keys():
            yield Difference(f"{path}.{name}" if path else name, "missing", shorten(new[name]), allowed=True)
    elif isinstance(base, list) and isinstance(new, list):
        if len(base) != len(new):
            yield Difference(path, f"{len(base)} items", f"{len(new)} items")
        for number, (one, other) in enumerate(zip(base, new, strict=False)):
            yield from compare(one, other, f"{path}[{number}]")
    elif type(base) is not type(new) or base != new:
        is_text = isinstance(base, str) and isinstance(new, str) and bool(new)
        yield Difference(path, shorten(base), shorten(new), allowed=is_text and re.sub(r"\[\d+\]", "[]", path) in TEXTS)


def count_values(value: Any) -> int:
    """How many numbers, texts and nulls a JSON value has."""
    if isinstance(value, dict):
        return sum(map(count_values, value.values()))
    return sum(map(count_values, value)) if isinstance(value, list) else 1


def shorten(value: Any) -> str:
    """A value for one line."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def folders(base: Path) -> dict[str, tuple[str, ...]]:
    """The data folders to build: the name of each, and the command."""
    found: dict[str, tuple[str, ...]] = {
        f"{scenario}-{seed}": ("simulate", scenario, "--seed", str(seed)) for scenario, seed in NIGHTS
    }
    for recording in sorted({path.parent for path in (base / "tests").rglob("*-gpu.csv")}):
        found[f"recording-{recording.name}"] = ("import", "recording", str(recording))
    return found


def report(name: str, base: dict[str, Answer], new: dict[str, Answer], exact: bool) -> tuple[int, int, int]:
    """Prints the differences of one folder; returns how many there are, how many are allowed, and how many values."""
    wrong = allowed = values = 0
    for question, before in base.items():
        after = new.get(question, Answer(None, "not asked: its list of runs is another"))
        values += count_values(before.value)
        found = [] if before.error and after.error else list(compare(before.value, after.value))
        fatal = [one for one in found if exact or not one.allowed]
        allowed += len(found) - len(fatal)
        wrong += len(fatal)
        for one in fatal[:MAX_SHOWN]:
            print(f"{name}: {question}: {one.path or 'the answer'}: {one.base} -> {one.new}")
        if fatal and (before.error or after.error):
            print(f"  {before.error or after.error}")
        if len(fatal) > MAX_SHOWN:
            print(f"{name}: {question}: and {len(fatal) - MAX_SHOWN} more")
    return wrong, allowed, values


def main() -> None:
    """Compares two versions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", help="a checkout or a git revision of this repository")
    parser.add_argument("new", metavar="NEW", help="likewise")
    parser.add_argument("--python", default=sys.executable, help="the Python for both; default: this one")
    parser.add_argument("--exact", action="store_true", help="reworded texts and added fields are differences too")
    parser.add_argument("--only", metavar="WORD", help="only folders whose name contains this: overnight, recording")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once; default: 2")
    args = parser.parse_args()
    started = time.monotonic()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="compare-answers-")))
        roots = [stack.enter_context(checked_out(v, scratch / f"v{n}")) for n, v in enumerate((args.base, args.new))]
        sides = [Checkout(root, args.python, scratch / f"data{n}") for n, root in enumerate(roots)]
        wanted = {name: how for name, how in folders(roots[0]).items() if (args.only or "") in name}
        pool = stack.enter_context(ThreadPoolExecutor(args.jobs))
        requests = {name: [pool.submit(side.answer_all, name, how) for side in sides] for name, how in wanted.items()}
        totals = [0, 0, 0]
        answers = failed = 0
        for name, (base, new) in requests.items():
            of_base = base.result()
            answers += len(of_base)
            failed += sum(bool(one.error) for one in of_base.values())
            totals = [a + b for a, b in zip(totals, report(name, of_base, new.result(), args.exact), strict=True)]
    wrong, allowed, values = totals
    print(
        f"{len(wanted)} folders, {answers} answers ({failed} refused by BASE), {values:,} values in "
        f"{time.monotonic() - started:.0f} s: {wrong} differences, {allowed} reworded texts or added fields"
    )
    if not values:
        raise SystemExit("Nothing was compared.")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
