"""Logs of speed runs: hand-written ones in their form, and the real ones where they are at hand."""

from __future__ import annotations

import asyncio
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.account.checks.check_list import problems
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.experiments.worth import worth
from pyrometer.answers.runs.overview import runs, show
from pyrometer.collect.source import SourceError
from pyrometer.model.settings import Settings
from pyrometer_datasets import speedrun
from pyrometer_datasets.speedrun import ProgressLine, SpeedrunLogs, opening, read_log

RULE = "=" * 100
PROGRAM = (
    RULE,
    "import os",
    "for step in range(10):",
    "    print(f'step:{step}/{args.steps} val_loss:{val_loss:.4f} train_time:{ms:.0f}ms step_avg:{avg:.2f}ms')",
    "# step:1/9 train_loss:1.0 train_time:1ms step_avg:1ms",
    RULE,
)
TIME = "Thu Oct 10 23:58:24 2024       "
START_MS = 1_728_604_704_000
STEPS, STEP_MS, COMPILE_MS = 40, 500, 74_000


def smi(gpus=8, model="NVIDIA H100 80GB HBM3", time=TIME):
    """What nvidia-smi writes, as far as it matters."""
    rows = [f"|   {n}  {model}          On  | 00000000:6{n}:00.0 Off |                    0 |" for n in range(gpus)]
    return ["Running pytorch 2.4.1+cu121 compiled for CUDA 12.1", "nvidia-smi:", time, "| GPU  Name |", *rows, RULE]


def stepped(steps=STEPS, *, of=None, compile_ms=COMPILE_MS, reset=True, losses=True):
    """A line a step; the clock is set back after the tenth, the first of them took longer; a validation every ten."""
    of, shown_ms = of or steps, 0
    lines = [f"step:0/{of} val_loss:10.9000 train_time:285ms step_avg:nanms"]
    for step in range(1, steps + 1):
        if step == 11 and reset:
            shown_ms = 0
        shown_ms += STEP_MS + (compile_ms if step == 1 else 0)
        loss = f" train_loss:{10 - step / 10:.4f}" if losses else ""
        lines.append(f"step:{step}/{of}{loss} train_time:{shown_ms}ms step_avg:{'nan' if step < 13 else '500.00'}ms")
        if step % 10 == 0:
            lines.append(f"step:{step}/{of} val_loss:{10 - step / 10:.4f} train_time:{shown_ms}ms step_avg:500.00ms")
    return lines


@pytest.fixture
def written(tmp_path):
    """Writes a log; gives its path."""

    def write(*lines, name="2024-10-10_Muon.log", end="\n"):
        path = tmp_path / name
        path.write_text("\n".join(lines) + end)
        return path

    return write


@pytest.fixture(scope="module")
def read(new_reading, tmp_path_factory):
    """Two logs, read and accounted for: one with its program, one that breaks off and has no training loss."""
    folder = tmp_path_factory.mktemp("logs")
    (folder / "2024-10-10_Muon.log").write_text("\n".join([*PROGRAM, *smi(), *stepped(), ""]))
    cut = [*smi(time=TIME.replace("10 23", "11 23")), *stepped(30, of=90, losses=False), "step:31/90 train_ti"]
    (folder / "cut.txt").write_text("\n".join(cut))
    (folder / "README.md").write_text("no log")
    reading = new_reading(tmp_path_factory.mktemp("speedrun"))
    reading.logs = SpeedrunLogs(folder)
    reading.progress = reading.take(reading.logs)
    return reading


EVERYTHING = TimeRange(START_MS - 60_000 - START_MS % 60_000, START_MS + 3 * 86_400_000)


def test_speedrun_gpu_time_includes_steps_before_clock_reset(read):
    whole_s, cut_s = (STEPS * STEP_MS + COMPILE_MS) / 1000, (30 * STEP_MS + COMPILE_MS) / 1000
    held = {"2024-10-10_Muon": 8 * whole_s / 3600, "cut": 8 * cut_s / 3600}
    assert read.hours_by("pod") == pytest.approx(held)
    assert read.hours_by("gpu_model").keys() == {"NVIDIA H100 80GB HBM3"}
    assert read.hours_by("experiment").keys() == {"speedrun"}


def test_speedrun_startup_lasts_until_first_step(read):
    hours = read.hours_by("state")
    assert hours.keys() == {"startup", "train"}
    assert hours["startup"] == pytest.approx(2 * 8 * (COMPILE_MS + STEP_MS) / 3_600_000)
    assert list(problems(read.store)) == []


def test_speedrun_has_ranks_steps_and_end(read):
    rows = {row["run"]: row for row in runs(read.store, EVERYTHING, zone=UTC)["rows"]}
    whole, cut = rows["2024-10-10_Muon"], rows["cut"]
    assert (whole["experiment"], whole["ranks"], whole["steps"], whole["outcome"]) == (
        "speedrun",
        8,
        STEPS,
        "succeeded",
    )
    assert whole["started"] == "2024-10-10T23:58:24Z"
    assert whole["step_p50_ms"] == pytest.approx(STEP_MS, rel=0.01)
    assert (cut["steps"], cut["outcome"]) == (30, "unknown")


def test_speedrun_lifecycle_has_compile_time(read):
    shown = show(read.store, "2024-10-10_Muon", EVERYTHING, Settings(), zone=UTC)
    assert [(row["what"], row["duration_ms"]) for row in shown["lifecycle"]] == [
        ("started", None),
        ("compiled", COMPILE_MS),
        ("first_step", None),
        ("succeeded", None),
    ]
    assert shown["metrics"].keys() == {"train_loss", "val_loss"}
    assert len(shown["metrics"]["train_loss"]) == STEPS
    assert show(read.store, "cut", EVERYTHING, Settings(), zone=UTC)["metrics"].keys() == {"val_loss"}


def test_speedrun_cost_of_loss_includes_compilation(read):
    answer = worth(read.store, "speedrun", EVERYTHING, zone=UTC, target=6.0, price_usd_micro=3_600_000)
    rows = {row["run"]: row for row in answer["runs"]}
    whole = rows["2024-10-10_Muon"]
    assert (answer["metric"], answer["goal"], answer["goal_guessed"]) == ("val_loss", "min", False)
    seconds = (COMPILE_MS + STEPS * STEP_MS) / 1000
    assert whole["to_target_usd"] == pytest.approx(8 * seconds / 1000, abs=0.005)  # $3.60 per hour is $0.001 per second
    assert whole["to_target_step"] == STEPS
    assert whole["to_target_ms"] == COMPILE_MS + STEPS * STEP_MS
    assert whole["startup_usd_micro"] == 8 * (COMPILE_MS + STEP_MS)
    assert whole["compile_ms"] == COMPILE_MS
    assert rows["cut"]["to_target_usd"] is None


def test_speedrun_reports_progress_and_counts(read):
    assert read.progress == [0.5, 1.0]
    assert read.logs.counts == {"runs": 2, "steps": STEPS + 30, "logs that break off": 1}


def test_reading_log_twice_is_idempotent(reading, written):
    path = written(*smi(), *stepped())
    reading.take(SpeedrunLogs(path))
    once = reading.all_rows()
    reading.take(SpeedrunLogs(path))
    assert reading.all_rows() == once


# -- one log ----------------------------------------------------------------------------------------------------------


def test_log_without_nvidia_smi_time_uses_date_of_name(written):
    assert read_log(written(*smi(time=""), *stepped())).start_ms == 1_728_518_400_000
    assert read_log(written(*smi(time="Thu Oct 99 23:58:24 2024"), *stepped())).start_ms == 1_728_518_400_000
    with pytest.raises(SourceError, match="has no start time"):
        read_log(written(*smi(time=""), *stepped(), name="Muon.log"))


def test_clock_without_reset_is_unchanged(written):
    log = read_log(written(*smi(), *stepped(reset=False)))
    assert log.lines[-1].at_ms == COMPILE_MS + STEPS * STEP_MS


def test_log_without_slow_steps_has_no_compile_time(written):
    assert opening(read_log(written(*smi(), *stepped(compile_ms=0))).done) == (1, None)
    assert opening(read_log(written(*smi(), *stepped(2, of=40))).done) == (
        1,
        None,
    )  # too few steps to know the usual duration


def test_several_slow_steps_are_one_startup():
    times = [42_000, 53_000, *(53_000 + 500 * n for n in range(1, 30))]
    assert opening([ProgressLine(n, at_ms, None, None) for n, at_ms in enumerate(times, 1)]) == (2, 52_000)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40), st.integers(1, 39))
def test_clock_never_decreases_and_keeps_total(took, reset_at):
    clock, shown, at = speedrun._Clock(), 0, []
    for number, ms in enumerate(took):
        if number == reset_at and ms < shown / 2:  # what would not be seen to be set back is not
            shown = 0
        shown += ms
        at.append(clock.at(shown))
    assert at == sorted(at)
    assert at[-1] == sum(took)


@pytest.mark.parametrize("gone", [1, 9, 30])
def test_incomplete_line_is_skipped(written, gone):
    lines = "\n".join([*smi(), *stepped()[:-1]])
    log = read_log(written(lines[:-gone], end=""))
    assert (log.lines[-1].steps, log.is_whole) == (STEPS - 1, False)


# -- bad files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (["hello"], "no line like 'step:1/100"),
        (PROGRAM, "no line like"),
        ([*smi(), "step:0/9 val_loss:10.9 train_time:1ms step_avg:nanms"], "no line like"),
        (stepped(), "no table of nvidia-smi"),
        ([*smi(0), *stepped()], "no table of nvidia-smi"),
        ([*smi(), *stepped(), *stepped()], "line 59: step 0 does not follow step 40"),
        ([*smi(), *stepped()[:5], *stepped()[6:]], "step 6 does not follow step 4"),
        ([*smi(), "step:9/3 train_loss:1.0 train_time:1ms step_avg:nanms"], "step 9 of 3"),
        ([*smi(), "step:1/3 train_loss:abc train_time:1ms step_avg:nanms"], "abc"),
        ([*smi(), "step:1/3 train_loss:1.0 train_time:99999999999ms step_avg:nanms"], "more than a month"),
    ],
)
def test_bad_log_error_names_file_and_problem(written, lines, named):
    path = written(*lines)
    with pytest.raises(SourceError) as caught:
        read_log(path)
    assert named in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_files_and_folders_are_rejected(written, tmp_path, monkeypatch):
    binary = tmp_path / "x.log"
    binary.write_bytes(b"PAR1\xff\xfe\x00\x01" * 100)
    with pytest.raises(SourceError, match=r"x\.log is not a speed run log"):
        read_log(binary)
    with pytest.raises(SourceError, match=r"missing\.log cannot be read: No such file"):
        read_log(tmp_path / "missing.log")
    monkeypatch.setattr(speedrun, "MAX_LOG_BYTES", 100)
    with pytest.raises(SourceError, match="is larger than"):
        read_log(binary)
    (tmp_path / "empty").mkdir()

    async def first():
        return await anext(SpeedrunLogs(tmp_path / "empty").deliveries())

    with pytest.raises(SourceError, match=r"empty has no \*\.log or \*\.txt"):
        asyncio.run(first())


# -- the real logs ----------------------------------------------------------------------------------------------------

# By name: steps, seconds that the clock showed before it was set back and at the end, the last validation loss.
PUBLISHED = {
    "2024-10-10_Muon": (6200, 77.676, 1339.067, 3.2785),
    "2024-10-14_ModernArch": (5100, 54.881, 910.546, 3.2741),
    "2024-10-18_PyTorch25": (5100, 36.885, 721.882, 3.2755),
    "2024-10-29_Optimizers": (5100, 25.859, 912.706, 3.2858),
    "2024-11-06_ShortcutsTweaks": (3200, 7.792, 462.573, 3.3151),
    "2024-11-09_Replicateleloykun": (3125, 55.331, 480.829, 3.2824),
    "2024-11-10_UNetDoubleLr": (3000, 15.849, 433.570, 3.2753),
    "2024-11-19_FlexAttention": (1875, 45.513, 301.825, 3.2783),
    "2024-12-04_ValueEmbed": (1530, 33.005, 264.608, 3.2751),
    "2024-12-10_MFUTweaks": (1480, 30.469, 231.445, 3.2756),
}


def test_real_logs_match_published_figures(real_data):
    if not (real_data / "speedrun").is_dir():
        pytest.skip("needs logs of speed runs: a folder speedrun/ in PYROMETER_TEST_DATA")
    logs = {log.name: log for log in map(read_log, sorted((real_data / "speedrun").glob("*.log")))}
    figures = {}
    for name, log in logs.items():
        tenth_ms, last = log.done[9].at_ms, log.lines[-1]
        figures[name] = (log.of_steps, tenth_ms / 1000, (last.at_ms - tenth_ms) / 1000, last.value)
    assert figures == PUBLISHED
    assert {(log.gpus, log.gpu_model, log.is_whole) for log in logs.values()} == {(8, "NVIDIA H100 80GB HBM3", True)}
    assert all(5_000 < (opening(log.done)[1] or 0) < log.done[9].at_ms for log in logs.values())


@pytest.mark.heavy
def test_ledger_of_real_logs_is_consistent(real_data, reading):
    if not (real_data / "speedrun").is_dir():
        pytest.skip("needs logs of speed runs: a folder speedrun/ in PYROMETER_TEST_DATA")
    reading.take(SpeedrunLogs(real_data / "speedrun"))
    held = sum(reading.hours_by("pod").values())
    assert held == pytest.approx(8 / 3600 * sum(forgot + shown for _, forgot, shown, _ in PUBLISHED.values()), abs=1e-6)
    assert list(problems(reading.store)) == []
