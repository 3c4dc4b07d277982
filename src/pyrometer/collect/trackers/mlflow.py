"""A client for the REST API of an MLflow tracking server: its runs, and their metrics as curves.

It uses httpx2, which is already a dependency, instead of `mlflow-skinny` (50 MB with databricks-sdk) for six calls.
JSON keeps every digit of a double.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx2 as httpx
import msgspec

from pyrometer.collect.source import SourceError, error_text
from pyrometer.collect.trackers.common import (
    MAX_METRICS,
    MAX_VALUES,
    MLFLOW,
    TrackedPoint,
    TrackedRun,
    describe_parameters,
    is_curve,
    is_time,
    location_of,
)

CONNECT_S, ANSWER_S, WHOLE_S = 10.0, 60.0, 120.0  # to connect, between two chunks, and in total
MAX_RESPONSE_BYTES = 64 * 2**20  # of one response
ATTEMPTS = 3  # per request
RUNS_AT_ONCE, EXPERIMENTS_AT_ONCE = 200, 100  # limits of the search API
VALUES_AT_ONCE = 10_000
MAX_EXPERIMENTS = 10_000
MAX_PAGES = 10_000  # per query, however small they are
OUTCOMES = {"FINISHED": "succeeded", "FAILED": "failed", "KILLED": "killed"}


class _Pair(msgspec.Struct):
    key: str = ""
    value: str = ""


_Int64 = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # the range of a store


class _Value(msgspec.Struct):
    key: str = ""
    value: float | str = 0.0  # NaN and the infinities are strings
    timestamp: _Int64 = 0
    step: _Int64 = 0

    @property
    def number(self) -> float:
        """The value as a number; NaN if it is not one."""
        try:
            return float(self.value)
        except ValueError:
            return math.nan


class _Info(msgspec.Struct):
    run_id: str = ""
    run_name: str = ""
    experiment_id: str = ""
    user_id: str = ""
    status: str = "RUNNING"
    start_time: _Int64 | None = None
    end_time: _Int64 | None = None


class _Data(msgspec.Struct):
    metrics: list[_Value] = []
    params: list[_Pair] = []
    tags: list[_Pair] = []


class _Run(msgspec.Struct):
    info: _Info
    data: _Data = msgspec.field(default_factory=_Data)


class _Experiment(msgspec.Struct):
    experiment_id: str = ""
    name: str = ""


class _Answer(msgspec.Struct):
    """Any response. Missing fields have defaults."""

    runs: list[_Run] = []
    run: _Run | None = None
    experiments: list[_Experiment] = []
    metrics: list[_Value] = []
    next_page_token: str = ""
    error_code: str = ""
    message: str = ""


_ANSWER = msgspec.json.Decoder(_Answer)


class FoundRun(NamedTuple):
    """A run in a search result, with its tags and the last value of each metric."""

    run: TrackedRun
    tags: dict[str, str]
    last: dict[str, tuple[int, int, float]]  # time, step and value by metric


class RejectedRequestError(SourceError):
    """The server rejected a request: the run was deleted, or it is not an MLflow server."""


class MlflowRunNotFoundError(RejectedRequestError):
    """The server has no run with that id."""


class Mlflow:
    """A client for one tracking server."""

    def __init__(self, uri: str, secret: str | None = None, ca_file: str = "") -> None:
        self.uri = _shown(uri)
        self._headers = _headers(secret or _user_of(uri))
        self._client = httpx.AsyncClient(
            base_url=self.uri,
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            follow_redirects=False,
            verify=ssl.create_default_context(cafile=ca_file) if ca_file else True,
        )

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def experiments(self) -> dict[str, str]:
        """Returns the names of all experiments by id."""
        found: dict[str, str] = {}
        async for answer in self._pages("POST", "experiments/search", {"max_results": 1_000}):
            found |= {one.experiment_id: one.name for one in answer.experiments}
            if len(found) >= MAX_EXPERIMENTS:
                break
        return found

    async def search(
        self, experiments: dict[str, str], filter_text: str = "", max_runs: int = 1_000_000
    ) -> AsyncIterator[FoundRun]:
        """Yields the runs of experiments that match an MLflow filter, the newest of each 100 experiments first."""
        ids = list(experiments)
        count = 0
        for first in range(0, len(ids), EXPERIMENTS_AT_ONCE):
            params = {
                "experiment_ids": ids[first : first + EXPERIMENTS_AT_ONCE],
                "filter": filter_text,
                "max_results": RUNS_AT_ONCE,
                "order_by": ["attributes.start_time DESC"],
            }
            async for answer in self._pages("POST", "runs/search", params):
                for one in answer.runs:
                    if (found := self._found(one, experiments.get(one.info.experiment_id))) is not None:
                        yield found
                        count += 1
                if count >= max_runs:
                    break

    async def run(self, run_id: str) -> FoundRun:
        """Returns one run."""
        answer = await self._call("GET", "runs/get", params={"run_id": run_id})
        found = self._found(answer.run, None) if answer.run is not None else None
        if found is None:
            raise MlflowRunNotFoundError(f"{self.uri} has no run {run_id}.")
        return found

    async def history(self, run_id: str, name: str, after: int = 0) -> list[TrackedPoint]:
        """Returns the values of a metric in the order of time, without the first `after` values."""
        if after:
            with suppress(SourceError):  # a store with another form of page tokens
                return await self._values(run_id, name, _token(after))
        return (await self._values(run_id, name, ""))[after:]

    async def _values(self, run_id: str, name: str, token: str) -> list[TrackedPoint]:
        points: list[TrackedPoint] = []
        params = {"run_id": run_id, "metric_key": name, "max_results": str(VALUES_AT_ONCE)}
        async for answer in self._pages("GET", "metrics/get-history", params, token):
            points += [TrackedPoint(one.timestamp, name, one.number, one.step) for one in answer.metrics]
            if len(points) >= MAX_VALUES:
                break
        return points

    async def _pages(self, method: str, path: str, params: dict[str, Any], token: str = "") -> AsyncIterator[_Answer]:
        """Yields pages until there are no more, or until the server repeats a page token."""
        into = "json" if method == "POST" else "params"
        for _ in range(MAX_PAGES):
            answer = await self._call(method, path, **{into: params | ({"page_token": token} if token else {})})
            yield answer
            before, token = token, answer.next_page_token
            if token in ("", before):
                return

    async def post(self, path: str, body: dict[str, Any]) -> _Answer:
        """Sends a POST request."""
        return await self._call("POST", path, json=body)

    def _found(self, run: _Run, experiment: str | None) -> FoundRun | None:
        info = run.info
        if not info.run_id or not is_time(info.start_time):
            return None
        tags = {pair.key: pair.value for pair in run.data.tags}
        gpus = {one.key.split("_")[1] for one in run.data.metrics if one.key.startswith("system/gpu_")}
        named = info.run_name or tags.get("mlflow.runName") or info.run_id[:8]
        parameters = describe_parameters((pair.key, pair.value) for pair in run.data.params)
        description = f"“{named}” in experiment {experiment or info.experiment_id} at {self.uri}"
        ended_ms = info.end_time if info.status in OUTCOMES and is_time(info.end_time) else None
        tracked = TrackedRun(
            tracker=MLFLOW,
            run_id=info.run_id,
            name=named,
            experiment=experiment,
            started_ms=int(info.start_time or 0),
            ended_ms=ended_ms,
            outcome=OUTCOMES.get(info.status) if ended_ms else None,
            where=location_of(tags, gpus=min(len(gpus), 64)),
            description=f"{description}: {parameters}" if parameters else description,
        )
        last = {one.key: (one.timestamp, one.step, one.number) for one in run.data.metrics}
        return FoundRun(tracked, tags, last)

    async def _call(self, method: str, path: str, **options: Any) -> _Answer:
        for attempt in range(ATTEMPTS):
            try:
                status, body = await self._request(method, f"/api/2.0/mlflow/{path}", **options)
                break
            except (httpx.HTTPError, OSError) as error:
                if attempt + 1 == ATTEMPTS or isinstance(error, httpx.ConnectError):
                    raise SourceError(f"{self.uri} does not answer: {error_text(error)}.") from None
        try:
            answer = _ANSWER.decode(body or b"{}")
        except (msgspec.MsgspecError, ValueError, RecursionError):
            answer = None
        if status == 200 and answer is not None:
            return answer
        if status in (401, 403):
            raise SourceError(
                f"{self.uri} refuses access (HTTP {status}). Name a file with a token, or with USER:PASSWORD, in "
                "the setting `mlflow_token_file`."
            )
        if answer is None or not answer.error_code:
            raise SourceError(
                f"{self.uri} answers HTTP {status}. Check that it is the URL of an MLflow tracking server."
            )
        if answer.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise MlflowRunNotFoundError(f"{self.uri}: {answer.message[:200]}")
        kind = RejectedRequestError if status in (400, 404, 409, 413, 422) else SourceError
        raise kind(f"{self.uri} answers HTTP {status}: {' '.join(answer.message.split())[:200]}")

    async def _request(self, method: str, path: str, **options: Any) -> tuple[int, bytes]:
        body = bytearray()
        async with (
            asyncio.timeout(WHOLE_S),
            self._client.stream(method, path, headers=self._headers, **options) as response,
        ):
            if response.headers.get("Content-Encoding", "gzip") not in (
                "gzip",
                "identity",
            ):  # repeated encodings may be decompression bombs
                raise SourceError(f"{self.uri} answers in an encoding that was not requested.")
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise SourceError(f"{self.uri} answers with more than {MAX_RESPONSE_BYTES >> 20} MiB.")
        return response.status_code, bytes(body)


class CurveReader:
    """Reads the metrics of runs incrementally: values that were read are not requested again."""

    def __init__(self, mlflow: Mlflow) -> None:
        self._mlflow = mlflow
        self._read: dict[
            str, dict[str, tuple[tuple[int, int, float], int]]
        ] = {}  # last value and number of values, by run and metric
        self.left_out = 0  # names and values beyond the limits, or without a time

    async def points(self, found: FoundRun) -> list[TrackedPoint]:
        """Returns new values. An ended run is read again as a whole, because values may have come out of order."""
        is_ended = found.run.ended_ms is not None
        before = self._read.setdefault(found.run.run_id, {})
        names = [name for name in sorted(found.last) if is_curve(name)]
        self.left_out += max(len(names) - MAX_METRICS, 0)
        points: list[TrackedPoint] = []
        for name in names[:MAX_METRICS]:
            if len(points) >= MAX_VALUES:
                self.left_out += 1
                continue
            last, count = before.get(name, (None, 0))
            if last is not None and _same(last, found.last[name]) and not is_ended:
                continue
            try:
                fresh = await self._mlflow.history(found.run.run_id, name, 0 if is_ended else count)
            except RejectedRequestError:  # the run was deleted, or the server cannot read this metric
                self.left_out += 1
                continue
            before[name] = (found.last[name], count + len(fresh))
            usable = [point for point in fresh if is_time(point.time_ms)]
            self.left_out += len(fresh) - len(usable)
            points += usable
        if is_ended:
            del self._read[found.run.run_id]
        return sorted(points, key=lambda point: point.time_ms)


def _same(one: tuple[int, int, float], other: tuple[int, int, float]) -> bool:
    both_nan = math.isnan(one[2]) and math.isnan(other[2])
    return one[:2] == other[:2] and (one[2] == other[2] or both_nan)


def _token(offset: int) -> str:
    """Builds a page token like MLflow's, from an offset."""
    return base64.b64encode(json.dumps({"offset": offset}).encode()).decode()


def _shown(uri: str) -> str:
    """The URL without credentials. Errors hide them as well, because a database URL may have some."""
    try:
        parts = urlsplit(uri)
        if parts.scheme in ("http", "https") and parts.hostname:
            plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
            return urlunsplit(plain).rstrip("/")
    except ValueError:
        pass
    shown = f"{uri.partition('://')[0][:20]}://…" if "@" in uri or "?" in uri else uri
    raise SourceError(
        f"{shown!r} is not the URL of an MLflow tracking server. Use one like http://127.0.0.1:5000. "
        "To serve a file store or a database, run mlflow server --backend-store-uri …"
    )


def _user_of(uri: str) -> str | None:
    parts = urlsplit(uri)
    return f"{unquote(parts.username)}:{unquote(parts.password)}" if parts.username and parts.password else None


def _headers(secret: str | None) -> dict[str, str]:
    """The headers, with a bearer token or with a user and password."""
    encoding = {"Accept-Encoding": "gzip"}
    if secret is None:
        return encoding
    if ":" in secret:
        return {**encoding, "Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}
    return {**encoding, "Authorization": f"Bearer {secret}"}


def newer_than(ended_ms: int) -> Iterable[str]:
    """Filters for running runs and for runs that ended since. There are two because MLflow has no `or`."""
    return ("attributes.status = 'RUNNING'", f"attributes.end_time >= {ended_ms}")
