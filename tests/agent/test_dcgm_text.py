"""The page that is scraped: read by the official parser, and compared with what dcgm-exporter really writes."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pyrometer.agent import gpm
from pyrometer.agent.cgroups import ContainerCgroup
from pyrometer.agent.dcgm_text import METRICS, OWN_METRICS, AgentInfo, DeviceReading, exposition
from pyrometer.agent.nvml import NvmlDevice
from pyrometer.agent.pod_resources import ContainerDevice
from tests.support.metrics_page import samples

DEVICE = NvmlDevice(0, "GPU-1", "00000000:31:00.0", 0, "NVIDIA L4")
INSTANCE = DEVICE._replace(instance=3, profile="1g.18gb", instance_uuids=("MIG-1",))
ABOUT = AgentInfo("node-1", "0.1.0", "580.105.08", True, {"activity": 1.0, "energy": 12.5}, 1.25, 30 << 20)
TRAIN = ContainerDevice("research", "train-0", "main", "nvidia.com/gpu", "GPU-1")


def only(page: str, name: str) -> tuple[dict[str, str], float]:
    (sample,) = samples(page)[name]
    return sample


def test_exposition_writes_values_with_dcgm_labels() -> None:
    page = exposition([DeviceReading(DEVICE, {"DCGM_FI_DEV_GPU_UTIL": 93, "DCGM_FI_DEV_POWER_USAGE": 16.365})], ABOUT)
    labels = {
        "gpu": "0",
        "UUID": "GPU-1",
        "pci_bus_id": "00000000:31:00.0",
        "device": "nvidia0",
        "modelName": "NVIDIA L4",
        "Hostname": "node-1",
        "DCGM_FI_DRIVER_VERSION": "580.105.08",
    }
    assert only(page, "DCGM_FI_DEV_GPU_UTIL") == (labels, 93)
    assert only(page, "DCGM_FI_DEV_POWER_USAGE") == (labels, 16.365)
    assert "DCGM_FI_DEV_SM_CLOCK" not in page  # absent, not zero
    assert "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n" in page


def test_exposition_matches_names_types_and_labels_of_real_scrape(real_data: Path) -> None:
    real = (real_data / "dcgm" / "l4.prom").read_text()
    types = dict(re.findall(r"# TYPE (\S+) (\w+)", real))
    ours = {name: metric.type for name, metric in METRICS.items()}
    missing = {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}
    assert {name: ours.get(name) for name in types} == {name: types[name] for name in types} | dict.fromkeys(missing)
    page = exposition([DeviceReading(DEVICE, {"DCGM_FI_DEV_SM_CLOCK": 210})], ABOUT)
    names = [re.findall(r"(\w+)=", re.search(r"^DCGM_FI_DEV_SM_CLOCK\{(.*)\}", text, re.M)[1]) for text in (real, page)]
    assert names[0] == names[1]


def test_every_profiling_metric_is_in_metrics() -> None:
    assert {metric.name for metric in gpm._METRICS} <= set(METRICS)


def test_exposition_labels_device_with_its_pod() -> None:
    page = exposition([DeviceReading(DEVICE, {"DCGM_FI_DEV_GPU_UTIL": 93}, held=[TRAIN])], ABOUT)
    labels, _ = only(page, "DCGM_FI_DEV_GPU_UTIL")
    assert (labels["namespace"], labels["pod"], labels["container"]) == ("research", "train-0", "main")
    labels, value = only(page, "pyrometer_gpu_allocation_info")
    assert (labels["UUID"], labels["pod"], labels["device_id"], value) == ("GPU-1", "train-0", "GPU-1", 1)


def test_exposition_of_shared_device_has_no_pod_label() -> None:
    shared = [TRAIN._replace(device_id="GPU-1::0"), TRAIN._replace(pod="lab", container="lab", device_id="GPU-1::1")]
    page = exposition([DeviceReading(DEVICE, {"DCGM_FI_DEV_GPU_UTIL": 93}, held=shared)], ABOUT)
    labels, _ = only(page, "DCGM_FI_DEV_GPU_UTIL")
    assert not {"pod", "namespace", "container"} & set(labels)
    allocations = samples(page)["pyrometer_gpu_allocation_info"]
    assert {(labels["pod"], labels["device_id"]) for labels, _ in allocations} == {
        ("train-0", "GPU-1::0"),
        ("lab", "GPU-1::1"),
    }


def test_exposition_of_two_containers_keeps_pod_label() -> None:
    held = [TRAIN._replace(claim="research/two"), TRAIN._replace(container="other", claim="research/two")]
    page = exposition([DeviceReading(DEVICE, {"DCGM_FI_DEV_GPU_UTIL": 93}, held=held)], ABOUT)
    labels, _ = only(page, "DCGM_FI_DEV_GPU_UTIL")
    assert labels["pod"] == "train-0"
    assert "container" not in labels
    assert {labels["claim"] for labels, _ in samples(page)["pyrometer_gpu_allocation_info"]} == {"research/two"}


def test_exposition_labels_mig_instance_with_profile_and_id() -> None:
    labels, _ = only(exposition([DeviceReading(INSTANCE, {"DCGM_FI_DEV_FB_USED": 5})], ABOUT), "DCGM_FI_DEV_FB_USED")
    assert (labels["UUID"], labels["GPU_I_PROFILE"], labels["GPU_I_ID"]) == ("GPU-1", "1g.18gb", "3")


def test_exposition_of_lost_gpu_has_only_lost_metric() -> None:
    page = exposition([DeviceReading(DEVICE, {}, lost=True), DeviceReading(NvmlDevice(1), {}, lost=True)], ABOUT)
    assert [(labels["gpu"], value) for labels, value in samples(page)["pyrometer_gpu_lost"]] == [("0", 1), ("1", 1)]
    assert not any(name.startswith("DCGM") for name in samples(page))


def test_exposition_counts_processes_by_container() -> None:
    processes = {ContainerCgroup("uid-1", "c0ffee"): 2, ContainerCgroup(): 1}
    page = exposition([DeviceReading(DEVICE, {}, processes=processes)], ABOUT)
    counts = {(labels["pod_uid"], labels["container_id"]): n for labels, n in samples(page)["pyrometer_gpu_processes"]}
    assert counts == {("uid-1", "c0ffee"): 2, ("", ""): 1}


def test_exposition_has_agent_metrics() -> None:
    silent = ABOUT._replace(pod_resources_up=False, unplaced=[TRAIN._replace(device_id="gpu-0-mig-9-0-1")])
    page = exposition([], silent)
    assert only(page, "pyrometer_agent_pod_resources_up") == ({}, 0)
    intervals = samples(page)["pyrometer_agent_reading_interval_seconds"]
    assert {labels["reading"]: value for labels, value in intervals} == {"activity": 1, "energy": 12.5}
    assert only(page, "process_cpu_seconds_total") == ({}, 1.25)
    assert only(page, "process_resident_memory_bytes") == ({}, 30 << 20)
    labels, _ = only(page, "pyrometer_gpu_allocation_info")  # a device that NVML does not list is still allocated
    assert labels["device_id"] == "gpu-0-mig-9-0-1"
    assert "UUID" not in labels


def test_exposition_writes_type_and_help_of_every_metric() -> None:
    everything = DeviceReading(DEVICE, dict.fromkeys(METRICS, 1), held=[TRAIN], processes={ContainerCgroup(): 1})
    page = exposition([everything], ABOUT)
    assert set(samples(page)) == {*METRICS, *OWN_METRICS}
    for name, metric in {**METRICS, **OWN_METRICS}.items():
        assert f"# HELP {name} {metric.help}\n# TYPE {name} {metric.type}\n{name}" in page


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1))
def test_label_values_survive_escaping(text: str) -> None:
    page = exposition([DeviceReading(DEVICE._replace(model=text), {"DCGM_FI_DEV_GPU_UTIL": 1})], ABOUT)
    written = re.search(r'modelName="((?:[^"\\]|\\.)*)"', page)[1]
    assert "\n" not in written
    assert re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), written) == text


@given(st.one_of(st.integers(0, 2**53), st.floats(0, 2**53)))
def test_numbers_have_six_decimals(value: float) -> None:
    page = exposition([DeviceReading(DEVICE, {"DCGM_FI_DEV_POWER_USAGE": value})], ABOUT)
    _, read = only(page, "DCGM_FI_DEV_POWER_USAGE")
    assert abs(read - value) <= max(1e-6, value * 1e-15)
