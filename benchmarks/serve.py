"""The server under reads and writes at the same time: answers per second, and how long the slowest take.

A simulated cluster whose night ends now is served by `pyrometer serve`. Four clients request each of the main answers
for some seconds: first without new data, so that answers are cached; then while training processes send OTLP for that
number of GPUs (a body for eight ranks every ten seconds), so that every answer has another revision; then like the page
(`stale=ok`: the last answer is enough). The peer is a bare Starlette application that returns the same bytes. Also
measured: how long senders wait for an acknowledgement, with and without readers.

    python benchmarks/serve.py [--gpus 1000] [--hours 12] [--seconds 5]
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx2 as httpx

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from otlp import INTERVAL_MS, RANKS_A_NODE, requests_of  # noqa: E402 - in this folder
from remote_write import free_port  # noqa: E402

from pyrometer.model.columns import SCHEMAS  # noqa: E402
from pyrometer.store import Store  # noqa: E402

CLIENTS = 4
DURATIONS = (
    "duration_ms",
    "data_ms",
    "copy_ms",
    "forward_ms",
    "backward_ms",
    "comm_ms",
    "optimizer_ms",
    "checkpoint_ms",
    "evaluate_ms",
    "compile_ms",
    "garbage_ms",
    "ms",
)
QUESTIONS = ("burn", "cluster", "top", "cost?by=team,experiment", "worth", "runs?limit=100", "why")
BARE = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
body = open(sys.argv[2], "rb").read()
async def answer(request): return Response(body, media_type="application/json")
uvicorn.run(Starlette(routes=[Route("/", answer)]), port=int(sys.argv[1]), log_level="error")
"""


def make_night(folder: Path, gpus: int, hours: int) -> None:
    """A simulated night that ends at this minute."""
    with tempfile.TemporaryDirectory() as scratch:
        night = Path(scratch) / "night"
        command = [sys.executable, "-m", "pyrometer", "simulate", "scale", "--gpus", str(gpus), "--hours", str(hours)]
        subprocess.run([*command, "--out", str(night)], check=True, capture_output=True)
        with Store(night) as old, Store(folder, create=True) as new:
            by_ms = time.time_ns() // 60_000_000_000 * 60_000 - (old.newest_ms(["gpu_sample"], 2**60) or 0) - 60_000
            old.expose_all(SCHEMAS)
            for kind, schema in SCHEMAS.items():
                times = [name for name in schema.column_names if name.endswith("_ms") and name not in DURATIONS]
                moved = ", ".join(f"{name} + {by_ms} AS {name}" for name in times)
                rows = old.connection.sql(f"SELECT * REPLACE ({moved}) FROM {kind}").to_arrow_table()
                if rows.num_rows and kind not in ("ledger_row", "carry", "restatement", "energy"):
                    new.append_tables({kind: rows})
            new.seal()
    subprocess.run([sys.executable, "-m", "pyrometer", "cost", "--data", str(folder)], check=True, capture_output=True)


@contextmanager
def running(command: list[str], port: int) -> Iterator[str]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                httpx.get(url, timeout=5)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


class Sending:
    """Training processes: a body for eight ranks now and then, each acknowledged or not."""

    def __init__(self, url: str, gpus: int) -> None:
        self.took_s: list[float] = []
        self._ended = threading.Event()
        self._url, self._gpus = url, gpus
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Sending:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _send(self) -> None:
        pause_s = INTERVAL_MS / 1000 / max(self._gpus // RANKS_A_NODE, 1)
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        with httpx.Client(base_url=self._url, timeout=60, headers=headers) as client:
            number = 0
            while not self._ended.is_set():
                for body in [gzip.compress(json.dumps(one).encode()) for one in requests_of(self._gpus, 1)[0]]:
                    if self._ended.is_set():
                        return
                    began_s = time.perf_counter()
                    client.post("/v1/logs", content=body)
                    self.took_s.append(time.perf_counter() - began_s)
                    self._ended.wait(max(pause_s - self.took_s[-1], 0))
                    number += 1


def answer_times_s(ask: Callable[[httpx.Client], httpx.Response], url: str, seconds: float) -> list[float]:
    """How long each answer took, of clients that ask again as soon as they have one."""
    took: list[float] = []
    until_s = time.monotonic() + seconds

    def client() -> None:
        with httpx.Client(base_url=url, timeout=300, headers={"Accept-Encoding": "gzip"}) as one:
            while time.monotonic() < until_s:
                began_s = time.perf_counter()
                answer = ask(one)
                if answer.status_code != 429:
                    assert answer.status_code == 200, answer.text[:200]
                    took.append(time.perf_counter() - began_s)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(took)


def figures(took: list[float], seconds: float) -> str:
    return f"{len(took) / seconds:9,.1f}/s {1000 * median(took):8,.1f} {1000 * took[int(len(took) * 0.99)]:9,.1f} ms"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gpus", type=int, default=1_000)
    options.add_argument("--hours", type=int, default=12)
    options.add_argument("--seconds", type=float, default=5.0)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, port = Path(scratch) / "data", free_port()
        make_night(folder, args.gpus, args.hours)
        serve = [sys.executable, "-m", "pyrometer", "serve", "--data", str(folder), "--listen", f"127.0.0.1:{port}"]
        with running(serve, port) as url:
            compare(url, args.gpus, args.seconds, Path(scratch))


def compare(url: str, gpus: int, seconds: float, scratch: Path) -> None:
    print(f"{gpus:,} GPUs, {CLIENTS} clients, {seconds:g} s each: answers per second, middle, 99th of a hundred")
    quiet: dict[str, list[float]] = {}
    for question in QUESTIONS:
        body = httpx.get(f"{url}/api/v1/{question}", timeout=600).content
        quiet[question] = answer_times_s(lambda client, path=question: client.get(f"/api/v1/{path}"), url, seconds)
        print(f"{question:24} {len(body) / 1000:8,.0f} kB  nothing comes in  {figures(quiet[question], seconds)}")
    bare(url, quiet["burn"], seconds, scratch)
    with Sending(url, gpus) as alone:
        time.sleep(seconds)
    with Sending(url, gpus) as sending:
        time.sleep(1.0)  # so that something has come in
        for question in QUESTIONS:
            for words, more in (("anew", ""), ("the last one will do", f"{'&' if '?' in question else '?'}stale=ok")):
                took = answer_times_s(lambda client, path=question + more: client.get(f"/api/v1/{path}"), url, seconds)
                times = median(took) / median(quiet[question])
                print(
                    f"{question:24} while sent to, {words:21} {figures(took, seconds)}  {times:8.1f} times the middle"
                )
    for words, one in (("alone", alone), ("while asked", sending)):
        took = sorted(one.took_s)
        print(f"acknowledged, {words:12} {figures(took, 1.0).split('/s')[1]}  of {len(took):,} bodies")


def bare(url: str, quiet: list[float], seconds: float, scratch: Path) -> None:
    """The same bytes from an application that does nothing else."""
    body = scratch / "body"
    body.write_bytes(httpx.get(f"{url}/api/v1/burn", timeout=600).content)
    port = free_port()
    with running([sys.executable, "-c", BARE, str(port), str(body)], port) as peer:
        took = answer_times_s(lambda client: client.get("/"), peer, seconds)
    times = f"{median(quiet) / median(took):8.1f} times its middle"
    print(f"{'bare Starlette, as burn':55}  {figures(took, seconds)}  {times}")


if __name__ == "__main__":
    main()
