"""A hundred thousand GPUs, simulated: how much of such a cluster one `pyrometer serve` takes in, and what breaks first.

A real server on a fresh folder, and a cluster next to it (`edge_world.py`): an API server that lists and streams, an
exporter a node, a sender a node. First everything is listed; then each input comes alone, then all of them together
while questions are asked. Inputs come no faster than the cluster's clock, which goes `--speed` times as fast as this
machine's: what the server does not keep up with comes late. At the end, what was sent is compared with what is stored,
and the folder is checked. What a real cluster needs is one times real time of each.

    python benchmarks/edge.py [--gpus 100000] [--minutes 60] [--speed 4] [--alone 15] [--scrape-every 15]
        [--window 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx2 as httpx

sys.path[:0] = [str(Path(__file__).parent)]

from edge_world import CHANGES_A_GPU_S, GPUS_A_NODE, Clock, Size, World  # noqa: E402
from remote_write import free_port  # noqa: E402 - in this folder

QUESTIONS = ("burn", "cost?by=team,experiment", "top", "why")
PATIENCE_S = 1800.0
SETTLE_S = 0.5
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: edge
contexts: [{{name: edge, context: {{cluster: edge, user: edge}}}}]
clusters: [{{name: edge, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: edge, user: {{}}}}]
"""


class Edge:
    """A server, the cluster that it follows, and what was measured of both."""

    def __init__(self, size: Size, clock: Clock, scratch: Path) -> None:
        self.size, self.clock = size, clock
        self.folder, self.log = scratch / "data", scratch / "log"
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.world = World(size, clock, port)
        (scratch / "kubeconfig").write_text(KUBECONFIG.format(port=self.world.api_port))
        command = [sys.executable, str(Path(__file__).with_name("edge_serve.py")), *map(str, clock), "serve"]
        command += ["--data", str(self.folder), "--listen", f"127.0.0.1:{port}", "--kube"]
        environment = {
            **os.environ,
            "KUBECONFIG": str(scratch / "kubeconfig"),
            "PYROMETER_SCRAPE_INTERVAL_S": str(size.scrape_ms // 1000),
        }
        self.began_s = time.monotonic()
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
        self.watched = Path("/proc") / str(self.process.pid)
        self.samples: list[dict[str, Any]] = []
        self.phases: dict[str, dict[str, Any]] = {}

    # -- looking at it ------------------------------------------------------------------------------------------------

    def cpu_s(self) -> float:
        user, system = (self.watched / "stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def look(self) -> dict[str, Any]:
        """The server and its folder, now."""
        pages = int((self.watched / "statm").read_text().split()[1])
        seen = {
            "at_s": time.monotonic() - self.began_s,
            "cpu_s": self.cpu_s(),
            "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            "files": len([*(self.watched / "fd").iterdir()]),
        }
        sizes = [_size(path) for path in self.folder.rglob("*")]
        inbox = self.folder / "inbox" / "otlp"
        seen |= {"disk_mb": sum(sizes) / 2**20, "inbox": len(list(inbox.glob("*"))) if inbox.exists() else 0}
        seen["hot_mb"] = sum(_size(self.folder / name) for name in ("pyrometer.duckdb", "pyrometer.duckdb.wal")) / 2**20
        self.samples.append(seen)
        return seen

    def metrics(self) -> dict[str, float]:
        text = httpx.get(f"{self.url}/metrics", timeout=300).text
        found = (line.rpartition(" ") for line in text.splitlines() if line and line[0] != "#")
        return {name: float(value) for name, _, value in found if "{" not in name}

    def wait_for(self, what: str, ready: Any) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not ready():
            if self.process.poll() is not None or time.monotonic() > until_s:
                raise RuntimeError(f"{what} did not happen:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)

    # -- what happens -------------------------------------------------------------------------------------------------

    def list_all(self) -> None:
        """Waits until the server has seen all existing objects."""
        self.wait_for("The first list", self._is_ready)
        self.phases["first list"] = {**self.look(), "records": self.metrics()["pyrometer_records_stored_total"]}

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    def phase(
        self,
        name: str,
        seconds: float,
        *,
        otlp: bool = False,
        watch: bool = False,
        with_queries: bool = False,
        until: tuple[str, int] | None = None,
    ) -> None:
        """Feeds it for a while, or until one of the counts is that high, and keeps what it took in meanwhile and what
        that cost."""
        before, cpu_s, began_s = self.world.tell("nothing"), self.cpu_s(), time.monotonic()
        stop = threading.Event()
        looking = threading.Thread(target=self._keep_looking, args=(stop, max(seconds / 50, 0.5)))
        asking = Asking(self.url) if with_queries else None
        looking.start()
        after = self.world.tell("feed", seconds, otlp, watch)
        while until is not None and after[until[0]] < until[1]:
            after = self.world.tell("feed", seconds, otlp, watch)
        stop.set()
        looking.join()
        took_s, used_s = time.monotonic() - began_s, max(self.cpu_s() - cpu_s, 0.01)
        done = {what: after[what] - before[what] for what in ("scrapes", "windows", "changes", "refused", "cpu_s")}
        need = {
            "scrapes": self.size.nodes * 1000 / self.size.scrape_ms,
            "changes": self.size.gpus * CHANGES_A_GPU_S,
            "windows": self.size.training * GPUS_A_NODE * 1000 / self.size.window_ms,
        }
        self.phases[name] = {
            "took_s": took_s,
            "cpu_s": used_s,
            "world_cpu_s": done["cpu_s"],
            "refused": done["refused"],
            "acknowledged_p50_s": after["acknowledged_p50_s"],
            "acknowledged_p99_s": after["acknowledged_p99_s"],
            **{
                what: {
                    "count": done[what],
                    "a_second": done[what] / took_s,
                    "a_cpu_second": done[what] / used_s,
                    "real_time": done[what] / took_s / need[what],
                    "need": need[what],
                }
                for what in need
            },
            "answers": asking.end() if asking else {},
        }
        self.look()
        tell(name, self.phases[name])

    def _keep_looking(self, stop: threading.Event, every_s: float) -> None:
        while not stop.wait(every_s):
            self.look()

    def settle(self) -> None:
        """Until nothing is on its way any more: exporters are gone, and everything has had the time to be stored."""
        self.world.tell("close")
        self.world.tell("announce", "DELETED")
        stored = -1.0
        for _ in range(4):  # findings are never deleted, and the ledger takes long
            seen = self.metrics()
            before, stored = stored, seen["pyrometer_records_stored_total"]
            if stored == before:
                break
            # while the ledger is built nothing is stored, and nothing of the watch is read once enough waits
            accounting_s = seen["pyrometer_accounting_seconds"]
            time.sleep(self.size.scrape_ms / 1000 / self.clock.speed + 2 * accounting_s + SETTLE_S)
        self.phases["accounting"] = {"took_s": self.metrics()["pyrometer_accounting_seconds"]}

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(300)

    def stored(self) -> dict[str, tuple[int, int]]:
        """What was sent, and which part is stored."""
        from pyrometer.store import Store

        sent = self.world.tell("nothing")
        with Store(self.folder) as store:
            store.expose_all(["gpu_sample", "step_window", "pod"])

            def count(query: str) -> int:
                row = store.connection.execute(f"SELECT {query}").fetchone()
                return int(row[0]) if row else 0

            return {
                "GPU samples": (sent["scrapes"] * GPUS_A_NODE, count("count(*) FROM gpu_sample")),
                "windows of steps": (sent["windows"], count("count(*) FROM step_window")),
                "pods": (
                    self.size.training * self.size.pods_a_node + sent["started"],
                    count("count(DISTINCT pod_uid) FROM pod WHERE namespace <> 'gpu-operator'"),
                ),
                "pods that ended": (
                    sent["ended"],
                    count("count(DISTINCT pod_uid) FROM pod WHERE name LIKE 'short-%' AND ended_ms > 0"),
                ),
            }


class Asking:
    """A user of the page: sends a request, waits for the answer, sends the next one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._took: dict[str, list[float]] = {question: [] for question in QUESTIONS}
        self._failed = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=600) as client:
            while not self._ended.is_set():
                for question in QUESTIONS:
                    began_s = time.perf_counter()
                    more = "&" if "?" in question else "?"
                    answer = client.get(f"/api/v1/{question}{more}stale=ok")
                    self._took[question].append(time.perf_counter() - began_s)
                    self._failed += answer.status_code not in (200, 409)
                    if self._ended.wait(0.25):
                        return

    def end(self) -> dict[str, Any]:
        self._ended.set()
        self._thread.join()
        took = {question: sorted(times) for question, times in self._took.items() if times}
        return {
            question: {"count": len(t), "p50_s": t[len(t) // 2], "most_s": t[-1]} for question, t in took.items()
        } | {"failed": self._failed}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


# -- the report ----------------------------------------------------------------------------------------------------


def tell(name: str, phase: dict[str, Any]) -> None:
    print(f"{name}: {phase['took_s']:.0f} s, {phase['cpu_s'] / phase['took_s']:.2f} cores", flush=True)
    for what in ("scrapes", "windows", "changes"):
        one = phase[what]
        if one["count"]:
            print(
                f"  {what:8} {one['a_second']:>9,.0f}/s = {one['real_time']:6.2f} × real time ({one['need']:,.0f}/s); "
                f"{one['a_cpu_second']:>9,.0f} a CPU second = {one['a_cpu_second'] / one['need']:.2f} × on one core"
            )
    if phase["windows"]["count"]:
        print(
            f"  acknowledged after {1000 * phase['acknowledged_p50_s']:,.0f} ms, 99 of 100 after "
            f"{1000 * phase['acknowledged_p99_s']:,.0f} ms; {phase['refused']} times asked to retry"
        )
    for question, one in phase["answers"].items():
        if question != "failed":
            print(f"  {question:24} {one['count']:>5} answers, {one['p50_s']:.3f} s, at most {one['most_s']:.2f} s")


def tell_all(edge: Edge, code: int, stored: dict[str, tuple[int, int]], check: Any) -> None:
    first = edge.phases["first list"]
    print(f"first list: {first['at_s']:.1f} s, {first['cpu_s']:.1f} CPU-s, {first['records']:,.0f} records")
    print(f"the ledger took {edge.phases['accounting']['took_s']:.1f} s the last time")
    together = edge.samples[len(edge.samples) // 4 :]
    for words, seen in (
        ("beginning", edge.samples[0]),
        ("middle", together[len(together) // 2]),
        ("end", together[-1]),
    ):
        print(
            f"{words:>10}: {seen['rss_mb']:,.0f} MB, {seen['files']} files open, {seen['inbox']} bodies wait, "
            f"{seen['hot_mb']:,.0f} MB hot, {seen['disk_mb']:,.0f} MB on disk"
        )
    print(f"most memory: {max(seen['rss_mb'] for seen in edge.samples):,.0f} MB")
    for what, (sent, kept) in stored.items():
        print(f"{what}: {sent:,} sent, {kept:,} stored{'' if sent == kept else '  <-- NOT THE SAME'}")
    print(f"the server ended with {code}; pyrometer check says {check.returncode}: {check.stdout.splitlines()[-1:]}")


def run(size: Size, minutes: float, speed: float, alone_s: float, scratch: Path) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    seconds = minutes * 60 / speed
    lasts_ms = int((3 * alone_s + seconds + 600) * 1000 * max(speed - 1, 0))
    edge = Edge(size, Clock(now_ms, now_ms - lasts_ms, speed), scratch)  # so that it never is in the future
    try:
        edge.list_all()
        edge.phase("watch alone", alone_s, watch=True)
        edge.phase("OTLP, new ranks", alone_s / 5, otlp=True, until=("windows", size.training * GPUS_A_NODE))
        edge.phase("OTLP alone", alone_s, otlp=True)
        edge.world.tell("announce", "ADDED")
        edge.phase("scrapes, new exporters", alone_s / 5, until=("least_scrapes", 1))
        edge.phase("scrapes alone", alone_s)
        edge.phase("together", seconds, otlp=True, watch=True, with_queries=True)
        edge.settle()
        code = edge.end()
        stored = edge.stored()
    finally:
        edge.world.end()
        if edge.process.poll() is None:
            edge.process.kill()
    check = subprocess.run(
        [sys.executable, "-m", "pyrometer", "check", str(edge.folder)], capture_output=True, text=True
    )
    tell_all(edge, code, stored, check)
    return {
        **size._asdict(),
        "speed": speed,
        "phases": edge.phases,
        "samples": edge.samples,
        "stored": stored,
        "code": code,
        "check": check.returncode,
        "said": edge.log.read_text().splitlines()[-20:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=100_000)
    parser.add_argument("--gpus-a-pod", type=int, default=GPUS_A_NODE, choices=(1, 2, 4, 8))
    parser.add_argument("--minutes", type=float, default=60.0, help="of cluster time, with everything together")
    parser.add_argument("--speed", type=float, default=4.0, help="how many times as fast as real time it may go")
    parser.add_argument("--alone", type=float, default=15.0, help="seconds of this machine for each input alone")
    parser.add_argument("--scrape-every", type=int, default=15, help="seconds between two scrapes of an exporter")
    parser.add_argument("--window", type=int, default=10, help="seconds of steps that a rank tells of at once")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    size = Size(args.gpus, args.gpus_a_pod, args.scrape_every * 1000, args.window * 1000)
    print(
        f"{size.gpus:,} GPUs on {size.nodes:,} nodes, scraped every {args.scrape_every} s, windows of {args.window} s, "
        f"{args.speed:g} times as fast as real time, if it can",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        found = run(size, args.minutes, args.speed, args.alone, Path(scratch))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
