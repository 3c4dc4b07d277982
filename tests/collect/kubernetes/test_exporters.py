"""Exporters among pods, and their scrape targets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pyrometer.collect.kubernetes import objects
from pyrometer.collect.kubernetes.exporters import exporter_of, machine_exporter_of


def pod(
    labels: dict[str, str], *, phase: str = "Running", ip: str = "10.1.2.3", ports: Any = None
) -> objects.PodObject:
    thing = {
        "metadata": {"name": "x", "uid": "u", "labels": labels},
        "spec": {"nodeName": "node-a", "containers": [{"name": "main", "ports": ports}]},
        "status": {"phase": phase, "podIP": ip},
    }
    return msgspec.convert(thing, objects.PodObject)


@pytest.mark.parametrize(
    ("labels", "ports", "url"),
    [
        ({"app": "nvidia-dcgm-exporter"}, [{"name": "metrics", "containerPort": 9400}], "http://10.1.2.3:9400/metrics"),
        ({"app.kubernetes.io/name": "dcgm-exporter"}, None, "http://10.1.2.3:9400/metrics"),
        ({"app.kubernetes.io/name": "pyrometer-agent"}, [{"containerPort": 9500}], "http://10.1.2.3:9500/metrics"),
    ],
)
def test_exporter_of_finds_gpu_exporters_by_chart_name(labels: dict[str, str], ports: Any, url: str) -> None:
    target = exporter_of(pod(labels, ports=ports))
    assert target is not None
    assert (target.url, target.node) == (url, "node-a")
    assert machine_exporter_of(pod(labels, ports=ports)) is None


def test_machine_exporter_of_finds_node_exporter() -> None:
    target = machine_exporter_of(pod({"app.kubernetes.io/name": "prometheus-node-exporter"}, ip="fd00::7"))
    assert target is not None
    assert target.url == "http://[fd00::7]:9100/metrics"
    assert exporter_of(pod({"app.kubernetes.io/name": "prometheus-node-exporter"})) is None


@pytest.mark.parametrize(
    "other",
    [pod({"app": "training"}), pod({"app": "dcgm-exporter"}, phase="Pending"), pod({"app": "dcgm-exporter"}, ip="")],
)
def test_exporter_of_other_pods_is_none(other: objects.PodObject) -> None:
    assert exporter_of(other) is None
