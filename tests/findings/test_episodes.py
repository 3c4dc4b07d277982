"""Episodes begin and end when the state did, not with the minute, and their figures are those of that time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.account.build.ledger import build
from pyrometer.account.query.time_range import TimeRange
from pyrometer.answers.why import why
from pyrometer.model.records import Allocation, GpuSample, Pod, Workload
from pyrometer.model.settings import Settings
from pyrometer.model.units import SHARE_WHOLE
from pyrometer.store import Store
from tests.support.clusters import HOUR, START_MS, at, cluster, explain, findings_of, pod

GPUS = 2
EVERYTHING = Settings(finding_min_usd_micro=0, finding_min_ms=1)
HEALTHY = {"gpu_util_permille": 960, "sm_active_permille": 800, "power_w": 640}
HUNG = {"gpu_util_permille": 1000, "sm_active_permille": 10, "power_w": 90}
IDLE = {"gpu_util_permille": 0, "sm_active_permille": 0, "power_w": 80}
FIGURES = "its GPUs reported 100% utilization but only 1% of their SMs were active at 90 W: a spinning kernel"


def seen(node, every_ms, phase_ms, spans, values, *, to_min=60, slots=range(GPUS)):
    """Samples of a node: `values` in some spans of milliseconds after the start, healthy around them."""
    return [
        GpuSample(
            START_MS + ms,
            f"n{node}",
            slot,
            **(values if any(begins <= ms < ends for begins, ends in spans) else HEALTHY),
        )
        for slot in slots
        for ms in range(phase_ms, to_min * 60_000, every_ms)
    ]


def times(finding):
    """From when to when, in milliseconds after the start."""
    return tuple(round(datetime.fromisoformat(finding[end]).timestamp() * 1000) - START_MS for end in ("from", "to"))


def sampled_at(begins, ends, every_ms, phase_ms):
    """The first sample in a span, and the first after it."""
    first, after = (phase_ms - (phase_ms - ms) // every_ms * every_ms for ms in (begins, ends))
    return (max(first, phase_ms), max(after, phase_ms)) if first < after else None


# Where in the hour a hang begins and ends, in milliseconds.
SPANS = {
    "inside a minute": ((1_810_000, 1_840_000),),
    "at the beginning of a minute": ((1_800_000, 1_825_000),),
    "up to the end of a minute": ((1_823_000, 1_860_000),),
    "over a border": ((1_850_123, 1_874_456),),
    "over two borders": ((1_850_123, 1_944_456),),
    "whole minutes": ((1_800_000, 1_920_000),),
    "twice in a minute": ((1_805_000, 1_816_000), (1_840_000, 1_852_000)),
    "in neighboring minutes": ((1_810_000, 1_822_000), (1_895_000, 1_908_000)),
    "in three minutes": ((1_810_000, 1_822_000), (1_865_000, 1_899_000), (1_932_000, 1_951_000)),
    "twice": ((600_500, 611_500), (2_400_500, 2_411_500)),
}


@pytest.mark.parametrize("hourly", [False, True])
def test_hang_episode_has_its_own_times_and_figures(tmp_path, hourly):
    """In the second hour, with the ledger built at once and hour by hour: what came before is handed over then."""
    records = cluster(hours=3, nodes=len(SPANS), gpus=GPUS)
    for node, spans in enumerate(SPANS.values()):
        records += pod(f"pod-{node}", None, f"n{node}", gpus=GPUS)
        records += seen(node, 5_000, 700, [(HOUR + a, HOUR + b) for a, b in spans], HUNG, to_min=180)
    with Store(tmp_path / "data", create=True) as store:
        store.append(records)
        for now_ms in (START_MS + HOUR, START_MS + 2 * HOUR)[: 2 * hourly]:
            build(store, EVERYTHING, now_ms=now_ms)
        build(store, EVERYTHING, now_ms=START_MS + 3 * HOUR)
        answer = why(store, TimeRange(START_MS, START_MS + 3 * HOUR), EVERYTHING, zone=UTC)
    for node, (name, spans) in enumerate(SPANS.items()):
        hangs = [one for one in findings_of("hang", answer) if one["owner_uid"] == f"pod-{node}"]
        ends = [sampled_at(HOUR + a, HOUR + b, 5_000, 700) for a, b in spans]
        if name != "twice":
            ends = [(ends[0][0], ends[-1][1])]
        assert sorted(map(times, hangs)) == ends, name
        assert all(FIGURES in one["evidence"] for one in hangs), name
        assert sum(one["gpu_ms"] for one in hangs) == GPUS * sum(
            b - a for a, b in (sampled_at(HOUR + a, HOUR + b, 5_000, 700) for a, b in spans)
        ), name


@settings(max_examples=6, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(5_000, 30_000),
            st.integers(0, 30_000),
            st.integers(900_000, 1_500_000),
            st.integers(30_000, 400_000),
        ),
        min_size=8,
        max_size=8,
    )
)
def test_episode_ends_are_within_one_sample_of_the_truth(tmp_path_factory, planted):
    records = cluster(hours=1, nodes=len(planted), gpus=GPUS)
    for node, (every_ms, phase_ms, begins, length_ms) in enumerate(planted):
        records += pod(f"pod-{node}", None, f"n{node}", gpus=GPUS)
        records += seen(node, every_ms, phase_ms, [(begins, begins + length_ms)], HUNG)
    answer = explain(tmp_path_factory.mktemp("night"), records, hours=1, settings=EVERYTHING)
    hangs = {one["owner_uid"]: one for one in findings_of("hang", answer)}
    for node, (every_ms, phase_ms, begins, length_ms) in enumerate(planted):
        hang = hangs[f"pod-{node}"]
        from_ms, to_ms = times(hang)
        assert (from_ms, to_ms) == sampled_at(begins, begins + length_ms, every_ms, phase_ms)
        assert 0 <= from_ms - begins < every_ms
        assert 0 <= to_ms - (begins + length_ms) < every_ms
        assert FIGURES in hang["evidence"]
        assert hang["gpu_ms"] == GPUS * (to_ms - from_ms)


def test_episode_figures_are_of_the_hung_gpus(tmp_path):
    """One of two GPUs of a pod hangs, later the other one."""
    span, later = [(1_810_000, 1_840_000)], [(1_900_000, 1_990_000)]
    records = [*cluster(hours=1), *pod("pod", None, "n0", gpus=GPUS)]
    records += seen(0, 5_000, 0, span, HUNG, slots=[0]) + seen(0, 5_000, 0, later, HUNG, slots=[1])
    (hang,) = findings_of("hang", explain(tmp_path, records, hours=1, settings=EVERYTHING))
    assert times(hang) == (1_810_000, 1_990_000)
    assert FIGURES in hang["evidence"]
    assert hang["gpu_ms"] == 30_000 + 90_000


def test_hang_on_part_of_a_gpu_is_an_episode(tmp_path):
    """Half of its time is its; its times are those of the clock."""
    half = Allocation(START_MS, "pod", "n0", 0, START_MS, None, SHARE_WHOLE // 2)
    records = [*cluster(hours=1, nodes=1), *pod("pod", None, "n0", gpus=0), half]
    records += seen(0, 5_000, 0, [(1_810_000, 1_840_000)], HUNG, slots=[0])
    (hang,) = findings_of("hang", explain(tmp_path, records, hours=1, settings=EVERYTHING))
    assert times(hang) == (1_810_000, 1_840_000)
    assert hang["gpu_ms"] == 15_000


def test_idle_episode_ends_with_the_next_holder(tmp_path):
    records = [*cluster(hours=2), *pod("pod", None, "n0", gpus=GPUS)]
    records += seen(0, 30_000, 11_000, [(1_217_500, 3_322_200)], IDLE, to_min=120)
    (idle,) = findings_of("idle_held", explain(tmp_path, records, settings=EVERYTHING))
    assert times(idle) == sampled_at(1_217_500, 3_322_200, 30_000, 11_000)


def test_gang_wait_of_seconds_has_exact_times(tmp_path):
    """Inside one minute: nothing is sampled, Kubernetes says when each pod came."""
    records = [*cluster(hours=1), Workload(START_MS, "test", "job", "PyTorchJob", "ml", "job", gang_pods=2)]
    for number, came_s in enumerate((610, 640)):
        ms = at(came_s / 60)
        records += [
            Pod(
                ms,
                "test",
                f"p{number}",
                "ml",
                f"p{number}",
                "Running",
                workload_uid="job",
                node_uid=f"n{number}",
                scheduled_ms=ms,
                started_ms=ms,
            ),
            *(Allocation(ms, f"p{number}", f"n{number}", gpu, ms, None, SHARE_WHOLE) for gpu in range(GPUS)),
        ]
    (wait,) = findings_of("gang_wait", explain(tmp_path, records, hours=1, settings=EVERYTHING))
    assert times(wait) == (610_000, 640_000)
    assert wait["gpu_ms"] == GPUS * 30_000


def test_episode_without_measurements_covers_its_minutes(tmp_path):
    records = [*cluster(hours=1), *pod("pod", None, "n0", gpus=GPUS)]
    records += seen(0, 5_000, 0, [(1_810_000, 1_840_000)], HUNG)
    explain(tmp_path, records, hours=1, settings=EVERYTHING)
    with Store(tmp_path) as store:
        store.seal()
        store.drop_parts(store.parts("gpu_sample"))
        answer = why(store, TimeRange(START_MS, START_MS + HOUR), EVERYTHING, zone=UTC)
    (hang,) = findings_of("hang", answer)
    assert times(hang) == (1_800_000, 1_860_000)
    assert hang["gpu_ms"] == GPUS * 30_000
