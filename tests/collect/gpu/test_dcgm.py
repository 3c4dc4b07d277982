"""Exporter metrics become the same records for all exporter versions, including all known special cases."""

from __future__ import annotations

import asyncio
import csv

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.collect.gpu.dcgm import Dcgm, measure_of, slot_address_of
from pyrometer.collect.gpu.device import DeviceUse
from pyrometer.collect.gpu.samples import COLUMNS
from pyrometer.collect.gpu.slot_watch import WORKS_AGAIN_MS
from pyrometer.collect.prometheus.exposition import ExpositionReader
from pyrometer.collect.source import Delivery
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.model.columns import schema_of
from pyrometer.model.records import WHOLE_DEVICE, Allocation, Event, GpuSample, Node, Pod, Slot
from pyrometer.model.units import SHARE_WHOLE
from pyrometer_datasets.recording import Recordings
from tests.support.exporter_texts import (
    H200,
    OLD,
    VERSIONS,
    Gpu,
    labels_of,
    line_of,
    lines_of,
    text_of,
    through_prometheus,
)

T0 = 1_794_700_000_000
EVERY_MS = 15_000
SIZES = {"int16": 2**15, "int32": 2**31, "int64": 2**63}


def new_dcgm(known=(), nodes=None):
    return Dcgm(({} if nodes is None else nodes).get, near_idle_power_w, known)


def scraped(dcgm, text, time_ms=T0):
    parsed = ExpositionReader(measure_of, slot_address_of).read(text)
    return dcgm.take([(measure, place, value, time_ms) for measure, place, value, _ in parsed.samples])


def remembered(dcgm, nights, **prometheus):
    """The same as Prometheus has it: one series for each name and labels, with all its times and values."""
    series = {}
    for time_ms, gpus, version in nights:
        for gpu in gpus:
            labels = through_prometheus(labels_of(gpu, version), **prometheus)
            for name, measured in VERSIONS[version][0].items():
                value = measured(gpu)
                key = (name, tuple(sorted(labels.items())))
                series.setdefault(key, []).append((time_ms, float("nan") if value is None else value))
    return dcgm.take_series(
        [
            (measure_of(name), slot_address_of(dict(labels)), *map(np.array, zip(*points, strict=True)))
            for (name, labels), points in series.items()
            if measure_of(name) is not None
        ]
    )


def of(kind, records):
    return [record for record in records if isinstance(record, kind)]


def sample_of(gpu, version="4.9"):
    (sample,) = of(GpuSample, scraped(new_dcgm(), text_of([gpu], version)).records)
    return sample


A_SAMPLE = GpuSample(
    T0,
    "host/node-a",
    0,
    WHOLE_DEVICE,
    gpu_util_permille=930,
    sm_active_permille=820,
    graphics_active_permille=930,
    tensor_active_permille=250,
    dram_active_permille=420,
    memory_used_mib=40_960,
    power_w=674,
    energy_j=5_551_899,
    temperature_c=61,
    sm_clock_mhz=1969,
    throttle_reasons=4,
    xid=0,
)


# -- one night, however it is written ---------------------------------------------------------------------------------

A_NIGHT = [
    (T0, [Gpu(0, pod="train-0"), Gpu(1, gpu_util=0, sm_active=0, graphics=0, tensor=0, dram=0, power_w=80)]),
    (T0 + EVERY_MS, [Gpu(0, pod="train-0", gpu_util=100), Gpu(1, gpu_util=1, power_w=None, xid=31)]),
    (T0 + 2 * EVERY_MS, [Gpu(0, xid=79, gpu_util=100, power_w=125, sm_active=0.008), Gpu(1, pod="other", xid=31)]),
    (T0 + 3 * EVERY_MS, [Gpu(0, xid=0), Gpu(1, host="node-b", pod="other", memory_mib=None)]),
]


def night_of(version):
    dcgm, records, uses = new_dcgm(nodes={"node-b": "uid-b"}), [], set()
    for time_ms, gpus in A_NIGHT:
        taken = scraped(dcgm, text_of(gpus, version), time_ms)
        records += taken.records
        uses |= set(taken.uses)
    return records, uses


@pytest.mark.parametrize("version", VERSIONS)
def test_dcgm_sample_is_same_for_all_exporter_versions(version):
    assert sample_of(Gpu(), version) == A_SAMPLE


@pytest.mark.parametrize("version", VERSIONS)
def test_ledger_is_same_for_all_exporter_versions(version):
    assert night_of(version) == night_of("3.x")
    assert len(of(GpuSample, night_of(version)[0])) == 8


@pytest.mark.parametrize("honor_labels", [True, False])
def test_ledger_is_same_from_prometheus(honor_labels):
    nodes = {"node-b": "uid-b"}
    history = remembered(
        new_dcgm(nodes=nodes), [(time_ms, gpus, "4.9") for time_ms, gpus in A_NIGHT], honor_labels=honor_labels
    )
    live, uses = night_of("4.9")
    assert sorted(history.records, key=repr) == sorted(live, key=repr)
    assert set(history.uses) == uses


def test_ledger_is_same_after_exporter_update():
    versions = ("3.x", "4.8 on DCGM 4.6", "4.9", "4.8")
    dcgm, records = new_dcgm(nodes={"node-b": "uid-b"}), []
    for (time_ms, gpus), version in zip(A_NIGHT, versions, strict=True):
        records += scraped(dcgm, text_of(gpus, version), time_ms).records
    assert records == night_of("3.x")[0]


@pytest.fixture(scope="module")
def recorded(h200):
    """The samples of a recorded GPU, and the GPU as its exporter would have seen it; every fifth."""
    found = []

    async def read():
        async for delivery in Recordings(h200, with_steps=False).deliveries():
            found.extend(record for record in delivery.records if isinstance(record, GpuSample))

    asyncio.run(read())
    with (h200 / "a-gpu.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return list(zip(found, (gpu_of(row) for row in rows), strict=True))[::5]


def gpu_of(row):
    """A row of a recording; percent became ratios, bytes MiB."""
    numbers = {name: float(text) if text.strip() else None for name, text in row.items()}
    ratio = {name: None if numbers[name] is None else numbers[name] / 100 for name in row if name.endswith("active")}
    return Gpu(
        gpu_util=numbers["gpu_util"],
        sm_active=ratio["sm_active"],
        graphics=ratio["graphics_active"],
        tensor=ratio["tensor_active"],
        dram=ratio["dram_active"],
        memory_mib=numbers["fb_used_bytes"] / 2**20,
        power_w=numbers["power_w"],
        energy_mj=numbers["energy_mj"],
        temp_c=numbers["temp_c"],
        clock_mhz=numbers["sm_clock_mhz"],
        throttle=numbers["throttle_reasons"],
        xid=None,
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_gpu_is_same_for_all_exporter_versions(recorded, version):
    dcgm, reader = new_dcgm(), ExpositionReader(measure_of, slot_address_of)
    for sample, gpu in recorded:
        parsed = reader.read(text_of([gpu], version))
        taken = dcgm.take([(measure, place, value, sample.time_ms) for measure, place, value, _ in parsed.samples])
        (seen,) = of(GpuSample, taken.records)
        assert seen == sample._replace(node_uid="host/node-a")


@pytest.mark.parametrize(("name", "watts"), [("l4", 16), ("l40s", 36), ("t4", 9)])
def test_dcgm_reads_real_scrapes(real_data, name, watts):
    text = (real_data / "dcgm" / f"{name}.prom").read_bytes()
    taken = scraped(new_dcgm(), text)
    samples, slots = of(GpuSample, taken.records), of(Slot, taken.records)
    assert len(taken.records) == len(samples) + len(slots)
    assert len({sample[:4] for sample in samples}) == len(samples) == len(slots)
    first = samples[0]  # the T4's text is of two machines
    assert (first.slot_index, first.instance, first.gpu_util_permille, first.power_w) == (0, WHOLE_DEVICE, 0, watts)
    assert slots[0].uuid.startswith("GPU-")
    assert slots[0].gpu_model in ("NVIDIA L4", "NVIDIA L40S", "Tesla T4")


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "blank", [None, "NaN", "+Inf", 2147483632, 2147483634, 140737488355328, 9223372036854775792, -1]
)
@pytest.mark.parametrize("version", ["3.x", "4.9"])
def test_dcgm_drops_blank_values(blank, version):
    names = VERSIONS[version][0]
    lines = [line_of(name, labels_of(Gpu(), version), blank) for name in names]
    util = line_of("DCGM_FI_DEV_GPU_UTIL", labels_of(Gpu(1), version), 5)
    samples = of(GpuSample, scraped(new_dcgm(), ("\n".join([*lines, util]) + "\n").encode()).records)
    assert [sample.slot_index for sample in samples] == [1]  # nothing is known of the other


def test_dcgm_blank_does_not_affect_other_values():
    assert sample_of(Gpu(power_w=None)) == A_SAMPLE._replace(power_w=None)


def test_dcgm_clips_ratios_above_one():
    assert sample_of(Gpu(sm_active=1.07)).sm_active_permille == 1000


@pytest.mark.parametrize("values", [[1, 50], [50, 1], [1, 0, 2]])
def test_dcgm_detects_percent_ratios_from_all_values_of_exporter(values):
    gpus = [Gpu(index, gpu_util=value) for index, value in enumerate(values)]
    samples = of(GpuSample, scraped(new_dcgm(), text_of(gpus, "4.8 on DCGM 4.6")).records)
    assert [sample.gpu_util_permille for sample in samples] == [10 * value for value in values]


def test_dcgm_remembers_percent_ratios_per_exporter():
    dcgm = new_dcgm()
    scraped(dcgm, text_of([Gpu(gpu_util=50)], "4.8 on DCGM 4.6"))
    text = text_of([Gpu(gpu_util=1), Gpu(host="node-b", gpu_util=1)], "4.8 on DCGM 4.6")
    samples = of(GpuSample, scraped(dcgm, text, T0 + EVERY_MS).records)
    assert {sample.node_uid: sample.gpu_util_permille for sample in samples} == {"host/node-a": 10, "host/node-b": 1000}
    after = of(GpuSample, scraped(dcgm, text_of([Gpu(gpu_util=50)], "4.9"), T0 + 2 * EVERY_MS).records)
    assert after[0].gpu_util_permille == 500  # it was updated


def test_dcgm_drops_lost_profiling_counters():
    lost = sample_of(Gpu(gpu_util=99, sm_active=0, graphics=0, tensor=0, dram=0, power_w=500))
    assert (lost.gpu_util_permille, lost.power_w) == (990, 500)
    assert (lost.sm_active_permille, lost.graphics_active_permille) == (None, None)
    assert (lost.tensor_active_permille, lost.dram_active_permille) == (None, None)


def test_dcgm_keeps_counters_of_hang():
    hung = sample_of(Gpu(gpu_util=100, sm_active=0, graphics=0, tensor=0, dram=0, power_w=125))
    assert (hung.sm_active_permille, hung.tensor_active_permille, hung.dram_active_permille) == (0, 0, 0)


@pytest.mark.parametrize(
    "gpu",
    [
        Gpu(gpu_util=99, tensor=0),  # no tensor cores are used
        Gpu(gpu_util=3, sm_active=0, graphics=0, tensor=0, dram=0, power_w=300),  # it has just stopped
        Gpu(gpu_util=99, sm_active=0, graphics=0, tensor=0, dram=0, power_w=None),  # nothing to compare with
        Gpu(gpu_util=99, sm_active=None, graphics=None, tensor=0, dram=None),  # tensor cores alone prove nothing
    ],
)
def test_dcgm_keeps_plausible_counters(gpu):
    assert sample_of(gpu).tensor_active_permille == 0


def test_dcgm_idle_power_depends_on_gpu_model():
    busy = Gpu(model="NVIDIA L4", gpu_util=99, sm_active=0, graphics=0, tensor=0, dram=0, power_w=60)
    assert sample_of(busy).sm_active_permille is None
    assert sample_of(busy._replace(model=H200)).sm_active_permille == 0


class Night:
    """A pod on one GPU that looks the same all the time."""

    def __init__(self, gpu, minutes):
        self.gpu, self.to_ms = gpu, T0 + minutes * 60_000

    async def deliveries(self):
        dcgm = new_dcgm(nodes={"node-a": "uid-a"})
        yield Delivery(
            [
                Node(T0, "c", "uid-a", "node-a", 1, H200),
                Pod(
                    T0,
                    "c",
                    "p",
                    "ml",
                    "train",
                    "Running",
                    node_uid="uid-a",
                    scheduled_ms=T0,
                    started_ms=T0,
                    ended_ms=self.to_ms,
                ),
                Allocation(T0, "p", "uid-a", 0, T0, self.to_ms, SHARE_WHOLE),
            ]
        )
        for time_ms in range(T0, self.to_ms, EVERY_MS):
            yield Delivery(scraped(dcgm, text_of([self.gpu]), time_ms).records)


@pytest.mark.parametrize(("power_w", "state"), [(125, "hang"), (500, "active")])
def test_ledger_distinguishes_hang_from_lost_counters(reading, power_w, state):
    still = Gpu(gpu_util=100, sm_active=0, graphics=0, tensor=0, dram=0, power_w=power_w)
    reading.take(Night(still, minutes=12))
    hours = {name: hours for name, hours in reading.hours_by("state").items() if hours}
    assert max(hours, key=hours.get) == state
    assert hours[state] == pytest.approx(12 / 60, abs=2 / 60)


# -- devices ----------------------------------------------------------------------------------------------------------


def test_dcgm_separates_mig_instances_from_device():
    gpus = [Gpu(gpu_util=None, instance=7, pod="a"), Gpu(gpu_util=None, instance=9, sm_active=0.1), Gpu()]
    taken = scraped(new_dcgm(), text_of(gpus))
    samples = of(GpuSample, taken.records)
    assert [(s.instance, s.gpu_util_permille, s.sm_active_permille) for s in samples] == [
        (7, None, 820),
        (9, None, 100),
        (WHOLE_DEVICE, 930, 820),
    ]
    assert len(of(Slot, taken.records)) == 1
    assert [(use.instance, use.profile, use.pod) for use in taken.uses] == [(7, "1g.18gb", "a")]


def test_dcgm_does_not_sum_pods_on_shared_device():
    of_pods = lines_of([Gpu(pod="a", gpu_util=30), Gpu(pod="b", gpu_util=60)], "3.x")
    taken = scraped(new_dcgm(), ("\n".join(of_pods) + "\n").encode())
    assert of(GpuSample, taken.records) == [A_SAMPLE._replace(gpu_util_permille=600)]
    assert {use.pod for use in taken.uses} == {"a", "b"}
    with_device = [*of_pods, *lines_of([Gpu(gpu_util=55)], "3.x")]
    taken = scraped(new_dcgm(), ("\n".join(with_device) + "\n").encode())
    assert of(GpuSample, taken.records) == [A_SAMPLE._replace(gpu_util_permille=550)]


def test_dcgm_merges_device_and_pod_series():
    power = line_of("DCGM_FI_DEV_POWER_USAGE", labels_of(Gpu(pod="a")), 300)
    util = line_of("DCGM_FI_DEV_GPU_UTIL", labels_of(Gpu()), 40)
    (sample,) = of(GpuSample, scraped(new_dcgm(), f"{power}\n{util}\n".encode()).records)
    assert (sample.gpu_util_permille, sample.power_w) == (400, 300)


def test_dcgm_uses_uid_of_known_node():
    place = slot_address_of({"gpu": "0", "Hostname": "dcgm-exporter-78z52", "node": "node-a"})
    taken = new_dcgm(nodes={"node-a": "uid-a"}).take([(measure_of("DCGM_FI_DEV_GPU_UTIL"), place, 5.0, T0)])
    assert {record.node_uid for record in taken.records} == {"uid-a"}


def test_dcgm_uses_uid_once_node_is_known():
    nodes = {}
    dcgm = new_dcgm(nodes=nodes)
    text, reader = text_of([Gpu()]), ExpositionReader(measure_of, slot_address_of)
    seen = []
    for time_ms in (T0, T0 + EVERY_MS):
        seen += dcgm.take([(m, p, v, time_ms) for m, p, v, _ in reader.read(text).samples]).records
        nodes["node-a"] = "uid-a"
    assert [(type(record), record.node_uid) for record in seen] == [
        (GpuSample, "host/node-a"),
        (Slot, "host/node-a"),
        (GpuSample, "uid-a"),
        (Slot, "uid-a"),
    ]


@pytest.mark.parametrize(
    ("labels", "options", "hosts"),
    [
        ({"Hostname": "a"}, {}, ("a",)),
        ({"hostname": "a"}, {}, ("a",)),
        ({"node": "a", "hostname": "b"}, {}, ("b", "a")),
        ({"Hostname": "container-id"}, {"node": "a"}, ("a", "container-id")),
        ({}, {"address": "10.0.0.1"}, ("10.0.0.1",)),
        ({"instance": "10.0.0.1:9400", "job": "x"}, {}, ("10.0.0.1",)),
    ],
)
def test_slot_address_of_finds_hosts(labels, options, hosts):
    assert slot_address_of({"gpu": "3", **labels}, **options).hosts == hosts


@pytest.mark.parametrize(
    "labels", [{}, {"gpu": "0"}, {"Hostname": "a"}, {"gpu": "x", "Hostname": "a"}, {"gpu": "99999999", "Hostname": "a"}]
)
def test_slot_address_of_labels_without_device_is_none(labels):
    assert slot_address_of(labels) is None


def test_slot_address_of_reads_device_file():
    assert slot_address_of({"device": "nvidia5", "Hostname": "a"}).slot_index == 5


# -- who uses it ------------------------------------------------------------------------------------------------------

AT = {"gpu": "0", "Hostname": "a"}
TARGET = {
    "job": "dcgm",
    "instance": "i:9400",
    "pod": "dcgm-exporter-78z52",
    "namespace": "gpu",
    "container": "exporter",
}


@pytest.mark.parametrize(
    ("labels", "user"),
    [
        ({"pod": "p", "namespace": "n", "container": "c"}, ("n", "p", None)),
        ({"pod_name": "p", "pod_namespace": "n", "container_name": "c"}, ("n", "p", None)),
        ({"pod": "p", "namespace": "n", "pod_uid": "u"}, ("n", "p", "u")),
        ({**TARGET, "exported_pod": "p", "exported_namespace": "n", "exported_container": "c"}, ("n", "p", None)),
        ({**TARGET, "pod_name": "p", "pod_namespace": "n"}, ("n", "p", None)),
        (TARGET, (None, None, None)),  # a free device, with the exporter's own labels
        ({**TARGET, "container": "nvidia-dcgm-exporter"}, (None, None, None)),
        ({**TARGET, "pod": "p", "namespace": "n", "container": "c"}, ("n", "p", None)),  # honorLabels
        ({"pod": "", "namespace": "", "container": ""}, (None, None, None)),
        ({"pod": "dcgm-exporter-test", "namespace": "n"}, ("n", "dcgm-exporter-test", None)),  # straight from it
    ],
)
def test_slot_address_of_finds_pod_in_all_label_spellings(labels, user):
    place = slot_address_of({**AT, **labels})
    assert (place.namespace, place.pod, place.pod_uid) == user
    assert place.of_pod == (user[1] is not None)


def test_resource_claim_counts_as_device_use():
    labels = {**AT, "dra_claim_name": "gpus", "dra_claim_namespace": "ml", "dra_mig_profile": "1g.18gb"}
    dcgm = new_dcgm()
    taken = dcgm.take([(measure_of("DCGM_FI_DEV_GPU_UTIL"), slot_address_of(labels), 5.0, T0)])
    use = DeviceUse("host/a", 0, WHOLE_DEVICE, None, None, "1g.18gb", "ml", None, None, "gpus")
    assert taken.uses == {use: (T0, T0)}


def test_device_use_has_first_and_last_time():
    nights = [(T0 + n * EVERY_MS, [Gpu(pod="a" if n < 3 else None)], "4.9") for n in range(6)]
    taken = remembered(new_dcgm(), nights, honor_labels=False)
    assert [(use.pod, span) for use, span in taken.uses.items()] == [("a", (T0, T0 + 2 * EVERY_MS))]


# -- slots and codes --------------------------------------------------------------------------------------------------


def follow(dcgm, gpus, begin_ms=T0, every_ms=EVERY_MS):
    """The slot records and events while a GPU has these states one after the other."""
    changes = []
    for number, gpu in enumerate(gpus):
        taken = scraped(dcgm, text_of([gpu]), begin_ms + number * every_ms)
        changes += [(number, record) for record in taken.records if not isinstance(record, GpuSample)]
    return changes


def test_slot_is_recorded_once():
    ((number, slot),) = follow(new_dcgm(), [Gpu()] * 4)
    assert (number, slot) == (0, Slot(T0, "host/node-a", 0, "GPU-node-a-0", H200))


def test_slot_known_before_start_is_not_recorded():
    assert follow(new_dcgm([Slot(T0 - 1, "host/node-a", 0, "GPU-node-a-0", H200)]), [Gpu()] * 2) == []


def test_replaced_board_is_recorded():
    changes = follow(
        new_dcgm([Slot(T0, "host/node-a", 0, "GPU-old", H200, healthy=False, reason="XID 79")]), [Gpu(xid=79)]
    )
    assert [(slot.uuid, slot.healthy, slot.reason) for _, slot in changes] == [("GPU-node-a-0", True, None)]


def test_fatal_xid_marks_slot_unhealthy_until_cleared():
    changes = follow(new_dcgm(), [Gpu(), Gpu(xid=79), Gpu(xid=79), Gpu(xid=45), Gpu()])
    events = [(number, record) for number, record in changes if isinstance(record, Event)]
    slots = [(number, record.healthy, record.reason) for number, record in changes if isinstance(record, Slot)]
    assert slots == [(0, True, None), (1, False, "XID 79"), (4, True, None)]
    assert [(number, event.kind, event.reason, event.message) for number, event in events] == [
        (1, "xid_error", "79", "the GPU fell off the bus"),
        (3, "xid_error", "45", None),
    ]
    assert {(event.node_uid, event.slot_index) for _, event in events} == {("host/node-a", 0)}


def test_xid_series_with_extra_labels_belongs_to_device():
    explained = line_of("DCGM_FI_DEV_XID_ERRORS", labels_of(Gpu(), err_code="79", err_msg="GPU has fallen off"), 79)
    dcgm = new_dcgm()
    scraped(dcgm, text_of([Gpu()]))
    later = scraped(dcgm, text_of([Gpu(xid=None)]) + f"{explained}\n".encode(), T0 + EVERY_MS).records
    assert [(type(record), getattr(record, "xid", None)) for record in later] == [
        (GpuSample, 79),
        (Event, None),
        (Slot, None),
    ]


@pytest.mark.parametrize("code", [13, 31, 63, 94])
def test_nonfatal_xid_is_only_an_event(code):
    changes = follow(new_dcgm(), [Gpu(), Gpu(xid=code), Gpu(xid=code)])
    assert [(number, type(record)) for number, record in changes] == [(0, Slot), (1, Event)]


def test_xid_present_at_first_sighting_is_ignored():
    ((_, slot),) = follow(new_dcgm(), [Gpu(xid=79)] * 3)
    assert slot.healthy


def test_unhealthy_slot_stays_unhealthy_after_restart():
    known = Slot(T0 - EVERY_MS, "host/node-a", 0, "GPU-node-a-0", H200, healthy=False, reason="XID 79")
    idle = Gpu(xid=79, power_w=80)
    assert follow(new_dcgm([known]), [idle, idle]) == []
    ((number, slot),) = follow(new_dcgm([known]), [idle, Gpu()])
    assert (number, slot.healthy) == (1, True)


def test_slot_marked_unhealthy_by_other_source_is_unchanged():
    known = Slot(T0 - EVERY_MS, "host/node-a", 0, "GPU-node-a-0", H200, healthy=False, reason="lost")
    assert follow(new_dcgm([known]), [Gpu()] * 2) == []


def test_working_board_becomes_healthy_despite_old_xid():
    steps = WORKS_AGAIN_MS // EVERY_MS
    changes = follow(new_dcgm(), [Gpu(), *[Gpu(xid=48)] * (steps + 2)])
    slots = [(number, slot.healthy) for number, slot in changes if isinstance(slot, Slot)]
    assert slots == [(0, True), (1, False), (1 + steps, True)]
    dead = follow(new_dcgm(), [Gpu(), *[Gpu(xid=48, gpu_util=0, power_w=90)] * (steps + 2)])
    assert [(number, slot.healthy) for number, slot in dead if isinstance(slot, Slot)] == [(0, True), (1, False)]


# -- laws -------------------------------------------------------------------------------------------------------------

percent = st.none() | st.integers(0, 100)
ratio = st.none() | st.floats(0, 1.2).map(lambda x: round(x, 6))
gpus = st.builds(
    Gpu,
    index=st.integers(0, 2),
    host=st.sampled_from(["node-a", "node-b"]),
    model=st.sampled_from([H200, "NVIDIA L4"]),
    gpu_util=percent,
    sm_active=ratio,
    graphics=ratio,
    tensor=ratio,
    dram=ratio,
    memory_mib=st.none() | st.integers(0, 300_000),
    power_w=st.none() | st.floats(0, 1500).map(lambda x: round(x, 3)),
    energy_mj=st.none() | st.integers(0, 10**14),
    temp_c=percent,
    clock_mhz=st.none() | st.integers(0, 3000),
    throttle=st.none() | st.integers(0, 2**10),
    xid=st.sampled_from([None, 0, 31, 79]),
    pod=st.sampled_from([None, "a", "b"]),
    namespace=st.just("ml"),
    instance=st.sampled_from([None, 1, 2]),
)
wild = st.builds(
    line_of,
    st.sampled_from([name for version in VERSIONS.values() for name in version[0]]),
    st.builds(labels_of, gpus, st.sampled_from(list(VERSIONS))),
    st.floats() | st.integers(-(2**64), 2**64) | st.sampled_from([0, 1, 100, 2**31 - 16, 2**47]),
)


@settings(max_examples=30)
@given(
    st.lists(gpus, min_size=1, max_size=6), st.sampled_from(list(VERSIONS)), st.lists(wild, max_size=5), st.randoms()
)
def test_dcgm_result_is_independent_of_line_order(several, version, noise, random):
    lines = [*lines_of(several, version), *noise]
    shuffled = random.sample(lines, len(lines))
    first, second = (scraped(new_dcgm(), ("\n".join(some) + "\n").encode()) for some in (lines, shuffled))
    assert sorted(first.records, key=repr) == sorted(second.records, key=repr)
    assert first.uses == second.uses


@settings(max_examples=30)
@given(st.lists(st.lists(gpus, min_size=1, max_size=5), min_size=1, max_size=4), st.lists(wild, max_size=8))
def test_dcgm_samples_are_unique_and_fit_their_columns(scrapes, noise):
    dcgm, records = new_dcgm(), []
    for number, several in enumerate(scrapes):
        text = ("\n".join([*lines_of(several), *noise]) + "\n").encode()
        records += scraped(dcgm, text, T0 + number * EVERY_MS).records
    for kind in (GpuSample, Slot, Event):
        schema = schema_of(kind)
        keys = [tuple(getattr(record, name) for name in schema.key) for record in of(kind, records)]
        assert len(set(keys)) == len(keys)
        for record in of(kind, records):
            for column, value in zip(schema.columns, record, strict=True):
                if column.type in SIZES and value is not None:
                    assert -1 <= value < SIZES[column.type]
    for sample in of(GpuSample, records):
        ratios = [getattr(sample, name) for name in COLUMNS if name.endswith("_permille")]
        assert all(0 <= value <= 1000 for value in ratios if value is not None)
        assert any(getattr(sample, name) is not None for name in COLUMNS)
    schema_of(GpuSample).table(of(GpuSample, records))  # Arrow takes them


@settings(max_examples=20)
@given(st.lists(st.lists(gpus, min_size=1, max_size=4), min_size=1, max_size=4), st.booleans())
def test_dcgm_history_equals_scrapes(scrapes, honor_labels):
    live = new_dcgm()
    nights = [(T0 + number * EVERY_MS, several, "3.x") for number, several in enumerate(scrapes)]
    records, uses = [], set()
    for time_ms, several, _ in nights:
        taken = scraped(live, text_of(several, "3.x"), time_ms)
        records += taken.records
        uses |= set(taken.uses)
    history = remembered(new_dcgm(), nights, honor_labels=honor_labels)
    assert sorted(of(GpuSample, history.records), key=repr) == sorted(of(GpuSample, records), key=repr)
    assert set(history.uses) == uses


def test_every_used_metric_name_has_a_measure():
    known = {name for names, *_ in VERSIONS.values() for name in names if measure_of(name) is not None}
    assert "DCGM_FI_DEV_MEM_COPY_UTIL" in OLD
    assert measure_of("DCGM_FI_DEV_MEM_COPY_UTIL") is None
    assert len(known) == 24
