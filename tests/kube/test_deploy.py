"""The manifests against a real API server: they are accepted, and they grant exactly what the server needs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kube_collectors import Site, collecting, gpu_seconds, wait_for_ended
from tests.support.kube_server import ApiServer, Kubectl

pytestmark = pytest.mark.heavy

BASE = Path(__file__).parents[2] / "deploy" / "base"
JOB = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "x"}]}}}


def manifests() -> list[dict[str, Any]]:
    """All objects of the base, in order."""
    files = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [thing for name in files for thing in yaml.safe_load_all((BASE / name).read_text())]


@pytest.fixture
def granted(kubectl: Kubectl) -> Iterator[dict[str, Any]]:
    """The role of the manifests, bound to the user `reader`."""
    for thing in manifests():
        kubectl.apply(thing)
    role = next(thing for thing in manifests() if thing["kind"] == "ClusterRole")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "reader"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pyrometer"},
        "subjects": [{"kind": "User", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"}],
    }
    kubectl.apply(binding)
    yield role
    kubectl.delete(binding)


def doctor(server: ApiServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyrometer", "doctor", *arguments],
        env={**os.environ, "KUBECONFIG": str(server.kubeconfig("reader"))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_api_server_accepts_every_manifest(kubectl: Kubectl) -> None:
    for thing in manifests():
        assert kubectl.apply(thing)["metadata"]["name"] == thing["metadata"]["name"]


def test_granted_role_is_enough_for_the_collector(
    api_server: ApiServer, kubectl: Kubectl, granted: dict[str, Any], namespace: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with collecting(api_server, tmp_path / "data", token="reader") as collector:
            site = Site(kubectl, namespace, 2)
            job = site.owner("batch/v1", "Job", "train", spec=JOB)
            site.pod("train-0", job)
            site.finish()
            await wait_for_ended(collector, namespace, 1)
            assert await gpu_seconds(collector, namespace) == {"Job/train": 800}
            assert collector.source is not None
            assert collector.source.shortcomings() == []

    asyncio.run(scenario())


def test_doctor_accepts_the_granted_role(api_server: ApiServer, granted: dict[str, Any]) -> None:
    found = doctor(api_server, "-o", "json")
    answer = json.loads(found.stdout)
    assert found.returncode == 0, answer
    assert answer["ok"] is True
    assert {("pods", "watch"), ("jobs.batch", "get")} <= {
        (check["resource"], check["verb"]) for check in answer["checks"] if check["state"] == "ok"
    }


@pytest.mark.parametrize(
    ("resource", "verb", "costs"),
    [
        ("pods", "watch", "who holds which GPUs"),
        ("events", "list", "why pods wait"),
        ("jobs", "get", "the job of the pods below"),
    ],
)
def test_doctor_names_the_missing_verb(
    api_server: ApiServer, kubectl: Kubectl, granted: dict[str, Any], resource: str, verb: str, costs: str
) -> None:
    rules = [
        {**rule, "resources": [name], "verbs": [v for v in rule["verbs"] if name != resource or v != verb]}
        for rule in granted["rules"]
        for name in rule["resources"]
    ]
    kubectl.apply({**granted, "rules": rules})
    found = doctor(api_server)
    kubectl.apply(granted)
    assert found.returncode == 1
    assert any(
        line.split()[:2] == [{"jobs": "jobs.batch"}.get(resource, resource), verb] for line in found.stdout.splitlines()
    )
    assert costs in found.stdout


def test_collector_without_event_permission_continues_and_reports_it(
    api_server: ApiServer, kubectl: Kubectl, granted: dict[str, Any], tmp_path: Path
) -> None:
    rules = [{**rule, "resources": [r for r in rule["resources"] if r != "events"]} for rule in granted["rules"]]
    kubectl.apply({**granted, "rules": [rule for rule in rules if rule["resources"]]})

    async def scenario() -> None:
        async with collecting(api_server, tmp_path / "data", token="reader") as collector:
            assert collector.source is not None
            (problem,) = collector.source.shortcomings()
            assert problem.startswith("events may not be read: why pods wait")

    asyncio.run(scenario())
    kubectl.apply(granted)


def test_role_grants_exactly_what_doctor_checks() -> None:
    from pyrometer.collect.kubernetes.source import NEEDS
    from pyrometer.identify.kubernetes.workload_kinds import known_kinds

    role = next(thing for thing in manifests() if thing["kind"] == "ClusterRole")
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = {(need.group, need.plural, verb) for need in NEEDS for verb in ("list", "watch")}
    needed |= {("", "pods", "get"), ("", "namespaces", "get")}
    needed |= {
        (group, kind.lower() + "s", verb) for group, kind in known_kinds().by_owner for verb in ("get", "list", "watch")
    }
    assert granted == needed


def test_role_grants_no_write_verb() -> None:
    verbs = {
        v for thing in manifests() if thing["kind"] == "ClusterRole" for rule in thing["rules"] for v in rule["verbs"]
    }
    assert verbs == {"get", "list", "watch"}


def test_pods_are_restricted() -> None:
    (server,) = (thing for thing in manifests() if thing["kind"] == "StatefulSet")
    pod = server["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert server["spec"]["replicas"] == 1


def test_manifests_require_an_image() -> None:
    found = subprocess.run(["make", "manifests"], cwd=BASE.parents[1], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "IMAGE is not set" in found.stderr
    assert "make manifests IMAGE=" in found.stderr
