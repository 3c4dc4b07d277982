"""`throttled`: clocks below the usual, with a reason."""

from __future__ import annotations

from datetime import UTC
from itertools import chain

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import GpuSample, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support.clusters import MINUTE, START_MS, at, cluster, explain, job, minutes, pod, run, steps

BUSY = {"gpu_util_permille": 930, "sm_active_permille": 820, "power_w": 674}
THERMAL, BRAKE, POWER_CAP = 0x20, 0x80, 0x4


def watched(slow=None, *, nodes=(0, 1), gpus=2, mhz=1_800, to_min=120):
    """A sample a minute of GPUs at work; `slow(node, gpu, minute)` gives what is different there."""
    return [
        GpuSample(
            at(minute),
            f"n{node}",
            gpu,
            **(
                BUSY
                | {
                    "sm_clock_mhz": mhz + minute * 7919 % 31 - 15,
                    "temperature_c": 62,
                    "throttle_reasons": POWER_CAP * (minute % 3 == 0),
                }
                | ((slow and slow(node, gpu, minute)) or {})
            ),
        )
        for node in nodes
        for gpu in range(gpus)
        for minute in range(to_min)
    ]


def on(node, gpu, from_min, to_min, **values):
    return lambda n, g, minute: values if (n, g) == (node, gpu) and from_min <= minute < to_min else None


def only(answer):
    (finding,) = answer["findings"]
    assert finding["cause"] == "throttled"
    return finding


HOT = {"sm_clock_mhz": 1_200, "throttle_reasons": THERMAL | POWER_CAP, "temperature_c": 88}


def test_throttled_claims_the_excess_of_a_hot_gpu(tmp_path):
    finding = only(explain(tmp_path, [*cluster(), *job(), *watched(on(1, 0, 30, 90, **HOT))]))
    assert finding["culprit"] == {"node": "node-1", "gpu": 0}
    assert (finding["from"], finding["to"]) == minutes(30, 90)
    assert finding["gpu_ms"] == 60 * MINUTE * 333 // 1000  # a third of what 1,800 MHz would do is missing
    assert finding["usd_micro"] == finding["gpu_ms"]
    assert finding["evidence"] == [
        "1,200 MHz under load, 1,800 MHz on other GPUs of the workload: 33% slower",
        "the driver reports thermal slowdown by the driver",
        "up to 88 °C",
    ]
    assert "cooling" in finding["suggestion"]


@pytest.mark.parametrize(
    "slow",
    [
        None,
        on(1, 0, 30, 34, **HOT),  # short
        on(1, 0, 30, 90, sm_clock_mhz=1_200, throttle_reasons=POWER_CAP),  # ordinary
        on(1, 0, 30, 90, throttle_reasons=THERMAL, temperature_c=84),  # at its clock all the same
        on(1, 0, 30, 90, sm_clock_mhz=1_200, throttle_reasons=1, gpu_util_permille=0, sm_active_permille=0),
        on(1, 0, 30, 90, sm_clock_mhz=1_200, throttle_reasons=None, temperature_c=70),  # nothing says why
        on(1, 0, 30, 90, sm_clock_mhz=None, throttle_reasons=THERMAL),
    ],
)
def test_similar_patterns_are_not_throttled(tmp_path, slow):
    causes = [f["cause"] for f in explain(tmp_path, [*cluster(), *job(), *watched(slow)])["findings"]]
    assert "throttled" not in causes


def test_throttled_is_found_by_temperature_without_reasons(tmp_path):
    hot = on(1, 0, 30, 90, sm_clock_mhz=1_200, throttle_reasons=None, temperature_c=88)
    finding = only(explain(tmp_path, [*cluster(), *job(), *watched(hot)]))
    assert finding["culprit"] == {"node": "node-1", "gpu": 0}
    assert finding["confidence"] < 0.9


def test_long_small_slowdown_is_throttled(tmp_path):
    mild = on(0, 1, 0, 120, sm_clock_mhz=1_500, throttle_reasons=0x40)
    finding = only(explain(tmp_path, [*cluster(), *job(), *watched(mild)]))
    assert (finding["from"], finding["to"]) == minutes(0, 120)
    assert finding["gpu_ms"] == 120 * MINUTE * 167 // 1000


def test_throttled_is_compared_with_its_own_past_without_peers(tmp_path):
    records = [*cluster(nodes=1, gpus=1), *job(pods=1, gpus=1)]
    finding = only(explain(tmp_path, [*records, *watched(on(0, 0, 60, 120, **HOT), nodes=(0,), gpus=1)]))
    assert (finding["from"], finding["to"]) == minutes(60, 120)


def test_throttled_job_is_compared_with_the_fleet(tmp_path):
    brake = {"sm_clock_mhz": 900, "throttle_reasons": BRAKE}
    other = [Workload(START_MS, "test", "nb", "Job", "ml", "nb", team="cv"), *pod("nb-0", "nb", "n1", gpus=4)]
    clocks = watched(lambda node, gpu, minute: brake if node == 0 else None, gpus=4)
    finding = only(explain(tmp_path, [*cluster(gpus=4), *job(pods=1, gpus=4), *other, *clocks]))
    assert finding["workload"]["name"] == "llama"
    assert finding["culprit"] == {"node": "node-0", "gpus": [0, 1, 2, 3]}
    assert finding["gpu_ms"] == pytest.approx(4 * 60 * MINUTE, rel=0.005)
    assert "MHz on other GPUs of its model" in finding["evidence"][0]
    assert "power supply" in finding["suggestion"]


def test_throttled_is_not_reported_without_a_comparison(tmp_path):
    records = [*cluster(nodes=1), *job(pods=1), *watched(lambda *_: HOT, nodes=(0,))]
    assert explain(tmp_path, records)["findings"] == []


def test_repeated_short_throttling_is_one_finding_with_its_average(tmp_path):
    flaps = on(1, 0, 20, 100, **(HOT | {"sm_clock_mhz": 800}))
    clocks = watched(lambda n, g, minute: flaps(n, g, minute) if minute % 2 == 0 else None)
    finding = only(explain(tmp_path, [*cluster(), *job(), *clocks]))
    assert (finding["from"], finding["to"]) == minutes(20, 99)
    assert finding["gpu_ms"] == pytest.approx(79 * MINUTE * 5 / 18, rel=0.02)


def test_peers_of_a_throttled_gpu_wait_for_a_straggler(tmp_path):
    """Its own excess is throttling; what the others wait is the straggler's."""
    well = {"forward_ms": 20_000, "backward_ms": 30_000, "comm_ms": 1_500, "optimizer_ms": 5_000}
    waits = well | {"forward_ms": 13_000, "backward_ms": 20_000, "comm_ms": 19_000}
    windows = chain.from_iterable(
        steps(rank, 0, 30, **well)
        + steps(rank, 30, 90, **(well if rank == 2 else waits))
        + steps(rank, 90, 120, **well)
        for rank in range(4)
    )
    records = [*cluster(), *job(), *run(), *windows, *watched(on(1, 0, 30, 90, **HOT))]
    found = {f["cause"]: f for f in explain(tmp_path, records)["findings"]}
    assert set(found) == {"straggler", "throttled"}
    assert found["straggler"]["culprit"]["rank"] == 2
    assert found["straggler"]["gpu_ms"] == 3 * 60 * 17_500
    assert found["throttled"]["gpu_ms"] == 60 * (58_500 * 333 // 1000)


def test_throttled_nodes_are_separate_findings(tmp_path):
    first, second = on(0, 0, 30, 90, **HOT), on(1, 1, 40, 100, **HOT)
    clocks = watched(lambda *where: first(*where) or second(*where))
    found = explain(tmp_path, [*cluster(), *job(), *clocks])["findings"]
    assert {tuple(f["culprit"].values()) for f in found} == {("node-0", 0), ("node-1", 1)}


def test_throttled_is_cut_at_the_time_range(tmp_path):
    with Store(tmp_path, create=True) as store:
        store.append([*cluster(), *job(), *watched(on(1, 0, 30, 110, **HOT))])
        build(store, Settings(), now_ms=at(120))
        finding = only(why(store, TimeRange(at(40), at(100)), Settings(), zone=UTC))
    assert (finding["from"], finding["to"]) == minutes(40, 100)


def test_throttled_without_prices_has_no_cost(tmp_path):
    records = [r for r in cluster() if not isinstance(r, Price)]
    finding = only(explain(tmp_path, [*records, *job(), *watched(on(1, 0, 30, 90, **HOT))]))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 60 * MINUTE * 333 // 1000)


def test_unallocated_hot_gpu_is_not_throttled(tmp_path):
    clocks = watched(on(1, 1, 30, 90, **HOT))
    records = [*cluster(), *job(pods=1), *clocks]
    assert "throttled" not in [f["cause"] for f in explain(tmp_path, records)["findings"]]
