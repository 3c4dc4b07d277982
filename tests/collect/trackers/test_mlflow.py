"""MLflow servers with endless, huge or invalid responses, and secrets in the URL."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pyrometer.collect.source import SourceError
from pyrometer.collect.trackers import mlflow as collect
from pyrometer.collect.trackers.mlflow import CurveReader, FoundRun, Mlflow

NOW_MS = 1_790_000_000_000
RUN = {"info": {"run_id": "abc", "experiment_id": "1", "start_time": NOW_MS}}
Response = tuple[dict[str, Any] | bytes, dict[str, str]]


@pytest.fixture
def query():
    """Queries a server with given responses. Also returns the headers of its requests."""
    requests: list[Any] = []
    servers = []

    def of(answer: Callable[[str], Response], ask: Callable[[Mlflow], Any], user: str = "") -> Any:
        class Server(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                requests.append(self.headers)
                body, headers = answer(self.path)
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(int(headers.get("status", 200)))
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - called by the base class

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        async def run_query() -> Any:
            mlflow = Mlflow(f"http://{user}127.0.0.1:{server.server_port}")
            try:
                return await ask(mlflow)
            finally:
                await mlflow.close()

        return asyncio.run(run_query()), requests

    yield of
    for server in servers:
        server.shutdown()
        server.server_close()


async def found_runs(mlflow: Mlflow) -> list[FoundRun]:
    return [one async for one in mlflow.search({"1": "sft"})]


@pytest.mark.parametrize("tokens", ["the same", "others"])
def test_mlflow_stops_at_endless_pages(query, monkeypatch, tokens):
    monkeypatch.setattr(collect, "MAX_PAGES", 20)
    count = iter(range(1_000))
    nothing = lambda _: ({"next_page_token": "again" if tokens == "the same" else str(next(count))}, {})  # noqa: E731
    at_most = 2 if tokens == "the same" else 20
    for ask in (found_runs, Mlflow.experiments, lambda mlflow: mlflow.history("abc", "loss")):
        found, requests = query(nothing, ask)
        assert not found
        assert len(requests) == at_most
        requests.clear()


def test_curve_reader_handles_nan_and_limits(query, monkeypatch):
    monkeypatch.setattr(collect, "MAX_VALUES", 3)
    values = [{"key": "a", "value": value, "timestamp": NOW_MS, "step": 1} for value in ("NaN", "none", 1e300)]

    def answer(path: str) -> Response:
        metrics = [{**value, "key": name} for name in "ab" for value in values[-1:]]
        return {"runs": [{**RUN, "data": {"metrics": metrics}}], "metrics": values}, {}

    async def read(mlflow: Mlflow) -> Any:
        curves = CurveReader(mlflow)
        (found,) = await found_runs(mlflow)
        return [point.value for point in await curves.points(found)], curves.left_out

    (points, left_out), _ = query(answer, read)
    assert [str(value) for value in points] == ["nan", "nan", "1e+300"]
    assert left_out == 1


def test_curve_reader_skips_unreadable_metric(query):
    value = {"value": 1, "timestamp": NOW_MS, "step": 1}

    def answer(path: str) -> Response:
        if "get-history" in path and "metric_key=a" in path:
            return {"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}, {"status": "400"}
        metrics = [{**value, "key": name} for name in "ab"]
        return {"runs": [{**RUN, "data": {"metrics": metrics}}], "metrics": [{**value, "key": "b"}]}, {}

    async def read(mlflow: Mlflow) -> Any:
        curves = CurveReader(mlflow)
        (found,) = await found_runs(mlflow)
        return [point.name for point in await curves.points(found)], curves.left_out

    assert query(answer, read)[0] == (["b"], 1)


@pytest.mark.parametrize(
    "answer",
    [
        ({"metrics": [{"key": "a", "value": 1, "timestamp": NOW_MS, "step": 2**80}]}, {}),
        (b"{" * 100_000, {}),
        (gzip.compress(gzip.compress(b"{}")), {"Content-Encoding": "gzip, gzip"}),
        (gzip.compress(b" " * 70 * 2**20), {"Content-Encoding": "gzip"}),
    ],
    ids=["no integer of a database", "no JSON", "packed twice", "a bomb"],
)
def test_mlflow_rejects_invalid_responses(query, answer):
    with pytest.raises(SourceError, match="answers"):
        query(lambda _: answer, lambda mlflow: mlflow.history("abc", "loss"))


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://me:pa55@db/mlflow",
        "mysql+pymysql://me:pa55@db:x/y?password=pa55",
        "http://me:pa55@[::1/",
        "db://me:?/pa55@db",
    ],
)
def test_mlflow_error_hides_password(uri):
    with pytest.raises(SourceError, match="not the URL of an MLflow") as error:
        Mlflow(uri)
    assert "pa55" not in str(error.value)


def test_mlflow_sends_and_hides_credentials_of_uri(query):
    async def shown(mlflow: Mlflow) -> str:
        await mlflow.experiments()
        return mlflow.uri

    uri, requests = query(lambda _: ({}, {}), shown, user="me:p%40ss@")
    assert "p" not in uri.removeprefix("http")
    assert base64.b64decode(requests[0]["Authorization"].removeprefix("Basic ")) == b"me:p@ss"
