"""Which kinds a cluster has, and where: asked of the API itself, so that kinds nobody listed are found too."""

from __future__ import annotations

import time

import msgspec

from pyrometer.collect.kubernetes.api import Api, ApiError, DeniedError, MissingError, root

ASK_AGAIN_S = 600.0  # what is not there may be installed later


class _Version(msgspec.Struct, rename="camel"):
    version: str = ""


class _Group(msgspec.Struct, rename="camel"):
    preferred_version: _Version = msgspec.field(default_factory=_Version)
    versions: list[_Version] | None = None


class _Listed(msgspec.Struct, rename="camel"):
    name: str
    kind: str
    verbs: list[str] | None = None


class _Resources(msgspec.Struct, rename="camel"):
    resources: list[_Listed] | None = None


class ApiResource(msgspec.Struct, frozen=True):
    """Where the API has a kind."""

    version: str
    plural: str


class Discovery:
    """Asks once for each API group, and again after a while for one that was not there."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._groups: dict[str, dict[str, ApiResource]] = {}
        self._asked_s: dict[str, float] = {}

    async def find(self, group: str, kind: str) -> ApiResource | None:
        """Where a kind is; None when the cluster does not have it."""
        places = self._groups.get(group)
        if places is None or (kind not in places and time.monotonic() - self._asked_s[group] > ASK_AGAIN_S):
            places = self._groups[group] = await self._ask(group)
            self._asked_s[group] = time.monotonic()
        return places.get(kind)

    async def _ask(self, group: str) -> dict[str, ApiResource]:
        places: dict[str, ApiResource] = {}
        try:
            for version in await self._versions(group):
                for one in (
                    msgspec.json.decode(await self._api.get(root(group, version)), type=_Resources).resources or ()
                ):
                    if "/" not in one.name and {"list", "watch"} <= set(one.verbs or ()):
                        places.setdefault(one.kind, ApiResource(version, one.name))
        except (MissingError, DeniedError):
            return places
        except msgspec.DecodeError as error:
            raise ApiError(f"The API's answer about {group or 'the core'} makes no sense: {error}") from None
        return places

    async def _versions(self, group: str) -> list[str]:
        """The versions of a group, the one that it prefers first; not every version has every kind."""
        if not group:
            return ["v1"]
        answer = msgspec.json.decode(await self._api.get(f"/apis/{group}"), type=_Group)
        named = [answer.preferred_version, *(answer.versions or ())]
        return list(dict.fromkeys(one.version for one in named if one.version))
