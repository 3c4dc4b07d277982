"""Public scheduler traces: hand-written ones in their formats, and the real ones where they are at hand."""

from __future__ import annotations

import asyncio
import csv

import pytest

from pyrometer.account.checks.check_list import problems
from pyrometer.collect.source import SourceError
from pyrometer.model.records import Allocation
from pyrometer.model.units import SHARE_WHOLE, share_parts
from pyrometer_datasets.traces import OpenbTrace, PhillyTrace

OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
OPENB_ROWS = (
    "whole,12000,16384,2,1000,,LS,Running,0,3600,0",
    "part,6000,12288,1,460,,BE,Succeeded,60,720,120",
    "cpu,6000,12288,0,0,,LS,Succeeded,0,100,0",
    "waits,6000,12288,1,1000,,LS,Pending,0,100,",
    "fails,6000,12288,8,1000,,Burstable,Failed,30,690,90",
)
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster"
PHILLY_ROWS = (
    "2017-10-09 07:01:55,66.0,1,66.0,11cb48",
    "2017-10-09 06:13:03,2951.0,8,23608.0,6214e9",
    "2017-10-09 06:13:03,0.5,1,0.5,6214e9",
)
TRACES = {"openb": (OpenbTrace, OPENB, OPENB_ROWS), "philly": (PhillyTrace, PHILLY, PHILLY_ROWS)}


@pytest.fixture
def written(tmp_path):
    """Writes a trace's file; gives its path."""

    def write(*lines, name="trace.csv", end="\n"):
        path = tmp_path / name
        path.write_text("\n".join(lines) + end)
        return path

    return write


def deliveries_of(source):
    async def read():
        return [delivery async for delivery in source.deliveries()]

    return asyncio.run(read())


def pods_of(source):
    """The names of the pods that hold GPUs."""
    records = [record for delivery in deliveries_of(source) for record in delivery.records]
    return {record.pod_uid for record in records if isinstance(record, Allocation)}


def error_of(source):
    """The error of a source that cannot be read: always one line."""
    with pytest.raises(SourceError) as caught:
        deliveries_of(source)
    text = str(caught.value)
    assert text == text.strip()
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


@pytest.fixture(scope="module")
def small(new_reading, tmp_path_factory):
    """Both hand-written traces, each in a data folder of its own. Tests look at them and change nothing."""
    readings = {}
    for name, (source, header, rows) in TRACES.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "trace.csv").write_text("\n".join([header, *rows, ""]))
        readings[name] = new_reading(folder / "data")
        readings[name].trace = source(folder / "trace.csv")
        readings[name].take(readings[name].trace)
    return readings


# -- openb ------------------------------------------------------------------------------------------------------------


def test_openb_gpu_time_is_duration_times_request(small):
    assert small["openb"].hours_by("pod") == pytest.approx({"whole": 2.0, "part": 0.46 / 6, "fails": 8 / 6}, abs=1e-6)
    assert small["openb"].hours_by("outcome") == pytest.approx(
        {"Running": 2.0, "Succeeded": 0.46 / 6, "Failed": 8 / 6}, abs=1e-6
    )
    assert small["openb"].hours_by("team").keys() == {"LS", "BE", "Burstable"}  # its quality of service pays


def test_openb_counts_skipped_rows(small):
    assert small["openb"].trace.counts == {"pods without a GPU": 1, "GPU pods never scheduled": 1}


def test_openb_fraction_is_allocated_exactly(small):
    openb = small["openb"]
    openb.store.expose_all(["allocation", "ledger_row"])
    shares = dict(openb.ask("SELECT pod_uid, any_value(share) FROM allocation GROUP BY pod_uid"))
    assert shares == {"whole": SHARE_WHOLE, "part": share_parts("0.46"), "fails": SHARE_WHOLE}
    assert openb.ask("SELECT DISTINCT ms FROM ledger_row WHERE pod_uid = 'part'") == [(27_600,)]


@pytest.mark.parametrize("name", TRACES)
def test_trace_has_only_allocations(small, name):
    """Without telemetry the allocated time is `unobserved`, and there is no other capacity."""
    assert small[name].hours_by("state").keys() == {"unobserved"}
    assert list(problems(small[name].store)) == []


# -- philly -----------------------------------------------------------------------------------------------------------


def test_philly_gpu_time_is_duration_times_gpus(small):
    assert small["philly"].hours_by("pod") == pytest.approx(
        {"philly-000001": 66 / 3600, "philly-000002": 8 * 2951 / 3600, "philly-000003": 0.5 / 3600}, abs=1e-9
    )
    assert small["philly"].hours_by("team").keys() == {"11cb48", "6214e9"}  # its virtual clusters pay


def test_philly_times_are_utc(small):
    small["philly"].store.expose_all(["allocation"])
    assert small["philly"].ask("SELECT from_ms, to_ms FROM allocation WHERE pod_uid = 'philly-000001'") == [
        (1_507_532_515_000, 1_507_532_581_000)
    ]


# -- files ------------------------------------------------------------------------------------------------------------


def test_trace_finds_file_in_folder(written, tmp_path):
    written(OPENB, *OPENB_ROWS, name="openb_pod_list_default.csv")
    written(PHILLY, *PHILLY_ROWS, name="philly.csv")
    assert pods_of(OpenbTrace(tmp_path)) == {"whole", "part", "fails"}
    assert len(pods_of(PhillyTrace(tmp_path))) == 3


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("end", ["\n\n", "\n\n\n", ""])
def test_blank_lines_at_end_are_ignored(written, name, end):
    source, header, rows = TRACES[name]
    assert len(pods_of(source(written(header, *rows, end=end)))) == 3


@pytest.mark.parametrize("name", TRACES)
def test_windows_line_endings_are_read(name, tmp_path):
    source, header, rows = TRACES[name]
    path = tmp_path / "crlf.csv"
    path.write_bytes("\r\n".join([header, *rows, ""]).encode())
    assert len(pods_of(source(path))) == 3


@pytest.mark.parametrize("name", TRACES)
def test_progress_grows_to_one(written, monkeypatch, name):
    monkeypatch.setattr("pyrometer_datasets.traces.ROWS_PER_DELIVERY", 1)
    source, header, rows = TRACES[name]
    progress = [delivery.progress for delivery in deliveries_of(source(written(header, *rows)))]
    assert progress == sorted(progress)
    assert len(progress) > 2
    assert progress[-1] == 1.0
    assert all(0 < done <= 1 for done in progress)


# -- reading again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACES)
def test_reading_trace_twice_is_idempotent(reading, written, name):
    source, header, rows = TRACES[name]
    path = written(header, *rows)
    reading.take(source(path))
    once, parts = reading.all_rows(), reading.store.parts()
    reading.take(source(path))
    assert reading.all_rows() == once
    assert [part.path for part in reading.store.parts("ledger_row")] == [
        part.path for part in parts if part.kind == "ledger_row"
    ]


@pytest.mark.parametrize("name", TRACES)
def test_reading_longer_trace_adds_new_rows(reading, written, name):
    source, header, rows = TRACES[name]
    reading.take(source(written(header, *rows[:1])))
    before = reading.hours_by("pod")
    reading.take(source(written(header, *rows)))
    after = reading.hours_by("pod")
    assert before.items() < after.items()


# -- bad files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "row", "named"),
    [
        ("openb", "bad,1,1,two,1000,,LS,Running,0,3600,0", "two"),
        ("openb", "bad,1,1,1,half,,LS,Running,0,3600,0", "half"),
        ("openb", "bad,1,1,1,1000,,LS,Running,0,later,0", "later"),
        (
            "openb",
            "bad,1,1,1,1000,,LS,Running,0,3600",
            "fewer values",
        ),  # cut off: it was scheduled, we do not know when
        ("openb", "bad,1,1,1", "fewer values"),
        ("openb", "bad,1,1,1,1000,,LS,Running,0,100,3600", "ends before it begins"),
        ("openb", "bad,1,1,-1,1000,,LS,Running,0,3600,0", "-1"),
        ("openb", "bad,1,1,99999,1000,,LS,Running,0,3600,0", "99999"),
        ("philly", "yesterday,66.0,1,66.0,11cb48", "yesterday"),
        ("philly", "2017-10-09 07:01:55,long,1,66.0,11cb48", "long"),
        ("philly", "2017-10-09 07:01:55,nan,1,66.0,11cb48", "NaN"),
        ("philly", "2017-10-09 07:01:55,inf,1,66.0,11cb48", "infinity"),
        ("philly", "2017-10-09 07:01:55,1e300,1,66.0,11cb48", "decades"),
        ("philly", "2017-10-09 07:01:55,-66.0,1,66.0,11cb48", "ends before it begins"),
        ("philly", "2017-10-09 07:01:55,66.0,1.5,66.0,11cb48", "1.5"),
        ("philly", "2017-10-09 07:01:55,66.0", "fewer values"),
    ],
)
def test_bad_row_error_names_file_line_and_value(written, name, row, named):
    source, header, rows = TRACES[name]
    path = written(header, *rows, row)
    text = error_of(source(path))
    assert f"{path}, line {2 + len(rows)}: " in text
    assert named in text


@pytest.mark.parametrize("name", TRACES)
def test_every_read_column_is_required(written, name):
    """A file without a required column is rejected as a whole, before its rows are read."""
    source, header, rows = TRACES[name]
    unread = {"cpu_milli", "memory_mib", "gpu_spec", "gpu_time"}
    for number, column in enumerate(header.split(",")):
        if column not in unread:
            kept = [",".join(line.split(",")[:number] + line.split(",")[number + 1 :]) for line in (header, *rows)]
            text = error_of(source(written(*kept, name=f"without-{column}.csv")))
            assert f"without-{column}.csv has no column {column!r}" in text


@pytest.mark.parametrize("name", TRACES)
def test_wrong_file_error_names_file(written, tmp_path, name):
    source, header, rows = TRACES[name]
    other = next(one for one in TRACES if one != name)
    assert "is it the right file?" in error_of(source(written(*TRACES[other][1:2], *TRACES[other][2])))
    empty = tmp_path / "empty.csv"
    empty.touch()
    assert str(empty) in error_of(source(empty))
    binary = tmp_path / "trace.parquet"
    binary.write_bytes(b"PAR1\xff\xfe\x00\x01" * 100)
    assert str(binary) in error_of(source(binary))
    torn = tmp_path / "torn.csv"
    torn.write_bytes("\n".join([header, *rows]).encode() + b"\n\xff\xfe\xfd")
    assert str(torn) in error_of(source(torn))
    huge = written(header, "x" * 200_000, name="huge.csv")
    assert str(huge) in error_of(source(huge))


@pytest.mark.parametrize("name", TRACES)
def test_missing_file_error_names_file(tmp_path, name):
    source = TRACES[name][0]
    for path in (tmp_path / "missing.csv", tmp_path):  # a file that is not there, a folder that does not hold it
        text = error_of(source(path))
        assert str(path) in text
        assert "No such file" in text


# -- the real traces --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def openb(real_data, new_reading, tmp_path_factory):
    """The real openb trace, read and accounted for."""
    reading = new_reading(tmp_path_factory.mktemp("openb"))
    reading.trace = OpenbTrace(real_data / "openb")
    reading.take(reading.trace)
    reading.store.expose_all(["ledger_row"])
    return reading


@pytest.mark.heavy
def test_openb_has_the_published_hours(openb):
    hours = {outcome: round(value, 1) for outcome, value in openb.hours_by("outcome").items()}
    assert hours == {"Running": 46_439.9, "Succeeded": 4_094.8, "Failed": 936.0}
    assert round(sum(openb.hours_by("outcome").values()), 1) == 51_470.7
    assert openb.trace.counts["GPU pods never scheduled"] == 861


@pytest.mark.heavy
def test_openb_slot_minutes_are_at_most_a_minute(openb):
    assert openb.ask("SELECT count(*) FROM ledger_row")[0][0] > 1_000_000
    (most,) = openb.ask(
        "SELECT max(held) FROM (SELECT sum(ms) AS held FROM ledger_row GROUP BY node_uid, slot_index, minute_ms)"
    )[0]
    assert most == 60_000
    assert openb.ask("SELECT min(ms) > 0 FROM ledger_row") == [(True,)]


@pytest.mark.heavy
def test_openb_fractions_are_allocated(openb, real_data):
    held = dict(openb.ask("SELECT pod_uid, sum(ms) FROM ledger_row GROUP BY pod_uid"))
    fractions = 0
    with (real_data / "openb" / "openb_pod_list_default.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            gpus = int(row["num_gpu"])
            if gpus == 0 or not row["scheduled_time"]:
                assert row["name"] not in held
                continue
            seconds = int(row["deletion_time"]) - int(row["scheduled_time"])
            share = int(row["gpu_milli"]) if gpus == 1 else 1000
            fractions += share < 1000
            # a minute is rounded once
            assert abs(held.get(row["name"], 0) - seconds * share * gpus) <= 1 + seconds / 60
    assert fractions > 1_000


@pytest.mark.heavy
def test_openb_passes_consistency_check(openb):
    assert list(problems(openb.store)) == []


@pytest.mark.heavy
def test_philly_has_the_published_figures(real_data, reading):
    reading.take(PhillyTrace(real_data / "philly"))
    reading.store.expose_all(["ledger_row", "pod"])
    jobs, single, hours, single_hours, most = reading.ask(
        """
        SELECT count(*), count(*) FILTER (gpus = 1), sum(ms) / 3.6e6, sum(ms) FILTER (gpus = 1) / 3.6e6, max(most)
        FROM (SELECT pod_uid, gpu_share // $1 AS gpus FROM pod)
        LEFT JOIN (SELECT pod_uid, sum(ms) AS ms, max(ms) AS most FROM ledger_row GROUP BY pod_uid) USING (pod_uid)
        """,
        SHARE_WHOLE,
    )[0]
    assert jobs == 82_247
    assert round(hours, 1) == 978_078.5
    assert round(100 * single / jobs, 2) == 93.17
    assert round(100 * single_hours / hours, 2) == 18.07
    assert most <= 60_000
