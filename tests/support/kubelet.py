"""A kubelet for tests: the pod-resources API as a real gRPC server on a unix socket, with the real encoder."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# k8s.io/kubelet/pkg/apis/podresources/v1/api.proto: number, name, and the message or how scalars are written; * repeats
MESSAGES = {
    "ListPodResourcesResponse": [(1, "pod_resources", "PodResources*")],
    "PodResources": [(1, "name", "string"), (2, "namespace", "string"), (3, "containers", "ContainerResources*")],
    "ContainerResources": [
        (1, "name", "string"),
        (2, "devices", "ContainerDevices*"),
        (3, "cpu_ids", "int64*"),
        (4, "memory", "ContainerMemory*"),
        (5, "dynamic_resources", "DynamicResource*"),
    ],
    "ContainerMemory": [(1, "memory_type", "string"), (2, "size", "uint64"), (3, "topology", "TopologyInfo")],
    "ContainerDevices": [(1, "resource_name", "string"), (2, "device_ids", "string*"), (3, "topology", "TopologyInfo")],
    "TopologyInfo": [(1, "nodes", "NUMANode*")],
    "NUMANode": [(1, "ID", "int64")],
    "DynamicResource": [
        (2, "claim_name", "string"),
        (3, "claim_namespace", "string"),
        (4, "claim_resources", "ClaimResource*"),
    ],
    "ClaimResource": [
        (1, "cdi_devices", "CDIDevice*"),
        (2, "driver_name", "string"),
        (3, "pool_name", "string"),
        (4, "device_name", "string"),
    ],
    "CDIDevice": [(1, "name", "string")],
}
Field = descriptor_pb2.FieldDescriptorProto


def _response() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="podresources.proto", package="v1", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            scalar = getattr(Field, f"TYPE_{kind.rstrip('*').upper()}", None)
            message.field.add(
                name=field,
                number=number,
                label=Field.LABEL_REPEATED if kind.endswith("*") else Field.LABEL_OPTIONAL,
                type=scalar or Field.TYPE_MESSAGE,
                type_name=None if scalar else f".v1.{kind.rstrip('*')}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("v1.ListPodResourcesResponse"))


Response = _response()


def pod(name: str, *containers: dict[str, Any], namespace: str = "research") -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "containers": list(containers)}


def container(name: str, **devices: list[str]) -> dict[str, Any]:
    """A container with devices of a plugin: gpu=["GPU-1"] is `nvidia.com/gpu`."""
    topology = {"nodes": [{"ID": 0}, {"ID": 1}]}
    return {
        "name": name,
        "cpu_ids": [4, 5, 300],
        "memory": [{"memory_type": "memory", "size": 1 << 33, "topology": topology}],
        "devices": [
            {"resource_name": f"nvidia.com/{resource}", "device_ids": ids, "topology": topology}
            for resource, ids in devices.items()
        ],
    }


def claiming(name: str, *devices: str) -> dict[str, Any]:
    """A container that has devices by a claim."""
    resources = [
        {
            "driver_name": "gpu.nvidia.com",
            "pool_name": "node-1",
            "device_name": device,
            "cdi_devices": [{"name": f"k8s.gpu.nvidia.com/claim=7-{device}"}],
        }
        for device in devices
    ]
    claim = {"claim_name": "two-gpus", "claim_namespace": "research", "claim_resources": resources}
    return {"name": name, "dynamic_resources": [claim]}


@contextmanager
def kubelet(path: Path, pods: list[dict[str, Any]], fails: grpc.StatusCode | None = None) -> Iterator[None]:
    """Serves this list of pods while it is open."""

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        if fails is not None:
            context.abort(fails, "rate limit")
        return Response(pod_resources=pods).SerializeToString()

    handler = grpc.unary_unary_rpc_method_handler(answer)
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()
