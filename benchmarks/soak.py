"""Two compressed months: what a server holds on to, day by day, and whether that grows.

    python benchmarks/soak.py [--days 60] [--minutes 30] [--json FILE]

Two nodes of two GPUs and a job of four ranks; every input, sealing, retention of three days, the ledger, findings and
questions as in a server (`tests/support/soak_days.py`). Growth is fitted over the second half: what is kept is bounded,
and allocators take some weeks to settle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from tests.support.soak_days import KEPT_DAYS, ResourceUse, simulate_days, slope  # noqa: E402

# What a day may add: an allocator breathes, and the objects of a day stay in files of their own.
FLAT = {
    "rss_kib": 512.0,
    "descriptors": 0.05,
    "threads": 0.05,
    "temporary_tables": 0.05,
    "files": 12.0,
    "database_kib": 64.0,
    "wal_kib": 64.0,
}


async def live(count: int, minutes: int) -> list[ResourceUse]:
    """A line a day."""
    found = []
    print(f"{'day':>4}{'RSS MiB':>9}{'fds':>5}{'threads':>9}{'temp tables':>13}{'files':>7}{'DB KiB':>8}{'WAL KiB':>9}")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        async for one in simulate_days(Path(folder) / "data", count, minutes):
            found.append(one)
            print(
                f"{one.day:4}{one.rss_kib / 1024:9.1f}{one.descriptors:5}{one.threads:9}{one.temporary_tables:13}"
                f"{one.files:7}{one.database_kib:8}{one.wal_kib:9}",
                flush=True,
            )
    return found


def main() -> None:
    """Prints the days, what grew, and whether it is flat."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--minutes", type=int, default=30, help="between two scrapes")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    began_s = time.process_time()
    found = asyncio.run(live(args.days, args.minutes))
    settled = found[max(KEPT_DAYS + 2, len(found) // 2) :]
    grew = {name: slope([getattr(one, name) for one in settled]) for name in FLAT}
    print(f"\ngrowth a day, fitted over the last {len(settled)} days:")
    for name, value in grew.items():
        print(f"  {name:18}{value:10.2f}  {'flat' if value <= FLAT[name] else 'GROWS'} (limit {FLAT[name]:g})")
    print(f"{time.process_time() - began_s:,.0f} s of CPU for {len(found)} days")
    if args.json:
        args.json.write_text(json.dumps({"days": [one._asdict() for one in found], "growth": grew}, indent=1) + "\n")
    sys.exit(0 if all(value <= FLAT[name] for name, value in grew.items()) else 1)


if __name__ == "__main__":
    main()
