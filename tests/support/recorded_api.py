"""Recorded answers of an API server: paths, pages and objects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pyrometer.collect.kubernetes.api import MissingError

GROUPS = {
    "argoproj.io": ("v1alpha1", {"workflows": "Workflow"}),
    "kubeflow.org": ("v1beta1", {"experiments": "Experiment", "trials": "Trial"}),
}
CORE = {"nodes": "Node", "namespaces": "Namespace", "pods": "Pod", "events": "Event"}
CREATED = "2026-11-01T10:00:00Z"


class RecordedApi:
    """Answers read requests like an API server. Nothing happens after the lists."""

    cluster = "recorded"

    def __init__(self, objects: Mapping[str, list[dict[str, Any]]], groups: Mapping[str, Any] = GROUPS) -> None:
        self.objects, self.groups = objects, groups  # objects by the path of their list; installed API groups
        self.requests: list[tuple[str, str, str]] = []  # path, limit, form

    async def get(self, path: str, params: Mapping[str, str] | None = None, accept: str = "application/json") -> bytes:
        self.requests.append((path, (params or {}).get("limit", ""), accept))
        group, _, version = path.removeprefix("/apis/").partition("/")
        if path == "/api/v1":
            return _resources(CORE)
        if group in self.groups and not version:
            return json.dumps({"preferredVersion": {"version": self.groups[group][0]}}).encode()
        if group in self.groups and version == self.groups[group][0]:
            return _resources(self.groups[group][1])
        listed = path.removeprefix("/api/v1/") in CORE or path in self.objects
        if not listed:
            raise MissingError(f"{path} is not there")
        metadata = {"resourceVersion": "7"}
        return json.dumps({"metadata": metadata, "items": self.objects.get(path, [])}).encode()

    async def lines(
        self, path: str, params: Mapping[str, str], accept: str, silent_s: float
    ) -> AsyncIterator[list[bytes]]:
        await asyncio.Event().wait()
        yield []


def _resources(kinds: Mapping[str, str]) -> bytes:
    verbs = ["get", "list", "watch"]
    return json.dumps({"resources": [{"name": n, "kind": k, "verbs": verbs} for n, k in kinds.items()]}).encode()


def pod(name: str, **meta: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": CREATED, **meta},
        "spec": {"containers": [container]},
        "status": {"phase": "Pending"},
    }
