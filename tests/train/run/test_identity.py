"""The identity of a rank, from its environment."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest

from pyrometer.train.run import identity


def test_next_launch_is_the_name_that_identify_uses():
    expected = identity.next_launch()
    assert identity.next_launch() == expected
    assert identity.identify()["launch"] == expected
    assert identity.identify()["launch"] != expected  # who is a rank again is of another launch


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, {}),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, {"rank": 3, "ranks": 8, "local_rank": 1}),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, {"rank": 2, "ranks": 4, "local_rank": 0}),
        ({"RANK": "x", "WORLD_SIZE": "8"}, {}),
    ],
)
def test_rank_of_reads_the_variables_of_launchers(environment, ranks):
    assert identity.rank_of(environment) == ranks


def test_resource_keeps_only_allowed_attributes():
    text = "k8s.pod.name=a%2Cb, color=red,k8s.empty=,nonsense,cloud.region = eu"
    assert identity.resource({"OTEL_RESOURCE_ATTRIBUTES": text}) == {"k8s.pod.name": "a,b", "cloud.region": "eu"}
    assert identity.resource({"OTEL_RESOURCE_ATTRIBUTES": "k8s.x=" + "x" * 2000}) == {}


def test_pod_comes_from_mounts_and_kubernetes(tmp_path, monkeypatch):
    uid = "0123abcd-0000-1111-2222-333344445555"
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "mountinfo").write_text(f"1 2 0:1 /var/lib/kubelet/pods/{uid}/etc-hosts /etc/hosts rw")
    (tmp_path / "namespace").write_text("ml\n")
    monkeypatch.setattr(identity, "_PROC", tmp_path)
    monkeypatch.setattr(identity, "_NAMESPACE", tmp_path / "namespace")
    assert identity.pod({}) == {"pod_uid": uid}
    in_kubernetes = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "sft-0"}
    assert identity.pod(in_kubernetes) == {"pod_uid": uid, "pod_name": "sft-0", "namespace": "ml"}


def test_identify_reads_run_experiment_and_node_from_variables():
    found = identity.identify(
        {"PYROMETER_RUN": "sft", "PYROMETER_EXPERIMENT": "e", "PYROMETER_NODE": "n1", "RANK": "1", "WORLD_SIZE": "2"},
        launch="ab",
    )
    assert {name: found[name] for name in ("launch", "run", "experiment", "host", "rank", "ranks", "pid")} == {
        "launch": "ab",
        "run": "sft",
        "experiment": "e",
        "host": "n1",
        "rank": 1,
        "ranks": 2,
        "pid": os.getpid(),
    }


def test_process_started_before_now():
    now_ms = time.time_ns() // 1_000_000
    assert now_ms - 24 * 3_600_000 < identity.process_started_ms() <= now_ms


def test_device_is_the_physical_gpu(monkeypatch):
    properties = SimpleNamespace(name="H200", uuid="ab-12")
    cuda = SimpleNamespace(is_initialized=lambda: True, get_device_properties=lambda index: properties)
    torch = SimpleNamespace(cuda=cuda)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert identity.device(torch, 1) == {"device": "cuda", "gpu_index": 5, "gpu_model": "H200", "gpu_uuid": "GPU-ab-12"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-x,GPU-y")
    assert identity.device(torch, 1)["gpu_index"] == 1
    assert identity.device(torch, None) == {"device": "cuda"}
    cuda.is_initialized = lambda: False
    assert identity.device(torch, 1) == {"device": "cpu"}
