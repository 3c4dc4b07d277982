"""`import` and `export` of experiment trackers: output and errors."""

from __future__ import annotations

import time
import zlib
from struct import pack

import pytest

from pyrometer.collect.trackers.wandb import _RECORD, Folder, folders
from tests.support.server_process import serving

START_S = 1_794_600_000
H100 = "NVIDIA H100 80GB HBM3"


def offline_run(folder, run_id: str = "abcd1234", **environment) -> None:
    """A folder of the W&B client with one hour of training."""
    run = {"run_id": run_id, "project": "vision", "host": "box", "start_time": {"seconds": START_S}}
    history = [_RECORD(run=run), _RECORD(environment=environment)]
    for step in range(60):
        named = {"_timestamp": START_S + 60.0 * step, "_step": step, "val_loss": 1 / (step + 1)}
        items = [{"nested_key": [name], "value_json": str(value)} for name, value in named.items()]
        history.append(_RECORD(history={"item": items}))
    history.append(_RECORD(exit={"exit_code": 0}))
    file = bytearray(pack("<4sHB", b":W&B", 0xBEE1, 0))
    for record in history:  # all of them fit into one block
        body = record.SerializeToString()
        file += pack("<IHB", zlib.crc32(b"\1" + body), len(body), 1) + body
    place = folder / "wandb" / f"offline-run-20261114_000000-{run_id}"
    place.mkdir(parents=True)
    (place / f"run-{run_id}.wandb").write_bytes(file)


def test_import_of_offline_wandb_runs_has_loss_and_dollars(cached_pyrometer, tmp_path):
    offline_run(tmp_path, gpu_nvidia=[{"name": H100}] * 8)
    result = cached_pyrometer("import", "wandb", tmp_path, "--out", tmp_path / "data")
    assert result.out.startswith("1 run; 1 not joined.")
    (row,) = cached_pyrometer("worth", "vision", "--data", tmp_path / "data", "--price", "2", "-o", "json").json["runs"]
    assert (row["run"], row["best"]) == ("vision/abcd1234", 1 / 60)
    assert row["usd_micro"] == round(8 * 2_000_000 * 59 / 60)  # the last record came in the last minute
    assert row["goodput"] is None  # no steps were recorded, so goodput is unknown, not zero
    result = cached_pyrometer("show", "vision/abcd1234", "--data", tmp_path / "data").out
    assert "wandb_run of rank 0: vision/abcd1234" in result
    assert "training" not in result


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("import", "mlflow", "sqlite:///mlflow.db"), 1, "is not the URL of an MLflow tracking server"),
        (("import", "wandb", "nowhere"), 2, "nowhere does not exist"),
        (("import", "wandb", "."), 1, "has no Weights & Biases folders run-DATE-ID"),
        (("import", "openb", "nowhere"), 2, "nowhere does not exist"),
    ],
)
def test_import_of_an_unreadable_tracker_is_a_one_line_error(pyrometer, tmp_path, monkeypatch, arguments, code, words):
    monkeypatch.chdir(tmp_path)
    error = pyrometer(*arguments, "--out", tmp_path / "data").failed(code)
    assert words in error


def test_export_to_an_unreachable_tracker_is_a_one_line_error(pyrometer, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    offline_run(tmp_path)
    data = tmp_path / "data"
    pyrometer("import", "wandb", tmp_path, "--out", data)
    assert "--tracking-uri" in pyrometer("export", "mlflow", "--data", data).failed(2)
    none = pyrometer("export", "mlflow", "--tracking-uri", "http://127.0.0.1:9", "--data", data).failed(1)
    assert "No run here belongs to mlflow" in none


@pytest.mark.heavy
def test_export_writes_the_cost_from_a_server_into_offline_wandb_runs(pyrometer, tmp_path):
    pytest.importorskip("wandb", reason="needs wandb: make test-all")
    offline_run(tmp_path, gpu_nvidia=[{"name": H100}] * 8)
    data, runs = tmp_path / "data", tmp_path / "wandb"
    assert pyrometer("import", "wandb", tmp_path, "--out", data).code == 0
    (data / "settings.yaml").write_text(f'wandb_stamp: "yes"\nwandb_dir: {runs}\n')
    with serving(data, PYROMETER_PRICE_BOOK=str(book(tmp_path))) as client:
        deadline = time.monotonic() + 60
        while 'tracker="wandb"' not in (printed := client.get("/metrics").text) and time.monotonic() < deadline:
            time.sleep(0.2)
    assert 'pyrometer_tracker_stamps_total{outcome="sent",tracker="wandb"} 1.0' in printed
    (part,) = [Folder(place) for place in folders(runs) if "20261114_000000" not in place.name]
    assert not part.read()  # not a run, but a stamp next to one
    assert part.summary["pyrometer/usd"] == pytest.approx(8 * 2 * 59 / 60, abs=0.3)


def book(folder):
    path = folder / "prices.yaml"
    path.write_text("prices:\n  - {usd_per_gpu_hour: 2.00}\n")
    return path
