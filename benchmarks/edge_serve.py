"""`pyrometer serve` with a clock that runs faster than this machine's, for `edge.py` only.

    python benchmarks/edge_serve.py REAL_MS CLUSTER_MS SPEED serve --data DIR …

All code reads the time of the cluster, and exporters are scraped at its rate. Everything else is unchanged: the time
limits of answers, how often the ledger is built, the code.
"""

from __future__ import annotations

import sys
import time
from typing import Any


def main() -> None:
    real_ms, cluster_ms, speed = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    if speed != 1.0 or real_ms != cluster_ms:
        real_ns = time.time_ns
        time.time_ns = lambda: cluster_ms * 1_000_000 + int((real_ns() - real_ms * 1_000_000) * speed)
        time.time = lambda: time.time_ns() / 1e9
    from pyrometer.cli import main as command
    from pyrometer.collect.gpu.scrape import Scrapes
    from pyrometer.serve.ingest import source_readers

    def scrapes_by_cluster_clock(*arguments: Any, interval_s: float) -> Scrapes:
        return Scrapes(*arguments, interval_s=interval_s / speed)

    source_readers.Scrapes = scrapes_by_cluster_clock  # type: ignore[misc, assignment]
    sys.argv[:] = ["pyrometer", *sys.argv[4:]]
    command()


if __name__ == "__main__":
    main()
