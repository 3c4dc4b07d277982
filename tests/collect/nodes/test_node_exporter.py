"""node_exporter values become the same rows however they are read, including all special cases of counters."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.collect.nodes.node_exporter import (
    MATCHERS,
    MAX_INTERVAL_MS,
    NAMES,
    NodeExporters,
    machine_part_of,
    measure_of,
)
from pyrometer.model.columns import schema_of
from pyrometer.model.records import NodeSample

MINUTE = 60_000
T0 = 1_794_600_000_000  # a whole hour
SIZES = {"int16": 2**15, "int32": 2**31, "int64": 2**63}
HERE = {"instance": "10.0.0.7:9100", "job": "node"}
MIB = 2**20


def series_of(series):
    """Name and labels from a short form: `cpu_seconds_total cpu=0 mode=idle`."""
    name, *labels = series.split()
    return f"node_{name}", dict(label.split("=") for label in labels)


def samples_of(time_ms, values, target=HERE):
    samples = []
    for series, value in values.items():
        name, labels = series_of(series)
        place = machine_part_of(labels | target)
        if measure_of(name) is not None and place is not None:
            samples.append((measure_of(name), place, value, time_ms))
    return samples


def scraped(scrapes, target=HERE, nodes=None):
    """The rows of scrapes as they come, one after the other."""
    exporters = NodeExporters((nodes or {}).get)
    rows = [row for time_ms, values in scrapes for row in exporters.take(samples_of(time_ms, values, target))]
    return rows + exporters.rest()


def remembered(scrapes, cuts=()):
    """The rows of the same values from Prometheus, read in pieces that end after these numbers of scrapes."""
    exporters, rows = NodeExporters({}.get), []
    for first, last in zip([0, *cuts], [*cuts, len(scrapes)], strict=True):
        series = {}
        for time_ms, values in scrapes[first:last]:
            for measure, place, value, _ in samples_of(time_ms, values):
                series.setdefault((measure, place), []).append((time_ms, value))
        rows += exporters.take_series(
            [
                (measure, place, np.array([t for t, _ in points]), np.array([v for _, v in points], float))
                for (measure, place), points in series.items()
            ]
        )
    return rows + exporters.rest()


def machine(seconds, *, cpus=2, **changes):
    """A steady machine after `seconds`: half idle, a tenth waiting for a disk that is busy 80 % of the time."""
    values = {
        "memory_MemTotal_bytes": 64 * 2**30,
        "memory_MemAvailable_bytes": 16 * 2**30,
        "disk_io_time_seconds_total device=nvme0n1": 0.8 * seconds,
        "disk_io_time_seconds_total device=nvme1n1": 0.1 * seconds,
        "disk_read_bytes_total device=nvme0n1": 300 * MIB * seconds,
        "disk_read_bytes_total device=nvme1n1": 20 * MIB * seconds,
        "disk_written_bytes_total device=nvme0n1": 5 * MIB * seconds,
        "network_receive_bytes_total device=eth0": 100 * MIB * seconds,
        "network_receive_bytes_total device=eth1": 900 * MIB * seconds,
        "network_transmit_bytes_total device=eth0": 40 * MIB * seconds,
        "network_receive_drop_total device=eth0": 7 * seconds,
        "pressure_io_stalled_seconds_total": 0.25 * seconds,
        "uname_info nodename=gpu-7": 1,
    }
    for cpu in range(cpus):
        values[f"cpu_seconds_total cpu={cpu} mode=idle"] = 0.5 * seconds
        values[f"cpu_seconds_total cpu={cpu} mode=iowait"] = 0.1 * seconds
        values[f"cpu_seconds_total cpu={cpu} mode=user"] = 0.4 * seconds
    return values | {name.replace("__", " device="): value for name, value in changes.items()}


STEADY = NodeSample(
    T0 + MINUTE,
    "host/gpu-7",
    cpu_busy_permille=400,
    cpu_wait_permille=100,
    memory_used_permille=750,
    disk_busy_permille=800,
    io_stalled_permille=250,
    disk_read_mib_s=320,
    disk_write_mib_s=5,
    network_rx_mib_s=1000,
    network_tx_mib_s=40,
    network_dropped_per_s=7,
)


def steadily(minutes, every_s=15, from_s=5, **changes):
    """Scrapes of the steady machine, the first a little after the whole minute."""
    return [
        (T0 + 1000 * (from_s + s), machine(1_000_000 + s, **changes)) for s in range(0, 60 * minutes - from_s, every_s)
    ]


def without(scrapes, which):
    """The scrapes without the values for which `which` holds."""
    return [(t, {series: v for series, v in values.items() if not which(t, series)}) for t, values in scrapes]


def changed(scrapes, from_ms, changes):
    """The scrapes with other values from a time on."""
    return [(t, values | changes(values) if t >= from_ms else values) for t, values in scrapes]


# -- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("every_s", [1, 15, 30, 60])
def test_node_exporter_rows_of_steady_machine(every_s):
    first, *later = scraped(steadily(4, every_s))
    assert first == NodeSample(T0, "host/gpu-7", memory_used_permille=750)  # one scrape gives no rate
    assert later == [STEADY._replace(time_ms=T0 + m * MINUTE) for m in (1, 2, 3)]


def test_node_exporter_rows_of_infrequent_scrapes():
    assert scraped(steadily(7, 120))[1:] == [STEADY._replace(time_ms=T0 + m * MINUTE) for m in (2, 4, 6)]


def test_minute_is_written_once_after_its_end():
    exporters, rows = NodeExporters({}.get), []
    for time_ms, values in steadily(3):
        new = exporters.take(samples_of(time_ms, values))
        assert all(row.time_ms + MINUTE <= time_ms for row in new)
        rows += new
    assert [row.time_ms for row in rows] == [T0, T0 + MINUTE]
    assert [row.time_ms for row in exporters.rest()] == [T0 + 2 * MINUTE]
    assert exporters.rest() == []


def test_late_values_change_nothing():
    exporters = NodeExporters({}.get)
    scrapes = steadily(3)
    for time_ms, values in scrapes:
        exporters.take(samples_of(time_ms, values))
    assert exporters.take(samples_of(*scrapes[0])) == []
    assert exporters.rest() == [STEADY._replace(time_ms=T0 + 2 * MINUTE)]


def test_silent_machines_are_forgotten():
    exporters = NodeExporters({}.get)
    exporters.take(samples_of(T0, machine(5), HERE))
    exporters.take(samples_of(T0 + 5 * MINUTE, machine(5), {"instance": "10.0.0.8:9100"}))
    assert [row.time_ms for row in exporters.rest(silent_since_ms=T0 + 4 * MINUTE)] == [T0]
    assert [row.time_ms for row in exporters.rest()] == [T0 + 5 * MINUTE]


# -- laws -------------------------------------------------------------------------------------------------------------

SERIES = sorted(machine(0))
grown = st.one_of(
    st.floats(0, 1e3), st.floats(0, 1e13), st.just(0.0), st.sampled_from([-0.01, -1e9, float("nan"), float("inf")])
)


@st.composite
def histories(draw):
    """A machine that does anything: counters that stand, jump, fall or are missing, scrapes at any distance."""
    time_ms, values, scrapes = T0, dict.fromkeys(SERIES, 1e4), []
    for _ in range(draw(st.integers(1, 12))):
        time_ms += draw(st.integers(1, 40_000) | st.integers(40_000, 2 * MAX_INTERVAL_MS))
        shown = {}
        for series in sorted(draw(st.sets(st.sampled_from(SERIES)))):
            step = draw(grown)
            values[series] = max(0.0, values[series] + step) if np.isfinite(step) else values[series]
            shown[series] = values[series] if np.isfinite(step) else step
        gone = draw(st.sets(st.sampled_from(SERIES), max_size=3))
        scrapes.append((time_ms, {series: value for series, value in (values | shown).items() if series not in gone}))
    return scrapes


@given(scrapes=histories(), data=st.data())
@settings(max_examples=60)
@pytest.mark.heavy
def test_scrapes_and_prometheus_history_give_same_rows(scrapes, data):
    cuts = sorted(data.draw(st.sets(st.integers(0, len(scrapes)), max_size=3)))
    named = [(t, values | {"uname_info nodename=gpu-7": 1}) for t, values in scrapes]
    rows = scraped(named)
    assert remembered(named, cuts) == rows
    assert len({row.time_ms for row in rows}) == len(rows)
    for row in rows:
        for column, value in zip(schema_of(NodeSample).columns, row, strict=True):
            if value is not None and column.type != "string":
                assert 0 <= value < SIZES[column.type]
            if value is not None and column.name.endswith("_permille"):
                assert value <= 1000


@given(histories())
@settings(max_examples=40)
@pytest.mark.heavy
def test_newest_scrape_of_minute_is_sufficient(scrapes):
    every = [
        (t, {series: np.nan_to_num(values.get(series, 1.0), posinf=1e9) for series in SERIES}) for t, values in scrapes
    ]
    newest = {t // MINUTE: (t, values) for t, values in every}
    assert scraped(every) == scraped(list(newest.values()))


# -- traps ------------------------------------------------------------------------------------------------------------


def rows_by_minute(scrapes):
    return {(row.time_ms - T0) // MINUTE: row for row in scraped(scrapes)}


def test_rates_are_absent_in_minute_of_reboot():
    again = [(t + 4 * MINUTE, machine(t / 1000 - T0 / 1000)) for t, _ in steadily(4)]
    rows = rows_by_minute([*steadily(4), *again])
    assert rows[3] == STEADY._replace(time_ms=T0 + 3 * MINUTE)
    assert rows[4] == NodeSample(T0 + 4 * MINUTE, "host/gpu-7", memory_used_permille=750)
    assert rows[5] == STEADY._replace(time_ms=T0 + 5 * MINUTE)


def test_slightly_falling_wait_time_is_absent():
    less = {f"cpu_seconds_total cpu={cpu} mode=iowait": 5.0 - 0.01 * cpu for cpu in (0, 1)}
    scrapes = [(t, machine(1000) | dict.fromkeys(less, 5.0)) for t in (T0, T0 + MINUTE)]
    scrapes.append((T0 + 2 * MINUTE, machine(1060) | less))
    last = rows_by_minute(scrapes)[2]
    assert (last.cpu_wait_permille, last.cpu_busy_permille) == (None, 500)


def test_sums_are_absent_when_a_device_changes():
    come = changed(steadily(5), T0 + 2 * MINUTE, lambda _: {"network_receive_bytes_total device=eth2": 1e15})
    rows = rows_by_minute(come)
    assert [rows[m].network_rx_mib_s for m in (1, 2, 3)] == [1000, None, 1000]
    assert rows[2].disk_read_mib_s == 320
    gone = without(steadily(5), lambda t, series: t >= T0 + 2 * MINUTE and "receive_bytes_total device=eth1" in series)
    assert [rows_by_minute(gone)[m].network_rx_mib_s for m in (1, 2, 3)] == [1000, None, 100]


def test_rates_are_absent_after_a_gap():
    scrapes = [(t, values) for t, values in steadily(10) if not T0 + 2 * MINUTE <= t < T0 + 9 * MINUTE]
    rows = rows_by_minute(scrapes)
    assert sorted(rows) == [0, 1, 9]
    assert rows[9] == NodeSample(T0 + 9 * MINUTE, "host/gpu-7", memory_used_permille=750)


@pytest.mark.parametrize("blank", [float("nan"), float("inf"), 1e308, -1.0])
@pytest.mark.parametrize("series", ["memory_MemAvailable_bytes", "memory_MemTotal_bytes"])
def test_invalid_value_does_not_affect_others(series, blank):
    scrapes = changed(steadily(3), T0 + 2 * MINUTE, lambda _: {series: blank})
    assert rows_by_minute(scrapes)[2] == STEADY._replace(time_ms=T0 + 2 * MINUTE, memory_used_permille=None)


@pytest.mark.parametrize("total", [0.0, 5e-324])
def test_zero_total_memory_is_absent(total):
    assert scraped([(T0, {"memory_MemTotal_bytes": total, "memory_MemAvailable_bytes": 1e9})]) == []


def test_ratios_slightly_out_of_range_are_clipped_and_others_absent():
    busy = {0: 0.0, 1: 62.0, 2: 62.0 + 300.0}
    key = "disk_io_time_seconds_total device=nvme0n1"
    rows = rows_by_minute(
        [(T0 + m * MINUTE, {key: seconds, "memory_MemTotal_bytes": 1}) for m, seconds in busy.items()]
    )
    assert rows[1].disk_busy_permille == 1000
    assert 2 not in rows


def test_summed_cpu_series_are_ignored():
    scrapes = [(T0 + m * MINUTE, {"cpu_seconds_total mode=idle": 60.0 * 8 * m}) for m in range(3)]
    assert scraped(scrapes) == []


def test_duplicate_series_count_once():
    """Two jobs of Prometheus read the same exporter; a query with steps gives both the same times."""
    exporters = NodeExporters({}.get)
    rows = []
    for time_ms, values in steadily(2):
        both = [HERE, HERE | {"job": "node-exporter-2"}]
        rows += exporters.take([sample for target in both for sample in samples_of(time_ms, values, target)])
    assert exporters.rest() == [STEADY]


VIRTUAL = """lo veth1a2b cni0 docker0 cali12ab bond0 bond0.100 eth0.7 br-0f1e virbr0 flannel.1 vxlan.calico cilium_host
    lxc_health tunl0 kube-ipvs0 tailscale0 ifb0 dm-0 md127 loop3 zram0 sr0 sda1 vda12 nvme0n1p2 ovs-system"""
PHYSICAL = "eth0 eno1 ens5 enP5p9s0 ib0 ibp12s0 hsn0 em1 sda vdb xvda nvme10n1 rbd0"


def test_virtual_devices_are_ignored():
    devices = (VIRTUAL + " " + PHYSICAL).split()
    assert [device for device in devices if machine_part_of({"device": device} | HERE)] == PHYSICAL.split()


# -- names ------------------------------------------------------------------------------------------------------------


def row_of(target, nodes=None, values=None):
    (row,) = scraped([(T0, values or machine(1))], target, nodes)
    return row.node_uid


@pytest.mark.parametrize(
    ("target", "nodes", "node_uid"),
    [
        (HERE, {}, "host/gpu-7"),  # node_uname_info says it
        (HERE, {"gpu-7": "uid-7"}, "uid-7"),
        (HERE, {"10.0.0.7": "uid-7"}, "uid-7"),
        (HERE | {"node": "worker-7"}, {}, "host/worker-7"),
        (HERE | {"node": "worker-7"}, {"worker-7": "uid-7", "gpu-7": "other"}, "uid-7"),
        (HERE | {"kubernetes_node": "worker-7"}, {}, "host/worker-7"),
        ({"instance": "[2001:db8::7]:9100"}, {"2001:db8::7": "uid-7"}, "uid-7"),
        ({"instance": "worker-7"}, {"worker-7": "uid-7"}, "uid-7"),
    ],
)
def test_machine_part_of_finds_node(target, nodes, node_uid):
    assert row_of(target, nodes) == node_uid


def test_machine_part_of_falls_back_to_address():
    assert row_of(HERE, values={"memory_MemTotal_bytes": 4, "memory_MemAvailable_bytes": 1}) == "host/10.0.0.7"
    assert machine_part_of({"device": "sda"}) is None
    assert machine_part_of({"device": "sda"}, address="10.0.0.7").exporter == "10.0.0.7"
    assert machine_part_of({"device": "sda"}, node="gpu-7").hosts == ("gpu-7",)


def test_prometheus_matchers_select_exactly_the_used_series():
    def through(name, labels):
        for matcher in MATCHERS:
            label, operator, pattern = re.fullmatch(r'(\w+)(=~|!~)"(.*)"', matcher).groups()
            value = name if label == "__name__" else labels.get(label, "")
            if bool(re.fullmatch(pattern, value)) != (operator == "=~"):
                return False
        return True

    series = [*SERIES, "cpu_seconds_total cpu=0 mode=steal", "network_receive_bytes_total device=veth0", "load1"]
    let_through = {one for one in series if through(*series_of(one))}
    used = {one for one in series if series_of(one)[0] in NAMES and machine_part_of(series_of(one)[1] | HERE)}
    assert let_through == used == {one for one in SERIES if "mode=user" not in one}


# -- the real one -----------------------------------------------------------------------------------------------------


def real_scrape(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        taken_ms = time.time_ns() // 1_000_000
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = [
        (measure_of(sample.name), machine_part_of(sample.labels, address="127.0.0.1"), sample.value)
        for sample in samples
        if measure_of(sample.name) is not None
    ]
    return taken_ms, [(measure, place, value) for measure, place, value in found if place is not None]


@pytest.fixture
def real_exporter(tmp_path):
    """A node_exporter for this machine, on a free port."""
    program = shutil.which("prometheus-node-exporter") or shutil.which("node_exporter")
    if program is None:
        pytest.skip("needs a node exporter: apt-get install prometheus-node-exporter, without starting its service")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen([program, f"--web.listen-address={address}"], stderr=log)
    try:
        for _ in range(100):
            try:
                socket.create_connection(address.split(":"), timeout=1).close()
                break
            except ConnectionRefusedError:
                assert running.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.1)  # it says nowhere that it listens
        yield f"http://{address}/metrics"
    finally:
        running.terminate()
        running.wait(timeout=10)


@pytest.mark.heavy
def test_real_node_exporter_is_read(real_exporter):
    """Two scrapes with work between them, with times as if a minute began in between."""
    exporters = NodeExporters({}.get)
    begun_ms, before = real_scrape(real_exporter)
    used_s, written_mib = os.times(), 128
    with tempfile.TemporaryFile(dir="/var/tmp") as file:  # /tmp may be memory
        for _ in range(written_mib):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    while time.time_ns() // 1_000_000 < begun_ms + 3_000:
        sum(range(10_000))
    used_s = sum(os.times()[:2]) - sum(used_s[:2])
    ended_ms, after = real_scrape(real_exporter)
    passed_s = (ended_ms - begun_ms) / 1000
    exporters.take([(*one, T0 - 1) for one in before])
    first, last = [*exporters.take([(*one, T0 - 1 + ended_ms - begun_ms) for one in after]), *exporters.rest()]
    assert first.node_uid == last.node_uid == f"host/{os.uname().nodename}"
    assert first.cpu_busy_permille is None
    assert 0 < last.memory_used_permille < 1000
    ours = 1000 * used_s / passed_s / os.cpu_count()
    assert 0.8 * ours <= last.cpu_busy_permille <= 1000
    assert last.cpu_wait_permille <= 1000 - last.cpu_busy_permille + 50
    assert last.disk_busy_permille > 0
    assert last.disk_write_mib_s >= 0.8 * written_mib / passed_s
    assert last.network_rx_mib_s is not None
    assert last.network_dropped_per_s is not None
