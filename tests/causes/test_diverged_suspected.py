"""`diverged_suspected` on a small cluster: less power for the same activity, and everything else that looks like it."""

from __future__ import annotations

from datetime import UTC
from functools import partial
from random import Random

import pytest

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import GpuSample, Price, Workload
from pyrometer.model.settings import Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.clusters import MINUTE, START_MS, at, cluster, explain, interval, job, minutes, pod, run, steps

# As measured on an H200: the power cap is felt while it trains, and no longer when the numbers are NaN.
TRAINS = {
    "gpu_util_permille": 930,
    "sm_active_permille": 820,
    "tensor_active_permille": 253,
    "dram_active_permille": 414,
    "power_w": 674,
    "sm_clock_mhz": 1965,
    "throttle_reasons": 4,
}
ON_NAN = TRAINS | {
    "sm_active_permille": 808,
    "tensor_active_permille": 250,
    "dram_active_permille": 420,
    "power_w": 474,
    "sm_clock_mhz": 1980,
    "throttle_reasons": 0,
}
EVALUATES = TRAINS | {
    "sm_active_permille": 901,
    "tensor_active_permille": 264,
    "dram_active_permille": 449,
    "power_w": 691,
}
NOISE = {"power_w": 7, "sm_active_permille": 10, "tensor_active_permille": 4, "dram_active_permille": 6}


found = partial(clusters.findings_of, "diverged_suspected")
only = partial(clusters.only_finding, "diverged_suspected")


def telemetry(*phases, node="n0", slot=0, every_s=30, seed=1):
    """Samples of phases (from minute, to minute, values), with the noise that was measured."""
    chance = Random(f"{seed} {node} {slot}")
    made = []
    for from_min, to_min, values in phases:
        for time_ms in range(at(from_min), at(to_min), every_s * 1000):
            noisy = {
                name: value if value is None else round(chance.gauss(value, NOISE.get(name, 0)))
                for name, value in values.items()
            }
            made.append(GpuSample(time_ms, node, slot, **noisy))
    return made


def everywhere(*phases, **more):
    return [s for n in range(4) for s in telemetry(*phases, node=f"n{n // 2}", slot=n % 2, **more)]


def night(*phases, **more):
    return [*cluster(), *job(), *everywhere(*phases, **more)]


@pytest.mark.parametrize("every_s", [10, 30, 60])
def test_less_power_at_the_same_activity_is_suspected_divergence(tmp_path, every_s):
    (finding,) = explain(tmp_path, night((0, 47, TRAINS), (47, 120, ON_NAN), every_s=every_s))["findings"]
    assert finding["cause"] == "diverged_suspected"
    assert interval(finding) == minutes(47, 120)
    assert finding["gpu_ms"] == 4 * 73 * MINUTE
    assert finding["usd_micro"] == 4 * 73 * 60_000
    assert finding["culprit"] is None
    assert finding["confidence"] == 0.6
    assert finding["title"].startswith("llama may have trained on NaN for 1 h 13 min, since 20:47")
    assert finding["evidence"][1] == ("their activity (SM 82%, tensor 25%, DRAM 41%) and clocks do not explain it")


@pytest.mark.parametrize(
    "shares",
    [
        pytest.param((1.0, 0.85, 0.95, 0.8, 1.0, 0.9, 0.82, 1.0, 0.88, 0.96, 0.8, 1.0), id="a little"),
        pytest.param((0.7, 0.6, 0.7, 1.0, 1.0, 1.0, 0.6, 0.6, 0.6, 0.7, 1.0, 1.0), id="as it did before"),
    ],
)
def test_varying_activity_does_not_hide_divergence(tmp_path, shares):
    def at_share(look, share):
        drawn = {"power_w": round(60 + (look["power_w"] - 60) * share)}
        return look | drawn | {name: round(look[name] * share) for name in look if name.endswith("_permille")}

    phases = [(10 * n, 10 * n + 10, at_share(TRAINS if n < 6 else ON_NAN, share)) for n, share in enumerate(shares)]
    (finding,) = explain(tmp_path / "nan", night(*phases))["findings"]
    assert finding["cause"] == "diverged_suspected"
    assert interval(finding) == minutes(60, 120)
    steady = [(from_min, to_min, at_share(TRAINS, shares[n])) for n, (from_min, to_min, _) in enumerate(phases)]
    assert explain(tmp_path / "steady", night(*steady))["findings"] == []


def test_steady_run_is_not_suspected(tmp_path):
    assert explain(tmp_path, night((0, 120, TRAINS)))["findings"] == []


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(ON_NAN | {"power_w": 610}, id="a little less power"),
        pytest.param(ON_NAN | {"power_w": 300}, id="far too little power"),
        pytest.param(ON_NAN | {"sm_clock_mhz": 1400}, id="a lower clock"),
        pytest.param(ON_NAN | {"sm_clock_mhz": None, "throttle_reasons": 0x48}, id="throttled"),
        pytest.param(ON_NAN | {"sm_active_permille": 600, "tensor_active_permille": 180}, id="less activity"),
        pytest.param(ON_NAN | {"dram_active_permille": 300}, id="less memory traffic"),
        pytest.param(EVALUATES, id="another phase"),
    ],
)
def test_similar_patterns_are_not_suspected(tmp_path, after):
    before = TRAINS | {"throttle_reasons": 0}
    assert found(explain(tmp_path, night((0, 50, before), (50, 120, after)))) == []


def test_power_that_recovers_is_not_suspected(tmp_path):
    assert found(explain(tmp_path, night((0, 40, TRAINS), (40, 70, ON_NAN), (70, 120, TRAINS)))) == []


def test_slow_power_drop_is_not_suspected(tmp_path):
    slowly = [(10 * n, 10 * n + 10, TRAINS | {"power_w": 674 - 20 * n}) for n in range(12)]
    assert found(explain(tmp_path, night(*slowly))) == []


def test_evaluations_do_not_hide_divergence(tmp_path):
    phases = [(20 * n, 20 * n + 18, TRAINS if n < 3 else ON_NAN) for n in range(6)]
    phases += [(20 * n + 18, 20 * n + 20, EVALUATES if n < 3 else EVALUATES | {"power_w": 490}) for n in range(6)]
    finding = only(explain(tmp_path, night(*sorted(phases, key=lambda p: p[0]))))
    assert interval(finding) == minutes(60, 120)


def test_one_gpu_with_constant_power_rules_out_divergence(tmp_path):
    records = [*cluster(), *job()]
    for number in range(4):
        after = TRAINS if number == 3 else ON_NAN
        records += telemetry((0, 50, TRAINS), (50, 120, after), node=f"n{number // 2}", slot=number % 2)
    assert found(explain(tmp_path, records)) == []


def test_suspected_divergence_ends_with_the_attempt(tmp_path):
    records = [
        *cluster(),
        *job(to_min=90),
        *[p for n in (0, 1) for p in pod(f"again-{n}", "llama", f"n{n}", from_min=95, attempt=2)],
        *everywhere((0, 50, TRAINS), (50, 90, ON_NAN), (95, 120, TRAINS)),
    ]
    assert interval(only(explain(tmp_path, records))) == minutes(50, 90)


def test_later_attempt_at_less_power_is_not_suspected(tmp_path):
    records = [
        *cluster(),
        *job(to_min=60),
        *[p for n in (0, 1) for p in pod(f"again-{n}", "llama", f"n{n}", from_min=60, attempt=2)],
        *everywhere((0, 60, TRAINS), (60, 120, ON_NAN)),
    ]
    assert found(explain(tmp_path, records)) == []


@pytest.mark.parametrize(
    "missing",
    [
        ("sm_active_permille", "tensor_active_permille", "dram_active_permille"),
        ("power_w",),
        ("sm_clock_mhz", "throttle_reasons"),
    ],
)
def test_divergence_is_not_suspected_without_its_counters(tmp_path, missing):
    blank = dict.fromkeys(missing)
    assert found(explain(tmp_path, night((0, 50, TRAINS | blank), (50, 120, ON_NAN | blank)))) == []


def test_divergence_is_suspected_with_the_default_counters_of_the_exporter(tmp_path):
    blank = {"sm_active_permille": None, "throttle_reasons": None}
    finding = only(explain(tmp_path, night((0, 50, TRAINS | blank), (50, 120, ON_NAN | blank))))
    assert interval(finding) == minutes(50, 120)


def test_divergence_is_not_guessed_for_runs_with_the_sdk(tmp_path):
    windows = [w for rank in range(4) for w in steps(rank, 0, 120, forward_ms=20_000, backward_ms=30_000)]
    records = [*night((0, 50, TRAINS), (50, 120, ON_NAN)), *run(), *windows]
    assert found(explain(tmp_path, records)) == []


def test_concurrent_suspected_divergences_are_two_findings(tmp_path):
    more = [
        *(r._replace(node_uid="n2", name="node-2") for r in cluster(nodes=1) if hasattr(r, "gpu_count")),
        Workload(START_MS, "test", "bert", "PyTorchJob", "ml", "bert", team="nlp"),
        *pod("bert-0", "bert", "n2"),
        *[s for slot in (0, 1) for s in telemetry((0, 80, TRAINS), (80, 120, ON_NAN), node="n2", slot=slot)],
    ]
    answer = explain(tmp_path, [*night((0, 50, TRAINS), (50, 120, ON_NAN)), *more])
    spent = {f["workload"]["name"]: (interval(f), f["gpu_ms"]) for f in found(answer)}
    assert spent == {"llama": (minutes(50, 120), 4 * 70 * MINUTE), "bert": (minutes(80, 120), 2 * 40 * MINUTE)}


def test_suspected_divergence_is_cut_at_the_time_range(tmp_path):
    with Store(tmp_path, create=True) as store:
        store.append(night((0, 50, TRAINS), (50, 120, ON_NAN)))
        build(store, Settings(), now_ms=at(120))
        finding = only(why(store, TimeRange(at(60), at(90)), Settings(), zone=UTC))
        assert interval(finding) == minutes(60, 90)  # the hour before it shows the fall
        assert finding["gpu_ms"] == 4 * 30 * MINUTE
        assert found(why(store, TimeRange(at(0), at(50)), Settings(), zone=UTC)) == []


def test_suspected_divergence_without_prices_has_no_cost(tmp_path):
    records = [r for r in night((0, 50, TRAINS), (50, 120, ON_NAN)) if not isinstance(r, Price)]
    finding = only(explain(tmp_path, records))
    assert (finding["usd_micro"], finding["gpu_ms"]) == (None, 4 * 70 * MINUTE)
