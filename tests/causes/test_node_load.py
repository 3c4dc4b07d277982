"""Saturated resources of nodes, reported with stalls, gaps and slow saves; and nothing without measurements."""

from __future__ import annotations

import pytest

from pyrometer.model.human import rate
from pyrometer.model.records import NodeSample, StepWindow
from tests.support.clusters import (
    NORMAL_STEP_MS,
    all_ranks,
    at,
    cluster,
    explain,
    job,
    node_samples,
    only_finding,
    run,
    samples,
    steps,
    two_ranks_per_node,
)

CALM = {
    "cpu_busy_permille": 400,
    "cpu_wait_permille": 10,
    "memory_used_permille": 500,
    "disk_busy_permille": 310,
    "io_stalled_permille": 5,
    "disk_read_mib_s": 900,
    "network_rx_mib_s": 40,
    "network_dropped_per_s": 0,
}
SATURATED = CALM | {"disk_busy_permille": 980}


def stalled(*nodes, from_min=30, to_min=60):
    """A night in which ranks on these nodes wait for data for a while."""
    slow = [r for r in range(4) if r // 2 in nodes]
    windows = [
        w
        for r in range(4)
        for w in steps(r, from_min, to_min, **(NORMAL_STEP_MS | {"data_ms": 24_000 if r in slow else 300}))
    ]
    return [*cluster(), *job(), *run(), *all_ranks(0, from_min), *windows, *all_ranks(to_min, 120)]


def night_of(node, load, *, before=CALM, from_min=30, to_min=60):
    """A node that is loaded for a while."""
    return [
        *node_samples(node, 0, from_min, **before),
        *node_samples(node, from_min, to_min, **load),
        *node_samples(node, to_min, 120, **before),
    ]


def load_lines(folder, records):
    """What the finding says about machines."""
    return [line for line in only_finding("data_stall", explain(folder, records))["evidence"] if line.startswith("on ")]


def test_data_stall_reports_the_saturated_disk_of_its_node(tmp_path):
    records = [*stalled(1), *night_of(0, CALM), *night_of(1, SATURATED)]
    finding = only_finding("data_stall", explain(tmp_path, records))
    assert finding["culprit"] == {"node": "node-1"}
    assert finding["evidence"][2:] == ["on node-1 the busiest disk was busy 98% of the time (31% before)"]


def test_node_load_changes_only_the_evidence(tmp_path):
    without = only_finding("data_stall", explain(tmp_path / "without", stalled(1)))
    with_load = only_finding("data_stall", explain(tmp_path / "with", [*stalled(1), *night_of(1, SATURATED)]))
    assert with_load["evidence"][:2] == without["evidence"]
    assert with_load | {"evidence": None} == without | {"evidence": None}


@pytest.mark.parametrize(
    ("load", "words"),
    [
        ({"cpu_busy_permille": 970}, "CPUs were busy 97% of the time (40% before)"),
        ({"cpu_wait_permille": 350}, "CPUs waited for I/O 35% of the time (1% before)"),
        (
            {"cpu_wait_permille": 350, "io_stalled_permille": 450},
            "all tasks waited for I/O 45% of the time (0.5% before)",
        ),
        ({"memory_used_permille": 990}, "memory was 99% full (50% before)"),
        ({"disk_read_mib_s": 120}, "disks delivered 120 MiB/s (900 MiB/s before)"),
        ({"network_rx_mib_s": 1950}, "the network received 1.9 GiB/s (40 MiB/s before)"),
        ({"network_dropped_per_s": 310}, "the network dropped 310 packets/s (0 before)"),
        (
            {"disk_busy_permille": 980, "cpu_wait_permille": 350, "cpu_busy_permille": 950, "disk_read_mib_s": 1900},
            "the busiest disk was busy 98% of the time (31% before), CPUs were busy 95% of the time (40% before) "
            "and disks delivered 1.9 GiB/s (900 MiB/s before)",
        ),
    ],
)
def test_node_load_describes_each_shortage(tmp_path, load, words):
    assert load_lines(tmp_path, [*stalled(1), *night_of(1, CALM | load)]) == [f"on node-1 {words}"]


@pytest.mark.parametrize(
    "load",
    [
        {},
        {"disk_busy_permille": 700},  # there is room
        {"disk_read_mib_s": 600, "network_rx_mib_s": 45},  # hardly other than before
        {"network_rx_mib_s": 5},  # so little that it does not matter
        {"network_dropped_per_s": 3},
    ],
)
def test_node_load_omits_resources_without_a_shortage(tmp_path, load):
    assert load_lines(tmp_path, [*stalled(1), *night_of(1, CALM | load)]) == []


def test_constantly_busy_disk_is_not_a_shortage(tmp_path):
    assert load_lines(tmp_path, [*stalled(1), *night_of(1, SATURATED, before=SATURATED)]) == []


def test_bursts_are_not_a_shortage(tmp_path):
    load = [NodeSample(at(m), "n1", **(SATURATED if m % 3 == 0 else CALM)) for m in range(120)]
    assert load_lines(tmp_path, [*stalled(1), *load]) == []


def test_two_minutes_are_too_few_for_a_shortage(tmp_path):
    load = night_of(1, SATURATED)
    assert load_lines(tmp_path, [*stalled(1), *(row for row in load if not at(32) <= row.time_ms < at(60))]) == []


def test_stall_from_the_start_is_compared_with_other_nodes(tmp_path):
    records = [*stalled(1, from_min=0), *node_samples(0, 0, 120, **CALM), *night_of(1, SATURATED, from_min=0)]
    assert load_lines(tmp_path, records) == [
        "on node-1 the busiest disk was busy 98% of the time (31% on its other nodes)"
    ]


def test_shortage_without_a_comparison_has_only_its_own_value(tmp_path):
    load = CALM | {"disk_busy_permille": 980, "network_rx_mib_s": 1950}
    records = [*stalled(1, from_min=0), *node_samples(1, 0, 60, **load)]
    assert load_lines(tmp_path, records) == ["on node-1 the busiest disk was busy 98% of the time"]


def test_stall_on_all_nodes_reports_the_load_of_all_nodes(tmp_path):
    load = SATURATED | {"network_rx_mib_s": 1950}
    assert load_lines(tmp_path, [*stalled(0, 1), *night_of(0, load), *night_of(1, load)]) == [
        "on its 2 nodes the busiest disk was busy 98% of the time (31% before) and "
        "the network received 1.9 GiB/s each (40 MiB/s before)"
    ]


def test_missing_measurement_hides_only_its_own_shortage(tmp_path):
    load = {"disk_busy_permille": 980}
    records = [
        *stalled(1),
        *node_samples(1, 0, 30, disk_busy_permille=310, network_rx_mib_s=40),
        *node_samples(1, 30, 60, **load),
    ]
    assert load_lines(tmp_path, records) == ["on node-1 the busiest disk was busy 98% of the time (31% before)"]


def test_starved_gpus_report_the_load_of_their_node(tmp_path):
    idle = {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 110}
    busy = {"gpu_util_permille": 900, "sm_active_permille": 700, "power_w": 500}
    telemetry = [
        sample
        for minute in range(120)
        for gpu in range(2)
        for sample in samples("n0", gpu, minute, minute + 1, **(idle if 30 <= minute < 90 and minute % 5 < 2 else busy))
    ]
    records = [*cluster(nodes=1), *job(pods=1), *telemetry, *night_of(0, CALM | {"cpu_busy_permille": 990}, to_min=90)]
    finding = only_finding("starved", explain(tmp_path, records))
    assert finding["evidence"][2:] == ["on node-0 CPUs were busy 99% of the time (40% before)"]


class TestSaves:
    def records(self, took_s=200, only_on=None):
        """A save every ten minutes; three of them are slow."""
        records = [*cluster()]
        for rank, place, there in two_ranks_per_node("llama", (0, 1)):
            records += there
            for minute in range(0, 120, 10):
                slow = minute in (40, 50, 60) and only_on in (None, rank // 2)
                to_ms = at(minute) + 1000 * (took_s if slow else 20)
                records.append(
                    StepWindow(at(minute), to_ms, "llama", 1, rank, checkpoint_ms=to_ms - at(minute), **place)
                )
                records.append(
                    StepWindow(to_ms, at(minute + 10), "llama", 1, rank, first_step=minute, steps=10, **place)
                )
        return records

    def load(self, node, **saving):
        """Little is written, but for the minutes of slow saves."""
        calm = {"disk_busy_permille": 50, "disk_write_mib_s": 1, "network_tx_mib_s": 30}
        return [
            NodeSample(at(m), f"n{node}", **(calm | saving if m >= 40 and m < 70 and m % 10 < 3 else calm))
            for m in range(120)
        ]

    def load_lines(self, folder, *records):
        evidence = only_finding("slow_checkpoint", explain(folder, [record for some in records for record in some]))[
            "evidence"
        ]
        return [line for line in evidence if line.startswith("on ")]

    def test_slow_checkpoint_reports_the_write_rate(self, tmp_path):
        load = {"disk_busy_permille": 990, "disk_write_mib_s": 700}
        assert self.load_lines(tmp_path, self.records(), self.load(0, **load), self.load(1, **load)) == [
            "on its 2 nodes the busiest disk was busy 99% of the time, disks wrote 1.4 GiB/s and "
            "the network sent 60 MiB/s while saving"
        ]

    def test_slow_checkpoint_reports_the_load_of_the_slow_node(self, tmp_path):
        load = self.load(0, disk_write_mib_s=900), self.load(1, disk_write_mib_s=12)
        assert self.load_lines(tmp_path, self.records(only_on=1), *load) == [
            "on node-1 disks wrote 12 MiB/s and the network sent 30 MiB/s while saving"
        ]

    def test_slow_checkpoint_without_measurements_reports_no_load(self, tmp_path):
        assert self.load_lines(tmp_path, self.records()) == []


@pytest.mark.parametrize(
    ("mib_s", "words"),
    [(0, "0 MiB/s"), (40.4, "40 MiB/s"), (999, "999 MiB/s"), (1024, "1.0 GiB/s"), (1950, "1.9 GiB/s")],
)
def test_rates_have_units(mib_s, words):
    assert rate(mib_s) == words
