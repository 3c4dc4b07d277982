"""Finds exporters among the pods of a cluster: dcgm-exporter by its chart names, the Pyrometer agent, node_exporter."""

from __future__ import annotations

from pyrometer.collect.gpu.scrape import ScrapeTarget
from pyrometer.collect.kubernetes import objects

NAMES = ("nvidia-dcgm-exporter", "dcgm-exporter", "pyrometer-agent")  # of GPU exporters
MACHINE_NAMES = ("node-exporter", "prometheus-node-exporter")
NAME_LABELS = ("app.kubernetes.io/name", "app", "k8s-app")
PORT, MACHINE_PORT = 9400, 9100


def exporter_of(pod: objects.PodObject) -> ScrapeTarget | None:
    """The scrape target of a pod, if it is a running GPU exporter."""
    return _target(pod, NAMES, PORT)


def machine_exporter_of(pod: objects.PodObject) -> ScrapeTarget | None:
    """The scrape target of a pod, if it is a running node_exporter."""
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
