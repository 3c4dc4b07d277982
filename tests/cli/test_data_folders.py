"""`pyrometer import` and `pyrometer check`: what goes into a data folder, and whether it is whole."""

from __future__ import annotations

import shutil
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pyrometer.model.records import Event
from pyrometer.store import Store

OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
whole,12000,16384,2,1000,,LS,Running,0,3600,0
part,6000,12288,1,500,,BE,Failed,60,1920,120
cpu,6000,12288,0,0,,LS,Succeeded,0,100,0
waits,6000,12288,1,1000,,LS,Pending,0,100,
"""


@pytest.fixture
def trace(tmp_path):
    """A small trace in openb's format."""
    path = tmp_path / "trace.csv"
    path.write_text(OPENB)
    return path


# -- import -----------------------------------------------------------------------------------------------------------


def test_import_prints_a_summary_and_the_next_command(pyrometer, trace, tmp_path):
    folder = tmp_path / "data"
    first, second = pyrometer("import", "openb", trace, "--out", folder).lines
    assert first == "2.2 GPU-hours (Running 2.0, Failed 0.2), 1 pods without a GPU, 1 GPU pods never scheduled."
    assert second == f"Next: pyrometer why --data {folder} --all"
    assert pyrometer("why", "--data", folder, "--all").code == 0


def test_import_prints_short_time_in_gpu_minutes(pyrometer, h200, tmp_path):
    first, _ = pyrometer("import", "recording", h200, "--out", tmp_path / "data").lines
    assert first == "4.5 GPU-minutes (Running 4.3, free 0.2), 537 GPU samples, 2,934 steps."


def test_import_reads_philly(pyrometer, tmp_path):
    path = tmp_path / "philly.csv"
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,7200.0,4,28800.0,11cb48\n")
    assert pyrometer("import", "philly", path, "--out", tmp_path / "data").lines[0].startswith("8.0 GPU-hours")
    answer = pyrometer("cost", "--data", tmp_path / "data", "--all", "--by", "team", "-o", "json").json
    assert [(row["team"], row["gpu_hours"]) for row in answer["rows"]] == [("11cb48", 8.0)]


def test_importing_the_same_data_again_changes_no_answer(pyrometer, cached_pyrometer, recorded, copy_of_recorded, h200):
    assert pyrometer("import", "recording", h200, "--out", copy_of_recorded).lines[0].startswith("4.5 GPU-minutes")
    again = pyrometer("why", "--data", copy_of_recorded, "--all", "-o", "json").json
    assert again == cached_pyrometer("why", "--data", recorded, "--all", "-o", "json").json


def test_import_of_a_recording_writes_its_settings(recorded):
    assert yaml.safe_load((recorded / "settings.yaml").read_text()) == {
        "hang_limit_ms": 5_000,
        "finding_min_ms": 5_000,
        "finding_min_usd_micro": 0,
    }


def test_importing_again_keeps_changed_settings(pyrometer, h200, copy_of_recorded):
    path = copy_of_recorded / "settings.yaml"
    path.write_text("hang_limit_ms: 7000\ntimezone: Europe/Berlin\n")
    assert pyrometer("import", "recording", h200, "--out", copy_of_recorded).code == 0
    assert path.read_text() == "hang_limit_ms: 7000\ntimezone: Europe/Berlin\n"


def test_import_without_steps_creates_no_run(pyrometer, recorded_without_steps):
    assert pyrometer("runs", "--data", recorded_without_steps, "-o", "json").json == {"rows": []}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (OPENB.replace("3600", "later"), "line 2: "),
        (OPENB + "cut,6000\n", "line 6: "),
        (OPENB.replace("num_gpu", "gpus"), "'num_gpu'"),
        ("", "no column"),
    ],
)
def test_malformed_trace_is_an_error_with_its_line(pyrometer, tmp_path, text, named):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    error = pyrometer("import", "openb", path, "--out", tmp_path / "data").failed(1)
    assert str(path) in error
    assert named in error


def test_corrected_trace_can_be_imported_into_the_same_folder(pyrometer, trace, tmp_path):
    folder = tmp_path / "data"
    trace.write_text(OPENB + "cut,6000\n")
    pyrometer("import", "openb", trace, "--out", folder).failed(1)
    trace.write_text(OPENB)
    assert pyrometer("import", "openb", trace, "--out", folder).lines[0].startswith("2.2 GPU-hours")
    assert pyrometer("check", folder).code == 0


def test_trace_without_rows_is_an_error(pyrometer, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(OPENB.splitlines()[0] + "\n\n")
    error = pyrometer("import", "openb", path, "--out", tmp_path / "data").failed(1)
    assert str(path) in error
    assert "nothing to account for" in error


def test_incomplete_recording_is_an_error(pyrometer, h200, tmp_path):
    broken = shutil.copytree(h200, tmp_path / "broken")
    (broken / "a-truth.json").unlink()
    assert str(broken) in pyrometer("import", "recording", broken, "--out", tmp_path / "data").failed(1)


# -- check ------------------------------------------------------------------------------------------------------------


def part(folder, kind):
    (path,) = (folder / "parts" / kind).rglob("*.parquet")
    return path


def tamper(path, change):
    """Rewrites a ledger part with its rows changed."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path, compression="zstd")


@pytest.mark.parametrize("folder", ["recorded", "recorded_without_steps", "autumn", "unpriced"])
def test_check_accepts_an_intact_folder(pyrometer, request, folder):
    (line,) = pyrometer("check", request.getfixturevalue(folder)).lines
    assert line.endswith(": all is well.")


def test_check_counts_rejected_records(pyrometer, copy_of_recorded):
    with Store(copy_of_recorded) as store:
        store.append([Event(5, "a clock that was never set")])
    rejected, verdict = pyrometer("check", copy_of_recorded).lines
    assert rejected.startswith("1 event record rejected: ")
    assert verdict.endswith(": all is well.")


@pytest.mark.parametrize("kind", ["gpu_sample", "ledger_row", "pod"])
def test_check_names_a_missing_part(pyrometer, copy_of_recorded, kind):
    path = part(copy_of_recorded, kind)
    path.unlink()
    result = pyrometer("check", copy_of_recorded)
    assert (result.code, result.err) == (1, "")
    problem, verdict = result.out.splitlines()
    assert str(path.relative_to(copy_of_recorded)) in problem
    assert "missing" in problem
    assert verdict.endswith("not all is well.")


@pytest.mark.parametrize("keep", [0, 100, -20])
@pytest.mark.parametrize("kind", ["metric", "ledger_row"])
def test_check_names_a_truncated_part(pyrometer, copy_of_recorded, kind, keep):
    path = part(copy_of_recorded, kind)
    path.write_bytes(path.read_bytes()[:keep])
    result = pyrometer("check", copy_of_recorded)
    assert (result.code, result.err) == (1, "")
    problem, verdict = result.out.splitlines()
    assert str(path.relative_to(copy_of_recorded)) in problem
    assert "cannot be read" in problem
    assert verdict.endswith("not all is well.")


def test_check_names_a_part_with_changed_rows(pyrometer, copy_of_recorded):
    path = part(copy_of_recorded, "gpu_sample")
    pq.write_table(pq.read_table(path).slice(1), path)
    result = pyrometer("check", copy_of_recorded)
    assert result.code == 1
    assert str(path.relative_to(copy_of_recorded)) in result.out


def row_of_a_full_minute(rows):
    def minute(row):
        return row["minute_ms"], row["node_uid"], row["slot_index"]

    sums = Counter()
    for row in rows:
        sums[minute(row)] += row["ms"]
    return next(row for row in rows if sums[minute(row)] == 60_000)


def shorter(rows):
    row_of_a_full_minute(rows)["ms"] -= 1


def longer(rows):
    row_of_a_full_minute(rows)["ms"] += 1


def negative(rows):
    rows[0]["ms"] = -5


def unheard_of(rows):
    rows[0]["state"] = "asleep"


def twice(rows):
    rows[1] = dict(rows[0])


@pytest.mark.parametrize(
    ("change", "law"),
    [
        (shorter, "60,000 ms"),
        (longer, "60,000 ms"),
        (negative, "negative"),
        (unheard_of, "state that does not exist"),
        (twice, "duplicates"),
    ],
)
def test_check_finds_tampered_ledger_rows(pyrometer, autumn, tmp_path, change, law):
    folder = shutil.copytree(autumn, tmp_path / "copy")
    assert pyrometer("check", folder).code == 0
    path = max((folder / "parts" / "ledger_row").rglob("*.parquet"), key=lambda one: one.stat().st_size)
    tamper(path, change)
    result = pyrometer("check", folder)
    assert (result.code, result.err) == (1, "")
    assert law in result.out
    assert result.out.endswith("not all is well.\n")


@pytest.mark.parametrize("change", [shorter, longer])
def test_check_finds_tampered_rows_without_node_records(pyrometer, copy_of_recorded, change):
    """A recording's slot lives for a known time: its ledger must have just that."""
    tamper(part(copy_of_recorded, "ledger_row"), change)
    result = pyrometer("check", copy_of_recorded)
    assert (result.code, result.err) == (1, "")
    assert "ms" in result.out


def test_check_builds_a_missing_ledger(pyrometer, tmp_path, autumn):
    folder = shutil.copytree(autumn, tmp_path / "copy")
    with Store(folder) as store:
        store.drop_parts([*store.parts("ledger_row"), *store.parts("carry")])
        store.set_meta("ledger_fingerprint", "")
    assert pyrometer("check", folder).code == 0
    with Store(folder) as store:
        assert store.parts("ledger_row")
