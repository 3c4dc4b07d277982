"""How large it gets: 1,000, 10,000 and 100,000 GPUs over a year, from rates that were measured.

Some days of 1,000 GPUs are simulated (`ledger.py`: a sample of each a minute, a window of steps of most), accounted for
and queried for an hour and for the whole time: rows, bytes and CPU. What comes in is taken from the kept
results of `edge.py` (a cluster at its edge) and of `peers` (remote write). The table is those rates times GPUs and
days: growth is linear in both, as the other benchmarks show.

    python benchmarks/sizing.py [--gpus 1000] [--days 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from datetime import UTC
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

from ledger import HOUR_MS, START_MS, generate  # noqa: E402 - in this folder

RESULTS = Path(__file__).parent / "results"
SIZES = (1_000, 10_000, 100_000)
GPUS_A_NODE = 8
SCRAPE_S, WINDOW_S = 15, 10
METRICS = 5
DERIVED = ("ledger_row", "hour_sum", "minute_sum", "quarter_use", "energy", "carry")


def some_days(gpus: int, days: int, folder: Path) -> dict:
    """What some days leave behind, what accounting for them took, and what questions over them take."""
    from pyrometer.account.build.ledger import build
    from pyrometer.account.query.time_range import TimeRange
    from pyrometer.model.settings import Settings
    from pyrometer.store import Store

    end_ms = START_MS + days * 24 * HOUR_MS
    with Store(folder, create=True) as store:
        generate(store, gpus, days * 24)
        began_s = time.process_time()
        build(store, Settings(), now_ms=end_ms + 24 * HOUR_MS)
        build_s = time.process_time() - began_s
        kinds = {part.kind for part in store.parts()}
        of_kind = {
            kind: {
                "rows": sum(part.row_count for part in store.parts(kind)),
                "bytes": sum(part.bytes for part in store.parts(kind)),
            }
            for kind in sorted(kinds)
        }
        query_cpu_s = {
            words: _least_cpu_s(store, TimeRange(end_ms - length_ms, end_ms))
            for words, length_ms in {"an hour": HOUR_MS, "all": end_ms - START_MS}.items()
        }
    return {"gpus": gpus, "days": days, "build_cpu_s": build_s, "kinds": of_kind, "asked": query_cpu_s}


def _least_cpu_s(store, window) -> float:
    """What `cost --by workload` takes: the minimum of many runs, as most work is the same for any window."""
    from pyrometer.account.query.cost import cost
    from pyrometer.account.query.names import open_names

    times = []
    for _ in range(25):
        with store.snapshot() as reading:
            began_s = time.process_time()
            open_names(reading, ("holder_name", "node_name"))
            cost(reading, window, ["workload"], zone=UTC)
            times.append(time.process_time() - began_s)
    return min(times)


def incoming() -> dict[str, float]:
    """CPU time of a server: for an exporter's scrape, a rank's window, a changed pod, a million samples sent."""
    edge = json.loads((RESULTS / "edge.json").read_text())["phases"]
    peers = json.loads((RESULTS / "peers.json").read_text())["sizes"][0]["Pyrometer"]["load"]
    sealing = peers["sealing_s"]["middle"] / peers["cpu_s"]["middle"]
    return {
        "scrape_s": 1 / edge["scrapes alone"]["scrapes"]["a_cpu_second"],
        "window_s": 1 / edge["OTLP alone"]["windows"]["a_cpu_second"],
        "million_samples_s": peers["cpu_s_per_million"]["middle"] * (1 + sealing),
    }


def tell(found: dict, rates: dict[str, float]) -> None:
    """The table, as Markdown."""
    gpu_days = found["gpus"] * found["days"]
    measured = {kind: one for kind, one in found["kinds"].items() if kind not in DERIVED}
    derived = {kind: one for kind, one in found["kinds"].items() if kind in DERIVED}
    always_s = found["asked"]["an hour"]
    a_gpu_day_s = (found["asked"]["all"] - always_s) / gpu_days
    trained = measured["step_window"]["rows"] / measured["gpu_sample"]["rows"]
    lines = {
        "rows of facts per year": lambda gpus: _count(_sum(measured, "rows") / gpu_days * gpus * 365),
        "rows of the ledger per year": lambda gpus: _count(_sum(derived, "rows") / gpu_days * gpus * 365),
        "GPU samples per year": lambda gpus: _bytes(measured["gpu_sample"]["bytes"] / gpu_days * gpus * 365),
        f"step windows per year, one per minute of {trained:.0%}": lambda gpus: _bytes(
            measured["step_window"]["bytes"] / gpu_days * gpus * 365
        ),
        "ledger and its sums per year": lambda gpus: _bytes(_sum(derived, "bytes") / gpu_days * gpus * 365),
        "cores: scrapes, every 15 s": lambda gpus: _cores(gpus / GPUS_A_NODE / SCRAPE_S * rates["scrape_s"]),
        "… every minute": lambda gpus: _cores(gpus / GPUS_A_NODE / 60 * rates["scrape_s"]),
        "or remote write, five metrics per minute": lambda gpus: _cores(
            gpus * METRICS / 60 * rates["million_samples_s"] / 1e6
        ),
        "cores: windows of every rank, every 10 s": lambda gpus: _cores(gpus / WINDOW_S * rates["window_s"]),
        "… one window per minute": lambda gpus: _cores(gpus / 60 * rates["window_s"]),
        "cores: the ledger, once": lambda gpus: _cores(found["build_cpu_s"] / gpu_days * gpus / 86_400),
        "`cost --by workload`, a day": lambda gpus: _seconds(always_s + gpus * a_gpu_day_s),
        "… a month": lambda gpus: _seconds(always_s + 30 * gpus * a_gpu_day_s),
        "… a year": lambda gpus: _seconds(always_s + 365 * gpus * a_gpu_day_s),
    }
    print("| | " + " | ".join(f"{gpus:,} GPUs" for gpus in SIZES) + " |")
    print("|---|" + "---:|" * len(SIZES))
    for words, of in lines.items():
        print(f"| {words} | " + " | ".join(of(gpus) for gpus in SIZES) + " |")


def _sum(kinds: dict, what: str) -> float:
    return sum(one[what] for one in kinds.values())


def _count(number: float) -> str:
    return f"{number / 1e9:,.1f} billion" if number >= 1e9 else f"{number / 1e6:,.0f} million"


def _bytes(number: float) -> str:
    return f"{number / 1e12:,.1f} TB" if number >= 1e12 else f"{number / 1e9:,.1f} GB"


def _cores(number: float) -> str:
    return f"{number:.2f}" if number >= 0.01 else "< 0.01"


def _seconds(number: float) -> str:
    return f"{number:,.1f} CPU-s" if number >= 1 else f"{number * 1000:,.0f} CPU-ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1_000)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = some_days(args.gpus, args.days, Path(folder) / "data")
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    for kind, one in found["kinds"].items():
        of_day = found["gpus"] * found["days"]
        print(f"{kind:<14} {one['rows']:>13,} rows, {one['bytes'] / of_day:>8,.0f} bytes per GPU-day")
    print(f"the ledger took {found['build_cpu_s']:.1f} CPU-s;", found["asked"])
    tell(found, incoming())


if __name__ == "__main__":
    main()
