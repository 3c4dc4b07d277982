"""etcd and kube-apiserver as processes, and a client in the role of kubelets and controllers."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import yaml

TOKEN = "test-admin"  # of a server that runs during the tests


def free_port() -> int:
    """A port without a listener, outside of the range that the system gives to connections."""
    while True:
        port = random.SystemRandom().randint(12_000, 32_000)
        with suppress(OSError), socket.socket() as listening:
            listening.bind(("127.0.0.1", port))
            return port


class ApiServer:
    """etcd and kube-apiserver in a folder of their own."""

    def __init__(self, assets: Path, folder: Path) -> None:
        self.assets, self.folder = assets, folder
        self.etcd_port, peer_port, self.port = free_port(), free_port(), free_port()
        self.tokens = folder / "tokens.csv"
        self.tokens.write_text(f'{TOKEN},admin,1,"system:masters"\nreader,reader,2\n')
        subprocess.run(["openssl", "genrsa", "-out", "sa.key", "2048"], cwd=folder, check=True, capture_output=True)
        subprocess.run(
            ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        etcd_url = f"http://127.0.0.1:{self.etcd_port}"
        self.etcd = self._run(
            "etcd",
            "--data-dir",
            str(folder / "etcd"),
            "--listen-client-urls",
            etcd_url,
            "--advertise-client-urls",
            etcd_url,
            "--listen-peer-urls",
            f"http://127.0.0.1:{peer_port}",
        )
        self.start()

    def start(self) -> None:
        """Starts the API server on its port."""
        self.process = self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--cert-dir={self.folder / 'certs'}",
            f"--secure-port={self.port}",
            "--bind-address=127.0.0.1",
            "--service-account-issuer=https://kubernetes",
            "--service-account-signing-key-file=sa.key",
            "--service-account-key-file=sa.pub",
            f"--token-auth-file={self.tokens}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount",
        )
        with httpx.Client(verify=False) as client:  # its certificate is made when it starts
            for _ in range(600):
                if self.process.poll() is not None:
                    raise RuntimeError((self.folder / "kube-apiserver.log").read_text()[-2000:])
                try:
                    if client.get(f"https://127.0.0.1:{self.port}/readyz", headers=_bearer(TOKEN)).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                time.sleep(0.1)  # another program's process: polling is the only way
        raise RuntimeError("kube-apiserver did not become ready within a minute")

    def stop(self) -> None:
        """Stops the API server. etcd continues to run."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Stops both."""
        self.stop()
        self.etcd.kill()
        self.etcd.wait()

    def compact(self) -> None:
        """Makes etcd discard all old revisions."""
        with httpx.Client() as client:
            url = f"http://127.0.0.1:{self.etcd_port}/v3"
            status = client.post(f"{url}/maintenance/status", json={}).json()
            client.post(f"{url}/kv/compaction", json={"revision": status["header"]["revision"], "physical": True})

    def kubeconfig(self, token: str = TOKEN, *, port: int | None = None) -> Path:
        """A kubeconfig for this server, or for a proxy on another port."""
        path = self.folder / f"kubeconfig-{token}-{port or self.port}"
        cluster = {"server": f"https://127.0.0.1:{port or self.port}", "insecure-skip-tls-verify": True}
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test-cluster", "cluster": cluster}],
                    "users": [{"name": token, "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test-cluster", "user": token}}],
                }
            )
        )
        return path

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen(
                [str(self.assets / program), *arguments], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class Kubectl:
    """Creates, changes and deletes objects."""

    def __init__(self, server: ApiServer) -> None:
        self.client = httpx.Client(base_url=f"https://127.0.0.1:{server.port}", verify=False, headers=_bearer(TOKEN))

    def __enter__(self) -> Kubectl:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()

    def create(self, thing: dict[str, Any]) -> dict[str, Any]:
        """An object, as the server has it afterwards; its status too."""
        path = self._path(thing)
        made = self._checked(self.client.post(path, json=thing))
        if "status" in thing:
            made = self.status(made, thing["status"])
        return made

    def status(self, thing: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        """Sets the status of an object."""
        path = f"{self._path(thing)}/{thing['metadata']['name']}"
        patch = json.dumps({"status": status}).encode()
        headers = {"Content-Type": "application/merge-patch+json"}
        response = self.client.patch(f"{path}/status", content=patch, headers=headers)
        if response.status_code == 404:  # a kind without a status of its own
            response = self.client.patch(path, content=patch, headers=headers)
        return self._checked(response)

    def patch(self, thing: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
        """Changes an object."""
        path = f"{self._path(thing)}/{thing['metadata']['name']}"
        headers = {"Content-Type": "application/merge-patch+json"}
        return self._checked(self.client.patch(path, content=json.dumps(patch).encode(), headers=headers))

    def delete(self, thing: dict[str, Any]) -> None:
        """Deletes an object at once."""
        path = f"{self._path(thing)}/{thing['metadata']['name']}"
        body = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        self._checked(self.client.request("DELETE", path, json=body))

    def define(self, kinds: Iterable[tuple[str, str, str]]) -> None:
        """Custom kinds, by group, version and kind; until the server serves them."""
        kinds = list(kinds)
        for group, version, kind in kinds:
            self.create(definition(group, version, kind))
        for group, version, kind in kinds:
            path = self._path({"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {}})
            while self.client.get(path).status_code != 200:
                time.sleep(0.1)  # another program's process: polling is the only way

    def apply(self, thing: dict[str, Any]) -> dict[str, Any]:
        """Server-side apply, as `kubectl apply --server-side` does it."""
        path = f"{self._path(thing)}/{thing['metadata']['name']}"
        headers = {"Content-Type": "application/apply-patch+yaml"}
        content = json.dumps(thing).encode()
        return self._checked(
            self.client.patch(path, params={"fieldManager": "test", "force": "true"}, content=content, headers=headers)
        )

    def _path(self, thing: dict[str, Any]) -> str:
        version, kind = thing["apiVersion"], thing["kind"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        plural = {"NetworkPolicy": "networkpolicies", "Ingress": "ingresses"}.get(kind, kind.lower() + "s")
        namespace = thing["metadata"].get("namespace")
        return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"

    @staticmethod
    def _checked(response: Any) -> dict[str, Any]:
        if response.status_code >= 400:
            raise AssertionError(f"{response.request.method} {response.request.url}: {response.text}")
        answer: dict[str, Any] = response.json()
        return answer


KINDS = (
    ("kubeflow.org", "v1", "PyTorchJob"),
    ("kubeflow.org", "v2beta1", "MPIJob"),
    ("trainer.kubeflow.org", "v1alpha1", "TrainJob"),
    ("jobset.x-k8s.io", "v1alpha2", "JobSet"),
    ("ray.io", "v1", "RayJob"),
    ("ray.io", "v1", "RayCluster"),
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet"),
    ("batch.volcano.sh", "v1alpha1", "Job"),
    ("kueue.x-k8s.io", "v1beta1", "Workload"),
    ("argoproj.io", "v1alpha1", "Workflow"),
    ("example.com", "v1", "Sweep"),
)


def definition(group: str, version: str, kind: str) -> dict[str, Any]:
    plural = kind.lower() + "s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def rfc3339(time_ms: int) -> str:
    """A time as the API writes it: whole seconds."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
