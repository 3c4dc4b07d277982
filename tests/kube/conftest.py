"""A real API server for the tests that need one."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.support.kube_server import KINDS, ApiServer, Kubectl


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One API server for all tests of a worker."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        pytest.skip("needs a Kubernetes API server: set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver")
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    server = ApiServer(Path(assets), tmp_path_factory.mktemp("kube"))
    with Kubectl(server) as kubectl:
        kubectl.define(KINDS)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _nothing_left_over() -> Iterator[None]:
    """httpcore leaks a connection that is cancelled in its TLS handshake: collect it here."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def kubectl(api_server: ApiServer) -> Iterator[Kubectl]:
    """The client of the admin."""
    with Kubectl(api_server) as client:
        yield client


@pytest.fixture(scope="session")
def custom_resources(api_server: ApiServer) -> None:
    """Skips if the server cannot store custom kinds: some old builds crash on the first one."""
    thing = {"apiVersion": "example.com/v1", "kind": "Sweep", "metadata": {"namespace": "default", "name": "probe"}}
    try:
        with Kubectl(api_server) as client:
            client.create(thing)
    except httpx.HTTPError:
        api_server.stop()
        api_server.start()
        pytest.skip("this kube-apiserver dies of custom resources (json-iterator built with Go 1.18 or newer)")


_numbers = itertools.count(1)


@pytest.fixture
def namespace(kubectl: Kubectl) -> str:
    """A namespace for this test."""
    name = f"test-{next(_numbers)}"
    kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name
