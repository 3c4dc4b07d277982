"""`pyrometer import`: data sets, recordings, errors, and a wheel without importers."""

from __future__ import annotations

import shutil

import pytest
import yaml

from pyrometer.cli.commands import import_

FROM_A_CHECKOUT = ("openb", "philly", "speedrun", "recording")


@pytest.fixture
def wheel(monkeypatch):
    """An installation without the importers of data sets."""
    monkeypatch.setattr(import_, "DATASETS", "pyrometer_datasets_of_no_wheel")


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize("form", FROM_A_CHECKOUT)
def test_error_about_a_missing_importer_names_make_setup(pyrometer, tmp_path, form):
    text = pyrometer("import", form, tmp_path, "--out", tmp_path / "data").failed(1)
    assert f"The {form} importer is only part of a source checkout" in text
    assert "make setup" in text
    assert not (tmp_path / "data").exists()


def test_help_lists_all_formats(pyrometer):
    help_ = " ".join(pyrometer("import", "--help").out.split())
    assert all(f"{name} (" in help_ for name in import_.FORMATS)


OPENB = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
whole,12000,16384,2,1000,,LS,Running,0,3600,0
part,6000,12288,1,500,,BE,Failed,60,1920,120
cpu,6000,12288,0,0,,LS,Succeeded,0,100,0
waits,6000,12288,1,1000,,LS,Pending,0,100,
"""


@pytest.fixture
def trace(tmp_path):
    """A small trace in the format of openb."""
    path = tmp_path / "trace.csv"
    path.write_text(OPENB)
    return path


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
