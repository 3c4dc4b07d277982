"""An MLflow tracking server, over the REST API that it documents: its runs, and their metrics as curves.

Plain HTTP with httpx2, which is there anyway: `mlflow-skinny` would be 34 MB and 16 of databricks-sdk, for six calls.
Numbers are JSON's, which has every digit of a double.
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

from pyrometer.collect.source import SourceError, words
from pyrometer.collect.trackers.common import (
    MLFLOW,
    MOST_NAMES,
    MOST_VALUES,
    TrackedPoint,
    TrackedRun,
    described,
    is_curve,
    is_time,
    where_of,
)

CONNECT_S, ANSWER_S, WHOLE_S = 10.0, 60.0, 120.0  # between two signs of life, and in all
MOST_BYTES = 64 * 2**20  # of one answer
ATTEMPTS = 3  # of a request that breaks off
RUNS_AT_ONCE, EXPERIMENTS_AT_ONCE = 200, 100  # what a search may ask for
VALUES_AT_ONCE = 10_000
MOST_EXPERIMENTS = 10_000
MOST_PAGES = 10_000  # of one question, however little is on them
OUTCOMES = {"FINISHED": "succeeded", "FAILED": "failed", "KILLED": "killed"}


class _Pair(msgspec.Struct):
    key: str = ""
    value: str = ""


_Int64 = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]  # as a store keeps them


class _Value(msgspec.Struct):
    key: str = ""
    value: float | str = 0.0  # what JSON has no number for is a text
    timestamp: _Int64 = 0
    step: _Int64 = 0

    @property
    def number(self) -> float:
        """What is no number at all is not one."""
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
    """Any answer: what is not in it is absent."""

    runs: list[_Run] = []
    run: _Run | None = None
    experiments: list[_Experiment] = []
    metrics: list[_Value] = []
    next_page_token: str = ""
    error_code: str = ""
    message: str = ""


_ANSWER = msgspec.json.Decoder(_Answer)


class FoundRun(NamedTuple):
    """A run as a search finds it: with its tags, and the last value of each metric, which changes with a new one."""

    run: TrackedRun
    tags: dict[str, str]
    last: dict[str, tuple[int, int, float]]  # of each metric: time, step, value


class NotTakenError(SourceError):
    """It answers, and does not take what it was asked: of a run that was deleted, or of another server."""


class NoSuchMlflowRunError(NotTakenError):
    """It has no run of that id."""


class Mlflow:
    """A tracking server."""

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
        """Hangs up."""
        await self._client.aclose()

    async def experiments(self) -> dict[str, str]:
        """Names of all experiments, by id."""
        found: dict[str, str] = {}
        async for answer in self._pages("POST", "experiments/search", {"max_results": 1_000}):
            found |= {one.experiment_id: one.name for one in answer.experiments}
            if len(found) >= MOST_EXPERIMENTS:
                break
        return found

    async def search(
        self, experiments: dict[str, str], chosen: str = "", most: int = 1_000_000
    ) -> AsyncIterator[FoundRun]:
        """The runs of some experiments that a filter of MLflow's chooses, the newest of each hundred first."""
        ids = list(experiments)
        count = 0
        for first in range(0, len(ids), EXPERIMENTS_AT_ONCE):
            asked = {
                "experiment_ids": ids[first : first + EXPERIMENTS_AT_ONCE],
                "filter": chosen,
                "max_results": RUNS_AT_ONCE,
                "order_by": ["attributes.start_time DESC"],
            }
            async for answer in self._pages("POST", "runs/search", asked):
                for one in answer.runs:
                    if (found := self._found(one, experiments.get(one.info.experiment_id))) is not None:
                        yield found
                        count += 1
                if count >= most:
                    break

    async def run(self, run_id: str) -> FoundRun:
        """One run."""
        answer = await self._ask("GET", "runs/get", params={"run_id": run_id})
        found = self._found(answer.run, None) if answer.run is not None else None
        if found is None:
            raise NoSuchMlflowRunError(f"{self.uri} has no run {run_id}.")
        return found

    async def history(self, run_id: str, name: str, after: int = 0) -> list[TrackedPoint]:
        """The values of a metric in the order of time, without the first `after` of them."""
        if after:
            with suppress(SourceError):  # a store whose pages begin elsewhere
                return await self._values(run_id, name, _token(after))
        return (await self._values(run_id, name, ""))[after:]

    async def _values(self, run_id: str, name: str, token: str) -> list[TrackedPoint]:
        points: list[TrackedPoint] = []
        asked = {"run_id": run_id, "metric_key": name, "max_results": str(VALUES_AT_ONCE)}
        async for answer in self._pages("GET", "metrics/get-history", asked, token):
            points += [TrackedPoint(one.timestamp, name, one.number, one.step) for one in answer.metrics]
            if len(points) >= MOST_VALUES:
                break
        return points

    async def _pages(self, method: str, path: str, asked: dict[str, Any], token: str = "") -> AsyncIterator[_Answer]:
        """One answer after the other, until the server has no more, or says the same again."""
        into = "json" if method == "POST" else "params"
        for _ in range(MOST_PAGES):
            answer = await self._ask(method, path, **{into: asked | ({"page_token": token} if token else {})})
            yield answer
            before, token = token, answer.next_page_token
            if token in ("", before):
                return

    async def post(self, path: str, body: dict[str, Any]) -> _Answer:
        """Asks for something, or sets it."""
        return await self._ask("POST", path, json=body)

    def _found(self, run: _Run, experiment: str | None) -> FoundRun | None:
        info = run.info
        if not info.run_id or not is_time(info.start_time):
            return None
        tags = {pair.key: pair.value for pair in run.data.tags}
        gpus = {one.key.split("_")[1] for one in run.data.metrics if one.key.startswith("system/gpu_")}
        named = info.run_name or tags.get("mlflow.runName") or info.run_id[:8]
        parameters = described((pair.key, pair.value) for pair in run.data.params)
        told = f"“{named}” in experiment {experiment or info.experiment_id} at {self.uri}"
        ended_ms = info.end_time if info.status in OUTCOMES and is_time(info.end_time) else None
        tracked = TrackedRun(
            MLFLOW,
            info.run_id,
            named,
            experiment,
            int(info.start_time or 0),
            ended_ms,
            OUTCOMES.get(info.status) if ended_ms else None,
            where_of(tags, gpus=min(len(gpus), 64)),
            f"{told}: {parameters}" if parameters else told,
        )
        last = {one.key: (one.timestamp, one.step, one.number) for one in run.data.metrics}
        return FoundRun(tracked, tags, last)

    async def _ask(self, method: str, path: str, **asked: Any) -> _Answer:
        for attempt in range(ATTEMPTS):
            try:
                status, body = await self._request(method, f"/api/2.0/mlflow/{path}", **asked)
                break
            except (httpx.HTTPError, OSError) as error:
                if attempt + 1 == ATTEMPTS or isinstance(error, httpx.ConnectError):
                    raise SourceError(f"{self.uri} does not answer: {words(error)}.") from None
        try:
            answer = _ANSWER.decode(body or b"{}")
        except (msgspec.MsgspecError, ValueError, RecursionError):
            answer = None
        if status == 200 and answer is not None:
            return answer
        if status in (401, 403):
            raise SourceError(
                f"{self.uri} refuses (HTTP {status}): name a file with a token, or with USER:PASSWORD, in the setting "
                "`mlflow_token_file`."
            )
        if answer is None or not answer.error_code:
            raise SourceError(f"{self.uri} answers HTTP {status}: is it the address of an MLflow tracking server?")
        if answer.error_code == "RESOURCE_DOES_NOT_EXIST":
            raise NoSuchMlflowRunError(f"{self.uri}: {answer.message[:200]}")
        kind = NotTakenError if status in (400, 404, 409, 413, 422) else SourceError
        raise kind(f"{self.uri} answers HTTP {status}: {' '.join(answer.message.split())[:200]}")

    async def _request(self, method: str, path: str, **asked: Any) -> tuple[int, bytes]:
        body = bytearray()
        async with (
            asyncio.timeout(WHOLE_S),
            self._client.stream(method, path, headers=self._headers, **asked) as response,
        ):
            if response.headers.get("Content-Encoding", "gzip") not in (
                "gzip",
                "identity",
            ):  # others, twice over: bombs
                raise SourceError(f"{self.uri} answers in an encoding that it was not asked for.")
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MOST_BYTES:
                    raise SourceError(f"{self.uri} answers with more than {MOST_BYTES >> 20} MiB.")
        return response.status_code, bytes(body)


class Curves:
    """Reads the metrics of runs, and remembers how far: what was read is not asked for again."""

    def __init__(self, mlflow: Mlflow) -> None:
        self._mlflow = mlflow
        self._read: dict[str, dict[str, tuple[tuple[int, int, float], int]]] = {}  # run, metric: its last, how many
        self.left_out = 0  # names and values beyond what a run may have, or without a time

    async def points(self, found: FoundRun) -> list[TrackedPoint]:
        """The values that are new since this was last asked. Of a run that is over all of them, once more: what came
        out of order counts as well."""
        over = found.run.ended_ms is not None
        before = self._read.setdefault(found.run.run_id, {})
        names = [name for name in sorted(found.last) if is_curve(name)]
        self.left_out += max(len(names) - MOST_NAMES, 0)
        points: list[TrackedPoint] = []
        for name in names[:MOST_NAMES]:
            if len(points) >= MOST_VALUES:
                self.left_out += 1
                continue
            last, count = before.get(name, (None, 0))
            if last is not None and _same(last, found.last[name]) and not over:
                continue
            try:
                fresh = await self._mlflow.history(found.run.run_id, name, 0 if over else count)
            except NotTakenError:  # the run was deleted meanwhile, or the server cannot read this one: others can be
                self.left_out += 1
                continue
            before[name] = (found.last[name], count + len(fresh))
            usable = [point for point in fresh if is_time(point.time_ms)]
            self.left_out += len(fresh) - len(usable)
            points += usable
        if over:
            del self._read[found.run.run_id]
        return sorted(points, key=lambda point: point.time_ms)


def _same(one: tuple[int, int, float], other: tuple[int, int, float]) -> bool:
    both_nan = math.isnan(one[2]) and math.isnan(other[2])
    return one[:2] == other[:2] and (one[2] == other[2] or both_nan)


def _token(offset: int) -> str:
    """A page token, as MLflow makes them of offsets."""
    return base64.b64encode(json.dumps({"offset": offset}).encode()).decode()


def _shown(uri: str) -> str:
    """The address without a password, in errors too: that of a database has one."""
    try:
        parts = urlsplit(uri)
        if parts.scheme in ("http", "https") and parts.hostname:
            plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
            return urlunsplit(plain).rstrip("/")
    except ValueError:
        pass
    shown = f"{uri.partition('://')[0][:20]}://…" if "@" in uri or "?" in uri else uri
    raise SourceError(
        f"{shown!r} is not the address of an MLflow tracking server: http://127.0.0.1:5000. "
        "Before a file or a database, put one: mlflow server --backend-store-uri …"
    )


def _user_of(uri: str) -> str | None:
    parts = urlsplit(uri)
    return f"{unquote(parts.username)}:{unquote(parts.password)}" if parts.username and parts.password else None


def _headers(secret: str | None) -> dict[str, str]:
    """With a secret as MLflow takes it: a bearer token, or a user and a password."""
    encoding = {"Accept-Encoding": "gzip"}
    if secret is None:
        return encoding
    if ":" in secret:
        return {**encoding, "Authorization": f"Basic {base64.b64encode(secret.encode()).decode()}"}
    return {**encoding, "Authorization": f"Bearer {secret}"}


def newer_than(ended_ms: int) -> Iterable[str]:
    """Filters for the runs that go on, and those that ended since: MLflow knows no `or`."""
    return ("attributes.status = 'RUNNING'", f"attributes.end_time >= {ended_ms}")
