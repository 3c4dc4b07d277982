"""Makes data folders with a closed month, with the code of this checkout, for tests/data/closed: later versions must
open them, leave closed time unchanged and show no adjustment.

    python tools/closed_folder.py tests/data/closed first-edition

Each folder covers 12 hours of two GPUs around a month's end. `at-once` builds its ledger in one chunk that reaches over
the end of the month; `hourly` builds it hour by hour, as a server does, in a time zone whose months end at half an hour.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from old_folder import HOUR, MINUTE, MODEL, _anonymize, _made

from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store

BEGIN_MS = 1_759_255_200_000  # 2025-09-30T18:00Z
HOURS = 12
ZONES = {"at-once": "UTC", "hourly": "Asia/Kolkata"}
MONTH, NEXT_MONTH = "2025-09", "2025-10"
QUESTIONS = {
    "closed": ["cost", "--month", MONTH, "--by", "day,team,node,state"],
    "next": ["cost", "--month", NEXT_MONTH, "--by", "day,team,node,state"],
    "ledger": ["cost", "--all", "--by", "hour,team,node,state"],
}


def main(out: Path, version: str) -> None:
    """Makes an archive and the answers of this version for each way to build a ledger."""
    out.mkdir(parents=True, exist_ok=True)
    for way, zone in ZONES.items():
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made) / "data"
            with Store(folder, create=True):
                pass
            (folder / "settings.yaml").write_text(f"timezone: {zone}\n")
            for hour in range(HOURS):
                with Store(folder) as store:
                    store.append(*_batches(hour), producer="story", sequence=hour)
                    store.seal(BEGIN_MS + (hour - 1) * HOUR)
                if way == "hourly":
                    _run(folder, "cost", "--all")
            _run(folder, "cost", "--all")
            _run(folder, "close", MONTH)
            answers = {name: _run(folder, *words, "-o", "json") for name, words in QUESTIONS.items()}
            with tarfile.open(out / f"{version}-{way}.tar.xz", "w:xz", preset=9) as tar:
                tar.add(folder, "data", filter=_anonymize)
        kept = {name: {part: answer[part] for part in ("rows", "total")} for name, answer in answers.items()}
        (out / f"{version}-{way}.json").write_text(json.dumps(kept, sort_keys=True) + "\n")


def _run(folder: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "pyrometer", *words, "--data", str(folder)]
    answered = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"LOGNAME": "finance"}
    )
    return json.loads(answered.stdout) if words[-1] == "json" else None


def _batches(hour: int) -> Iterator[list[Any]]:
    """A job that trains on one GPU, and a notebook that becomes idle on the other one and then releases it."""
    from_ms, to_ms = BEGIN_MS + hour * HOUR, BEGIN_MS + (hour + 1) * HOUR
    for at_ms in (from_ms, to_ms - 1):
        yield [_made("Node", time_ms=at_ms, cluster="lab", node_uid="n0", name="h100-0", gpu_count=2, gpu_model=MODEL)]
    if hour == 0:
        yield [_made("Price", time_ms=BEGIN_MS, usd_micro_per_hour=2_500_000, gpu_model=MODEL, from_ms=BEGIN_MS - HOUR)]
        for uid, slot, hours in (("job", 0, None), ("notebook", 1, 9)):
            yield from _held(uid, slot, hours)
    yield [
        _made(
            "GpuSample",
            time_ms=from_ms + minute * MINUTE,
            node_uid="n0",
            slot_index=slot,
            gpu_util_permille=950 if slot == 0 or hour < 2 else 0,
            sm_active_permille=600 if slot == 0 else 0,
            power_w=600 if slot == 0 else 75,
            memory_used_mib=40_000,
        )
        for minute in range(60)
        for slot in range(2)
    ]
    yield [
        _made(
            "StepWindow",
            time_ms=from_ms + minute * MINUTE,
            to_ms=from_ms + (minute + 1) * MINUTE,
            run="sft",
            attempt=1,
            rank=0,
            node_uid="n0",
            slot_index=0,
            pod_uid="pod-job",
            first_step=(hour * 60 + minute) * 10,
            steps=10,
            data_ms=9_000,
            forward_ms=15_000,
            backward_ms=30_000,
            optimizer_ms=3_000,
            checkpoint_ms=1_000,
        )
        for minute in range(10, 50)
    ]


def _held(uid: str, slot: int, hours: int | None) -> Iterator[list[Any]]:
    ended_ms = None if hours is None else BEGIN_MS + hours * HOUR
    yield [
        _made(
            "Workload",
            time_ms=BEGIN_MS,
            cluster="lab",
            workload_uid=uid,
            kind="Job",
            namespace="ml",
            name=uid,
            team="nlp" if slot == 0 else "vision",
            experiment=uid,
        )
    ]
    yield [
        _made(
            "Pod",
            time_ms=BEGIN_MS,
            cluster="lab",
            pod_uid=f"pod-{uid}",
            namespace="ml",
            name=f"{uid}-0",
            phase="Running",
            workload_uid=uid,
            node_uid="n0",
            created_ms=BEGIN_MS,
            scheduled_ms=BEGIN_MS,
            started_ms=BEGIN_MS,
            ended_ms=ended_ms,
        )
    ]
    yield [
        _made(
            "Allocation",
            time_ms=BEGIN_MS,
            pod_uid=f"pod-{uid}",
            node_uid="n0",
            slot_index=slot,
            from_ms=BEGIN_MS,
            to_ms=ended_ms,
            share=SHARE_WHOLE,
        )
    ]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2])
