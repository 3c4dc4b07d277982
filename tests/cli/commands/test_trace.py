"""`pyrometer trace`: JSON, text, files, errors, and bars on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from tests.support.traced_run import RUN, TrainingRecords

TRACE = {"run", "step", "trace_id", "spans", "critical_path"}
SPAN = {"rank", "name", "start_ms", "duration_ms", "batch"}
COLOR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    """A step on forty ranks."""
    where = tmp_path_factory.mktemp("wide") / "data"
    with TrainingRecords(ranks=40, attempts=((0, 11),), dataset=40_960, slow_rank=17).store(where):
        return where


# -- documented keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("about", [(), ("--step", "70"), ("--step", "75"), ("--sample", "137")])
def test_trace_json_has_the_documented_keys(cached_pyrometer, trained_folder, about):
    answer = cached_pyrometer("trace", RUN, *about, "--data", trained_folder, "-o", "json").json
    assert answer.keys() >= TRACE
    assert all(span.keys() >= SPAN for span in answer["spans"])
    assert all(piece.keys() >= SPAN - {"batch"} for piece in answer["critical_path"])


def test_show_has_the_throughput_of_a_run(cached_pyrometer, trained_folder):
    answer = cached_pyrometer("show", RUN, "--data", trained_folder, "-o", "json").json
    assert (answer["step_p50_ms"], answer["step_p99_ms"]) == (119.0, 129.0)
    assert answer["samples_per_s"] == pytest.approx(4 * 160 / 1.2, rel=1e-4)
    assert answer["tokens_per_s"] == pytest.approx(512 * answer["samples_per_s"], rel=1e-4)
    assert answer["flops_per_s"] == pytest.approx(4 * 3e14 / 1.2)
    assert answer["mfu"] == pytest.approx(3e14 / 1.2 / 989.5e12, abs=1e-4)
    assert (answer["memory_peak_mib"], answer["memory_peak_rank"]) == (40_003, 3)
    assert sum(answer["phases"].values()) == pytest.approx(1.0, abs=1e-3)
    assert answer["outliers"] == [{"rank": 2, "phase": "backward", "ms_per_step": 56.0, "median_ms_per_step": 32.0}]
    assert answer["checkpoints"]["count"] == 6
    assert answer["checkpoints"]["last"]["step"] == 120
    assert answer["best"]["loss"]["goal"] == "min"
    assert answer["best"]["loss"]["best"] == min(point[2] for point in answer["metrics"]["loss"])
    (row,) = cached_pyrometer("runs", "--data", trained_folder, "-o", "json").json["rows"]
    assert {name: answer[name] for name in row} == row


# -- text -------------------------------------------------------------------------------------------------------------


def test_trace_explains_a_step(cached_pyrometer, trained_folder):
    text = cached_pyrometer("trace", RUN, "--step", "70", "--data", trained_folder).out
    assert "3 ranks waited 24.0 ms for rank 2: its backward took 56.0 ms, 24.0 ms more than" in text
    rows = [line for line in text.splitlines() if re.match(r"^[▶ ] rank \d +[a-z]", line)]
    assert [line.split()[2 if line.startswith("▶") else 1] for line in rows] == ["2", "0", "1", "3"]
    assert rows[0].startswith("▶ rank 2")
    assert "·" not in rows[0]
    assert all(line.count("·") == rows[1].count("·") > 5 for line in rows[1:])
    assert "Attempt 1 also did this step: --attempt 1." in text
    assert "Clocks of nodes differ by up to" in text


def test_trace_of_many_ranks_shows_the_fastest_and_slowest(cached_pyrometer, wide):
    text = cached_pyrometer("trace", RUN, "--step", "10", "--data", wide).out
    rows = [line for line in text.splitlines() if re.match(r"^[▶ ] rank \d+ +[a-z]", line)]
    assert len(rows) == 12
    assert rows[0].startswith("▶ rank 17 ")
    assert "… 28 ranks that waited 24.0–24.0 ms" in text


EXPLAINED = [
    ("trace",),
    ("trace", "--step", "70"),
    ("trace", "--sample", "137"),
    ("trace", "--step", "75"),
    ("lineage", "--step", "70"),
    ("lineage", "--sample", "137"),
    ("lineage", "--checkpoint", "80"),
    ("lineage", "--spikes"),
    ("show",),
]


@pytest.mark.parametrize("columns", [80, 160])
@pytest.mark.parametrize("about", EXPLAINED, ids=" ".join)
def test_lines_fit_the_terminal(pyrometer, trained_folder, monkeypatch, columns, about):
    monkeypatch.setenv("COLUMNS", str(columns))
    command, *options = about
    lines = pyrometer(command, RUN, *options, "--data", trained_folder).lines
    assert [line for line in lines if len(line) > columns and not line.startswith("  pyrometer ")] == []


def test_trace_of_an_untraced_step_names_the_nearest_traced_steps(cached_pyrometer, trained_folder):
    printed = " ".join(cached_pyrometer("trace", RUN, "--step", "75", "--data", trained_folder).lines)
    assert printed == (
        f"Step 75 of {RUN} ran but was not traced: only some steps and slow steps are. "
        "Nearest traced steps: 60, 70, 80, 90."
    )
    assert "Nearest traced steps: 60" in cached_pyrometer(
        "trace", RUN, "--step", "75", "--data", trained_folder, "-o", "perfetto"
    ).failed(1)


def test_show_folds_repeated_events(cached_pyrometer, trained_folder):
    text = cached_pyrometer("show", RUN, "--data", trained_folder).out
    assert "rendezvous on 4 ranks" in text
    assert "exception (step 79) of rank 1: RuntimeError: NCCL timeout" in " ".join(text.split())
    assert "MFU" in text
    assert "rank 2 takes 56.0 ms per step for backward, the median rank takes 32.0 ms" in text


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "key"), [("perfetto", "traceEvents"), ("otlp", "resourceSpans"), ("json", "spans")])
@pytest.mark.parametrize("about", [(), ("--step", "70"), ("--sample", "137")])
def test_trace_file_equals_stdout(pyrometer, cached_pyrometer, trained_folder, tmp_path, form, key, about):
    path = tmp_path / "trace.json"
    result = pyrometer("trace", RUN, *about, "--data", trained_folder, "-o", form, "--file", path)
    if about == ("--sample", "137") and form != "json":
        assert "was traced" in result.failed(1)  # none of its steps was
        return
    assert result.out == ""
    printed = cached_pyrometer("trace", RUN, *about, "--data", trained_folder, "-o", form).json
    assert json.loads(path.read_text()) == printed
    assert printed[key] or about == ("--sample", "137")


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trace", RUN, "--step", "x"), "--step 'x' is not a whole number"),
        (("trace", RUN, "--step", "-1"), "--step '-1' is not a whole number"),
        (("trace", RUN, "--step", "1", "--sample", "2"), "Pass only one of --step, --sample"),
        (("trace", RUN, "--attempt", "2"), "--attempt selects the attempt of a step"),
        (("lineage", RUN), "Choose one of --step N, --sample ID, --checkpoint STEP, --spikes."),
        (("lineage", RUN, "--step", "1", "--spikes"), "Pass only one of"),
        (("lineage", RUN, "--step", "1", "--metric", "loss"), "Pass --spikes, too"),
        (("lineage", RUN, "--spikes", "--attempt", "1"), "Pass --step or --checkpoint, too"),
        (("lineage", RUN, "--sample", "1", "--limit", "999999999"), "--limit '999999999' is not a whole number"),
        (("lineage", RUN, "--sample", "1" * 1_001), "--sample has 1,001 characters"),
    ],
)
def test_invalid_trace_and_lineage_options_are_usage_errors(cached_pyrometer, trained_folder, arguments, says):
    assert says in cached_pyrometer(*arguments, "--data", trained_folder).failed(2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("trace", "lama-sft"), "Did you mean 'llama-sft'?"),
        (("lineage", "lama-sft", "--step", "1"), "Did you mean 'llama-sft'?"),
        (("lineage", RUN, "--checkpoint", "50"), "The nearest: 20, 40, 60, 80."),
        (("lineage", RUN, "--spikes", "--metric", "accuracy"), "It has: loss."),
    ],
)
def test_error_about_an_unknown_value_names_the_known_ones(cached_pyrometer, trained_folder, arguments, says):
    assert says in cached_pyrometer(*arguments, "--data", trained_folder).failed(1)


# -- a terminal -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 160])
def test_trace_bars_on_a_terminal_have_colors_and_its_width(trained_folder, columns):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    command = [sys.executable, "-m", "pyrometer", "trace", RUN, "--step", "70", "--data", str(trained_folder)]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    running = subprocess.Popen(
        command, stdout=slave, stderr=subprocess.PIPE, env={**environment, "TERM": "xterm-256color"}
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            read = os.read(master, 65_536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        shown += read
    os.close(master)
    _, printed = running.communicate()
    assert running.returncode == 0, printed
    text = shown.decode()
    rows = [line.rstrip("\r") for line in text.split("\n") if "rank 2" in line and "was last" in line]
    assert len(rows) == 1
    assert len(COLOR.findall(rows[0])) > 20
    plain = COLOR.sub("", rows[0])
    assert columns - 20 < len(plain) <= columns
