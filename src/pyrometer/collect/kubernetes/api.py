"""A read-only client for the API server of one cluster."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx2 as httpx
import msgspec
import yaml
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from pyrometer.collect.kubernetes.objects import Status
from pyrometer.collect.source import SourceError, error_text

CONNECT_S = 10.0
ANSWER_S = 60.0
MAX_LINE_BYTES = 64 * 2**20  # of a watch; objects in etcd have at most a few MiB
_STATUS = msgspec.json.Decoder(Status)


def root(group: str, version: str) -> str:
    """The URL path of an API group."""
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


class ApiError(SourceError):
    """The API refused a request or did not answer. The message is one sentence."""


class DeniedError(ApiError):
    """The account may not read this resource."""


class MissingError(ApiError):
    """The object or resource does not exist."""


class GoneError(ApiError):
    """The requested resource version is too old. Everything must be listed again."""


class Api:
    """A read-only client."""

    def __init__(self, config: SingleConfig) -> None:
        self.cluster = config.context.cluster
        self.server = config.cluster.server
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        self._client = AsyncClient(_supported(config), ConnectionParams(timeout=timeout))

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def get(self, path: str, params: Mapping[str, str] | None = None, accept: str = "application/json") -> bytes:
        """Returns the body of a response."""
        try:
            response = await self._client.get(path, params=dict(params or {}), headers={"Accept": accept})
        except (httpx.HTTPError, OSError) as error:
            raise ApiError(f"{self.server} does not answer: {error_text(error)}") from None
        except ConfigError as error:
            raise ApiError(f"{self.server}: {error_text(error)}") from None
        if response.status_code >= 400:
            raise _refusal(response.status_code, response.content, path)
        return response.content

    async def lines(
        self, path: str, params: Mapping[str, str], accept: str, silent_s: float
    ) -> AsyncIterator[list[bytes]]:
        """Yields the lines of a watch as they arrive. Silence for `silent_s` seconds is a lost connection."""
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
                    if len(rest) > MAX_LINE_BYTES:
                        raise ApiError(f"{path}: a line of more than {MAX_LINE_BYTES} bytes")
                    if whole:
                        yield whole
        except (httpx.HTTPError, OSError) as error:
            raise ApiError(f"{self.server} does not answer: {error_text(error)}") from None
        except ConfigError as error:
            raise ApiError(f"{self.server}: {error_text(error)}") from None


def connect(context: str | None = None, *, environment: Mapping[str, str] | None = None) -> Api:
    """Connects to the cluster of a kubeconfig context or, if there is no kubeconfig, to that of this pod."""
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
                f"No cluster found: there is no kubeconfig at {', '.join(map(str, paths))}, and this process is not "
                "in a pod with a service account. Set KUBECONFIG, or omit --kube."
            )
        inside = KubeConfig.from_service_account().get()
        assert inside is not None  # noqa: S101
        return Api(inside)
    except (ConfigError, yaml.YAMLError, KeyError, TypeError, ValueError, msgspec.ValidationError, OSError) as error:
        raise SourceError(f"The kubeconfig {', '.join(map(str, paths))} cannot be used: {error_text(error)}.") from None


def _supported(config: SingleConfig) -> SingleConfig:
    """Adapts the configuration to what the client supports."""
    user = config.user or User()
    if user.exec is not None and user.exec.apiVersion == "client.authentication.k8s.io/v1":
        user.exec.apiVersion = "client.authentication.k8s.io/v1beta1"  # the same format under its older name
    return config._replace(user=user)


def _refusal(code: int, body: bytes, path: str) -> ApiError:
    try:
        message = _STATUS.decode(body).message
    except msgspec.DecodeError:
        message = body[:200].decode(errors="replace")
    text = " ".join(message.split()) or f"{path}: HTTP {code}"
    kind = {401: DeniedError, 403: DeniedError, 404: MissingError, 410: GoneError}.get(code, ApiError)
    return kind(text)
