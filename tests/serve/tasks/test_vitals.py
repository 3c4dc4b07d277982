"""The metrics of a server match the documentation, and a scrape does not read the store."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
import yaml
from dashboards import DASHBOARDS

from pyrometer.export.ledger_metrics import EXPORTED_THROUGH_KEY
from pyrometer.export.metrics_text import render_metrics
from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core
from pyrometer.serve.main import Services, build_services
from pyrometer.store import Store
from tests.support.clusters import all_ranks, at, cluster, job, run, samples, shifted

REPOSITORY = Path(__file__).parents[3]
PAGE = (REPOSITORY / "docs" / "grafana.md").read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Services]:
    with Store(tmp_path, create=True) as store:
        night = [*cluster(), *job(), *run(), *all_ranks(90, 120), *samples("n0", 0, 0, 90, gpu_util_permille=900)]
        store.append(shifted(night, time.time_ns() // 1_000_000 - at(120)))
        yield build_services(Core(store, Settings()), open_to_all=True)


def declared(server: Services) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Type and labels of every metric, by the name that it has in queries."""
    families = [f for one in server.collectors for f in one.collect()]
    return {
        family.name + ("_total" if family.type == "counter" else ""): (family.type, tuple(family._labelnames))
        for family in families
        if family.name.startswith("pyrometer_")
    }


def test_docs_list_every_metric_with_its_labels(server: Services) -> None:
    rows = re.findall(r"^\| `(pyrometer_\w+)` \| (\w+) \|([^|]*)\| ([^|]+) \|$", PAGE, re.MULTILINE)
    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}
    assert len(listed) == len(rows)
    assert listed == declared(server)


def test_docs_list_every_alert() -> None:
    groups = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "rules.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert set(re.findall(r"`(Pyrometer\w+)`", PAGE)) == alerts


def test_dashboards_and_rules_use_existing_metrics_and_labels(server: Services) -> None:
    known = declared(server)
    rules = (REPOSITORY / "deploy" / "prometheus" / "rules.yaml").read_text()
    queries = [
        target["expr"] for make in DASHBOARDS.values() for p in make()["panels"] for target in p.get("targets", ())
    ]
    for text in [*queries, *re.findall(r"expr: (.*?)\n        for", rules, re.DOTALL)]:
        for name, matchers in re.findall(r"(?<![\w:])(pyrometer_\w+)(?:\{([^}]*)\})?", text):
            if name in known:
                assert set(re.findall(r"(\w+)(?:=~|!=|!~|=)\"", matchers)) <= {*known[name][1], "instance"}, text
            else:
                assert f":{name}:" in text, f"{name} in {text}"  # of a recorded series


def test_promtool_accepts_metrics_and_rules(server: Services) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool: apt-get install prometheus")
    server.core.store.set_meta(EXPORTED_THROUGH_KEY, "1")  # as if the server had stopped before these records
    asyncio.run(server.accounting.update())
    asyncio.run(server.accounting.update())  # new minutes are counted in the second update
    text, _ = render_metrics(server.collectors, "")
    assert b"pyrometer_run_step{" in text
    assert b'pyrometer_gpu_seconds_total{experiment="llama-sft",state="train"' in text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_scrape_reads_no_store_and_needs_no_lock(server: Services) -> None:
    async def talk() -> tuple[bytes, bytes]:
        await server.accounting.update()
        transport = httpx.ASGITransport(app=server.application())
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client, server.core.lock:
            server.core.store.close()
            first = await client.get("/metrics")
            second = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
            return first.content, second.content

    text, open_metrics = asyncio.run(talk())
    assert b"pyrometer_run_step{" in text
    assert b"pyrometer_run_step{" in open_metrics
    assert open_metrics.count(b"# EOF") == 1
    assert open_metrics.endswith(b"# EOF\n")
