"""Faults, counted: a server and its commands are killed at every step and at random moments, and nothing may be lost.

For each family: how many faults, how many rows were acknowledged, how many of them are lost or doubled, how many
folders differ from an undisturbed twin, and how much `pyrometer check` finds wrong. All but the first two are to be 0.
The same harness as `tests/faults`, with every step instead of some.

    python benchmarks/faults.py [--every 1] [--random 50] [--flips 500] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from pyrometer.account.checks.check_list import problems  # noqa: E402
from pyrometer.store import Store  # noqa: E402
from tests.faults.test_killed import COMMANDS, folders_to_harm  # noqa: E402
from tests.support.crashing_process import Faults  # noqa: E402
from tests.support.fault_harness import (  # noqa: E402
    Counts,
    Sender,
    ServerProcess,
    compare,
    deliveries,
    prepare_folder,
    read_folder,
    run_without_faults,
)
from tests.support.kills import NO_KILLS, KillResult, KillScenario, kill_at_every_step  # noqa: E402

Row = tuple[str, Counts, Counter[str]]


def killed_at_every_step(scene: KillScenario, every: int) -> Row:
    """A server that takes, stores, seals and accounts, killed before each of its steps."""
    killed, step = NO_KILLS, 0
    while (one := scene.kill_server_at(step)) is not None:
        killed, step = killed.plus(one), step + every
    return "server, before each of its steps", killed.counts, killed.steps


def killed_opening_again(scene: KillScenario, every: int) -> Row:
    """Killed with its inbox full, and again before each step of the next start."""
    killed = NO_KILLS
    for step in range(0, 60, every):
        killed = killed.plus(scene.kill_server_at(90, step) or NO_KILLS)
    return "server, killed again while it opens", killed.counts, killed.steps


def killed_at_random(scene: KillScenario, times: int) -> Row:
    """Servers killed at random moments, three in a row."""
    killed: KillResult = NO_KILLS
    for seed in range(times):
        killed = killed.plus(scene.kill_server_at_random(random.Random(seed)))
    return "server, at random moments", killed.counts, killed.steps


def commands_at_every_step(scene: KillScenario, every: int) -> Iterator[Row]:
    """Commands that change a folder, killed before each step, and run again."""
    for name, (harm, arguments) in COMMANDS.items():
        killed, _ = kill_at_every_step(
            folders_to_harm(scene, harm),
            arguments,
            lambda folder: compare(read_folder(folder), scene.twin, set()),
            every=every,
        )
        yield f"command: {name}", killed.counts, killed.steps


def full_disks(scene: KillScenario, times: int) -> Row:
    """A disk that fills up at random moments while a server takes and stores, and has room again."""
    counts = Counts()
    for seed in range(times):
        chance = random.Random(seed)
        folder, sender = scene.folder(), Sender(scene.load)
        with ServerProcess(folder, faults=Faults(checkpoint_bytes=20_000)) as served:
            for max_file_bytes in (chance.choice([0, 1_000, 60_000, 300_000]), resource.RLIM_INFINITY):
                sender.send(served.client, most=chance.randint(1, 6))
                resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (max_file_bytes, resource.RLIM_INFINITY))
                sender.send(served.client, most=2)
                time.sleep(chance.uniform(0, 0.5))  # so that it also has to store and to build
            assert sender.send(served.client), served.log
        counts = counts.plus(compare(read_folder(folder), scene.twin, sender.acknowledged))
        shutil.rmtree(folder)
    return "full disk, and room again", counts, Counter()


def flipped_bits(scene: KillScenario, times: int) -> Row:
    """One bit of one part at a time; wrong: those that `check` does not find."""
    folder = scene.scratch / "twin"
    chance, unfound = random.Random(0), 0
    parts = sorted((folder / "parts").rglob("*.parquet"))
    with Store(folder) as store:
        for _ in range(times):
            path = chance.choice(parts)
            body = path.read_bytes()
            harmed = bytearray(body)
            harmed[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            path.write_bytes(harmed)
            unfound += not any(one.part and path.match(one.part.path) for one in problems(store))
            path.write_bytes(body)
    return "a flipped bit in a part", Counts(faults=times, wrong=unfound), Counter()


def main() -> None:
    """Runs all families and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="every so manyth step")
    parser.add_argument("--random", type=int, default=50, help="servers that are killed at random moments, times three")
    parser.add_argument("--flips", type=int, default=500)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        load = deliveries(30, 10)
        twin = run_without_faults(Path(scratch) / "twin", load)
        scene = KillScenario(Path(scratch), prepare_folder(Path(scratch) / "before"), load, twin)
        rows: list[Row] = []
        print(f"{'':38}{'faults':>8}{'acked':>9}{'lost':>6}{'doubled':>9}{'unlike':>8}{'wrong':>7}", flush=True)
        for make in (
            lambda: [killed_at_every_step(scene, args.every)],
            lambda: [killed_opening_again(scene, args.every)],
            lambda: [killed_at_random(scene, args.random)],
            lambda: commands_at_every_step(scene, args.every),
            lambda: [full_disks(scene, max(1, args.random // 2))],
            lambda: [flipped_bits(scene, args.flips)],
        ):
            for row in make():
                name, counts, steps = row
                print(
                    f"{name:38}{counts[0]:8,}{counts[1]:9,}"
                    + "".join(f"{value:{width},}" for value, width in zip(counts[2:], (6, 9, 8, 7), strict=True)),
                    flush=True,
                )
                if steps:
                    print(
                        "   " + ", ".join(f"{step.lower()} {count}" for step, count in steps.most_common(8)), flush=True
                    )
                rows.append(row)
    total = Counts()
    for _, counts, _ in rows:
        total = total.plus(counts)
    print(f"{'all':38}{total[0]:8,}{total[1]:9,}{total[2]:6,}{total[3]:9,}{total[4]:8,}{total[5]:7,}")
    print(f"in {time.monotonic() - began_s:,.0f} s")
    if args.json:
        results = {name: {**counts._asdict(), "steps": dict(steps)} for name, counts, steps in rows}
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(0 if total.is_clean else 1)


if __name__ == "__main__":
    main()
