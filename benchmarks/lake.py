"""A question over a lake: the plain data folder, the lake on one machine, the lake on a Ray cluster of two nodes here.

    python benchmarks/lake.py [--gpus 304] [--hours 720] [--folder DIR] [--json FILE]

Simulates a month of a cluster (or takes the folder that is named), copies it into a lake next to it and asks `cost --by
workload --all` in the three ways, each in processes of its own, the second of two times. Prints wall time, CPU time of
all processes, bytes of the parts that are read, and whether the answers are equal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BY = "workload"
KINDS = ("ledger_row", "energy", "pod", "workload", "node", "slot", "pipeline_run", "sweep", "trial")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYROMETER_")}


def pyrometer(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pyrometer", *words],
        env=ENVIRONMENT | {"PYROMETER_CLUSTER": "simulated"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def measured(cpu_s, *words: str) -> dict:
    """The second of two times."""
    for _ in range(2):
        began_s, began_cpu_s = time.monotonic(), cpu_s()
        answer = json.loads(pyrometer(*words))
        figures = {"wall_s": time.monotonic() - began_s, "cpu_s": cpu_s() - began_cpu_s}
    answer.pop("clusters", None)
    return figures | {"answer": answer}


def children_cpu_s() -> float:
    spent = os.times()
    return spent.children_user + spent.children_system


def cpu_of_tree_s() -> float:
    """CPU time of all processes that this one started, and of those that ended."""
    import psutil

    spent = children_cpu_s()
    for process in psutil.Process().children(recursive=True):
        try:
            of = process.cpu_times()
            spent += of.user + of.system
        except psutil.Error:
            continue
    return spent


def on_ray(lake: Path) -> dict:
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 128 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**small, "include_dashboard": False})
    try:
        cluster.add_node(**small)
        address = cluster.address
        return measured(cpu_of_tree_s, *QUESTION, "--lake", str(lake), "--engine", "ray", "--address", address)
    finally:
        cluster.shutdown()


QUESTION = ("cost", "--by", BY, "--all", "-o", "json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=304)
    parser.add_argument("--hours", type=int, default=720)
    parser.add_argument("--folder", type=Path, help="an existing data folder")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, lake = options.folder or Path(scratch) / "month", Path(scratch) / "lake"
        if options.folder is None:
            size = ("--gpus", str(options.gpus), "--hours", str(options.hours))
            pyrometer("simulate", "scale", *size, "--out", str(folder))
        began_s = time.monotonic()
        pyrometer("export", "lake", "--data", str(folder), "--out", str(lake))
        copied_s = time.monotonic() - began_s
        parts = json.loads((lake / "simulated" / "manifest.json").read_text())["parts"]
        read = sum(part["bytes"] for part in parts if part["kind"] in KINDS)
        found = {
            "folder": measured(children_cpu_s, *QUESTION, "--data", str(folder)),
            "lake, local": measured(children_cpu_s, *QUESTION, "--lake", str(lake)),
            "lake, ray": on_ray(lake),
        }
    expected = found["folder"]["answer"]
    rows = sum(part["row_count"] for part in parts if part["kind"] == "ledger_row")
    print(
        f"cost --by {BY} over {rows:,} rows of the ledger, {read / 1e6:,.1f} MB of parts are read; "
        f"copied in {copied_s:.1f} s"
    )
    print(f"{'':<12} {'wall':>8} {'CPU':>8}  answer")
    table = {}
    for name, one in found.items():
        equal = one.pop("answer") == expected
        print(f"{name:<12} {one['wall_s']:>6.2f} s {one['cpu_s']:>6.2f} s  {'equal' if equal else 'DIFFERS'}")
        table[name] = one | {"equal": equal}
    if options.json:
        options.json.write_text(
            json.dumps({"rows": rows, "bytes": read, "copied_s": copied_s, "ways": table}, indent=1)
        )
    sys.exit(not all(one["equal"] for one in table.values()))


if __name__ == "__main__":
    main()
