"""Commands store what `pyrometer run --data` left in the inbox of a folder before they answer."""

from __future__ import annotations

import time

import pytest

from pyrometer.store import Store
from tests.support import cpu_run, otlp_json


@pytest.fixture
def t0() -> int:
    """Two hours ago, not on a minute."""
    return time.time_ns() // 1_000_000 - 7_200_000 + 12_345


@pytest.fixture
def folder(tmp_path, t0):
    """Not a data folder yet: only files in its inbox."""
    for number, part in enumerate(cpu_run.story(t0)):
        otlp_json.put_in_inbox(tmp_path / "data", [part], f"{number:020d}-1")
    return tmp_path / "data"


def test_inbox_time_of_every_rank_is_in_one_state(pyrometer, folder):
    answer = pyrometer("why", "--data", folder, "--all", "-o", "json").json
    assert answer["total"]["gpu_ms"] == sum(cpu_run.RANK_MS.values())
    states = {row["state"]: row["gpu_ms"] for row in answer["states"] if row["gpu_ms"]}
    assert sum(states.values()) == answer["total"]["gpu_ms"]
    assert states["hang"] == 2 * (cpu_run.KILLED - cpu_run.HANGS)
    assert states["lost_work"] == 2 * 100_000  # steps 200 to 300, one second each
    assert states["diverged"] == 2 * (cpu_run.ENDS - cpu_run.DIVERGES)
    assert states["startup"] == 4 * 20_000 - 2 * cpu_run.LATE
    assert {finding["cause"] for finding in answer["findings"]} == {"hang", "lost_work", "diverged"}
    (hang,) = (finding for finding in answer["findings"] if finding["cause"] == "hang")
    assert hang["culprit"] == {"rank": 1, "node": cpu_run.HOST, "gpu": 0, "phase": "data"}
    assert answer["evidence"] == {"kubernetes": 0.0, "gpu": 0.0, "sdk": 1.0}
    assert answer["total"]["usd"] is None
    assert not list((folder / "inbox" / "otlp").iterdir())
    assert pyrometer("check", folder).lines[-1].endswith(": no problems found.")


def test_inbox_run_has_its_team_experiment_and_workload(pyrometer, folder):
    (row,) = pyrometer("cost", "--data", folder, "--by", "team,experiment,workload", "-o", "json").json["rows"]
    assert (row["team"], row["experiment"], row["gpu_ms"]) == (
        "local",
        cpu_run.EXPERIMENT,
        sum(cpu_run.RANK_MS.values()),
    )
    assert row["workload"] == {"uid": cpu_run.RUN, "kind": "Run", "namespace": "local", "name": cpu_run.RUN}
    (run,) = pyrometer("runs", "--data", folder, "-o", "json").json["rows"]
    assert (run["run"], run["experiment"], run["attempts"], run["ranks"]) == (cpu_run.RUN, cpu_run.EXPERIMENT, 2, 2)
    assert (run["steps"], run["outcome"], run["gpu_ms"]) == (400, "failed", sum(cpu_run.RANK_MS.values()))


def test_show_has_all_reported_events_and_windows(pyrometer, folder):
    answer = pyrometer("show", cpu_run.RUN, "--data", folder, "-o", "json").json
    happened = [(one["attempt"], one["what"]) for one in answer["lifecycle"] if one["rank"] in (None, 0)]
    assert happened == [
        (1, "started"),
        (1, "configured"),
        (1, "rendezvous"),
        (1, "compiled"),
        (1, "first_step"),
        (1, "checkpoint_saved"),
        (1, "stuck"),
        (1, "killed"),
        (2, "resumed"),
        (2, "started"),
        (2, "restored"),
        (2, "first_step"),
        (2, "nonfinite_loss"),
        (2, "exception"),
        (2, "failed"),
    ]
    by_name = {one["what"]: one for one in answer["lifecycle"]}
    assert by_name["resumed"]["step"] == cpu_run.SAVED_STEP  # from the path of the checkpoint alone
    assert (by_name["exception"]["reason"], by_name["exception"]["message"]) == ("ValueError", "loss is nan")
    assert by_name["stuck"]["message"] == cpu_run.STACK
    assert by_name["rendezvous"]["duration_ms"] == 3_000
    window = answer["windows"][0]
    assert {name: window[name] for name in ("garbage_ms", "compile_ms", "flops", "memory_peak_mib")} == {
        "garbage_ms": 20,
        "compile_ms": 0,
        "flops": 10**13,
        "memory_peak_mib": 900,
    }
    assert (window["memory_reserved_mib"], window["step_max_us"]) == (1000, 1_500_000)
    losses = [value for _, _, value, *_ in answer["metrics"]["loss"]]
    assert (len(losses), losses.count(None)) == (50, 10)


@pytest.mark.heavy
def test_inbox_is_read_while_it_is_written(pyrometer, tmp_path, t0):
    """Commands that run after every part, with repeated parts, end with the same answer as one command at the end."""
    for part in cpu_run.story(t0):
        otlp_json.put_in_inbox(tmp_path / "once", [part], f"{cpu_run.story(t0).index(part):020d}-1")
    whole = pyrometer("why", "--data", tmp_path / "once", "--all", "-o", "json").json
    for number, (identity, messages) in enumerate(cpu_run.story(t0)):
        for begin in range(0, len(messages), 25):
            otlp_json.put_in_inbox(
                tmp_path / "often", [(identity, messages[max(0, begin - 5) : begin + 25])], f"{number:03d}{begin:05d}"
            )
        assert pyrometer("runs", "--data", tmp_path / "often", "-o", "json").json["rows"]
    assert pyrometer("why", "--data", tmp_path / "often", "--all", "-o", "json").json == whole


def test_run_without_an_end_ended_when_the_next_run_begins(pyrometer, tmp_path, t0):
    identity, messages = cpu_run.story(t0)[0]
    unended = [message for message in messages if "ended_ms" not in message[1] and message[1].get("kind") != "stuck"]
    otlp_json.put_in_inbox(tmp_path, [(identity | {"ranks": 1, "run": "one"}, unended)], "1")
    assert pyrometer("runs", "--data", tmp_path, "-o", "json").json["rows"][0]["outcome"] == "running"
    later = cpu_run.identity("c" * 32, 0, t0 + 3_600_000, run="two", ranks=1)
    otlp_json.put_in_inbox(
        tmp_path, [(later, [("run", {"time_ms": t0 + 3_601_000}), otlp_json.window(t0 + 3_610_000, 0)])], "2"
    )
    rows = {row["run"]: row for row in pyrometer("runs", "--data", tmp_path, "-o", "json").json["rows"]}
    assert (rows["one"]["outcome"], rows["two"]["outcome"]) == ("killed", "running")
    assert rows["one"]["gpu_ms"] == cpu_run.HANGS


def test_malformed_inbox_file_is_reported_and_moved_aside(pyrometer, folder):
    inbox = folder / "inbox" / "otlp"
    (inbox / "0.logs.json.gz").write_bytes(b"nonsense")
    (inbox / "1.logs.json.gz.tmp").write_bytes(b"half")
    result = pyrometer("runs", "--data", folder)
    assert result.code == 0
    assert "1 record of a run skipped: malformed." in result.err
    assert sorted(path.name for path in inbox.iterdir()) == ["0.logs.json.gz.refused", "1.logs.json.gz.tmp"]
    assert pyrometer("runs", "--data", folder).err == ""


def test_empty_folder_is_not_a_data_folder(pyrometer, tmp_path):
    assert "is not a Pyrometer data folder" in pyrometer("why", "--data", tmp_path).failed(1)
    assert not (tmp_path / "pyrometer.duckdb").exists()


def test_local_gpu_has_its_allocation_and_telemetry(pyrometer, tmp_path, t0):
    gpu = {"gpu_uuid": "GPU-1", "gpu_index": 3, "gpu_model": "NVIDIA H100 80GB HBM3"}
    parts = cpu_run.story(t0, device="cuda", **gpu)[:1]
    samples = [
        ("gpu", {"time_ms": t0 + at, **gpu, "DCGM_FI_DEV_GPU_UTIL": 90, "DCGM_FI_DEV_POWER_USAGE": 500})
        for at in range(0, cpu_run.KILLED, 10_000)
    ]
    otlp_json.put_in_inbox(tmp_path, [*parts, ({"host": cpu_run.HOST}, samples)], "1")
    answer = pyrometer("why", "--data", tmp_path, "--all", "-o", "json").json
    assert answer["total"]["gpu_ms"] == cpu_run.KILLED
    assert answer["total"]["usd"] is not None  # from the public price list
    assert answer["evidence"]["gpu"] > 0
    with Store(tmp_path) as store:
        store.expose_all(["gpu_sample", "slot", "allocation"])
        rows = store.connection.execute("SELECT DISTINCT node_uid, slot_index FROM gpu_sample").fetchall()
        assert rows == [(f"host/{cpu_run.HOST}", 3)]
        held = store.connection.execute("SELECT DISTINCT node_uid, slot_index, source FROM allocation").fetchall()
        assert held == [(f"host/{cpu_run.HOST}", 3, "sdk")]
