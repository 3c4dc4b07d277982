"""Searches for bytes that break a reader, guided by coverage: `make fuzz TARGET=otlp_json SECONDS=60`.

The targets are those of `tests/support/fuzz_targets.py`. Found inputs stay in `.fuzz/TARGET` between runs; with `--keep`, the
smallest inputs that reach as much go to `tests/fuzz/corpus/TARGET`, where `make test` replays them. An input that breaks
a promise is written to `.fuzz/crash-…` with the traceback on the terminal, and ends the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
TESTS = REPOSITORY / "tests"
WORK = REPOSITORY / ".fuzz"
CORPUS = TESTS / "fuzz" / "corpus"
MAX_INPUT_BYTES = 16_384  # a whole scrape
KEPT_BYTES = 16_000  # of the found inputs of one target
MAX_INPUT_S, MAX_MIB = 5, 2_048  # per input; above, a target hangs or leaks
INSTRUMENTED = ["pyrometer", "yaml", "prometheus_client"]

sys.path[:0] = [str(REPOSITORY / "src"), str(REPOSITORY)]


def fuzz(target: str, arguments: list[str]) -> None:
    """Passes one target to libFuzzer, which ends this process."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.support.fuzz_targets import TARGETS
    # libFuzzer restarts itself in a shell with this command to compare corpora
    program = f"{sys.executable} {Path(__file__).resolve()} {target} --inside"
    atheris.Setup([program, *arguments], TARGETS[target])
    atheris.Fuzz()


def run(target: str, *arguments: str) -> int:
    """Runs libFuzzer once in a process of its own."""
    limits = [
        f"-timeout={MAX_INPUT_S}",
        f"-rss_limit_mb={MAX_MIB}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-artifact_prefix={WORK}/",
    ]
    command = [sys.executable, __file__, target, "--inside", *limits, *arguments]
    return subprocess.run(command, check=False, env={**os.environ, "PYTHONHASHSEED": "0"}).returncode


def main() -> int:
    """Runs the named targets one after the other."""
    if "--inside" in sys.argv:
        fuzz(sys.argv[1], sys.argv[3:])
    from tests.support.fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="*", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="per target")
    parser.add_argument(
        "--keep", action="store_true", help="write the smallest inputs with the same coverage to the tests"
    )
    args = parser.parse_args()
    if unknown := set(args.target) - set(TARGETS):
        parser.error(f"There is no target {', '.join(sorted(unknown))}. Known: {', '.join(TARGETS)}.")
    from tests.support import fuzz_seeds

    fuzz_seeds.write_missing()
    failed = 0
    for target in args.target or TARGETS:
        print(f"== {target}: {args.seconds} s", flush=True)
        found = WORK / target
        found.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        times = f"-max_total_time={args.seconds}"
        failed |= run(target, str(found), str(CORPUS / target), times, "-print_final_stats=1", "-verbosity=1")
        print(f"== {target}: {time.monotonic() - began_s:.0f} s", flush=True)
        if args.keep:
            keep(target, found)
    return min(failed, 1)


def keep(target: str, found: Path) -> None:
    """The corpus of the tests: the seeds, and the smallest inputs that together reach every line that any reaches."""
    merged, kept = WORK / f"{target}.merged", CORPUS / target
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    run(target, "-merge=1", "-use_counters=0", str(merged), str(kept), str(found))
    fuzz_seeds = {path.read_bytes() for path in kept.glob("seed-*")}
    for path in kept.glob("[!s]*"):
        path.unlink()
    room = KEPT_BYTES
    for path in sorted(merged.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
        room -= path.stat().st_size
        if room >= 0 and path.read_bytes() not in fuzz_seeds:
            shutil.copy(path, kept / path.name[:12])


if __name__ == "__main__":
    sys.exit(main())
