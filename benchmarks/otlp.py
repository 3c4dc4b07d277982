"""OTLP: how many step windows become records in the store per second, compared with protobuf's own JSON reader.

8,000 ranks on 1,000 machines close a window every 10 s; a machine sends the windows of its eight ranks in one body, as
JSON packed with gzip. In one process, step by step, by CPU time. The first round, in which all runs are new, counts for
itself. The peer reads the same bodies with `google.protobuf.json_format` into OpenTelemetry's messages, and does
nothing else with them.

    python benchmarks/otlp.py [--ranks 8000] [--rounds 4]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent)]

from tests.support import otlp_json  # noqa: E402 - the tests'

RANKS_A_NODE = 8
INTERVAL_MS = 10_000
STEPS = ("unpack", "read", "join", "store")


def requests_of(ranks: int, rounds: int) -> list[list[dict]]:
    """What the senders send, round by round: one request a machine."""
    started_ms = time.time_ns() // 1_000_000 - rounds * INTERVAL_MS - 60_000
    sent = []
    for number in range(rounds):
        at_ms = started_ms + 60_000 + number * INTERVAL_MS
        nodes = []
        for node in range(0, ranks, RANKS_A_NODE):
            parts = []
            for rank in range(node, node + RANKS_A_NODE):
                identity = {
                    "run": "llama",
                    "launch": "a" * 32,
                    "experiment": "sft",
                    "rank": rank,
                    "ranks": ranks,
                    "local_rank": rank - node,
                    "pid": 4000 + rank,
                    "host": f"node-{node}",
                    "started_ms": started_ms,
                    "device": "cuda",
                    "gpu_uuid": f"GPU-{rank}",
                    "gpu_index": rank - node,
                    "gpu_model": "NVIDIA H200",
                    "framework": "torch",
                }
                parts.append((identity, [otlp_json.window(at_ms + rank, 10 * number)]))
            nodes.append(otlp_json.requests(parts)["logs"])
        sent.append(nodes)
    return sent


def step_by_step(rounds: list[list[tuple[bytes, bool]]], packed: str) -> list[dict[str, float]]:
    """Seconds of CPU that each step takes, round by round."""
    from pyrometer.collect.otlp import requests as otlp_requests
    from pyrometer.identify.runs.run_registry import RunRegistry
    from pyrometer.serve.ingest.step_store import look_up
    from pyrometer.store import Store

    now_ms = time.time_ns() // 1_000_000
    runs = RunRegistry()

    def timed(step, function, *arguments, **options):
        began_s = time.process_time()
        result = function(*arguments, **options)
        took[-1][step] += time.process_time() - began_s
        return result

    took: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder, Store(folder, create=True) as store:
        for bodies in rounds:
            took.append(dict.fromkeys(STEPS, 0.0))
            for begin in range(0, len(bodies), 100):  # about what comes in a second
                reports = []
                for body, is_json in bodies[begin : begin + 100]:
                    whole = timed("unpack", otlp_requests.unpack, body, packed)
                    received = timed("read", otlp_requests.read, "logs", whole, is_json=is_json, now_ms=now_ms)
                    assert not received.refused
                    reports += received.messages
                known = timed("join", look_up, store, timed("join", runs.missing_context, reports), local=False)
                timed("store", store.append, timed("join", runs.take, reports, known).records)
        store.expose_all(["step_window"])
        (count,) = store.connection.execute("SELECT count(*) FROM step_window").fetchone()
        assert count == sum(map(len, rounds)) * RANKS_A_NODE
    return took


def peer(bodies: list[bytes]) -> float:
    """Seconds of CPU that protobuf's own reader takes for the JSON alone."""
    from google.protobuf import json_format
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    began_s = time.process_time()
    for body in bodies:
        json_format.Parse(body, ExportLogsServiceRequest())
    return time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    requests = requests_of(args.ranks, args.rounds)
    as_json = [[json.dumps(request).encode() for request in nodes] for nodes in requests]
    packed = [[(gzip.compress(body), True) for body in bodies] for bodies in as_json]
    size = sum(len(body) for body in as_json[0]) // args.ranks
    small = sum(len(body) for body, _ in packed[0]) // args.ranks
    print(f"{args.ranks:,} windows a round, {size:,} bytes each, {small:,} packed")
    _tell("JSON, gzip", args.ranks, step_by_step(packed, "gzip"))
    binary = [[(otlp_json.as_protobuf("logs", request), False) for request in nodes] for nodes in requests]
    _tell("protobuf", args.ranks, step_by_step(binary, ""))
    theirs_s = peer(as_json[-1])
    print(f"protobuf's own reader of JSON: {args.ranks / theirs_s:,.0f} windows/s, and nothing is stored")
    ours = step_by_step([[(body, True) for body in bodies] for bodies in as_json[:2]], "")[-1]
    shares = ours["read"] / theirs_s, sum(ours.values()) / theirs_s
    print("  reading the same JSON takes us {:.2f} of its time, all steps {:.2f}".format(*shares))


def _tell(what: str, ranks: int, took: list[dict[str, float]]) -> None:
    first, *others = took
    again = {step: sum(one[step] for one in others) / len(others) for step in STEPS}
    cpu_s, known_s = sum(first.values()), sum(again.values())
    print(f"{what}: {ranks / cpu_s:,.0f} windows/s at first, then {ranks / known_s:,.0f}/s")
    print("  " + ", ".join(f"{step} {took_s / known_s:.0%}" for step, took_s in again.items()))
    print(f"  every {INTERVAL_MS // 1000} s: {known_s / INTERVAL_MS * 1000:.0%} of one core")


if __name__ == "__main__":
    main()
