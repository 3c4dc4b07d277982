"""The page that is scraped: read by the official parser, and compared with what dcgm-exporter really writes."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pyrometer.agent import gpm
from pyrometer.agent.cgroups import ContainerCgroup
from pyrometer.agent.dcgm_text import METRICS, OWN_METRICS, About, Shown, exposition
from pyrometer.agent.nvml import NvmlDevice
from pyrometer.agent.pod_resources import ContainerDevice
from tests.support.metrics_page import samples

DEVICE = NvmlDevice(0, "GPU-1", "00000000:31:00.0", 0, "NVIDIA L4")
INSTANCE = DEVICE._replace(instance=3, profile="1g.18gb", instance_uuids=("MIG-1",))
ABOUT = About("node-1", "0.1.0", "580.105.08", True, {"activity": 1.0, "energy": 12.5}, 1.25, 30 << 20)
TRAIN = ContainerDevice("research", "train-0", "main", "nvidia.com/gpu", "GPU-1")


def only(page: str, name: str) -> tuple[dict[str, str], float]:
    (sample,) = samples(page)[name]
    return sample


def test_values_are_written_with_dcgm_s_labels() -> None:
    page = exposition([Shown(DEVICE, {"DCGM_FI_DEV_GPU_UTIL": 93, "DCGM_FI_DEV_POWER_USAGE": 16.365})], ABOUT)
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


def test_a_real_scrape_has_the_same_names_types_and_labels(real_data: Path) -> None:
    real = (real_data / "dcgm" / "l4.prom").read_text()
    said = dict(re.findall(r"# TYPE (\S+) (\w+)", real))
    ours = {name: metric.type for name, metric in METRICS.items()}
    missing = {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}
    assert {name: ours.get(name) for name in said} == {name: said[name] for name in said} | dict.fromkeys(missing)
    page = exposition([Shown(DEVICE, {"DCGM_FI_DEV_SM_CLOCK": 210})], ABOUT)
    names = [re.findall(r"(\w+)=", re.search(r"^DCGM_FI_DEV_SM_CLOCK\{(.*)\}", text, re.M)[1]) for text in (real, page)]
    assert names[0] == names[1]


def test_every_profiling_metric_is_declared() -> None:
    assert {metric.name for metric in gpm._METRICS} <= set(METRICS)


def test_the_pod_that_has_a_device_is_in_its_labels() -> None:
    page = exposition([Shown(DEVICE, {"DCGM_FI_DEV_GPU_UTIL": 93}, held=[TRAIN])], ABOUT)
    labels, _ = only(page, "DCGM_FI_DEV_GPU_UTIL")
    assert (labels["namespace"], labels["pod"], labels["container"]) == ("research", "train-0", "main")
    labels, value = only(page, "pyrometer_gpu_allocation_info")
    assert (labels["UUID"], labels["pod"], labels["device_id"], value) == ("GPU-1", "train-0", "GPU-1", 1)


def test_a_device_that_pods_share_is_nobody_s_and_its_values_are_told_once() -> None:
    shared = [TRAIN._replace(device_id="GPU-1::0"), TRAIN._replace(pod="lab", container="lab", device_id="GPU-1::1")]
    page = exposition([Shown(DEVICE, {"DCGM_FI_DEV_GPU_UTIL": 93}, held=shared)], ABOUT)
    labels, _ = only(page, "DCGM_FI_DEV_GPU_UTIL")
    assert not {"pod", "namespace", "container"} & set(labels)
    told = samples(page)["pyrometer_gpu_allocation_info"]
    assert {(labels["pod"], labels["device_id"]) for labels, _ in told} == {
        ("train-0", "GPU-1::0"),
        ("lab", "GPU-1::1"),
    }


def test_two_containers_of_one_pod_leave_the_pod() -> None:
    held = [TRAIN._replace(claim="research/two"), TRAIN._replace(container="other", claim="research/two")]
    page = exposition([Shown(DEVICE, {"DCGM_FI_DEV_GPU_UTIL": 93}, held=held)], ABOUT)
    labels, _ = only(page, "DCGM_FI_DEV_GPU_UTIL")
    assert labels["pod"] == "train-0"
    assert "container" not in labels
    assert {labels["claim"] for labels, _ in samples(page)["pyrometer_gpu_allocation_info"]} == {"research/two"}


def test_an_instance_of_mig_has_its_profile_and_number() -> None:
    labels, _ = only(exposition([Shown(INSTANCE, {"DCGM_FI_DEV_FB_USED": 5})], ABOUT), "DCGM_FI_DEV_FB_USED")
    assert (labels["UUID"], labels["GPU_I_PROFILE"], labels["GPU_I_ID"]) == ("GPU-1", "1g.18gb", "3")


def test_a_lost_gpu_says_so_and_nothing_else() -> None:
    page = exposition([Shown(DEVICE, {}, lost=True), Shown(NvmlDevice(1), {}, lost=True)], ABOUT)
    assert [(labels["gpu"], value) for labels, value in samples(page)["pyrometer_gpu_lost"]] == [("0", 1), ("1", 1)]
    assert not any(name.startswith("DCGM") for name in samples(page))


def test_processes_are_counted_by_container() -> None:
    processes = {ContainerCgroup("uid-1", "c0ffee"): 2, ContainerCgroup(): 1}
    page = exposition([Shown(DEVICE, {}, processes=processes)], ABOUT)
    told = {(labels["pod_uid"], labels["container_id"]): n for labels, n in samples(page)["pyrometer_gpu_processes"]}
    assert told == {("uid-1", "c0ffee"): 2, ("", ""): 1}


def test_the_agent_tells_about_itself() -> None:
    silent = ABOUT._replace(pod_resources_up=False, unplaced=[TRAIN._replace(device_id="gpu-0-mig-9-0-1")])
    page = exposition([], silent)
    assert only(page, "pyrometer_agent_pod_resources_up") == ({}, 0)
    intervals = samples(page)["pyrometer_agent_reading_interval_seconds"]
    assert {labels["reading"]: value for labels, value in intervals} == {"activity": 1, "energy": 12.5}
    assert only(page, "process_cpu_seconds_total") == ({}, 1.25)
    assert only(page, "process_resident_memory_bytes") == ({}, 30 << 20)
    labels, _ = only(page, "pyrometer_gpu_allocation_info")  # a device that NVML does not show is still somebody's
    assert labels["device_id"] == "gpu-0-mig-9-0-1"
    assert "UUID" not in labels


def test_every_metric_has_a_type_and_help() -> None:
    everything = Shown(DEVICE, dict.fromkeys(METRICS, 1), held=[TRAIN], processes={ContainerCgroup(): 1})
    page = exposition([everything], ABOUT)
    assert set(samples(page)) == {*METRICS, *OWN_METRICS}
    for name, metric in {**METRICS, **OWN_METRICS}.items():
        assert f"# HELP {name} {metric.help}\n# TYPE {name} {metric.type}\n{name}" in page


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1))
def test_any_label_comes_back_as_it_was(text: str) -> None:
    page = exposition([Shown(DEVICE._replace(model=text), {"DCGM_FI_DEV_GPU_UTIL": 1})], ABOUT)
    written = re.search(r'modelName="((?:[^"\\]|\\.)*)"', page)[1]
    assert "\n" not in written
    assert re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), written) == text


@given(st.one_of(st.integers(0, 2**53), st.floats(0, 2**53)))
def test_numbers_are_exact_to_a_millionth(value: float) -> None:
    page = exposition([Shown(DEVICE, {"DCGM_FI_DEV_POWER_USAGE": value})], ABOUT)
    _, read = only(page, "DCGM_FI_DEV_POWER_USAGE")
    assert abs(read - value) <= max(1e-6, value * 1e-15)
