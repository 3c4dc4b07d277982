"""Valid inputs to start fuzzing from: one real scrape of an H200, and inputs from the builders of the other tests.

`tools/fuzz.py` writes the missing ones before it starts.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from pathlib import Path
from struct import pack

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1])]

from pyrometer.collect.otlp import requests  # noqa: E402
from pyrometer.collect.trackers.wandb import _RECORD  # noqa: E402
from tests.support import otlp_json  # noqa: E402
from tests.support.exporter_texts import VERSIONS, Gpu, text_of  # noqa: E402
from tests.support.fuzz_targets import CORPUS, NOW_MS  # noqa: E402
from tests.support.remote_write_bodies import body_of, series_of  # noqa: E402

GPUS = [Gpu(0, pod="train-0"), Gpu(1, power_w=None, xid=79), Gpu(2, instance=3, host="node-b")]
MACHINE = b"""# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{cpu="0",mode="idle"} 1234.5
node_cpu_seconds_total{cpu="0",mode="iowait"} 3.5 1794700000000
node_memory_MemTotal_bytes 1.0995e+12
node_memory_MemAvailable_bytes 9e11
node_disk_io_time_seconds_total{device="nvme0n1"} 55
node_disk_read_bytes_total{device="nvme0n1"} 123456
node_network_receive_bytes_total{device="eth0"} 99 # {trace="a"} 1
node_uname_info{nodename="node-a",release="6.1"} 1
# EOF
"""
SETTINGS = b"""idle_gap_ms: 600000
pue: 1.3
energy_usd_per_kwh: "0.21"
team_rules: [label:team, namespace]
bill_to: namespace
report_at: "07:00"
alertmanager_urls: http://a:9093, http://b:9093
"""
PRICES = b"""prices:
  - usd_per_gpu_hour: 2.10
    model: H100-SXM
    from: 2026-01-01
    until: 2027-01-01T00:00:00Z
  - usd_per_node_hour: 30
    pool: a
    purchase: on-demand
  - owned: {capital_usd_per_gpu: 30000, lifetime_years: 5, power_w: 1_000, pue: 1.2, usd_per_kwh: 0.1}
    instance_type: 4090
"""


def _scrape() -> bytes:
    """A few lines of the first of the real ones."""
    text = gzip.decompress((HERE.parent / "data" / "h200-agent" / "scrapes.txt.gz").read_bytes())
    return b"".join(text.split(b"# scraped at")[1].splitlines(True)[1:12])


def _sent() -> dict[str, dict]:
    launch, at_ms = "a" * 8, NOW_MS - 60_000
    who = {
        "launch": launch,
        "rank": 0,
        "ranks": 2,
        "run": "sft",
        "host": "node-a",
        "started_ms": at_ms,
        "device": "cpu",
    }
    ids = {"trace_id": otlp_json.trace_id(launch, 7), "span_id": otlp_json.span_id(launch, 7, 0, 1)}
    return otlp_json.requests(
        [
            (
                who,
                [
                    ("run", {"time_ms": at_ms, "first_step_ms": at_ms}),
                    otlp_json.window(at_ms, 1),
                    (
                        "batch",
                        {"time_ms": at_ms, "loader": 0, "epoch": 1, "send_index": 3, "step": 7, "samples": [1, "b"]},
                    ),
                    ("event", {"time_ms": at_ms, "kind": "checkpoint_saved", "step": 7, "message": "/ckpt/7"}),
                    (
                        "span",
                        {
                            "start_ns": at_ms * 10**6 + 5_000,
                            "duration_ns": 1_500_000,
                            "name": "forward",
                            "step": 7,
                            "attributes": {"note": "a", "n": 1, "x": 0.5},
                            **ids,
                        },
                    ),
                    ("metric", {"time_ms": at_ms, "name": "loss", "value": 0.5, "step": 7}),
                    (
                        "gpu",
                        {
                            "time_ms": at_ms,
                            "gpu_index": 0,
                            "gpu_uuid": "GPU-1",
                            "gpu_model": "NVIDIA H200",
                            "DCGM_FI_DEV_POWER_USAGE": 300,
                        },
                    ),
                ],
            )
        ]
    )


def _wandb() -> list[bytes]:
    def items(**values):
        return {"item": [{"key": name, "value_json": value} for name, value in values.items()]}

    wandb_records = [
        {
            "run": {
                "run_id": "x",
                "project": "p",
                "display_name": "first",
                "host": "node-a",
                "config": items(lr="0.1"),
                "start_time": {"seconds": NOW_MS // 1000},
            }
        },
        {"environment": {"host": "node-a", "gpu_type": "H200", "gpu_count": 8, "gpu_nvidia": [{"name": "H200"}]}},
        {"environment": {"gpu_type": "NVIDIA H200", "gpu_count": 2}},
        {"history": items(_timestamp=str(NOW_MS // 1000), _step="1", loss="0.5", deep='{"a": {"b": "NaN"}}')},
        {"summary": items(loss="0.5", tokens="12345")},
        {"exit": {"exit_code": 1}},
    ]
    return [_RECORD(**one).SerializeToString() for one in wandb_records]


def _wandb_file() -> bytes:
    file = pack("<4sHB", b":W&B", 0xBEE1, 0)
    for body in _wandb():
        file += pack("<IHB", zlib.crc32(body, zlib.crc32(b"\x01")), len(body), 1) + body
    return file


def seeds() -> dict[str, list[bytes]]:
    """The valid inputs of every target."""
    import cramjam

    texts = [_scrape(), *(b"\n".join(text_of(GPUS, version).split(b"\n")[:6]) + b"\n" for version in VERSIONS)]
    sent = [body_of(series_of(GPUS[:1], NOW_MS, version)[:5]) for version in ("3.x", "4.9")]
    unpacked = [bytes(cramjam.snappy.decompress_raw(body)) for body in sent]
    signals = {signal: (requests.SIGNALS.index(signal), request) for signal, request in _sent().items()}
    as_json = [bytes([n]) + otlp_json.json.dumps(request).encode() for n, request in signals.values()]
    as_protobuf = [bytes([n]) + otlp_json.as_protobuf(signal, request) for signal, (n, request) in signals.items()]
    return {
        "exposition_gpus": texts,
        "exposition_neighbors": texts[:1],
        "exposition_machines": [MACHINE],
        "remote_write_packed": sent,
        "remote_write_unpacked": unpacked,
        "protobuf_wire": unpacked[:1],
        "otlp_json": as_json,
        "otlp_protobuf": as_protobuf,
        "otlp_gzip": [gzip.compress(as_json[0], mtime=0)],
        "settings_yaml": [SETTINGS],
        "price_book": [PRICES],
        "wandb_file": [_wandb_file()],
        "wandb_records": [b"".join(pack("<H", len(body)) + body for body in _wandb())],
    }


def write_missing() -> None:
    """Writes the missing seeds into the folders of the targets."""
    for target, contents in seeds().items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(contents):
            path = folder / f"seed-{number}"
            if not path.exists():
                path.write_bytes(content)


if __name__ == "__main__":
    write_missing()
