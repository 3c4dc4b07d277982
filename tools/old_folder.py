"""Makes a small data folder with the code of this checkout, for tests/data/folders: later versions must be able
to open it. Run it whenever the stored form of records has changed:

    python tools/old_folder.py tests/data/folders/NN-what-changed

It writes NN-what-changed.tar.xz, a data folder with rows of every kind, sealed and hot, and NN-what-changed.json: the
columns of every kind, and the answers of this version. It uses only what every version has: records, the store, the
commands.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyrometer.model import records
from pyrometer.model.columns import SCHEMAS
from pyrometer.store import Store
from pyrometer.store.catalog import SCHEMA_VERSION

BEGIN_MS = 1_760_054_400_000  # 2025-10-10T00:00Z
MINUTE, HOUR = 60_000, 3_600_000
SEALED_HOURS, HOURS = 2, 3
DERIVED = ("ledger_row", "carry", "energy", "hour_sum", "minute_sum", "minute_use", "quarter_use", "hour_use")
STORY_KINDS = (
    "node",
    "slot",
    "price",
    "workload",
    "pod",
    "allocation",
    "gpu_sample",
    "step_window",
    "run",
    "metric",
    "restatement",
)  # kinds of the story, and kinds that would change its answers
MODEL = "NVIDIA-H100-80GB-HBM3"
QUESTIONS = {"cost": ["cost", "--all", "--by", "hour,node,workload,state"], "why": ["why", "--all"], "runs": ["runs"]}


def main(out: Path) -> None:
    """Makes both files."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "data"
        with Store(folder, create=True) as store:
            for hour in range(HOURS):
                store.append(*_batches(hour), producer="story", sequence=hour)
                if hour == SEALED_HOURS - 1:
                    store.seal()
        answers = {what: _kept(_answer(folder, words)) for what, words in QUESTIONS.items()}
        with tarfile.open(out.with_suffix(".tar.xz"), "w:xz", preset=9) as tar:
            tar.add(folder, "data", filter=_anonymize)
    kinds = {name: {c.name: c.type for c in schema.columns} for name, schema in sorted(SCHEMAS.items())}
    recorded = {"schema_version": SCHEMA_VERSION, "kinds": kinds, "answers": answers}
    out.with_suffix(".json").write_text(json.dumps(recorded, sort_keys=True) + "\n")


def _anonymize(about: tarfile.TarInfo) -> tarfile.TarInfo:
    """Removes the owner and the time from an entry of the archive."""
    about.uid = about.gid = about.mtime = 0
    about.uname = about.gname = ""
    return about


def _answer(folder: Path, words: list[str]) -> Any:
    command = [sys.executable, "-m", "pyrometer", *words, "--data", str(folder), "-o", "json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _kept(answer: dict[str, Any]) -> dict[str, Any]:
    """What later versions must reproduce: amounts, and the causes of findings. Texts may change."""
    kept = {name: value for name, value in answer.items() if name in ("total", "states", "rows")}
    return kept | ({"causes": [found["cause"] for found in answer["findings"]]} if "findings" in answer else {})


def _batches(hour: int) -> Iterator[list[Any]]:
    """An hour of the story, and a few rows of every kind that the story does not need."""
    story = list(_story(hour))
    for kind in dict.fromkeys(type(record) for record in story):
        yield [record for record in story if type(record) is kind]
    for name, schema in SCHEMAS.items():
        if name not in DERIVED and name not in STORY_KINDS:
            yield [_filled(schema.record, hour, number) for number in range(2)]


def _story(hour: int) -> Iterator[Any]:
    """Two GPUs. One trains, is killed after an hour and restarts from a checkpoint. The other has only telemetry, and
    becomes idle."""
    from pyrometer.model.units import SHARE_WHOLE

    from_ms, to_ms = BEGIN_MS + hour * HOUR, BEGIN_MS + (hour + 1) * HOUR
    yield _made("Node", time_ms=from_ms, cluster="lab", node_uid="n0", name="h100-0", gpu_count=2, gpu_model=MODEL)
    yield _made("Node", time_ms=to_ms - 1, cluster="lab", node_uid="n0", name="h100-0", gpu_count=2, gpu_model=MODEL)
    if hour == 0:
        yield _made("Price", time_ms=BEGIN_MS, usd_micro_per_hour=2_500_000, gpu_model=MODEL, from_ms=BEGIN_MS - HOUR)
        for uid, slot in (("job", 0), ("notebook", 1)):
            yield _made(
                "Workload",
                time_ms=BEGIN_MS,
                cluster="lab",
                workload_uid=uid,
                kind="Job",
                namespace="ml",
                name=uid,
                team="nlp",
                experiment=uid,
            )
            yield _made(
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
            )
            yield _made(
                "Allocation",
                time_ms=BEGIN_MS,
                pod_uid=f"pod-{uid}",
                node_uid="n0",
                slot_index=slot,
                from_ms=BEGIN_MS,
                to_ms=None,
                share=SHARE_WHOLE,
            )
    for minute in range(60):
        at_ms = from_ms + minute * MINUTE
        for slot in range(2):
            busy = slot == 0 or hour * 60 + minute < 70
            yield _made(
                "GpuSample",
                time_ms=at_ms,
                node_uid="n0",
                slot_index=slot,
                gpu_util_permille=950 if busy else 0,
                sm_active_permille=600 if busy else 0,
                power_w=600 if busy else 75,
                energy_j=(hour * 60 + minute) * (36_000 if slot == 0 else 4_500),
                memory_used_mib=40_000,
            )
        if 5 <= minute < 55:
            yield _made(
                "StepWindow",
                time_ms=at_ms,
                to_ms=at_ms + MINUTE,
                run="sft",
                attempt=min(hour, 1) + 1,
                rank=0,
                node_uid="n0",
                slot_index=0,
                pod_uid="pod-job",
                first_step=_step(hour, minute),
                steps=10,
                data_ms=9_000,
                forward_ms=15_000,
                backward_ms=30_000,
                optimizer_ms=3_000,
                checkpoint_ms=1_000,
            )
    yield from _runs(hour, from_ms, to_ms)


def _runs(hour: int, from_ms: int, to_ms: int) -> Iterator[Any]:
    common = {
        "run": "sft",
        "rank": 0,
        "pod_uid": "pod-job",
        "node_uid": "n0",
        "slot_index": 0,
        "workload_uid": "job",
        "experiment": "job",
    }
    if hour == 0:
        first = {"attempt": 1, "started_ms": BEGIN_MS + MINUTE, "first_step_ms": BEGIN_MS + 5 * MINUTE}
        yield _made("Run", time_ms=from_ms + 5 * MINUTE, **common, **first)
        yield _made("Run", time_ms=to_ms - 1, **common, **first, ended_ms=to_ms - 1, outcome="killed")
    if hour == 1:
        again = {"attempt": 2, "started_ms": from_ms + MINUTE, "first_step_ms": from_ms + 5 * MINUTE}
        yield _made("Run", time_ms=from_ms + 5 * MINUTE, **common, **again, resumed_step=_step(0, 45))
    for number in range(3):
        yield _made(
            "Metric",
            time_ms=from_ms + (6 + number) * MINUTE,
            run="sft",
            attempt=min(hour, 1) + 1,
            rank=0,
            step=_step(hour, 6 + number),
            name="loss",
            value=3.0 - hour - number / 10,
        )


def _step(hour: int, minute: int) -> int:
    """The first step of a minute: the second attempt continues from minute 45 of the first one."""
    done = (minute - 5) * 10
    return done if hour == 0 else 400 + (hour - 1) * 500 + done


def _made(named: str, /, **fields: Any) -> Any:
    """A record with the fields that it has in this version."""
    kind = getattr(records, named)
    defaults = {column.name: None for column in SCHEMAS[_name_of(kind)].columns if column.nullable}
    known = {name: value for name, value in fields.items() if name in kind._fields}
    return kind(**{**defaults, **kind._field_defaults, **known})


def _name_of(kind: Any) -> str:
    return next(name for name, schema in SCHEMAS.items() if schema.record is kind)


def _filled(kind: Any, hour: int, number: int) -> Any:
    """A record with a value in every column."""
    values = {}
    for column in SCHEMAS[_name_of(kind)].columns:
        values[column.name] = _value(column.name, column.type, hour, number)
    return kind(**values)


def _value(name: str, type_name: str, hour: int, number: int) -> Any:
    at_ms = BEGIN_MS + hour * HOUR + number * MINUTE
    words = {"cause": "hang", "state": "hang", "phase": "Running", "kind": "note", "gpu_ms": 1_000, "over_ms": None}
    if name in words:
        return words[name]
    if name.endswith("_json"):
        return "{}"
    if type_name.startswith("list<"):
        one = _value("", type_name.removeprefix("list<").removesuffix(">"), hour, number)
        return (one,)
    if name.endswith("_ms") and type_name == "int64":
        return at_ms
    return {"string": f"{name}-{hour}-{number}", "bool": True, "float64": 0.5 + number}.get(type_name, number + 1)


def _check(arguments: Iterable[str]) -> Path:
    named = list(arguments)
    if len(named) != 1:
        raise SystemExit(__doc__)
    return Path(named[0])


if __name__ == "__main__":
    main(_check(sys.argv[1:]))
