"""What watching costs a training step: bare, and under Pyrometer, W&B, MLflow, torch.profiler and TraceML.

    python benchmarks/overhead.py [--device cuda] [--workloads mlp256,mlp1024,gpt] [--repetitions 5] [--seconds 2]

Every peer is one process that has built all workloads. They take short turns, in rotating order, so that all of them
meet the same machine; a repetition is the median of its turns, and is compared with the bare process' own. Steps are
those of a plain loop: forward, backward, step, and the loss handed to whoever logs. What cannot be imported is left
out, and said.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROUNDS = 10  # turns of a repetition
PEERS = ("bare", "pyrometer", "wandb", "mlflow", "profiler", "traceml")


# -- the workloads -----------------------------------------------------------------------------------------------------


def build(name: str, device: str) -> tuple[Any, Any, Any]:
    """A model, its optimizer and a function that gives a batch and its loss."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name.startswith("mlp"):
        batch = int(name.removeprefix("mlp"))
        model: Any = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
        x, y = torch.randn(batch, 64, device=device), torch.randint(0, 10, (batch,), device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        return model, optimizer, lambda: nn.functional.cross_entropy(model(x), y)
    layers, width, length, batch = _SIZES[name]
    model = Gpt(layers, width, length).to(device)
    x = torch.randint(0, 1024, (batch, length), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kind = torch.bfloat16 if device == "cuda" else torch.float32

    def loss() -> Any:
        with torch.autocast(device, kind, enabled=device == "cuda"):
            return nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())

    return model, optimizer, loss


_SIZES = {"gpt": (2, 128, 64, 8), "gpt50": (12, 1024, 1024, 17), "gpt100": (12, 1024, 1024, 36)}


def Gpt(layers: int, width: int, length: int) -> Any:  # noqa: N802 - it is a module
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = (part.view(b, t, c // 64, 64).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.mlp(self.norm2(x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(1024, width), nn.Embedding(length, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.head = nn.Linear(width, 1024)

        def forward(self, x: Any) -> Any:
            at = torch.arange(x.shape[1], device=x.device)
            return self.head(self.blocks(self.tokens(x) + self.places(at)))

    return Model()


# -- a process that takes turns ----------------------------------------------------------------------------------------


def work(peer: str, device: str, names: list[str]) -> None:
    """Runs blocks of steps as it is told to on stdin, and says how long they took."""
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    log = logger(peer)
    built = {name: build(name, device) for name in names}
    print(json.dumps({"ready": torch.__version__}), flush=True)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    number = 0
    nothing = nullcontext()
    around = traced(peer)
    for line in sys.stdin:
        asked = json.loads(line)
        model, optimizer, compute = built[asked["workload"]]
        profile = profiler(peer, device)
        wait()
        before_ns, began = sdk_ns(), time.perf_counter()
        for _ in range(asked["steps"]):
            with around(model) if around is not None else nothing:
                loss = compute()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            number += 1
            if log is not None:
                log(loss, number)
            if profile is not None:
                profile.step()
        wait()
        took = time.perf_counter() - began
        if profile is not None:
            profile.stop()
        print(json.dumps({"s": took, "sdk_s": (sdk_ns() - before_ns) / 1e9}), flush=True)


def logger(peer: str) -> Any:
    """How this peer is told of a step. Pyrometer is not: it sees it."""
    if peer == "wandb":
        import wandb

        run = wandb.init(mode="offline", dir=tempfile.mkdtemp(), settings=wandb.Settings(console="off", silent=True))
        return lambda loss, step: run.log({"loss": loss.item()}, step=step)
    if peer == "mlflow":
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{tempfile.mkdtemp()}/mlflow.db")
        mlflow.start_run()
        return lambda loss, step: mlflow.log_metric("loss", loss.item(), step=step)
    return None


def traced(peer: str) -> Any:
    """TraceML wants to be told where a step begins and ends."""
    if peer != "traceml":
        return None
    from traceml_ai.api import trace_step

    return trace_step


def profiler(peer: str, device: str) -> Any:
    if peer != "profiler":
        return None
    import torch
    from torch.profiler import ProfilerActivity

    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    profile = torch.profiler.profile(activities=kinds)
    profile.start()
    return profile


def sdk_ns() -> int:
    """CPU time of the SDK's threads so far."""
    total = 0
    for thread in threading.enumerate():
        if thread.name == "pyrometer" and thread.native_id:
            total += int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])
    return total


# -- taking turns ------------------------------------------------------------------------------------------------------


class Worker:
    def __init__(self, peer: str, device: str, workloads: list[str], folder: Path) -> None:
        command = [sys.executable, __file__, "--work", peer, "--device", device, "--workloads", ",".join(workloads)]
        if peer == "pyrometer":
            command = [sys.executable, "-m", "pyrometer", "run", "--data", str(folder / "data"), "--", *command]
        if peer == "traceml":
            traceml = str(Path(sys.executable).with_name("traceml"))
            logs = ["--logs-dir", str(folder / "traceml"), "--finalize-timeout-sec", "5"]
            command = [traceml, "run", "--mode", "summary", *logs, __file__, "--args", *command[2:]]
        environment = {**os.environ, "WANDB_MODE": "offline", "PYTHONWARNINGS": "ignore"}
        try:
            self.process = self._started(command, environment, folder / f"{peer}.log")
            self.ready = self._hear()
        except FileNotFoundError as error:
            self.ready = None
            (folder / f"{peer}.log").write_text(str(error))

    def _started(self, command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True, env=environment,
        )  # fmt: skip

    def run(self, workload: str, steps: int) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"workload": workload, "steps": steps}) + "\n")
        self.process.stdin.flush()
        answer = self._hear()
        if answer is None:
            raise RuntimeError("it ended early")
        return answer

    def _hear(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return None

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workloads", default="mlp256,mlp1024,gpt")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--work")
    told = parser.parse_args()
    workloads = told.workloads.split(",")
    if told.work:
        work(told.work, told.device, workloads)
        return
    with tempfile.TemporaryDirectory() as name:
        measure(told, workloads, Path(name))


def measure(told: argparse.Namespace, workloads: list[str], folder: Path) -> None:
    workers = {}
    for peer in told.peers.split(","):
        worker = Worker(peer, told.device, workloads, folder)
        if worker.ready is None:
            said = (folder / f"{peer}.log").read_text().strip().splitlines()
            print(f"{peer}: left out ({said[-1][:100] if said else 'no reason given'})")
        else:
            workers[peer] = worker
    turns = f"{told.repetitions} repetitions of {told.seconds:g} s a turn"
    print(f"torch {workers['bare'].ready['ready']}, {told.device}, {turns}")
    for workload in workloads:
        steps = 20
        for _ in range(3):  # warm up, and find out how many steps a turn has
            took = workers["bare"].run(workload, steps)["s"]
            steps = max(5, round(steps * told.seconds / took))
        for peer, worker in workers.items():
            worker.run(workload, steps if peer in ("bare", "pyrometer") else max(5, steps // 10))
        show(workload, steps, {peer: [] for peer in workers}, workers, told.repetitions)
    for worker in workers.values():
        worker.end()


def show(workload: str, steps: int, rows: dict[str, list[Any]], workers: dict[str, Worker], repetitions: int) -> None:
    peers = list(workers.items())
    some = max(5, steps // ROUNDS)
    for repetition in range(repetitions):
        rounds: dict[str, list[tuple[float, float]]] = {peer: [] for peer in workers}
        for turn in range(ROUNDS):  # short turns in rotating order: a machine's moods are everybody's
            first = (repetition + turn) % len(peers)
            for peer, worker in peers[first:] + peers[:first]:
                count = some if peer != "mlflow" else max(2, some // 10)
                answer = worker.run(workload, count)
                rounds[peer].append((answer["s"] / count * 1e6, answer["sdk_s"] / answer["s"]))
        for peer, measured in rounds.items():
            rows[peer].append(
                (statistics.median(us for us, _ in measured), statistics.mean(cpu for _, cpu in measured))
            )
    bare = [us for us, _ in rows["bare"]]
    print(f"\n{workload}: {some} steps a turn, {ROUNDS} turns a repetition")
    print(f"  {'':<10} {'µs a step':>10} {'spread':>15}", end="")
    print(f" {'more, µs':>10} {'spread':>17} {'more, %':>9} {'threads, %':>11}")
    for peer, measured in rows.items():
        us = [one for one, _ in measured]
        more = [one - other for one, other in zip(us, bare, strict=True)]
        middle = statistics.median(us)
        line = f"  {peer:<10} {middle:>10.1f} {min(us):>7.0f}–{max(us):<7.0f}"
        if peer != "bare":
            line += f" {statistics.median(more):>10.1f} {min(more):>8.1f}–{max(more):<8.1f}"
            line += f" {100 * statistics.median(more) / statistics.median(bare):>9.2f}"
        if peer == "pyrometer":
            line += f" {100 * statistics.median(share for _, share in measured):>11.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
