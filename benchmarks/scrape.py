"""Scraping a cluster: how fast exporters' texts become records, and in how much memory.

1,500 exporters of eight GPUs each, with dcgm-exporter's metrics and labels of pods. First the text alone, against the
official parser; then text → records; then everything, from real HTTP on this machine into the store.

    python benchmarks/scrape.py [--exporters 1500] [--gpus 8] [--interval 15]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

METRICS = {
    "DCGM_FI_DEV_SM_CLOCK": "1980",
    "DCGM_FI_DEV_MEM_CLOCK": "2619",
    "DCGM_FI_DEV_MEMORY_TEMP": "55",
    "DCGM_FI_DEV_GPU_TEMP": "41",
    "DCGM_FI_DEV_POWER_USAGE": "674.365000",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "4742776312",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "0",
    "DCGM_FI_DEV_GPU_UTIL": "93",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "42",
    "DCGM_FI_DEV_ENC_UTIL": "0",
    "DCGM_FI_DEV_DEC_UTIL": "0",
    "DCGM_FI_DEV_XID_ERRORS": "0",
    "DCGM_FI_DEV_FB_FREE": "22563",
    "DCGM_FI_DEV_FB_USED": "121000",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "0",
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "4",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "0.930012",
    "DCGM_FI_PROF_SM_ACTIVE": "0.821002",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "0.251234",
    "DCGM_FI_PROF_DRAM_ACTIVE": "0.421987",
}


def text_of(exporter: int, gpus: int) -> bytes:
    """What one exporter shows."""
    lines = []
    for name, value in METRICS.items():
        lines += [f"# HELP {name} as the exporter explains it.", f"# TYPE {name} gauge"]
        lines += [
            f'{name}{{gpu="{gpu}",UUID="GPU-{exporter:08d}-7953-256e-8f33-{gpu:012d}",'
            f'pci_bus_id="00000000:{gpu:02d}:00.0",device="nvidia{gpu}",modelName="NVIDIA H200",'
            f'hostname="node-{exporter:05d}",DCGM_FI_DRIVER_VERSION="580.105.08",container="pytorch",'
            f'namespace="team-{exporter % 40}",pod="train-{exporter}-worker-{gpu}"}} {value}'
            for gpu in range(gpus)
        ]
    return ("\n".join(lines) + "\n").encode()


def new_dcgm():
    from pyrometer.collect.gpu.dcgm import Dcgm
    from pyrometer.identify.gpus.gpu_models import near_idle_power_w

    return Dcgm(lambda host: f"uid-{host}", near_idle_power_w)


def memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def lines_a_second(gpus: int) -> dict[str, float]:
    """One exporter's text, again and again: the cached reader and the official parser, in turns."""
    from prometheus_client.parser import text_string_to_metric_families

    from pyrometer.collect.prometheus.exposition import ExpositionReader

    text = text_of(0, gpus)
    lines, repeats = text.count(b"\n"), 40
    reader = ExpositionReader(str, dict)
    reader.read(text)
    ours = theirs = 0.0
    for _ in range(5):
        started = time.process_time()
        for _ in range(repeats):
            reader.read(text)
        between = time.process_time()
        list(text_string_to_metric_families(text.decode()))
        theirs += time.process_time() - between
        ours += (between - started) / repeats
    return {"ours": 5 * lines / ours, "official": 5 * lines / theirs, "lines": lines, "bytes": len(text)}


def text_to_records(exporters: int, gpus: int) -> dict[str, float]:
    """Every exporter once, all new; then the same again, as every 15 seconds."""
    from pyrometer.collect.gpu.dcgm import measure_of, slot_address_of
    from pyrometer.collect.prometheus.exposition import ExpositionReader

    texts = [text_of(number, gpus) for number in range(exporters)]
    readers = [ExpositionReader(measure_of, slot_address_of) for _ in texts]
    dcgm, before_mb = new_dcgm(), memory_mb()
    took, records = [], 0
    for round_number in range(4):
        time_ms = 1_794_700_000_000 + 15_000 * round_number
        started, records = time.process_time(), 0
        for reader, text in zip(readers, texts, strict=True):
            samples = [(m, p, value, time_ms) for m, p, value, _ in reader.read(text).samples]
            records += len(dcgm.take(samples).records)
        took.append(time.process_time() - started)
    return {"first_s": took[0], "again_s": min(took[1:]), "records": records, "memory_mb": memory_mb() - before_mb}


def serve(exporters: int, gpus: int, ports: multiprocessing.Queue) -> None:
    """All exporters behind one port: the number is in the path."""
    answers = []
    for number in range(exporters):
        text = text_of(number, gpus)
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        )
        answers.append(head.encode() + text)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # the benchmark has ended
            return
        writer.write(answers[int(head.split()[1].rpartition(b"/")[2])])
        await writer.drain()
        writer.close()

    async def listen() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
        ports.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(listen())


async def follow(port: int, exporters: int, interval_s: float, folder: Path) -> dict[str, float]:
    """Scrapes them all into a store, for two intervals after everything has been seen once."""
    from pyrometer.collect.gpu.scrape import Scrapes, ScrapeTarget, gpu_exporters
    from pyrometer.model.records import GpuSample
    from pyrometer.store import Store

    before_mb = memory_mb()
    source = Scrapes(
        lambda: [ScrapeTarget(f"http://127.0.0.1:{port}/{n}") for n in range(exporters)],
        gpu_exporters(new_dcgm()),
        interval_s=interval_s,
    )
    with Store(folder, create=True) as store:
        started = cpu = stored_s = 0.0
        samples = 0
        async for delivery in source.deliveries():
            begun = time.process_time()
            store.append(delivery.records)
            if started:
                stored_s += time.process_time() - begun
                samples += sum(isinstance(record, GpuSample) for record in delivery.records)
                if time.monotonic() - started >= 2 * interval_s:
                    break
            elif all(state.up for state in source.states.values()) and len(source.states) == exporters:
                started, cpu = time.monotonic(), time.process_time()
        wall, cpu = time.monotonic() - started, time.process_time() - cpu
    down = sum(not state.up for state in source.states.values())
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "stored_s": stored_s,
        "samples": samples,
        "down": down,
        "memory_mb": memory_mb() - before_mb,
    }


def everything(exporters: int, gpus: int, interval_s: float) -> dict[str, float]:
    ports: multiprocessing.Queue = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(exporters, gpus, ports), daemon=True)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(follow(ports.get(), exporters, interval_s, Path(folder) / "data"))
    finally:
        server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--exporters", type=int, default=1_500)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--one", choices=("lines", "records", "everything"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        parts = {
            "lines": lambda: lines_a_second(args.gpus),
            "records": lambda: text_to_records(args.exporters, args.gpus),
            "everything": lambda: everything(args.exporters, args.gpus, args.interval),
        }
        print(json.dumps(parts[args.one]()))
        return

    def part(name: str) -> dict[str, float]:
        """In a process of its own: memory is that part's alone."""
        command = [sys.executable, __file__, "--one", name, "--exporters", str(args.exporters)]
        command += ["--gpus", str(args.gpus), "--interval", str(args.interval)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout.splitlines()[-1])

    lines = part("lines")
    print(f"{args.exporters:,} exporters × {args.gpus} GPUs × {len(METRICS)} metrics every {args.interval:g} s")
    print(f"a text: {lines['lines']:,} lines, {lines['bytes']:,} bytes")
    print(
        f"  cached reader   {lines['ours']:>12,.0f} lines/s   {lines['ours'] / lines['official']:.0f}× the official one"
    )
    print(f"  official parser {lines['official']:>12,.0f} lines/s")
    text = part("records")
    share = text["again_s"] / args.interval
    print(f"text → records: {args.exporters / text['again_s']:,.0f} scrapes/s, {text['memory_mb']:.0f} MB")
    print(f"  all of them: {text['again_s']:.2f} s ({share:.1%} of one core), {text['first_s']:.2f} s the first time")
    whole = part("everything")
    share, stored = whole["cpu_s"] / whole["wall_s"], whole["stored_s"] / whole["wall_s"]
    print(f"HTTP → store: {whole['samples'] / whole['wall_s']:,.0f} samples/s, {whole['memory_mb']:.0f} MB")
    print(f"  {share:.1%} of one core, of which the store {stored:.1%}; {whole['down']:.0f} exporters were down")


if __name__ == "__main__":
    main()
