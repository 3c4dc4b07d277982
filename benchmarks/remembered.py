"""A night of a cluster, read back from a real Prometheus and a real VictoriaMetrics, from the first request to `why`.

Simulates a night, writes it down as dcgm-exporter and kube-state-metrics would have shown it, scrape by scrape, fills
the servers with that, and lets `pyrometer why --prometheus` answer. The aim: 1,000 GPUs in under 60 s. Needs Debian's
packages prometheus and victoria-metrics.

    python benchmarks/remembered.py [--gpus 1000] [--hours 12]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from pyrometer.answers.score import truth_window
from pyrometer.simulate.night import simulate
from pyrometer.store import Store
from tests.support.exposed_night import NightScrapes
from tests.support.prometheus_servers import prometheus, victoria

EVERY_MS = 60_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1000)
    parser.add_argument("--hours", type=int, default=12)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with Store(folder / "night", create=True) as store:
            truth = simulate(store, "gpu_only", seed=1, gpus=args.gpus, hours=args.hours)
            window = truth_window(truth)
            lines = list(NightScrapes(store, *window, every_ms=EVERY_MS, honor_labels=True).lines())
        print(f"{args.gpus:,} GPUs x {args.hours} h: {len(lines):,} samples, one per minute")
        for name, start in (("prometheus", prometheus), ("victoria-metrics", victoria)):
            if shutil.which(name) is None:
                print(f"{name}: not installed")
                continue
            server = start(folder / name, lines)
            try:
                print(_answer(name, server.url, window, folder / f"read-{name}", truth), flush=True)
            finally:
                server.close()


def _answer(name: str, url: str, window: tuple[int, int], folder: Path, truth: dict) -> str:
    since, until = (datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in window)
    command = [sys.executable, "-m", "pyrometer", "why", "--prometheus", url, "--since", since, "--until", until]
    began = time.monotonic()
    result = subprocess.run([*command, "--data", str(folder), "-o", "json"], capture_output=True, text=True, check=True)
    took_s = time.monotonic() - began
    answer = json.loads(result.stdout)
    hours, true = (one["total"]["gpu_ms"] / 3_600_000 for one in (answer, truth))
    return f"{name:<18}{took_s:>8.1f} s   {hours:,.1f} GPU-hours (true: {true:,.1f})"


if __name__ == "__main__":
    main()
