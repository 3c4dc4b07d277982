"""Remote write: how many samples per second become records in the store, compared with a store that is made for them.

1,500 exporters of eight GPUs with 20 metrics each, every 15 s, in bodies of 2,000 samples as Prometheus sends them.
First in one process, step by step; then the same bodies over HTTP into `pyrometer serve`, into VictoriaMetrics and into
a Prometheus, one after the other, by the CPU time of each server. The first round, of whose series nothing is known,
counts for itself.

    python benchmarks/remote_write.py [--exporters 1500] [--gpus 8] [--rounds 4] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from scrape import new_dcgm, text_of  # noqa: E402 - in this folder

from tests.support.remote_write_bodies import body_of  # noqa: E402 - the tests'

SAMPLES_A_BODY = 2_000
INTERVAL_MS = 15_000
SETTLED_S = 20.0  # what was sent is stored by then
STEPS = ("read", "join", "records", "store")
HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
LINE = re.compile(r"(\w+)\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def bodies_of(exporters: int, gpus: int, rounds: int) -> list[list[bytes]]:
    """What a Prometheus sends, round by round of scrapes; its requests cut through the scrapes."""
    started_ms = time.time_ns() // 1_000_000 - rounds * INTERVAL_MS
    sent = []
    for number in range(rounds):
        series = []
        for exporter in range(exporters):
            time_ms = started_ms + number * INTERVAL_MS + exporter * INTERVAL_MS // exporters
            target = {"job": "dcgm-exporter", "instance": f"10.{exporter >> 8}.{exporter & 255}.7:9400"}
            for name, block, value in LINE.findall(text_of(exporter, gpus).decode()):
                labels = {"__name__": name, **dict(LABEL.findall(block)), **target}
                series.append((dict(sorted(labels.items())), [(time_ms, float(value))]))
        cuts = range(0, len(series), SAMPLES_A_BODY)
        sent.append([body_of(series[begin : begin + SAMPLES_A_BODY]) for begin in cuts])
    return sent


def step_by_step(rounds: list[list[bytes]]) -> list[dict[str, float]]:
    """Seconds of CPU that each step takes, round by round."""
    from pyrometer.collect.gpu.whole_scrapes import WholeScrapes
    from pyrometer.collect.prometheus.remote_write import RemoteWriteReader
    from pyrometer.store import Store, tables_of

    reader, scrapes, dcgm = RemoteWriteReader(), WholeScrapes(), new_dcgm()
    now_ms = time.time_ns() // 1_000_000

    def timed(step, function, *arguments):
        began_s = time.process_time()
        result = function(*arguments)
        took[-1][step] += time.process_time() - began_s
        return result

    took: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, Store(folder, create=True) as store:
        for bodies in rounds:
            took.append(dict.fromkeys(STEPS, 0.0))
            for number, body in enumerate(bodies, 1):
                timed("join", scrapes.add, timed("read", reader.read, body, now_ms).samples, number)
                if number % 10 == 0 or number == len(bodies):  # about what comes in a second
                    for batch in timed("join", scrapes.take, number - 10 if number < len(bodies) else number + 1):
                        table, others = timed("records", dcgm.take_table, batch)
                        timed("store", store.append_tables, {"gpu_sample": table} | tables_of(others))
    return took


def over_http(command: list[str], url: str, ready: str, rounds: list[list[bytes]]) -> dict[str, float]:
    """Seconds of CPU that a server takes for the first round, and for the others until it has stopped."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    with httpx.Client(base_url=url, timeout=60) as client:
        while not _answers(client, ready):
            time.sleep(0.1)
        idle_s = _cpu_s(process.pid)
        _send(client, rounds[0])
        time.sleep(SETTLED_S)
        first_s, began_s = _cpu_s(process.pid), time.monotonic()
        _send(client, [body for bodies in rounds[1:] for body in bodies])
        wall_s, memory_mb = time.monotonic() - began_s, _peak_mb(process.pid)
    process.send_signal(signal.SIGTERM)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    cpu_s = used.ru_utime + used.ru_stime
    return {"first_s": first_s - idle_s, "again_s": cpu_s - first_s, "wall_s": wall_s, "memory_mb": memory_mb}


def _send(client: httpx.Client, bodies: list[bytes]) -> None:
    for body in bodies:
        while (answer := client.post("/api/v1/write", content=body, headers=HEADERS)).status_code == 503:
            time.sleep(0.2)
        answer.raise_for_status()


def _answers(client: httpx.Client, ready: str) -> bool:
    try:
        return client.get(ready).status_code == 200
    except httpx.HTTPError:
        return False


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mb(pid: int) -> float:
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def servers(folder: str, port: int) -> Iterator[tuple[str, list[str], str]]:
    """Who takes remote write: name, command, and where it says that it is ready."""
    at = f"127.0.0.1:{port}"
    yield (
        "pyrometer",
        [sys.executable, "-m", "pyrometer", "serve", "--data", f"{folder}/ours", "--listen", at],
        "/healthz",
    )
    yield "victoria-metrics", [f"-httpListenAddr={at}", f"-storageDataPath={folder}/victoria"], "/health"
    config = Path(folder) / "prometheus.yml"
    config.write_text("")
    arguments = [f"--config.file={config}", f"--web.listen-address={at}", f"--storage.tsdb.path={folder}/prometheus"]
    yield "prometheus", [*arguments, "--web.enable-remote-write-receiver"], "/-/ready"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--exporters", type=int, default=1500)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rounds = bodies_of(args.exporters, args.gpus, args.rounds)
    samples = args.exporters * args.gpus * 20
    mean = sum(map(len, rounds[0])) // len(rounds[0])
    print(f"{samples:,} samples of {args.exporters * args.gpus:,} GPUs a round, in bodies of {mean:,} bytes")
    first, *others = step_by_step(rounds)
    again = {step: sum(took[step] for took in others) / len(others) for step in STEPS}
    cpu_s, known_s = sum(first.values()), sum(again.values())
    figures: dict[str, dict[str, float]] = {
        "one process": {"first": samples / cpu_s, "then": samples / known_s}
        | {f"{step}_share": took_s / known_s for step, took_s in again.items()}
    }
    print(f"in one process: {samples / cpu_s:,.0f} samples a CPU second at first, then {samples / known_s:,.0f}")
    print("  " + ", ".join(f"{step} {took_s / known_s:.0%}" for step, took_s in again.items()))
    print(f"  every {INTERVAL_MS // 1000} s: {known_s / INTERVAL_MS * 1000:.0%} of one core")
    print(f"{'samples a CPU second over HTTP':<32}{'first round':>12}{'then':>12}{'a second':>12}{'peak MB':>10}")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        for name, command, ready in servers(folder, port):
            program = command if name == "pyrometer" else [name, *command]
            if shutil.which(program[0]) is None:
                print(f"  {name} is not installed: apt-get install {name}")
                continue
            took = over_http(program, f"http://127.0.0.1:{port}", ready, rounds)
            figures[name] = {
                "first": samples / took["first_s"],
                "then": samples * len(others) / took["again_s"],
                "a_second": samples * len(others) / took["wall_s"],
                "peak_mb": took["memory_mb"],
            }
            print(
                f"  {name:<30}"
                + "{first:>12,.0f}{then:>12,.0f}{a_second:>12,.0f}{peak_mb:>10,.0f}".format(**figures[name])
            )
    for name in figures.keys() - {"one process", "pyrometer"}:
        ratios = (figures["pyrometer"][part] / figures[name][part] for part in ("first", "then"))
        print("  pyrometer against {}: {:.1f}× at first, then {:.2f}×".format(name, *ratios))
    if args.json:
        args.json.write_text(json.dumps({"samples_a_round": samples, "figures": figures}, indent=1))


if __name__ == "__main__":
    main()
