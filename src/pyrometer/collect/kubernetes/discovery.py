"""Discovers through the API which kinds a cluster has, including kinds that Pyrometer does not know."""

from __future__ import annotations

import time

import msgspec

from pyrometer.collect.kubernetes.api import Api, ApiError, DeniedError, MissingError, root

REFRESH_S = 600.0  # missing kinds may be installed later


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
    """The version and plural name of a kind."""

    version: str
    plural: str


class Discovery:
    """Requests each API group once, and again later if a kind was missing in it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._groups: dict[str, dict[str, ApiResource]] = {}
        self._requested_s: dict[str, float] = {}

    async def find(self, group: str, kind: str) -> ApiResource | None:
        """Finds a kind; None if the cluster does not have it."""
        kinds = self._groups.get(group)
        if kinds is None or (kind not in kinds and time.monotonic() - self._requested_s[group] > REFRESH_S):
            kinds = self._groups[group] = await self._request(group)
            self._requested_s[group] = time.monotonic()
        return kinds.get(kind)

    async def _request(self, group: str) -> dict[str, ApiResource]:
        kinds: dict[str, ApiResource] = {}
        try:
            for version in await self._versions(group):
                for one in (
                    msgspec.json.decode(await self._api.get(root(group, version)), type=_Resources).resources or ()
                ):
                    if "/" not in one.name and {"list", "watch"} <= set(one.verbs or ()):
                        kinds.setdefault(one.kind, ApiResource(version, one.name))
        except (MissingError, DeniedError):
            return kinds
        except msgspec.DecodeError as error:
            raise ApiError(f"The API's answer about {group or 'the core'} cannot be decoded: {error}") from None
        return kinds

    async def _versions(self, group: str) -> list[str]:
        """The versions of a group, the preferred one first. Not every version has every kind."""
        if not group:
            return ["v1"]
        answer = msgspec.json.decode(await self._api.get(f"/apis/{group}"), type=_Group)
        named = [answer.preferred_version, *(answer.versions or ())]
        return list(dict.fromkeys(one.version for one in named if one.version))
