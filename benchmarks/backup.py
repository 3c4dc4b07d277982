"""Backups: of a folder, of the same folder again, restored; and of a server that is being written to: how long senders
wait for it.

    python benchmarks/backup.py [--gpus 1000] [--hours 24] [--json FILE]

A folder as `benchmarks/ledger.py` makes it. CPU time is this process'; a copy with `shutil.copytree` (no digests, not
synced) is shown for comparison. The longest pause is the longest time in which a sender of remote write bodies waited
for an answer: once without backups, and once while backups are taken.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

LIVE_S, PAUSE_S = 10.0, 0.05
MAX_BODIES = int(2 * LIVE_S / PAUSE_S)


def measured(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds of the clock and of CPU."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return {"wall_s": round(time.perf_counter() - wall_s, 3), "cpu_s": round(time.process_time() - cpu_s, 3)}


def command(*words: str) -> None:
    """A command, in this process."""
    from pyrometer.cli import main

    try:
        main(list(words))
    except SystemExit as ended:
        if ended.code:
            raise


def at_rest(folder: Path, gpus: int, hours: int) -> dict[str, Any]:
    """Backup, incremental backup, verification, restore."""
    import ledger

    from pyrometer.account.build.ledger import build
    from pyrometer.model.settings import Settings
    from pyrometer.store import Store

    data, backups = folder / "data", folder / "backups"
    now_ms = time.time_ns() // 1_000_000
    ledger.START_MS = (now_ms // ledger.HOUR_MS - hours) * ledger.HOUR_MS  # up to now: a server continues from there
    with Store(data, create=True) as store:
        ledger.generate(store, gpus, hours)
        build(store, Settings(), now_ms=now_ms)
        size = sum(part.bytes for part in store.parts())
        parts = len(store.parts())
    results: dict[str, Any] = {"gpus": gpus, "hours": hours, "mb": round(size / 1e6, 1), "parts": parts}
    results["copytree"] = measured(lambda: shutil.copytree(data, folder / "copied"))
    results["backup"] = measured(lambda: command("backup", "--data", str(data), "--out", str(backups)))
    results["again"] = measured(lambda: command("backup", "--data", str(data), "--out", str(backups)))
    results["check"] = measured(lambda: command("check", str(backups)))
    results["restore"] = measured(lambda: command("restore", str(backups), "--out", str(folder / "restored")))
    results["check_data"] = measured(lambda: command("check", str(folder / "restored")))
    for name in ("copytree", "backup", "check", "restore"):
        results[name]["mb_per_s"] = round(size / 1e6 / results[name]["wall_s"], 1)
    return results


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str, str]]:
    """A server over the folder, and tokens of an admin and a sender."""
    from pyrometer.questions.tokens import Tokens
    from tests.support.kube_server import free_port

    tokens = Tokens(folder)
    admin, sender = tokens.create("root", "admin", 0), tokens.create("prometheus", "ingest", 0)
    port = free_port()
    words = [sys.executable, "-m", "pyrometer", "serve", "--data", str(folder), "--listen", f"127.0.0.1:{port}"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "Listening" in line)
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{port}", admin, sender
        finally:
            process.terminate()


def live(folder: Path) -> dict[str, Any]:
    """How long a sender waits, without and with backups."""
    import httpx2 as httpx

    from tests.support.exporter_texts import Gpu
    from tests.support.remote_write_bodies import body_of, series_of

    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    gpus = [Gpu(number) for number in range(200)]
    results: dict[str, Any] = {}
    first_ms = time.time_ns() // 1_000_000 - 60_000
    bodies = iter([body_of(series_of(gpus, first_ms + 100 * number)) for number in range(MAX_BODIES)])
    with serving(folder) as (url, admin, sender), httpx.Client(base_url=url, timeout=60) as client:
        os.environ["PYROMETER_TOKEN"] = admin
        headers["Authorization"] = f"Bearer {sender}"
        time.sleep(20)  # until it has read the new folder
        for name in ("alone", "with_backups"):
            stop, taken = threading.Event(), []

            def back_up(stop: threading.Event = stop, taken: list[float] = taken) -> None:
                while not stop.is_set():
                    began_s = time.perf_counter()
                    words = ["backup", "--server", url, "--out", str(folder.parent / "live"), "--keep", "2"]
                    subprocess.run([sys.executable, "-m", "pyrometer", *words], check=True, stdout=subprocess.DEVNULL)
                    taken.append(time.perf_counter() - began_s)

            backing = threading.Thread(target=back_up)
            if name == "with_backups":
                backing.start()
            waits, until_s = [], time.monotonic() + LIVE_S
            while time.monotonic() < until_s:
                body = next(bodies)
                time.sleep(PAUSE_S)  # a sender does not send all the time: this asks how long it waits
                began_s = time.perf_counter()
                client.post("/api/v1/write", content=body, headers=headers).raise_for_status()
                waits.append(1000 * (time.perf_counter() - began_s))
            stop.set()
            if name == "with_backups":
                backing.join()
            waits.sort()
            results[name] = {
                "bodies": len(waits),
                "p50_ms": round(waits[len(waits) // 2], 1),
                "p99_ms": round(waits[len(waits) * 99 // 100], 1),
                "longest_ms": round(waits[-1], 1),
                "backups": len(taken),
            }
        lines = [json.loads(line) for line in (folder / "audit.log").read_text().splitlines()]
        held = [line["held_ms"] for line in lines if "held_ms" in line]
        results["with_backups"]["store_held_ms"] = max(held, default=None)
    return results


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1_000)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-live", action="store_true", help="Only of a folder at rest.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        results = at_rest(Path(made), options.gpus, options.hours)
        if not options.no_live:
            results["live"] = live(Path(made) / "data")
    print(f"{options.gpus:,} GPUs × {options.hours} h: {results['mb']:,} MB in {results['parts']:,} parts")
    for name in ("copytree", "backup", "again", "check", "restore", "check_data"):
        one = results[name]
        rate = f"{one['mb_per_s']:>10,.1f} MB/s" if "mb_per_s" in one else ""
        print(f"{name:<12}{one['wall_s']:>8.2f} s {one['cpu_s']:>8.2f} s CPU {rate}")
    for name, one in results.get("live", {}).items():
        print(f"{name:<14}{' '.join(f'{key} {value}' for key, value in one.items())}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
