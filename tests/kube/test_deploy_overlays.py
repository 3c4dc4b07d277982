"""The overlays: what each adds to the base, and that an API server accepts it."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kube_server import Kubectl

REPOSITORY = Path(__file__).parents[2]
IMAGE = "registry.example.com/pyrometer:1"
OVERLAYS = sorted(path.name for path in (REPOSITORY / "deploy" / "overlays").iterdir())


def rendered(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The output of `make manifests`, by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, for its kustomize")
    result = subprocess.run(
        ["make", "--no-print-directory", "manifests", f"DEPLOY=deploy/{folder}", f"IMAGE={IMAGE}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in yaml.safe_load_all(result.stdout)}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_keeps_everything_of_the_base(overlay: str) -> None:
    base, more = rendered("base"), rendered(f"overlays/{overlay}")
    assert set(base) <= set(more)
    assert more["ClusterRole", "pyrometer"] == base["ClusterRole", "pyrometer"]  # nothing more may be read
    before = base["StatefulSet", "pyrometer"]["spec"]["template"]["spec"]["containers"][0]
    after = more["StatefulSet", "pyrometer"]["spec"]["template"]["spec"]["containers"][0]
    assert after["args"][: len(before["args"])] == before["args"]
    assert after["securityContext"] == before["securityContext"]
    assert all(container["image"] == IMAGE for container in (before, after))


def test_prometheus_overlay_configures_reading_and_scraping(tmp_path: Path) -> None:
    things = rendered("overlays/prometheus")
    container = things["StatefulSet", "pyrometer"]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][-2:] == ["--prometheus", "$(PROMETHEUS_URL)"]
    assert {"name": "PROMETHEUS_URL", "value": "http://prometheus-operated.monitoring:9090"} in container["env"]
    egress = things["NetworkPolicy", "pyrometer"]["spec"]["egress"]
    assert any({"protocol": "TCP", "port": 9090} in rule["ports"] for rule in egress)
    (endpoint,) = things["ServiceMonitor", "pyrometer"]["spec"]["endpoints"]
    service = things["Service", "pyrometer"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    selected = things["ServiceMonitor", "pyrometer"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    assert endpoint["authorization"]["credentials"] == {"name": "pyrometer-scrape", "key": "token"}


def test_monitoring_overlay_has_rules_and_dashboards() -> None:
    things = rendered("overlays/monitoring")
    rules = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "rules.yaml").read_text())
    assert things["PrometheusRule", "pyrometer"]["spec"] == rules
    shown = things["ConfigMap", "pyrometer-dashboards"]
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"
    folder = REPOSITORY / "deploy" / "grafana"
    assert shown["data"] == {path.name: path.read_text() for path in folder.glob("*.json")}
    assert ("ServiceMonitor", "pyrometer") in things


def test_backup_job_has_no_other_rights() -> None:
    things = rendered("overlays/backup")
    job = things["CronJob", "pyrometer-backup"]["spec"]
    pod = job["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    server = things["StatefulSet", "pyrometer"]["spec"]["template"]["spec"]
    assert container["securityContext"] == server["containers"][0]["securityContext"]
    assert pod["securityContext"] == server["securityContext"]
    assert (job["concurrencyPolicy"], pod["automountServiceAccountToken"]) == ("Forbid", False)
    assert "serviceAccountName" not in pod  # the default one, without a token
    egress = things["NetworkPolicy", "pyrometer-backup"]["spec"]["egress"]
    assert {port["port"] for rule in egress for port in rule["ports"]} == {53, 8411}
    ports = things["Service", "pyrometer"]["spec"]["ports"]
    assert f"http://pyrometer.pyrometer:{ports[0]['port']}" in container["args"]
    command = importlib.import_module(f"pyrometer.cli.commands.{container['args'][0]}").command
    with command.make_context("backup", container["args"][1:]) as context:
        assert (str(context.params["out"]), context.params["keep"]) == (container["volumeMounts"][0]["mountPath"], 14)


@pytest.mark.heavy
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_api_server_accepts_the_overlay(kubectl: Kubectl, overlay: str) -> None:
    for thing in map(_as_a_job, rendered(f"overlays/{overlay}").values()):
        if thing["kind"] not in ("ServiceMonitor", "PrometheusRule"):  # those kinds come with the Prometheus operator
            assert kubectl.apply(thing)["metadata"]["name"] == thing["metadata"]["name"]


def _as_a_job(thing: dict[str, Any]) -> dict[str, Any]:
    """A CronJob as the Job that it makes: batch/v1 has CronJobs since Kubernetes 1.21, and the server here is older."""
    if thing["kind"] != "CronJob":
        return thing
    return {**thing, "kind": "Job", "spec": thing["spec"]["jobTemplate"]["spec"]}
