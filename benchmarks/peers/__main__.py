"""Pyrometer, Prometheus and VictoriaMetrics side by side: the same samples of one simulated day, sent to each by remote
write, and the same question: GPU-hours and mean activity by workload over 24 hours.

- ingest: CPU of the server per million samples, from the first body until everything is where it will stay. What a
  recording rule takes is counted for itself; so is Pyrometer's ledger, which none of the others has.
- disk: bytes per GPU-day of five metrics.
- the question: over HTTP, anew each time (no cache of answers), asked once before it counts; time, CPU, and peak memory
  of the server while it answers.

Needs Debian's packages prometheus and victoria-metrics.

    python benchmarks/peers [--gpus 1000 10000] [--hours 24] [--loads 5] [--asks 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from day import DAY_MS, MINUTE_MS, Sender, nodes_of, objects, recorded
from servers import RULES, Answer, Prometheus, PromQL, Pyrometer, Server, VictoriaMetrics, spread

PEERS = (Pyrometer, VictoriaMetrics, Prometheus)
SHARDS = 2
FROM_MS = time.time_ns() // 1_000_000 // DAY_MS * DAY_MS - 2 * DAY_MS


def load(server: Server, sender: Sender, hours: int) -> dict[str, float]:
    """Sends the day, two bodies at a time as shards of a Prometheus would; at every full hour a peer's recording rules
    are evaluated and written down."""
    idle_s, rules_s = server.cpu_s(), 0.0

    def bodies(minute: int) -> list[bytes]:
        return list(sender.bodies(minute, FROM_MS + minute * MINUTE_MS + MINUTE_MS // 2))

    with ThreadPoolExecutor(1) as ahead, ThreadPoolExecutor(SHARDS) as shards:
        following = ahead.submit(bodies, 0)
        for minute in range(hours * 60):
            bodies_of_minute, following = following.result(), ahead.submit(bodies, minute + 1)
            list(shards.map(server.write, bodies_of_minute))
            if minute % 60 == 59 and isinstance(server, PromQL):
                server.visible()
                before_s = server.cpu_s()
                at_ms = FROM_MS + (minute + 1) * MINUTE_MS - 1
                for name, query in RULES.items():
                    server.write(recorded(name, server.instant(query, at_ms), at_ms))
                rules_s += server.cpu_s() - before_s
    server.settled()
    samples = sender.samples_a_minute * hours * 60
    return {"cpu_s": server.cpu_s() - idle_s - rules_s, "rules_s": rules_s, "samples": samples}


def one_load(peer: type[Server], sender: Sender, folder: Path, hours: int) -> tuple[Server, dict[str, float]]:
    """A new server with all of the day in it, ready to be asked, and what that took."""
    server = peer(folder)
    took = load(server, sender, hours)
    if isinstance(server, Pyrometer):
        took |= _accounted(server, sender, hours)
    else:
        took["bytes_per_gpu_day"] = server.bytes_a_sample() * 5 * 24 * 60
    took["cpu_s_per_million"] = took["cpu_s"] / took["samples"] * 1e6
    return server, took


def _accounted(server: Pyrometer, sender: Sender, hours: int) -> dict[str, float]:
    """Adds the objects that Kubernetes would have reported, builds the ledger and restarts the server."""
    import resource

    from pyrometer.account.build.ledger import build
    from pyrometer.model.settings import Settings
    from pyrometer.store import Store

    before_s = server.cpu_s()
    server.stop()  # what it had not sealed yet
    sealing_s = time.process_time()
    gpus = 8 * len(sender.nodes)
    with Store(server.folder) as store:
        store.seal()
        sealing_s = time.process_time() - sealing_s
        known = {"gpu_sample", "slot"}
        store.drop_parts([part for part in store.parts() if part.kind not in known])
        store.append(*objects(sender.nodes, FROM_MS))
        building_s = time.process_time()
        build(store, Settings(), now_ms=FROM_MS + 10 * DAY_MS)
        building_s = time.process_time() - building_s
        of = {kind: sum(part.bytes for part in store.parts(kind)) for kind in {part.kind for part in store.parts()}}
        rows = sum(part.row_count for part in store.parts("gpu_sample"))
        assert rows == gpus * 60 * hours, f"{rows} samples of GPUs are there, {gpus * 60 * hours} were sent"
    own_s = server.used_s - before_s + sealing_s
    server.start()
    per_gpu_day = 24 / hours / gpus
    derived = sum(size for kind, size in of.items() if kind not in known)
    return {
        "sealing_s": own_s,
        "ledger_s": building_s,
        "bytes_per_gpu_day": of["gpu_sample"] * per_gpu_day,
        "ledger_bytes_per_gpu_day": derived * per_gpu_day,
        "peak_build_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def measure(found: dict, hours: int, loads: int, asks: int, peers: list[type[Server]], where: Path) -> Iterator[str]:
    """One size of a cluster; says what was found of each server, when it is."""
    gpus = found["gpus"]
    sender = Sender(nodes_of(gpus))
    found["samples"] = sender.samples_a_minute * hours * 60
    answers: list[Answer] = []
    for peer in peers:
        runs = []
        for number in range(loads):
            folder = where / f"{peer.name}-{gpus}-{number}" / "data"
            server, took = one_load(peer, sender, folder, hours)
            runs.append(took)
            if number < loads - 1:
                server.stop()
                shutil.rmtree(folder.parent)
        kinds = (False, True) if issubclass(peer, PromQL) else (False,)
        measured = {"by rule" if by_rule else "anew": _measure_queries(server, by_rule, asks) for by_rule in kinds}
        answers += [one.pop("answer") for one in measured.values()]
        server.stop()
        shutil.rmtree(folder.parent)
        columns = {name: spread([run[name] for run in runs]) for name in runs[0] if name != "samples"}
        found[peer.name] = {"loads": loads, "load": columns, "asked": measured}
        yield _line(peer.name, gpus, found[peer.name])
    _held_alike(answers)
    found["workloads"] = len(answers[0])
    found["gpu_hours"] = sum(of.gpu_hours for of in answers[0].values())


def _measure_queries(server: Server, by_rule: bool, asks: int) -> dict:
    server.question(FROM_MS, by_rule, 0)
    server.rests()
    answers = [server.measure(lambda n=n: server.question(FROM_MS, by_rule, n)) for n in range(1, asks + 1)]
    return {
        "wall_s": spread([answer.wall_s for answer in answers]),
        "cpu_s": spread([answer.cpu_s for answer in answers]),
        "peak_mb": max(answer.peak_mb for answer in answers),
        "answer": answers[-1].answer,
    }


def _held_alike(answers: list[Answer]) -> None:
    """All of them must say the same of every workload: GPU-hours to a reading a GPU, activity to a thousandth."""
    first, *others = answers
    for answer in others:
        if answer.keys() != first.keys():
            raise SystemExit(f"The answers differ in {sorted(answer.keys() ^ first.keys())[:5]}.")
        for workload, (gpu_hours, activity) in answer.items():
            expected = first[workload]
            if abs(gpu_hours - expected.gpu_hours) > 0.01 or abs(activity - expected.activity) > 0.001:
                raise SystemExit(f"The answers differ: {workload} {expected} and {(gpu_hours, activity)}.")


def _line(name: str, gpus: int, one: dict) -> str:
    load, anew = one["load"], one["asked"]["anew"]
    disk = load["bytes_per_gpu_day"]["middle"]
    text = (
        f"{gpus:>7,} {name:<16} {_of(load['cpu_s_per_million'], 1, 2):>22} {disk:>9,.0f} "
        f"{_of(anew['wall_s'], 1000, 1):>24} {anew['cpu_s']['middle'] * 1000:>8,.0f} {anew['peak_mb']:>9,.0f}"
    )
    if "by rule" in one["asked"]:
        ruled = one["asked"]["by rule"]
        more = load["rules_s"]["middle"]
        text += f"   by rule: {_of(ruled['wall_s'], 1000, 1)} ms, after {more:.1f} CPU-s of rules"
    else:
        text += (
            f"   sealing {load['sealing_s']['middle']:.1f} CPU-s, ledger {load['ledger_s']['middle']:.1f} CPU-s "
            f"and {load['ledger_bytes_per_gpu_day']['middle']:,.0f} B per GPU-day"
        )
    return text


def _of(spread: dict[str, float], unit: float, digits: int) -> str:
    middle, least, most = (spread[name] * unit for name in ("middle", "least", "most"))
    return f"{middle:,.{digits}f} ({least:,.{digits}f}–{most:,.{digits}f})"


def _versions() -> dict[str, str]:
    import duckdb

    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    versions = {"python": platform.python_version(), "duckdb": duckdb.__version__, "machine": machine}
    dpkg = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${Version}\n", "prometheus", "victoria-metrics"],
        capture_output=True,
        text=True,
        check=False,
    )
    return versions | dict(line.split(" ", 1) for line in dpkg.stdout.splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--loads", type=int, default=5, help="of each server and size")
    parser.add_argument("--asks", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS])
    args = parser.parse_args()
    peers = [peer for peer in PEERS if args.only is None or peer.name in args.only]
    missing = [name for name in ("prometheus", "victoria-metrics") if shutil.which(name) is None]
    if missing:
        print(f"Not installed: {', '.join(missing)} (apt-get install {' '.join(missing)}).")
        return
    results = {"versions": _versions(), "from_ms": FROM_MS, "sizes": []}

    def keep() -> None:
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))

    print(
        f"{'GPUs':>7} {'server':<16} {'CPU-s/million samples':>22} {'B/GPU-day':>9} {'question, ms':>24} {'CPU ms':>8} "
        f"{'peak MB':>9}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for gpus in args.gpus:
            results["sizes"].append({"gpus": gpus})
            for line in measure(results["sizes"][-1], args.hours, args.loads, args.asks, peers, Path(folder)):
                print(line, flush=True)
                keep()  # a load may take minutes
            keep()
    for size in results["sizes"]:
        _ratios(size, peers)


def _ratios(size: dict, peers: list[type[Server]]) -> None:
    """How many times as much each peer takes."""
    if Pyrometer not in peers:
        return
    ours = _figures(size["Pyrometer"])
    for peer in peers:
        if issubclass(peer, PromQL):
            theirs = _figures(size[peer.name])
            ratios = ", ".join(f"{name} {theirs[name] / ours[name]:.2f}×" for name in ours)
            print(f"{size['gpus']:>7,} {peer.name} against Pyrometer: {ratios}")


def _figures(one: dict) -> dict[str, float]:
    return {
        "ingest": one["load"]["cpu_s_per_million"]["middle"],
        "disk": one["load"]["bytes_per_gpu_day"]["middle"],
        "question": one["asked"]["anew"]["wall_s"]["middle"],
        "memory": one["asked"]["anew"]["peak_mb"],
    }


if __name__ == "__main__":
    main()
