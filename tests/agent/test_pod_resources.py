"""The small gRPC client against a real gRPC server, and its decoder against the real encoder."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.agent import pod_resources
from pyrometer.agent.pod_resources import ContainerDevice, PodResourcesError, list_held
from tests.support.kubelet import Response, claiming, container, kubelet, pod


def test_list_held_returns_devices_of_all_containers(tmp_path: Path) -> None:
    pods = [
        pod("train-0", container("main", gpu=["GPU-1", "GPU-2"], rdma=["mlx5_0"]), container("sidecar")),
        pod("notebook", container("lab", **{"gpu.shared": ["GPU-3::2"]}), namespace="teaching"),
        pod("sweep", container("a", **{"mig-1g.18gb": ["MIG-7"]})),
        pod("claimed", claiming("main", "gpu-4", "gpu-5")),
        pod("no-devices", container("main")),
    ]
    with kubelet(tmp_path / "socket", pods):
        assert list_held(tmp_path / "socket") == [
            ContainerDevice("research", "train-0", "main", "nvidia.com/gpu", "GPU-1"),
            ContainerDevice("research", "train-0", "main", "nvidia.com/gpu", "GPU-2"),
            ContainerDevice("research", "train-0", "main", "nvidia.com/rdma", "mlx5_0"),
            ContainerDevice("teaching", "notebook", "lab", "nvidia.com/gpu.shared", "GPU-3::2"),
            ContainerDevice("research", "sweep", "a", "nvidia.com/mig-1g.18gb", "MIG-7"),
            ContainerDevice("research", "claimed", "main", "gpu.nvidia.com", "gpu-4", "research/two-gpus"),
            ContainerDevice("research", "claimed", "main", "gpu.nvidia.com", "gpu-5", "research/two-gpus"),
        ]


def test_list_held_reads_response_larger_than_http2_window(tmp_path: Path) -> None:
    pods = [pod(f"train-{number:05d}", container("main", gpu=[f"GPU-{number:036d}"])) for number in range(5000)]
    with kubelet(tmp_path / "socket", pods):
        found = list_held(tmp_path / "socket")
    assert Response(pod_resources=pods).ByteSize() > 500_000
    assert [one.pod for one in found] == [one["name"] for one in pods]


def test_list_held_of_empty_node_is_empty(tmp_path: Path) -> None:
    with kubelet(tmp_path / "socket", []):
        assert list_held(tmp_path / "socket") == []


@pytest.mark.parametrize(
    ("device_id", "device"),
    [
        ("GPU-1", "GPU-1"),
        ("GPU-1::3", "GPU-1"),
        ("MIG-7::0", "MIG-7"),
        ("nvidia0/vgpu3", "nvidia0"),
        ("nvidia0/gi2", "nvidia0/gi2"),
        ("nvidia0/gi2/vgpu1", "nvidia0/gi2"),
    ],
)
def test_container_device_strips_replica_number(device_id: str, device: str) -> None:
    assert ContainerDevice("n", "p", "c", "nvidia.com/gpu", device_id).device == device


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_list_held_error_quotes_kubelet(tmp_path: Path) -> None:
    with (
        kubelet(tmp_path / "socket", [], fails=grpc.StatusCode.RESOURCE_EXHAUSTED),
        pytest.raises(PodResourcesError, match=r"gRPC status 8 \(HTTP 200\) rate limit"),
    ):
        list_held(tmp_path / "socket")


def test_list_held_error_for_missing_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_resources, "_METHOD", "/v9.PodResourcesLister/List")
    with kubelet(tmp_path / "socket", []), pytest.raises(PodResourcesError, match="gRPC status 12"):
        list_held(tmp_path / "socket")


def test_list_held_error_names_missing_socket(tmp_path: Path) -> None:
    with pytest.raises(PodResourcesError, match=f"at {tmp_path}/socket does not answer: No such file or directory"):
        list_held(tmp_path / "socket")


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "it closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, "does not answer"),
        (None, "timed out"),
    ],
)
def test_list_held_error_for_other_server(tmp_path: Path, sent: bytes | None, message: str) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        done = threading.Event()

        def answer() -> None:
            connected, _ = listening.accept()
            with connected:
                if sent is None:
                    done.wait()
                else:
                    connected.sendall(sent)
                    connected.shutdown(socket.SHUT_WR)
                    connected.recv(65536)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(PodResourcesError, match=message):
            list_held(tmp_path / "socket", timeout_s=0.3)
        done.set()
        thread.join()


def test_list_held_rejects_oversized_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_resources, "MAX_RESPONSE_BYTES", 100)
    pods = [pod(f"train-{number}", container("main", gpu=["GPU-1"])) for number in range(50)]
    with kubelet(tmp_path / "socket", pods), pytest.raises(PodResourcesError, match="larger than 100 bytes"):
        list_held(tmp_path / "socket")


# -- the wire format --------------------------------------------------------------------------------------------------

names = st.text(max_size=40)
containers = st.one_of(st.builds(claiming, names, names), st.builds(container, names, gpu=st.lists(names)))
lists = st.lists(
    st.builds(
        lambda name, namespace, containers: {"name": name, "namespace": namespace, "containers": containers},
        names,
        names,
        st.lists(containers, max_size=3),
    ),
    max_size=4,
)


@given(lists)
def test_pod_resources_of_real_encoder_are_decoded(pods: list) -> None:
    expected = []
    for one in pods:
        for holder in one["containers"]:
            of = (one["namespace"], one["name"], holder["name"])
            for devices in holder.get("devices", ()):
                expected += [ContainerDevice(*of, devices["resource_name"], device) for device in devices["device_ids"]]
            for claim in holder.get("dynamic_resources", ()):
                expected += [
                    ContainerDevice(*of, "gpu.nvidia.com", device["device_name"], "research/two-gpus")
                    for device in claim["claim_resources"]
                ]
    assert list(pod_resources._held(Response(pod_resources=pods).SerializeToString())) == expected


@given(st.binary(max_size=200))
def test_any_pod_resources_bytes_are_decoded_or_rejected(data: bytes) -> None:
    try:
        found = list(pod_resources._held(data))
    except ValueError:
        return
    assert all(isinstance(one, ContainerDevice) for one in found)
