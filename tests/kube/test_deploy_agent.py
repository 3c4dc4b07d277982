"""The manifests of the agent: what they contain, what they allow, and that an API server accepts them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kube_server import Kubectl

REPOSITORY = Path(__file__).parents[2]
IMAGE = "registry.example.com/pyrometer:1"


@pytest.fixture(scope="module")
def rendered() -> dict[tuple[str, str], dict[str, Any]]:
    """The output of `make manifests`, by kind and name."""
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, for its kustomize")
    result = subprocess.run(
        ["make", "--no-print-directory", "manifests", "DEPLOY=deploy/overlays/agent", f"IMAGE={IMAGE}"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in yaml.safe_load_all(result.stdout)}


def test_agent_overlay_adds_the_agent_and_changes_nothing_else(rendered: dict) -> None:
    base = {
        (thing["kind"], thing["metadata"]["name"])
        for path in (REPOSITORY / "deploy" / "base").glob("*.yaml")
        for thing in yaml.safe_load_all(path.read_text())
        if thing["kind"] != "Kustomization"
    }
    added = {
        ("Namespace", "pyrometer-agent"),
        ("DaemonSet", "pyrometer-agent"),
        ("Service", "pyrometer-agent"),
        ("NetworkPolicy", "pyrometer-agent"),
    }
    assert set(rendered) == base | added
    assert rendered["StatefulSet", "pyrometer"]["metadata"]["namespace"] == "pyrometer"
    assert rendered["DaemonSet", "pyrometer-agent"]["metadata"]["namespace"] == "pyrometer-agent"
    assert rendered["Namespace", "pyrometer"]["metadata"]["labels"] == {
        "pod-security.kubernetes.io/enforce": "restricted"
    }


def test_agent_pod_has_only_its_documented_rights(rendered: dict) -> None:
    pod = rendered["DaemonSet", "pyrometer-agent"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "hostNetwork" not in pod
    assert [volume["hostPath"]["path"] for volume in pod["volumes"]] == ["/var/lib/kubelet/pod-resources"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert not any(
        "nvidia.com/gpu" in kind for kind in container["resources"].values()
    )  # it looks at GPUs, it holds none


def test_agent_accepts_only_the_server_and_opens_no_connections(rendered: dict) -> None:
    policy = rendered["NetworkPolicy", "pyrometer-agent"]["spec"]
    server = rendered["StatefulSet", "pyrometer"]
    (rule,) = policy["ingress"]
    (source,) = rule["from"]
    assert source["podSelector"]["matchLabels"] == server["spec"]["template"]["metadata"]["labels"]
    assert source["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "pyrometer"}
    assert [port["port"] for port in rule["ports"]] == [9400]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    (out,) = (rule for rule in rendered["NetworkPolicy", "pyrometer"]["spec"]["egress"] if "to" in rule)
    labels = rendered["DaemonSet", "pyrometer-agent"]["spec"]["template"]["metadata"]["labels"]
    assert out["to"][0]["podSelector"]["matchLabels"] == labels
    assert [port["port"] for port in out["ports"]] == [9400]


def test_agent_arguments_are_valid_options(rendered: dict) -> None:
    from pyrometer.cli.commands.agent import command

    pod = rendered["DaemonSet", "pyrometer-agent"]["spec"]["template"]["spec"]
    name, *arguments = pod["containers"][0]["args"]
    assert name == "agent"
    with command.make_context("agent", arguments) as context:
        assert context.params["listen"] == "0.0.0.0:9400"
        assert str(context.params["pod_resources"].parent) == pod["volumes"][0]["hostPath"]["path"]


@pytest.mark.heavy
def test_api_server_accepts_every_manifest(kubectl: Kubectl, rendered: dict) -> None:
    for thing in rendered.values():
        assert kubectl.apply(thing)["metadata"]["name"] == thing["metadata"]["name"]
