"""Recordings of one GPU: the shipped one against its truth, with steps and without, and files that are broken."""

from __future__ import annotations

import asyncio
import csv
import json
import shutil
from datetime import UTC, datetime

import pytest

from pyrometer.account.checks.check_list import problems
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.score import ledger_cells, score, truth_window
from pyrometer.answers.why import why
from pyrometer.collect.source import SourceError
from pyrometer.model.records import GpuSample
from pyrometer.model.settings import Settings
from pyrometer_datasets.recorded_truth import recorded_truth
from pyrometer_datasets.recording import SETTINGS, Recordings

TOLERANCE_MS = 2_000
LIMITS = Settings(**SETTINGS)
EVERYTHING = TimeRange(1_794_723_300_000, 1_794_723_600_000)  # the five minutes of the recording

# What the recording calls a state → what the ledger calls it.
DESIGN_STATES = {"hang_spin": "hang", "hang_idle": "hang", "small_batch": "train"}


@pytest.fixture(scope="module")
def truth(h200):
    """The truth's intervals in the ledger's words; steps that were done again are `lost_work`."""
    truth_json = json.loads((h200 / "a-truth.json").read_text())
    intervals = [
        (DESIGN_STATES.get(i["state"], i["state"]), round(i["start"] * 1000), round(i["end"] * 1000), i)
        for i in truth_json["intervals"]
    ]
    resumed_at_ms, resumed_step = next((from_ms, i["resumed_step"]) for _, from_ms, _, i in intervals if len(i) > 3)
    with (h200 / "a-steps.csv").open(newline="") as stream:
        lost = [
            (round(float(row["start"]) * 1000), round(float(row["end"]) * 1000))
            for row in csv.DictReader(stream)
            if int(row["step"]) >= resumed_step and float(row["end"]) * 1000 <= resumed_at_ms
        ]
    lost_from_ms = lost[0][0]
    mapped = [
        ("lost_work" if state == "train" and lost_from_ms - 1 <= from_ms < resumed_at_ms else state, from_ms, to_ms)
        for state, from_ms, to_ms, _ in intervals
    ]
    return {
        "intervals": mapped,
        "lost": (lost_from_ms, lost[-1][1]),
        "lost_steps": next(i["lost_steps"] for *_, i in intervals if "lost_steps" in i),
        "raw": {i["state"]: (from_ms, to_ms) for _, from_ms, to_ms, i in intervals},
    }


@pytest.fixture(scope="module")
def answers(h200, new_reading, tmp_path_factory):
    """What `why` says of the recording, by whether its steps were read."""
    found = {}
    for with_steps in (True, False):
        reading = new_reading(tmp_path_factory.mktemp("recording"))
        reading.take(Recordings(h200, with_steps=with_steps), LIMITS)
        found[with_steps] = why(reading.store, EVERYTHING, LIMITS, zone=UTC)
        assert list(problems(reading.store)) == []
        reading.close()
    return found


def deliveries_of(source):
    async def read():
        return [delivery async for delivery in source.deliveries()]

    return asyncio.run(read())


def milliseconds(answer):
    return {row["state"]: row["gpu_ms"] for row in answer["states"]}


def interval(finding):
    return tuple(round(datetime.fromisoformat(finding[edge]).timestamp() * 1000) for edge in ("from", "to"))


def overlap(one, other):
    """Intersection over union of two intervals."""
    shared = max(0, min(one[1], other[1]) - max(one[0], other[0]))
    return shared / (one[1] - one[0] + other[1] - other[0] - shared)


# -- with steps -------------------------------------------------------------------------------------------------------


def test_ledger_covers_every_millisecond_of_recording(answers, truth):
    whole = truth["intervals"][-1][2] - truth["intervals"][0][1]
    for answer in answers.values():
        assert answer["total"]["gpu_ms"] == sum(milliseconds(answer).values()) == whole


def test_ledger_with_steps_matches_true_state_durations(answers, truth):
    expected = {}
    for state, from_ms, to_ms in truth["intervals"]:
        state = "train or data_stall" if state in ("train", "data_stall") else state  # see the data's README
        expected[state] = expected.get(state, 0) + to_ms - from_ms
    found = milliseconds(answers[True])
    found["train or data_stall"] = found.pop("train") + found["data_stall"]
    stalled = found.pop("data_stall")
    assert {state: found.get(state, 0) for state in expected} == pytest.approx(expected, abs=TOLERANCE_MS)
    assert sum(ms for state, ms in found.items() if state not in expected) <= TOLERANCE_MS
    assert 10_000 <= stalled <= truth["raw"]["data_stall"][1] - truth["raw"]["data_stall"][0]


def test_ledger_with_steps_finds_every_planted_fault_once(answers, truth):
    planted = [
        (state, (from_ms, to_ms))
        for state, from_ms, to_ms in truth["intervals"]
        if state in ("hang", "data_stall", "idle_held", "diverged") and to_ms - from_ms >= 10_000
    ]
    planted.append(("lost_work", truth["lost"]))
    found = [(finding["cause"], interval(finding)) for finding in answers[True]["findings"]]
    assert sorted(cause for cause, _ in found) == sorted(cause for cause, _ in planted)
    for cause, at in planted:
        matching = [one for one in found if one[0] == cause and overlap(one[1], at) >= 0.5]
        assert len(matching) == 1, (cause, at, found)
        found.remove(matching[0])


def test_ledger_with_steps_names_rank_of_hangs(answers):
    hangs = [finding for finding in answers[True]["findings"] if finding["cause"] == "hang"]
    assert len(hangs) == 2
    assert [hang["culprit"]["rank"] for hang in hangs] == [0, 0]
    assert sum("a spinning kernel" in " ".join(hang["evidence"]) for hang in hangs) == 1


def test_lost_work_is_the_repeated_steps(answers, truth):
    (lost,) = [finding for finding in answers[True]["findings"] if finding["cause"] == "lost_work"]
    assert truth["lost_steps"] == 1_167
    assert "1,167 steps" in lost["title"]
    assert "1,106" in " ".join(lost["evidence"])


def test_ledger_with_steps_has_sdk_evidence(answers):
    assert answers[True]["evidence"]["sdk"] > 0.9
    assert answers[False]["evidence"]["sdk"] == 0
    assert answers[False]["evidence"]["gpu"] > 0.9


# -- without steps ----------------------------------------------------------------------------------------------------


def test_ledger_without_steps_finds_only_spinning_hangs(answers, truth):
    (found,) = [finding for finding in answers[False]["findings"] if finding["cause"] == "hang"]
    assert overlap(interval(found), truth["raw"]["hang_spin"]) >= 0.5
    spun = truth["raw"]["hang_spin"][1] - truth["raw"]["hang_spin"][0]
    assert milliseconds(answers[False])["hang"] == pytest.approx(spun, abs=TOLERANCE_MS)


def test_ledger_without_steps_matches_gpu_activity(answers, truth):
    found = milliseconds(answers[False])
    assert found.keys() <= {"active", "starved", "startup", "free", "hang", "unobserved"}
    assert found.get("unobserved", 0) < 500  # from the hold to its first sample: the one before is not about its holder
    assert found["free"] == pytest.approx(truth["raw"]["free"][1] - truth["raw"]["free"][0], abs=TOLERANCE_MS)
    slept = sum(
        to_ms - from_ms
        for state, from_ms, to_ms in truth["intervals"]
        if state in ("hang", "idle_held", "checkpoint", "startup", "data_stall", "free")
    )
    assert found["starved"] + found["startup"] <= slept + TOLERANCE_MS  # nothing that trained is called idle


def test_recording_uses_only_allocations_of_truth_file(h200, new_reading, tmp_path):
    """GPU telemetry alone: with every label of a held interval replaced, the answer is the same."""
    folder = tmp_path / "relabelled"
    shutil.copytree(h200, folder)
    truth_json = json.loads((folder / "a-truth.json").read_text())
    for one in truth_json["intervals"]:
        one["state"] = one["state"] if one["state"] == "free" else "held"
    (folder / "a-truth.json").write_text(json.dumps(truth_json))
    ledgers = []
    for path in (h200, folder):
        reading = new_reading(tmp_path / f"data-{path.name}")
        reading.take(Recordings(path, with_steps=False), LIMITS)
        ledgers.append(reading.rows("ledger_row"))
        reading.close()
    assert ledgers[0] == ledgers[1]


# -- reading ----------------------------------------------------------------------------------------------------------


def test_reading_recording_twice_is_idempotent(h200, reading):
    reading.take(Recordings(h200), LIMITS)
    once = repr(reading.all_rows())  # the loss is NaN at the end, which does not equal itself
    reading.take(Recordings(h200), LIMITS)
    assert repr(reading.all_rows()) == once


def test_recording_counts_its_rows(h200):
    recordings = Recordings(h200)
    (delivery,) = deliveries_of(recordings)
    assert delivery.progress == 1.0
    assert recordings.counts == {"GPU samples": 537, "steps": 2_934}


def test_folder_of_two_recordings_has_two_gpus(copied):
    for path in copied.glob("a-*"):
        shutil.copy(path, copied / path.name.replace("a-", "b-"))
    one, other = deliveries_of(Recordings(copied))
    assert (one.progress, other.progress) == (0.5, 1.0)
    assert len(one.records) == len(other.records)
    assert {record.node_uid for record in one.records if isinstance(record, GpuSample)} == {"recording-a"}
    assert {record.node_uid for record in other.records if isinstance(record, GpuSample)} == {"recording-b"}


def test_recording_without_steps_needs_no_steps_file(copied):
    (copied / "a-steps.csv").unlink()
    (delivery,) = deliveries_of(Recordings(copied, with_steps=False))
    assert sum(isinstance(record, GpuSample) for record in delivery.records) == 537


# -- broken files -----------------------------------------------------------------------------------------------------


@pytest.fixture
def copied(h200, tmp_path):
    """The recording, to be broken."""
    return shutil.copytree(h200, tmp_path / "copied")


def edit_line(path, number, change):
    """Changes one line of a file; the first is 1."""
    lines = path.read_text().splitlines()
    lines[number - 1] = change(lines[number - 1])
    path.write_text("\n".join(lines) + "\n")


def error_of(path):
    with pytest.raises(SourceError) as caught:
        deliveries_of(Recordings(path))
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


@pytest.mark.parametrize("name", ["a-gpu.csv", "a-steps.csv"])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda line: ",".join([line.split(",")[0], "soon", *line.split(",")[2:]]), "soon"),
        (lambda line: line[: len(line) // 2].rsplit(",", 1)[0], ""),  # the disk was full
    ],
    ids=["not a number", "cut off"],
)
def test_bad_row_error_names_file_line_and_value(copied, name, change, named):
    edit_line(copied / name, 20, change)
    text = error_of(copied)
    assert name in text
    assert "line 20" in text
    assert named in text


@pytest.mark.parametrize(("name", "column"), [("a-gpu.csv", "gpu_util"), ("a-steps.csv", "loss")])
def test_missing_column_error_names_file(copied, name, column):
    edit_line(copied / name, 1, lambda line: line.replace(column, "other"))
    text = error_of(copied)
    assert name in text
    assert column in text


@pytest.mark.parametrize("name", ["a-truth.json", "a-steps.csv"])
def test_missing_file_error_names_file(copied, name):
    (copied / name).unlink()
    assert name in error_of(copied)


def test_folder_without_recordings_is_an_error(tmp_path):
    assert str(tmp_path) in error_of(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"intervals": []}',
        '{"intervals": [{"state": "train"}]}',
        '{"intervals": [{"state": "train", "start": "x", "end": 1}]}',
        '{"intervals": [{"state": "free", "start": 1794723331.4, "end": 1794723341.4}]}',
        '{"intervals": 7}',
        '"train"',
    ],
)
def test_invalid_truth_file_is_an_error(copied, text):
    (copied / "a-truth.json").write_text(text)
    assert str(copied) in error_of(copied)


def test_binary_file_is_an_error(copied):
    for name in ("a-gpu.csv", "a-steps.csv", "a-truth.json"):
        original = (copied / name).read_bytes()
        (copied / name).write_bytes(original[:500] + b"\xff\xfe" + original[500:])
        assert str(copied) in error_of(copied)
        (copied / name).write_bytes(original)


def test_truncated_recording_is_read_to_its_end(copied, reading):
    """Whole lines are missing at the end: nothing is known of that time, and nothing is made up."""
    for name in ("a-gpu.csv", "a-steps.csv"):
        lines = (copied / name).read_text().splitlines()
        (copied / name).write_text("\n".join(lines[: len(lines) // 2]) + "\n\n")
    reading.take(Recordings(copied), LIMITS)
    hours = reading.hours_by("state")
    assert sum(hours.values()) * 3_600_000 == pytest.approx(268_317)
    assert list(problems(reading.store)) == []


@pytest.mark.parametrize("absent", ["", "nan", "9223372036854775794", "18446744073709551615"])
def test_unknown_nvml_values_are_absent(copied, absent):
    """Blank, NaN and the sentinels near 2^63 are absent values, not numbers and not errors."""
    time_s, *figures = (copied / "a-gpu.csv").read_text().splitlines()[9].split(",")
    edit_line(copied / "a-gpu.csv", 10, lambda line: ",".join([time_s, *[absent] * len(figures)]))
    (delivery,) = deliveries_of(Recordings(copied))
    samples = [record for record in delivery.records if isinstance(record, GpuSample)]
    present = {name for name, value in samples[8]._asdict().items() if value is not None}
    assert present == {"time_ms", "node_uid", "slot_index", "instance"}
    assert {"gpu_util_permille", "power_w", "energy_j"} < {
        name for name, value in samples[7]._asdict().items() if value is not None
    }


# -- against the truth, also of recordings that nothing was tuned to -------------------------------------------------


@pytest.mark.parametrize("name", ["h200", "h200-more"])
@pytest.mark.parametrize("with_steps", [True, False])
def test_every_recording_has_expected_score(h200, new_reading, tmp_path, name, with_steps):
    folder = h200.parent / name
    reading = new_reading(tmp_path)
    reading.take(Recordings(folder, with_steps=with_steps), LIMITS)
    truth = recorded_truth(folder, with_steps=with_steps)
    window = truth_window(truth)
    scored = score(truth, why(reading.store, window, LIMITS, zone=UTC), ledger_cells(reading.store, window))
    reading.close()
    assert (scored["precision"], scored["recall"]) == (1.0, 1.0)
    assert scored["culprit"] == (1.0 if with_steps else None)
    assert scored["state_error"] <= 0.02
    assert len(truth["findings"]) == {"h200": 6, "h200-more": 12}[name]
