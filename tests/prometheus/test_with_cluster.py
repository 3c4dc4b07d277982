"""`pyrometer why --kube --prometheus`: a night from a real Prometheus, and existing objects of an API server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pyrometer.model.records import Node
from pyrometer.store import Store
from tests.kube.conftest import api_server, kubectl, namespace  # noqa: F401 - fixtures
from tests.prometheus.test_history import Night, held, night  # noqa: F401 - fixtures
from tests.support import manifests
from tests.support.exposed_night import NightScrapes, newest
from tests.support.kube_server import ApiServer, Kubectl
from tests.support.prometheus_servers import prometheus

pytestmark = pytest.mark.heavy


def test_existing_objects_come_from_the_cluster_and_the_rest_from_prometheus(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, night: Night, tmp_path: Path
) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: apt-get install prometheus")
    with Store(night.folder) as store:
        names = [node.name for node in newest(store, Node, "node_uid")]
        server = prometheus(
            tmp_path / "prometheus", NightScrapes(store, *night.window, every_ms=30_000, honor_labels=True).lines()
        )
    uids = {kubectl.create(manifests.node(name))["metadata"]["uid"] for name in names}
    try:
        since, until = (datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in night.window)
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "pyrometer",
                "why",
                "--kube",
                "--prometheus",
                server.url,
                "--since",
                since,
                "--until",
                until,
                "--data",
                str(tmp_path / "read"),
                "-o",
                "json",
            ],
            env={**os.environ, "KUBECONFIG": str(api_server.kubeconfig())},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["total"]["gpu_ms"] > 0
        with Store(tmp_path / "read") as store:
            pods = held(store, night.window, "pod")
            known = {node.node_uid for node in newest(store, Node, "node_uid")}
            store.expose_all(["gpu_sample"])
            sampled = {
                uid for (uid,) in store.connection.execute("SELECT DISTINCT node_uid FROM gpu_sample").fetchall()
            }
        assert uids <= known
        assert sampled <= uids  # telemetry is of the machines that Kubernetes knows
        assert set(pods) == set(night.pods)
        for name, true_ms in night.pods.items():
            assert abs(pods[name] - true_ms) <= 8 * 30_000, name
    finally:
        server.close()
        for name in names:
            kubectl.delete({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
