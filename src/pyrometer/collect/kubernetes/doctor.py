"""Tries to read everything that a collector reads, and says what may not be read and what that costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from pyrometer.collect.kubernetes.api import Api, ApiError, DeniedError, MissingError
from pyrometer.collect.kubernetes.discovery import Discovery
from pyrometer.collect.kubernetes.source import NEEDS
from pyrometer.collect.kubernetes.watch import Resource

AT_ONCE = 8
OF_OWNERS = "which job the pods below belong to: they stay where the chain of owners ends"


class Checked(NamedTuple):
    """One thing that is read."""

    resource: str  # as RBAC calls it
    group: str
    plural: str
    verb: str
    state: str  # ok, denied, absent, failed
    detail: str
    costs: str

    @property
    def well(self) -> bool:
        """Nothing is missing; what a cluster does not have is not."""
        return self.state in ("ok", "absent")


async def examine(api: Api, owners: Iterable[tuple[str, str]]) -> list[Checked]:
    """Every resource with every verb that is used on it; `owners` are group and kind of what may stand above pods."""
    discovery = Discovery(api)
    wanted = [(need.group, need.kind, need.plural, need.costs) for need in NEEDS]
    above = list(owners)
    wanted += [(group, kind, "", OF_OWNERS) for group, kind in above]
    got = {("", "Pod"), ("", "Namespace"), *above}  # what is asked for by name as well
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(group: str, kind: str, plural: str, costs: str) -> list[Checked]:
        async with limit:
            try:
                place = await discovery.find(group, kind)
            except ApiError as error:
                return [Checked(plural or kind, group, plural, "list", "failed", str(error), costs)]
            if place is None:
                return [Checked(f"{kind}.{group}" if group else kind, group, plural, "list", "absent", "", costs)]
            resource = Resource(group, place.version, place.plural, kind, None)
            verbs = ("get", "list", "watch") if (group, kind) in got else ("list", "watch")
            return [
                Checked(resource.name, group, place.plural, verb, *(await _try(api, resource, verb)), costs)
                for verb in verbs
            ]

    found = await asyncio.gather(*(one(*each) for each in wanted))
    return [checked for group in found for checked in group]


async def _try(api: Api, resource: Resource, verb: str) -> tuple[str, str]:
    try:
        if verb == "get" and resource.kind == "Namespace":
            await api.get(f"{resource.path}/kube-system")
        elif verb == "get":
            await api.get(resource.named("default", "pyrometer-doctor"))
        elif verb == "list":
            await api.get(resource.path, {"limit": "1"})
        else:
            lines = api.lines(resource.path, {"watch": "true", "timeoutSeconds": "1"}, "application/json", 10.0)
            async for _ in lines:
                break
            await lines.aclose()  # type: ignore[attr-defined]
    except DeniedError as error:
        return "denied", str(error)
    except MissingError:  # nothing of that name, which is all that `get` was to find out
        return ("ok" if verb == "get" else "absent"), ""
    except ApiError as error:
        return "failed", str(error)
    return "ok", ""
