"""A real training on one GPU, watched only by the agent: what does `why` find?

    python benchmarks/watched.py record --out FOLDER     on a machine with a GPU and torch: trains, and plants faults
    python benchmarks/watched.py explain FOLDER           anywhere: what was scraped, through the store, to `why`

`record` leaves scrapes.txt.gz (every answer of the agent, one per second) and truth.json (what was done, and when).
Without our packages on the machine: pip install --target vendor nvidia-ml-py h2 click; PYTHONPATH=src:vendor python …
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from datetime import UTC
from pathlib import Path

PORT = 9479
SCRAPED = "# scraped at "  # ms; before each answer

# What is done, and for how many seconds. A hang is a kernel that spins, as a collective does that waits for a rank.
PHASES = [("train", 60), ("hang", 60), ("train", 30), ("idle_held", 60), ("train", 30), ("diverged", 60)]

TRAIN = """
import json, sys, time
import torch
from torch import nn

phases = json.loads(sys.argv[1])
torch.manual_seed(0)
block = lambda: nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, norm_first=True, dropout=0.0)
model = nn.Sequential(nn.Embedding(32768, 1024), *(block() for _ in range(12)), nn.Linear(1024, 32768)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(32768, (16, 513), device="cuda")

def step():
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()

for _ in range(3):
    step()
for state, seconds in phases:
    began = time.time()
    if state == "diverged":
        with torch.no_grad():
            model[0].weight.fill_(float("nan"))
    while time.time() < began + seconds:
        if state == "hang":
            torch.cuda._sleep(2_000_000_000)
            torch.cuda.synchronize()
        elif state == "idle_held":
            time.sleep(1)
        else:
            step()
    print(json.dumps({"state": state, "from_ms": round(began * 1000), "to_ms": round(time.time() * 1000)}), flush=True)
"""


def record(folder: Path) -> None:
    """Trains while the agent is scraped every second."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", "from pyrometer.cli import main; main()", "agent", "--listen", f"127.0.0.1:{PORT}"]
    ended = threading.Event()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as agent:
        if not any("Listening" in line for line in agent.stderr):
            sys.exit("The agent did not start.")
        scraping = threading.Thread(target=_scrape, args=(folder / "scrapes.txt.gz", ended))
        scraping.start()
        free_ms = round(time.time() * 1000)
        time.sleep(20)
        held_ms = round(time.time() * 1000)
        trained = subprocess.run(
            [sys.executable, "-c", TRAIN, json.dumps(PHASES)], stdout=subprocess.PIPE, text=True, check=True
        )
        over_ms = round(time.time() * 1000)
        ended.set()
        scraping.join()
        agent.send_signal(signal.SIGTERM)
        agent.stderr.read()
    done = [json.loads(line) for line in trained.stdout.splitlines()]
    startup = {"state": "startup", "from_ms": held_ms, "to_ms": done[0]["from_ms"]}
    truth = [{"state": "free", "from_ms": free_ms, "to_ms": held_ms}, startup, *done]
    (folder / "truth.json").write_text(json.dumps({"held": [held_ms, over_ms], "intervals": truth}, indent=1))


def _scrape(path: Path, ended: threading.Event) -> None:
    with gzip.open(path, "wt") as file:
        while not ended.wait(1.0):
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as answer:
                body = answer.read()
            text = gzip.decompress(body).decode() if body[:2] == b"\x1f\x8b" else body.decode()
            file.write(f"{SCRAPED}{time.time_ns() // 1_000_000}\n{text}")


def explain(folder: Path) -> dict:
    """The scrapes as samples, the time in which the training ran as its pod's, and the answer of `why`."""
    from pyrometer.account.build.ledger import build
    from pyrometer.account.query.time_range import TimeRange
    from pyrometer.answers.why import why
    from pyrometer.model.settings import Settings, with_values
    from pyrometer.store import Store

    truth = json.loads((folder / "truth.json").read_text())
    # what happens here lasts a minute, not a night
    settings = with_values(Settings(), {"idle_gap_ms": 30_000, "finding_min_ms": 5_000, "finding_min_usd_micro": 0}, "")
    from_ms, to_ms = truth["intervals"][0]["from_ms"], truth["held"][1] + 1
    with tempfile.TemporaryDirectory() as scratch, Store(Path(scratch), create=True) as store:
        store.append(list(records(folder, truth)))
        build(store, settings, now_ms=to_ms)
        window = TimeRange(from_ms - from_ms % 60_000, to_ms + 60_000 - to_ms % 60_000)
        return why(store, window, settings, zone=UTC)


def records(folder: Path, truth: dict) -> list:
    """What a collector would have written down."""
    from pyrometer.collect.gpu.dcgm import Dcgm, measure_of, slot_address_of
    from pyrometer.collect.prometheus.exposition import ExpositionReader
    from pyrometer.identify.gpus.gpu_models import near_idle_power_w
    from pyrometer.model.records import Allocation, Node, Pod, Workload
    from pyrometer.model.units import SHARE_WHOLE

    reader, dcgm = ExpositionReader(measure_of, slot_address_of), Dcgm(lambda host: "node", near_idle_power_w)
    found = []
    text = gzip.decompress((folder / "scrapes.txt.gz").read_bytes()).decode()
    for answer in text.split(SCRAPED)[1:]:
        stamp, _, body = answer.partition("\n")
        read = reader.read(body.encode())
        found += dcgm.take([(m, place, value, int(stamp)) for m, place, value, _ in read.samples]).records
    model = re.search(r'modelName="([^"]*)"', text)[1]
    held_ms, over_ms = truth["held"]
    first_ms = truth["intervals"][0]["from_ms"]
    return [
        Node(first_ms, "bench", "node", "node", 1, model),
        Node(over_ms, "bench", "node", "node", 1, model),
        Workload(held_ms, "bench", "gpt", "Job", "ml", "gpt"),
        Pod(
            over_ms,
            "bench",
            "gpt-0",
            "ml",
            "gpt-0",
            "Succeeded",
            "gpt",
            node_uid="node",
            scheduled_ms=held_ms,
            started_ms=held_ms,
            ended_ms=over_ms,
            gpu_share=SHARE_WHOLE,
        ),
        Allocation(over_ms, "gpt-0", "node", 0, held_ms, over_ms, SHARE_WHOLE),
        *found,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "explain"])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("watched"))
    parser.add_argument("--out", type=Path, dest="out")
    args = parser.parse_args()
    if args.what == "record":
        record(args.out or args.folder)
        return
    from pyrometer.render.why_text import render_text

    truth = json.loads((args.folder / "truth.json").read_text())
    for one in truth["intervals"]:
        print(f"{one['state']:<12}{(one['to_ms'] - one['from_ms']) / 1000:>8.1f} s")
    print()
    print(render_text(explain(args.folder)))


if __name__ == "__main__":
    main()
