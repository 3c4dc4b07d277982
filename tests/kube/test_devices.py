"""The devices of pods, from an exporter that the collector finds among the pods of a real API server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from pyrometer.collect.gpu.dcgm import Dcgm
from pyrometer.collect.gpu.scrape import Scrapes, gpu_exporters
from pyrometer.identify.gpus.gpu_models import near_idle_power_w
from pyrometer.serve.ingest.telemetry_ingest import HoldersFromKubernetes, TelemetryIngest
from tests.serve.ingest.test_telemetry_ingest import exporter
from tests.support import manifests
from tests.support.exporter_texts import Gpu, text_of
from tests.support.kube_collectors import Site, collecting, wait_for_rows
from tests.support.kube_server import ApiServer, Kubectl

pytestmark = pytest.mark.heavy


def test_exporter_pod_labels_assign_gpus_to_pods(
    api_server: ApiServer, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with collecting(api_server, tmp_path / "data") as collector:
            site = Site(kubectl, namespace, 1)
            node = site.nodes[0]
            site.pod("train-0", gpus=2)
            holds = (
                "SELECT slot_index, source FROM (SELECT * FROM allocation "
                f"WHERE pod_uid = '{site.pods[0]['metadata']['uid']}' QUALIFY row_number() OVER "
                "(PARTITION BY slot_index, from_ms ORDER BY time_ms DESC) = 1) WHERE to_ms IS NULL ORDER BY 1"
            )
            await wait_for_rows(collector, holds, [(0, "count"), (1, "count")])
            gpus = [Gpu(i, host=node, pod="train-0" if i in (5, 6) else None, namespace=namespace) for i in range(8)]
            with exporter(lambda: text_of(gpus).decode()) as url:
                _exporter_pod(kubectl, namespace, node, url)
                assert collector.source is not None
                source = collector.source
                while not source.exporters:
                    await asyncio.sleep(0.01)
                (target,) = source.exporters.values()
                assert (target.url, target.node) == (url, node)
                dcgm = Dcgm(
                    lambda name: collector.cluster.node_uid_of(name) if collector.cluster else None, near_idle_power_w
                )
                scrapes = Scrapes(lambda: list(source.exporters.values()), gpu_exporters(dcgm), interval_s=0.2)
                telemetry = TelemetryIngest(
                    collector.store, collector.lock, scrapes, HoldersFromKubernetes(lambda: collector.cluster)
                )
                running = asyncio.create_task(telemetry.run())
                await wait_for_rows(collector, holds, [(5, "dcgm"), (6, "dcgm")])
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
            async with collector.lock:
                collector.store.expose_all(["gpu_sample"])
                uids = collector.store.connection.execute("SELECT DISTINCT node_uid FROM gpu_sample").fetchall()
            assert len(uids) == 1
            assert not uids[0][0].startswith("host/")  # the node that Kubernetes knows

    asyncio.run(scenario())


def _exporter_pod(kubectl: Kubectl, namespace: str, node: str, url: str) -> None:
    thing = manifests.on_node(
        manifests.pod(namespace, "dcgm-exporter-x", 0, labels={"app": "nvidia-dcgm-exporter"}), node
    )
    thing["spec"]["containers"][0]["ports"] = [{"name": "metrics", "containerPort": urlsplit(url).port}]
    made = kubectl.create(thing)
    kubectl.status(made, {"phase": "Running", "podIP": "127.0.0.1"})
