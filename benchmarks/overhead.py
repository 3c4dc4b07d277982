"""What watching costs a training step: bare, and under Pyrometer, W&B, MLflow, torch.profiler and TraceML.

    python benchmarks/overhead.py [--device cuda] [--workloads mlp256,mlp1024,gpt] [--repetitions 5] [--seconds 6]

In every repetition each peer is a new process: where its memory lies makes one process faster than another by more than
is measured here. They take short turns, in rotating order, so that all of them meet the same machine; a repetition is
the median of its turns, and is compared with the bare process' own. A second bare process shows how much of a
difference means nothing. Steps are those of a plain loop: forward, backward, step, and the loss handed to whoever logs.
A package that cannot be imported is left out with a message.

What is left of that noise is more than Pyrometer costs. So it is also measured within one process, whose hooks are
taken out and put back every few steps: what a marked step costs, one without marks, and both in the mixture that the
SDK itself has chosen for steps of that length.
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

ROUNDS = 20  # turns of a repetition
WARM_S = 4.0
PEERS = ("bare", "bare again", "pyrometer", "wandb", "mlflow", "profiler", "traceml")


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


def work(peer: str, device: str, workload: str) -> None:
    """Runs blocks of steps as requested on stdin, and prints how long they took."""
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    log = logger(peer)
    model, optimizer, compute = build(workload, device)
    print(json.dumps({"ready": torch.__version__}), flush=True)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    number = 0
    nothing = nullcontext()
    around = traced(peer)
    for line in sys.stdin:
        request = json.loads(line)
        profile = profiler(peer, device)
        wait()
        before_ns, began = sdk_ns(), time.perf_counter()
        for _ in range(request["steps"]):
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
    """How a program reports a step to this peer. Pyrometer observes it without a report."""
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
    """TraceML needs marks where a step begins and ends."""
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


# -- within one process ------------------------------------------------------------------------------------------------


def within(workload: str, device: str) -> dict[str, float]:
    """Microseconds that a step takes bare, and what is added by hooks that mark it, or do not."""
    import torch
    import torch.optim.optimizer as optimizers

    from pyrometer.train.run import boot

    if device == "cpu":
        torch.set_num_threads(1)
    model, optimizer, compute = build(workload, device)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def steps(count: int) -> float:
        wait()
        began = time.perf_counter()
        for _ in range(count):
            compute().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        wait()
        return (time.perf_counter() - began) / count * 1e6

    steps(50)
    ready_s = time.monotonic() + WARM_S
    while time.monotonic() < ready_s:  # the SDK has chosen by then
        usual_us = steps(5)
    recorder = boot._hooks.rank.recorder  # type: ignore[union-attr]
    every = recorder.every
    kind = type(model)
    hooked = {"backward": torch.autograd.backward, "call": kind.__call__}
    pre, post = dict(optimizers._global_optimizer_pre_hooks), dict(optimizers._global_optimizer_post_hooks)

    def bare() -> None:
        recorder.finish()
        torch.autograd.backward = hooked["backward"].__pyrometer__
        optimizers._global_optimizer_pre_hooks.clear()
        optimizers._global_optimizer_post_hooks.clear()
        del kind.__call__

    def watched(one_in: int) -> None:
        if torch.autograd.backward is not hooked["backward"]:
            torch.autograd.backward = hooked["backward"]
            optimizers._global_optimizer_pre_hooks.update(pre)
            optimizers._global_optimizer_post_hooks.update(post)
            kind.__call__ = hooked["call"]
        recorder.finish()
        recorder.every, recorder.light = one_in, one_in > 1

    block = max(2, min(8, round(20_000 / usual_us)))
    rounds = max(20, min(2000, round(20e6 / (usual_us * 3 * (block + 1)))))
    taken: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        for place, begin in enumerate((bare, lambda: watched(1 << 40), lambda: watched(1))):
            begin()
            steps(1)  # what was exchanged is new to the interpreter
            taken[place].append(steps(block))
    more = [[one - other for one, other in zip(us, taken[0], strict=True)] for us in taken[1:]]
    unmarked, marked = (statistics.median(one) for one in more)
    error = 1.25 * statistics.stdev(sorted(more[1])[rounds // 10 : -rounds // 10]) / rounds**0.5
    return {"bare": statistics.median(taken[0]), "unmarked": unmarked, "marked": marked, "every": every, "error": error}


def show_within(workload: str, device: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        watching = [sys.executable, "-m", "pyrometer", "run", "--data", folder, "--"]
        command = [*watching, sys.executable, __file__, "--work", "within", "--device", device, "--workloads", workload]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    every = found["every"]
    mean = found["unmarked"] + (found["marked"] - found["unmarked"]) / every
    print(
        f"  within one process: {found['bare']:.0f} µs bare; marked {found['marked']:+.1f} µs (± {found['error']:.1f}),"
        f" without marks {found['unmarked']:+.1f}; one in {every} is marked: {mean:+.1f} µs,"
        f" {100 * mean / found['bare']:+.2f} %",
        flush=True,
    )


# -- taking turns ------------------------------------------------------------------------------------------------------


class Worker:
    def __init__(self, peer: str, device: str, workload: str, folder: Path) -> None:
        self.peer = peer
        self.log = folder / f"{peer}.log"
        self.process: subprocess.Popen[str] | None = None
        command = [sys.executable, __file__, "--work", peer, "--device", device, "--workloads", workload]
        if peer == "pyrometer":
            command = [sys.executable, "-m", "pyrometer", "run", "--data", str(folder / "data"), "--", *command]
        if peer == "traceml":
            traceml = str(Path(sys.executable).with_name("traceml"))
            logs = ["--logs-dir", str(folder / "traceml"), "--finalize-timeout-sec", "5"]
            command = [traceml, "run", "--mode", "summary", *logs, __file__, "--args", *command[2:]]
        environment = {**os.environ, "WANDB_MODE": "offline", "PYTHONWARNINGS": "ignore"}
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.log.open("w"),
                text=True,
                env=environment,
            )
        except FileNotFoundError as error:
            self.log.write_text(str(error))

    def ready(self) -> str | None:
        """The version of torch, once it is there; None: it cannot run here."""
        answer = self._hear() if self.process is not None else None
        return answer["ready"] if answer is not None else None

    def run(self, steps: int) -> dict[str, float]:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"steps": steps}) + "\n")
        self.process.stdin.flush()
        answer = self._hear()
        if answer is None:
            raise RuntimeError("it ended early")
        return answer

    def _hear(self) -> Any:
        assert self.process is not None
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return None

    def end(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workloads", default="mlp256,mlp1024,gpt")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--work")
    args = parser.parse_args()
    workloads = args.workloads.split(",")
    if args.work == "within":
        print(json.dumps(within(workloads[0], args.device)), flush=True)
        return
    if args.work:
        work(args.work, args.device, workloads[0])
        return
    print(f"{args.device}, {args.repetitions} repetitions of {ROUNDS} turns of {args.seconds / ROUNDS:g} s", flush=True)
    for workload in workloads:
        measured = []
        for repetition in range(args.repetitions):
            with tempfile.TemporaryDirectory() as name:
                measured.append(measure(args, workload, repetition, Path(name)))
        show(workload, measured)
        if "pyrometer" in args.peers.split(","):
            show_within(workload, args.device)


Turns = dict[str, list[tuple[float, float]]]  # by peer: microseconds a step, share of the SDK's threads


def measure(args: argparse.Namespace, workload: str, repetition: int, folder: Path) -> Turns:
    """One repetition: new processes, and their turns."""
    workers = [Worker(peer, args.device, workload, folder) for peer in args.peers.split(",")]
    able = []
    for worker in workers:
        version = worker.ready()
        if version is not None:
            able.append(worker)
        elif not repetition:
            lines = worker.log.read_text().strip().splitlines()
            print(f"{worker.peer}: left out ({lines[-1][:100] if lines else 'no reason given'})")
    steps = 20
    for _ in range(3):  # warm up, and find out how many steps a turn has
        took = able[0].run(steps)["s"]
        steps = max(5, round(steps * args.seconds / ROUNDS / took))
    for worker in able:  # long enough to know what its own work costs
        few = worker.peer in ("mlflow", "wandb", "profiler")
        worker.run(max(5, steps // 5) if few else round(WARM_S * steps * ROUNDS / args.seconds))
    turns: Turns = {worker.peer: [] for worker in able}
    for turn in range(ROUNDS):  # short turns in rotating order: all peers share the variations of the machine
        first = (repetition + turn) % len(able)
        for worker in able[first:] + able[:first]:
            count = steps if worker.peer != "mlflow" else max(2, steps // 10)
            answer = worker.run(count)
            turns[worker.peer].append((answer["s"] / count * 1e6, answer["sdk_s"] / answer["s"]))
    for worker in able:
        worker.end()
    return turns


def show(workload: str, measured: list[Turns]) -> None:
    """A line for each peer: the repetitions' median, and the smallest and largest of them."""
    of_peer = {peer: [statistics.median(us for us, _ in turns[peer]) for turns in measured] for peer in measured[0]}
    bare = of_peer["bare"]
    print(f"\n{workload}")
    print(f"  {'':<10} {'µs a step':>10} {'spread':>15}", end="")
    print(f" {'more, µs':>10} {'spread':>17} {'more, %':>9} {'threads, %':>11}")
    for peer, us in of_peer.items():
        more = [one - other for one, other in zip(us, bare, strict=True)]
        line = f"  {peer:<10} {statistics.median(us):>10.1f} {min(us):>7.0f}–{max(us):<7.0f}"
        if peer != "bare":
            line += f" {statistics.median(more):>10.1f} {min(more):>8.1f}–{max(more):<8.1f}"
            line += f" {100 * statistics.median(more) / statistics.median(bare):>9.2f}"
        if peer == "pyrometer":
            shares = [statistics.mean(share for _, share in turns[peer]) for turns in measured]
            line += f" {100 * statistics.median(shares):>11.3f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
