"""Checks of permissions."""

from __future__ import annotations

import asyncio

from pyrometer.collect.kubernetes.api import DeniedError
from pyrometer.collect.kubernetes.doctor import examine
from tests.support.recorded_api import RecordedApi, pod


class Denying(RecordedApi):
    """An API server that denies namespaces and ends watches at once."""

    async def get(self, path, params=None, accept="application/json"):
        if path.startswith("/api/v1/namespaces") and "/pods" not in path:
            raise DeniedError("no access to namespaces")
        return await super().get(path, params, accept)

    async def lines(self, path, params, accept, silent_s):
        if path == "/api/v1/namespaces":
            raise DeniedError("no access to namespaces")
        yield []


def test_examine_reports_denied_and_absent_resources():
    report = asyncio.run(examine(Denying({"/api/v1/pods": [pod("a"), pod("b")]}), [], lambda pod: True))
    states = {(check.resource, check.verb): check.state for check in report.checked}
    assert report.gpu_pods == 2
    assert states["namespaces", "list"] == states["namespaces", "watch"] == "denied"
    assert states["pods", "list"] == "ok"
    assert states["ResourceClaim.resource.k8s.io", "list"] == "absent"
    assert {check.resource for check in report.checked if not check.well} == {"namespaces"}
