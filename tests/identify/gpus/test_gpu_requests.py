"""How many GPUs a pod asks for and a node has."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pyrometer.collect.kubernetes import objects
from pyrometer.identify.gpus.gpu_requests import GpuNode, node_gpus, purchase_of, quantity, request_of
from pyrometer.model.units import SHARE_WHOLE

WHOLE_NODE = GpuNode(8, "H100", 1, 0, 81_559)


def pod(*requests: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> objects.PodObject:
    containers = [{"name": f"c{n}", "resources": {"requests": each}} for n, each in enumerate(requests)]
    meta = {"name": "p", "namespace": spec.pop("namespace", "ns"), "annotations": annotations}
    return msgspec.convert({"metadata": meta, "spec": {"containers": containers, **spec}}, objects.PodObject)


def node(capacity: dict[str, Any], **labels: str) -> objects.NodeObject:
    named = {name.replace("__", "/").replace("_", "."): value for name, value in labels.items()}
    meta = {"name": "n", "labels": {f"nvidia.com/{key}": value for key, value in named.items()}}
    return msgspec.convert(
        {"metadata": meta, "status": {"capacity": capacity, "allocatable": capacity}}, objects.NodeObject
    )


class TestPods:
    def test_request_adds_the_devices_of_all_containers(self) -> None:
        assert request_of(pod({"nvidia.com/gpu": "4"}, {"nvidia.com/gpu": 2}), WHOLE_NODE) == (6, SHARE_WHOLE)

    def test_pod_without_gpus_has_no_request(self) -> None:
        assert request_of(pod({"cpu": "8"}, {}), WHOLE_NODE) is None

    def test_request_uses_the_limit_without_a_request(self) -> None:
        limited = pod()
        limited.spec.containers = [objects.ContainerObject(resources=objects.Resources(limits={"amd.com/gpu": "2"}))]
        assert request_of(limited) == (2, SHARE_WHOLE)

    def test_request_counts_sidecars_and_not_init_containers(self) -> None:
        resources = {"requests": {"nvidia.com/gpu": "1"}}
        before = [
            {"name": "a", "resources": resources, "restartPolicy": "Always"},
            {"name": "b", "resources": resources},
        ]
        assert request_of(pod({"nvidia.com/gpu": "1"}, initContainers=before)) == (2, SHARE_WHOLE)

    def test_mig_slices_are_sevenths(self) -> None:
        assert request_of(pod({"nvidia.com/mig-1g.10gb": "2"})) == (2, SHARE_WHOLE // 7)
        assert request_of(pod({"nvidia.com/mig-3g.40gb": "1"})) == (1, 3 * SHARE_WHOLE // 7)

    def test_request_on_a_node_of_mig_slices_is_a_share(self) -> None:
        assert request_of(pod({"nvidia.com/gpu": "1"}), WHOLE_NODE._replace(mig_slices=2)) == (1, 2 * SHARE_WHOLE // 7)

    def test_request_on_a_time_sliced_node_is_a_share(self) -> None:
        assert request_of(pod({"nvidia.com/gpu": "1"}), WHOLE_NODE._replace(replicas=4)) == (1, SHARE_WHOLE // 4)
        assert request_of(pod({"nvidia.com/gpu.shared": "1"}), WHOLE_NODE._replace(replicas=4)) == (1, SHARE_WHOLE // 4)

    def test_request_reads_a_fraction(self) -> None:
        assert request_of(pod({}, annotations={"gpu-fraction": "0.25"})) == (1, SHARE_WHOLE // 4)

    def test_request_reads_memory_as_a_share_of_the_device(self) -> None:
        request = request_of(pod({}, annotations={"gpu-memory": "20000"}), WHOLE_NODE._replace(memory_mib=80_000))
        assert request == (1, SHARE_WHOLE // 4)

    def test_invalid_fraction_is_not_a_request(self) -> None:
        assert request_of(pod({}, annotations={"gpu-fraction": "half"})) is None

    def test_reservation_pod_has_no_request(self) -> None:
        assert request_of(pod({"nvidia.com/gpu": "1"}, namespace="kai-resource-reservation")) is None


class TestNodes:
    def test_node_counts_whole_devices(self) -> None:
        found = node_gpus(node({"nvidia.com/gpu": "8"}, gpu_product="NVIDIA-H100-80GB-HBM3", gpu_memory="81559"))
        assert found == (8, "NVIDIA-H100-80GB-HBM3", 1, 0, 81_559)

    def test_node_counts_time_sliced_devices_once(self) -> None:
        found = node_gpus(node({"nvidia.com/gpu": "32"}, gpu_product="Tesla-T4-SHARED", gpu_replicas="4"))
        assert found == (8, "Tesla-T4", 4, 0, None)

    @pytest.mark.parametrize(
        ("profile", "count", "physical"), [("1g.10gb", 56, 8), ("2g.20gb", 24, 8), ("3g.40gb", 16, 8)]
    )
    def test_node_counts_devices_with_equal_slices(self, profile: str, count: int, physical: int) -> None:
        found = node_gpus(node({"nvidia.com/gpu": str(count)}, gpu_product=f"NVIDIA-A100-SXM4-80GB-MIG-{profile}"))
        assert found == (physical, "NVIDIA-A100-SXM4-80GB", 1, int(profile[0]), None)

    def test_node_counts_devices_with_mixed_slices(self) -> None:
        capacity = {"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "14", "nvidia.com/mig-3g.40gb": "4"}
        assert node_gpus(node(capacity, gpu_count="8")).gpus == 8
        assert node_gpus(node(capacity)).gpus == 4 + 2 + 2

    def test_node_without_gpus_counts_none(self) -> None:
        assert node_gpus(node({"cpu": "96"})).gpus == 0


@pytest.mark.parametrize(("text", "count"), [("8", 8), (8, 8), ("2k", 2000), ("1500m", 0), ("", 0), ("-1", 0)])
def test_quantity_reads_kubernetes_quantities(text: str | int, count: int) -> None:
    assert quantity(text) == count


@pytest.mark.parametrize(
    ("labels", "purchase"),
    [
        ({"karpenter.sh/capacity-type": "spot"}, "spot"),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, "on_demand"),
        ({"cloud.google.com/gke-spot": "true"}, "spot"),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, "spot"),
        ({"karpenter.sh/capacity-type": "borrowed"}, None),
        ({}, None),
    ],
)
def test_purchase_of_reads_the_labels_of_clouds(labels: dict[str, str], purchase: str | None) -> None:
    assert purchase_of(labels) == purchase
