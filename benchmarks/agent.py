"""The agent on a real GPU: does it say what nvidia-smi says, and what does it cost?

First, what each reading of a GPU takes. Then it starts the agent and prints its values next to those of `nvidia-smi`,
idle and under load (if torch is there). Then, for a minute at one reading a second, the agent's CPU time over the wall
clock and its memory, as it is and with eight NVML queries for the same GPU. The peer is
`nvidia-smi --query-gpu … -lms 1000` with the same fields, in the same minute.

    python benchmarks/agent.py [--pretend 8] [--seconds 60] [--scrape-every 15]

Without our packages on the machine: pip install --target vendor nvidia-ml-py h2 click, and then
PYTHONPATH=src:vendor python benchmarks/agent.py
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

# nvidia-smi's field, and ours in the same unit
SAME = [
    ("utilization.gpu", "DCGM_FI_DEV_GPU_UTIL"),
    ("utilization.memory", "DCGM_FI_DEV_MEM_COPY_UTIL"),
    ("memory.used", "DCGM_FI_DEV_FB_USED"),
    ("memory.free", "DCGM_FI_DEV_FB_FREE"),
    ("memory.reserved", "DCGM_FI_DEV_FB_RESERVED"),
    ("power.draw", "DCGM_FI_DEV_POWER_USAGE"),
    ("temperature.gpu", "DCGM_FI_DEV_GPU_TEMP"),
    ("temperature.memory", "DCGM_FI_DEV_MEMORY_TEMP"),
    ("clocks.sm", "DCGM_FI_DEV_SM_CLOCK"),
    ("clocks.mem", "DCGM_FI_DEV_MEM_CLOCK"),
    ("clocks_event_reasons.active", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"),
    ("ecc.errors.corrected.volatile.total", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
    ("ecc.errors.uncorrected.aggregate.total", "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"),
    ("remapped_rows.correctable", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS"),
    ("remapped_rows.uncorrectable", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"),
]
ALONE = [
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_PROF_SM_OCCUPANCY",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE",
    "DCGM_FI_PROF_PCIE_TX_BYTES",
    "DCGM_FI_PROF_PCIE_RX_BYTES",
    "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "DCGM_FI_PROF_NVLINK_RX_BYTES",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_XID_ERRORS",
    "pyrometer_gpu_lost",
    "pyrometer_gpu_processes",
]

LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("loaded", flush=True)
end = time.time() + {seconds}
while time.time() < end:
    for _ in range(50):
        a = torch.nn.functional.normalize(a @ a)
    torch.cuda.synchronize()
"""


def run_agent(port: int, pretend: int) -> None:
    """In a process of its own: the agent, with every GPU `pretend` times."""
    from pyrometer.agent.nvml import Gpu, Nvml
    from pyrometer.agent.pod_resources import SOCKET
    from pyrometer.agent.server import Agent
    from pyrometer.cli.commands.agent import serve

    nvml = Nvml()
    copies = [
        Gpu(gpu.device._replace(gpu=number, uuid=f"{gpu.device.uuid}-{number}"), gpu.handle)
        for number in range(1, pretend)
        for gpu in nvml.gpus
    ]
    nvml.gpus += copies
    serve(Agent(nvml, every_s=1.0, pod_resources=Path(SOCKET), proc=Path("/proc")), "127.0.0.1", port)


@contextlib.contextmanager
def agent(port: int, pretend: int) -> Iterator[subprocess.Popen]:
    command = [sys.executable, __file__, "--serve", str(port), "--pretend", str(pretend)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "Listening" in line:
                break
        else:
            sys.exit("The agent did not start: " + "".join(lines[-3:]).strip())
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()


def scrape(port: int) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "identity"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def values(page: str) -> dict[str, float]:
    """Of the first GPU."""
    found = re.findall(r'^(\w+)\{gpu="0",[^}]*\} (\S+)$', page, re.M)
    return {name: float(value) for name, value in found}


def smi(fields: list[str]) -> list[str]:
    if not shutil.which("nvidia-smi"):
        return ["no nvidia-smi"] * len(fields)
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "--id=0"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return [value.strip() for value in result.stdout.split(",")] if result.returncode == 0 else ["?"] * len(fields)


def compare(port: int, when: str) -> dict[str, list]:
    theirs = smi([field for field, _ in SAME])
    ours = values(scrape(port))
    print(f"\n{when:<42}{'nvidia-smi':>20}{'agent':>16}")
    rows = {}
    for (_, name), peer_value in zip(SAME, theirs, strict=True):
        rows[name] = [peer_value, ours.get(name)]
        print(f"{name:<42}{peer_value:>20}{f'{ours[name]:g}' if name in ours else 'absent':>16}")
    for name in ALONE:
        rows[name] = [None, ours.get(name)]
        print(f"{name:<42}{'':>20}{f'{ours[name]:.4g}' if name in ours else 'absent':>16}")
    return rows


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def cost(port: int, pid: int, seconds: float, scrape_every_s: float) -> dict[str, float]:
    """CPU and memory of the agent while it is scraped now and then; next to it, of nvidia-smi at the same rate."""
    peer = None
    if shutil.which("nvidia-smi"):
        fields = ",".join(field for field, _ in SAME)
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv", "-lms", "1000"]
        peer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(3)  # past the first readings
    began, before = time.monotonic(), cpu_s(pid)
    peer_before = cpu_s(peer.pid) if peer else 0.0
    scrapes = took_s = 0.0
    while time.monotonic() - began < seconds:
        time.sleep(min(scrape_every_s, max(0.0, began + seconds - time.monotonic())))
        started = time.perf_counter()
        page = scrape(port)
        took_s += time.perf_counter() - started
        scrapes += 1
    wall = time.monotonic() - began
    found = {
        "cpu_percent": 100 * (cpu_s(pid) - before) / wall,
        "memory_mib": memory_mib(pid),
        "page_bytes": len(page),
        "scrape_ms": 1000 * took_s / scrapes,
    }
    for name, value in re.findall(r'^pyrometer_agent_reading_interval_seconds\{reading="(\w+)"\} (\S+)', page, re.M):
        found[f"{name}_every_s"] = float(value)
    if peer:
        found["nvidia_smi_cpu_percent"] = 100 * (cpu_s(peer.pid) - peer_before) / wall
        peer.terminate()
        peer.wait()
    return found


def trace() -> list[tuple[str, float, float]]:
    """Milliseconds of wall clock and of CPU that each reading of one GPU takes, warm."""
    from pyrometer.agent.nvml import ACTIVITY, ENERGY, HEALTH, Nvml

    gpu = Nvml().gpus[0]
    questions = [
        *(
            (next(iter(gpu.read([reader])), reader.__name__), lambda reader=reader: gpu.read([reader]))
            for reader in (*ACTIVITY, *ENERGY, *HEALTH)
        ),
        ("profile (GPM)", gpu.profile),
        ("processes", gpu.pids),
    ]
    rows = []
    for name, ask in questions:
        ask()
        wall_s = cpu_s = 0.0
        for _ in range(20):
            time.sleep(0.05)  # a scrape never follows another one directly
            began = time.perf_counter(), time.thread_time()
            ask()
            wall_s += time.perf_counter() - began[0]
            cpu_s += time.thread_time() - began[1]
        rows.append((name, 50 * wall_s, 50 * cpu_s))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pretend", type=int, default=8, help="ask NVML for every GPU this many times")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--scrape-every", type=float, default=15)
    parser.add_argument("--port", type=int, default=9471)
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        run_agent(args.serve, args.pretend)
        return
    found: dict[str, object] = {}
    print(f"{'reading, one GPU':<42}{'wall ms':>20}{'CPU ms':>16}")
    found["calls"] = trace()
    for name, wall_ms, cpu_ms in found["calls"]:
        print(f"{name:<42}{wall_ms:>20.3f}{cpu_ms:>16.3f}")
    with agent(args.port, 1) as process:
        time.sleep(4)
        found["idle"] = compare(args.port, "idle")
        with tempfile.TemporaryFile() as log:
            load = subprocess.Popen(
                [sys.executable, "-c", LOAD.format(seconds=args.seconds + 60)], stdout=subprocess.PIPE, stderr=log
            )
            if load.stdout.readline() == b"loaded\n":
                time.sleep(12)
                found["load"] = compare(args.port, "matrix products in bf16")
                found["one"] = cost(args.port, process.pid, args.seconds, args.scrape_every)
            else:
                log.seek(0)
                print(f"\nNo load: {log.read().decode().strip().splitlines()[-1:]}")
                found["one"] = cost(args.port, process.pid, args.seconds, args.scrape_every)
            load.kill()
            load.wait()
            load.stdout.close()
    with agent(args.port + 1, args.pretend) as process:
        found["pretend"] = cost(args.port + 1, process.pid, args.seconds, args.scrape_every)
    print(f"\n{f'{args.seconds:g} s, scraped every {args.scrape_every:g} s':<42}", end="")
    print(f"{'the GPUs':>20}{f'each {args.pretend} times':>16}")
    for name, value in found["one"].items():
        print(f"{name:<42}{value:>20.2f}{found['pretend'][name]:>16.2f}")
    print("\nThe bars: below 100 MiB, and below 1 % of a core at one reading a second of 8 GPUs.")
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
