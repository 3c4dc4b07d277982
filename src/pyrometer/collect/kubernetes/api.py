"""One cluster's API server: how to reach it, and the few requests that are made of it. All of them read."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx2 as httpx
import msgspec
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from pyrometer.collect.kubernetes.objects import Status
from pyrometer.collect.source import SourceError, words

CONNECT_S = 10.0
ANSWER_S = 60.0
LONGEST_LINE = 64 * 2**20  # of a watch; etcd keeps no object of more than a few MiB
_STATUS = msgspec.json.Decoder(Status)


def root(group: str, version: str) -> str:
    """Where the API has a group."""
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


class ApiError(SourceError):
    """The API said no, or said nothing; the text is one sentence."""


class DeniedError(ApiError):
    """Not allowed to read this."""


class MissingError(ApiError):
    """There is no such thing."""


class GoneError(ApiError):
    """What was asked for lies too far back: everything has to be listed again."""


class Api:
    """An API server, for reading."""

    def __init__(self, config: SingleConfig) -> None:
        self.cluster = config.context.cluster
        self.server = config.cluster.server
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        self._client = AsyncClient(_completed(config), ConnectionParams(timeout=timeout))

    async def close(self) -> None:
        """Hangs up."""
        await self._client.aclose()

    async def get(self, path: str, params: Mapping[str, str] | None = None, accept: str = "application/json") -> bytes:
        """The answer to one request."""
        try:
            response = await self._client.get(path, params=dict(params or {}), headers={"Accept": accept})
        except (httpx.HTTPError, OSError) as error:
            raise ApiError(f"{self.server} does not answer: {words(error)}") from None
        except ConfigError as error:
            raise ApiError(f"{self.server}: {words(error)}") from None
        if response.status_code >= 400:
            raise _refusal(response.status_code, response.content, path)
        return response.content

    async def lines(
        self, path: str, params: Mapping[str, str], accept: str, silent_s: float
    ) -> AsyncIterator[list[bytes]]:
        """The lines of a watch, as they come; nothing for `silent_s` seconds is a lost connection."""
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=silent_s)
        rest = b""
        try:
            async with self._client.stream(
                "GET", path, params=dict(params), headers={"Accept": accept}, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    raise _refusal(response.status_code, await response.aread(), path)
                async for chunk in response.aiter_bytes():
                    *whole, rest = (rest + chunk).split(b"\n")
                    if len(rest) > LONGEST_LINE:
                        raise ApiError(f"{path}: a line of more than {LONGEST_LINE} bytes")
                    if whole:
                        yield whole
        except (httpx.HTTPError, OSError) as error:
            raise ApiError(f"{self.server} does not answer: {words(error)}") from None
        except ConfigError as error:
            raise ApiError(f"{self.server}: {words(error)}") from None


def connect(context: str | None = None, *, environment: Mapping[str, str] | None = None) -> Api:
    """The cluster of the kubeconfig's context; without any kubeconfig, the one that this pod runs in."""
    environment = os.environ if environment is None else environment
    named = environment.get("KUBECONFIG")
    paths = [Path(text).expanduser() for text in (named or DEFAULT_KUBECONFIG).split(os.pathsep) if text]
    try:
        for path in paths:
            if path.is_file():
                config = KubeConfig.from_file(path).get(context)
                assert config is not None  # noqa: S101 - without a default it raises
                return Api(config)
        if named or not (Path(SERVICE_ACCOUNT) / "token").exists():
            raise SourceError(
                f"No cluster is known: there is no kubeconfig at {', '.join(map(str, paths))}, and this is no "
                "pod with a service account. Set KUBECONFIG, or leave out --kube."
            )
        inside = KubeConfig.from_service_account().get()
        assert inside is not None  # noqa: S101
        return Api(inside)
    except (ConfigError, KeyError, TypeError, ValueError, msgspec.ValidationError, OSError) as error:
        raise SourceError(f"The kubeconfig {', '.join(map(str, paths))} cannot be used: {words(error)}.") from None


def _completed(config: SingleConfig) -> SingleConfig:
    """What the client needs to be told in its own words."""
    user = config.user or User()
    if user.exec is not None and user.exec.apiVersion == "client.authentication.k8s.io/v1":
        user.exec.apiVersion = "client.authentication.k8s.io/v1beta1"  # the same answer, under its older name
    return config._replace(user=user)


def _refusal(code: int, body: bytes, path: str) -> ApiError:
    try:
        message = _STATUS.decode(body).message
    except msgspec.DecodeError:
        message = body[:200].decode(errors="replace")
    text = " ".join(message.split()) or f"{path}: HTTP {code}"
    kind = {401: DeniedError, 403: DeniedError, 404: MissingError, 410: GoneError}.get(code, ApiError)
    return kind(text)
