"""Exporters among a cluster's pods: dcgm-exporter under the names of its charts, our own agent, node_exporter."""

from __future__ import annotations

from pyrometer.collect.gpu.scrape import ScrapeTarget
from pyrometer.collect.kubernetes import objects

NAMES = ("nvidia-dcgm-exporter", "dcgm-exporter", "pyrometer-agent")  # of GPUs
MACHINE_NAMES = ("node-exporter", "prometheus-node-exporter")
NAME_LABELS = ("app.kubernetes.io/name", "app", "k8s-app")
PORT, MACHINE_PORT = 9400, 9100


def exporter_of(pod: objects.PodObject) -> ScrapeTarget | None:
    """Where a pod's GPU metrics are, if it is an exporter that runs."""
    return _target(pod, NAMES, PORT)


def machine_exporter_of(pod: objects.PodObject) -> ScrapeTarget | None:
    """Where a pod's metrics of its machine are, if it is a node_exporter that runs."""
    return _target(pod, MACHINE_NAMES, MACHINE_PORT)


def _target(pod: objects.PodObject, names: tuple[str, ...], usual_port: int) -> ScrapeTarget | None:
    labels = pod.metadata.labels or {}
    if not any(labels.get(key) in names for key in NAME_LABELS):
        return None
    if pod.status.phase != "Running" or not pod.status.pod_ip or pod.metadata.deletion_timestamp:
        return None
    ports = [port for container in pod.spec.containers or () for port in container.ports or ()]
    named = next((port.container_port for port in ports if port.name == "metrics"), None)
    address = f"[{pod.status.pod_ip}]" if ":" in pod.status.pod_ip else pod.status.pod_ip
    port = named or next((port.container_port for port in ports if port.container_port), usual_port)
    return ScrapeTarget(f"http://{address}:{port}/metrics", node=pod.spec.node_name or None)
