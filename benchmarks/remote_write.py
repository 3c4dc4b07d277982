"""Remote write: how many samples a second become records in the store, beside a store that is made for them.

1,500 exporters of eight GPUs with 20 metrics each, every 15 s, in bodies of 2,000 samples as Prometheus sends them.
First in one process, step by step; then the same bodies over HTTP into `pyrometer serve` and into VictoriaMetrics, one
after the other, by the CPU time of each server. The first round, of whose series nothing is known, counts for itself.

    python benchmarks/remote_write.py [--exporters 1500] [--gpus 8] [--rounds 4]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx2 as httpx

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "tests" / "collect")]

from scrape import new_dcgm, text_of  # noqa: E402 - beside this file
from sent import body_of  # noqa: E402 - the tests'

SAMPLES_A_BODY = 2_000
INTERVAL_MS = 15_000
SETTLED_S = 20.0  # what was sent is stored by then
STEPS = ("read", "join", "records", "store")
HEADERS = {
    "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}  # fmt: skip
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
                series.append(({"__name__": name, **dict(LABEL.findall(block)), **target}, [(time_ms, float(value))]))
        cuts = range(0, len(series), SAMPLES_A_BODY)
        sent.append([body_of(series[begin : begin + SAMPLES_A_BODY]) for begin in cuts])
    return sent


def step_by_step(rounds: list[list[bytes]]) -> list[dict[str, float]]:
    """Seconds of CPU that each step takes, round by round."""
    from pyrometer.collect.remote_write import Reader
    from pyrometer.collect.whole_scrapes import WholeScrapes
    from pyrometer.store import Store

    reader, scrapes, dcgm = Reader(), WholeScrapes(), new_dcgm()
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
                    settled = timed("join", scrapes.take, number - 10 if number < len(bodies) else number + 1)
                    timed("store", store.append, timed("records", dcgm.take, settled).records)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--exporters", type=int, default=1500)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    rounds = bodies_of(args.exporters, args.gpus, args.rounds)
    samples = args.exporters * args.gpus * 20
    mean = sum(map(len, rounds[0])) // len(rounds[0])
    print(f"{samples:,} samples of {args.exporters * args.gpus:,} GPUs a round, in bodies of {mean:,} bytes")
    first, *others = step_by_step(rounds)
    again = {step: sum(took[step] for took in others) / len(others) for step in STEPS}
    cpu_s, known_s = sum(first.values()), sum(again.values())
    print(f"in one process: {samples / cpu_s:,.0f} samples/s at first, then {samples / known_s:,.0f}/s")
    print("  " + ", ".join(f"{step} {took_s / known_s:.0%}" for step, took_s in again.items()))
    print(f"  every {INTERVAL_MS // 1000} s: {known_s / INTERVAL_MS * 1000:.0%} of one core")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        command = [
            sys.executable, "-m", "pyrometer", "serve", "--data", f"{folder}/ours", "--listen", f"127.0.0.1:{port}",
        ]  # fmt: skip
        ours = over_http(command, f"http://127.0.0.1:{port}", "/healthz", rounds)
        _tell("HTTP → pyrometer serve", samples, len(others), ours)
        if shutil.which("victoria-metrics") is None:
            print("VictoriaMetrics is not installed: apt-get install victoria-metrics")
            return
        port = free_port()
        command = ["victoria-metrics", f"-httpListenAddr=127.0.0.1:{port}", f"-storageDataPath={folder}/theirs"]
        theirs = over_http(command, f"http://127.0.0.1:{port}", "/health", rounds)
        _tell("HTTP → VictoriaMetrics", samples, len(others), theirs)
        ratios = (ours[part] / theirs[part] for part in ("first_s", "again_s"))
        print("  CPU time against its: {:.1f}× at first, then {:.1f}×".format(*ratios))


def _tell(what: str, samples: int, others: int, took: dict[str, float]) -> None:
    again = samples * others
    print(
        f"{what}: {samples / took['first_s']:,.0f} samples a CPU second at first, then {again / took['again_s']:,.0f}; "
        f"{again / took['wall_s']:,.0f} a second, {took['memory_mb']:.0f} MB"
    )


if __name__ == "__main__":
    main()
