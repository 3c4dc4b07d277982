"""Who this process is: its run, rank, pod and device, from what is available without any request."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

_POD_UID = re.compile(r"/pods/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})/")
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_RANK = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
_PROC = Path("/proc")
MAX_ATTRIBUTES, MAX_VALUE_CHARACTERS = 64, 1024  # of OTEL_RESOURCE_ATTRIBUTES
_ALLOWED_PREFIXES = ("k8s.", "host.", "cloud.", "container.", "deployment.", "service.")


_next_launch: tuple[int, str] | None = None  # a process, and the name of its next launch


def next_launch() -> str:
    """The name of this process's launch if it becomes a rank, for callers that need it before."""
    global _next_launch
    if _next_launch is None or _next_launch[0] != os.getpid():  # a fork has a launch of its own
        _next_launch = (os.getpid(), secrets.token_hex(8))
    return _next_launch[1]


def identify(environment: Mapping[str, str] = os.environ, *, launch: str | None = None) -> dict[str, Any]:
    """What is known before the rendezvous. A launch name is used once: a process that becomes a rank again has another
    one."""
    global _next_launch
    if launch is None:
        launch, _next_launch = next_launch(), None
    identity: dict[str, Any] = {
        "launch": launch,
        "rank": 0,
        "ranks": 1,
        "local_rank": 0,
        "pid": os.getpid(),
        "host": environment.get("PYROMETER_NODE") or socket.gethostname(),
        "started_ms": process_started_ms(),
    }
    for name, variable in (("run", "PYROMETER_RUN"), ("experiment", "PYROMETER_EXPERIMENT")):
        if environment.get(variable):
            identity[name] = environment[variable]
    identity.update(rank_of(environment))
    identity.update(pod(environment))
    if "namespace" in identity and environment.get("PYROMETER_NODE"):
        identity["node_name"] = environment["PYROMETER_NODE"]
    attributes = resource(environment)
    if attributes:
        identity["resource"] = attributes
    return identity


def resource(environment: Mapping[str, str]) -> dict[str, str]:
    """The allowed attributes of OTEL_RESOURCE_ATTRIBUTES, like `k8s.pod.name=a,k8s.node.name=b`."""
    found = {}
    for pair in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")[:MAX_ATTRIBUTES]:
        name, equals, value = pair.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if equals and name.startswith(_ALLOWED_PREFIXES) and 0 < len(value) <= MAX_VALUE_CHARACTERS:
            found[name] = value
    return found


def rank_of(environment: Mapping[str, str]) -> dict[str, int]:
    """Rank and number of ranks, from the variables of the launcher."""
    for names in _RANK:
        values = [environment.get(name, "") for name in names]
        if values[0].isdecimal() and values[1].isdecimal():
            local = int(values[2]) if values[2].isdecimal() else 0
            return {"rank": int(values[0]), "ranks": int(values[1]), "local_rank": local}
    return {}


def pod(environment: Mapping[str, str]) -> dict[str, str]:
    """The pod of this process: its UID from the mounts, its namespace and name in Kubernetes."""
    found = {}
    with suppress(OSError):
        mounts = (_PROC / "self" / "mountinfo").read_text(encoding="utf-8", errors="replace")
        match = _POD_UID.search(mounts)
        if match:
            found["pod_uid"] = match[1]
    if environment.get("KUBERNETES_SERVICE_HOST"):
        found["pod_name"] = environment.get("HOSTNAME") or socket.gethostname()
        with suppress(OSError):
            found["namespace"] = _NAMESPACE.read_text(encoding="utf-8").strip()
    return found


def process_started_ms() -> int:
    """When this process started."""
    try:
        fields = (_PROC / "self" / "stat").read_text().rpartition(")")[2].split()
        uptime_s = float((_PROC / "uptime").read_text().split()[0])
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return round((time.time() - uptime_s + started_s) * 1000)
    except (OSError, ValueError, IndexError):
        return time.time_ns() // 1_000_000


def device(torch: Any, index: int | None) -> dict[str, Any]:
    """The GPU that the process computes on. Without an `index` the device has no known number."""
    cuda = torch.cuda
    if not cuda.is_initialized():  # a question would initialize CUDA, and break programs that fork
        return {"device": "cpu"}
    if index is None:
        return {"device": "cuda"}
    properties = cuda.get_device_properties(index)
    found = {"device": "cuda", "gpu_index": _physical(index, os.environ), "gpu_model": properties.name}
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        text = str(uuid)
        found["gpu_uuid"] = text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
    return found


def _physical(index: int, environment: Mapping[str, str]) -> int:
    """The index of a device on its machine, where only some devices are visible to this process."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(visible[index]) if index < len(visible) and visible[index].strip().isdecimal() else index
