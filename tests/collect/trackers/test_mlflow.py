"""A tracking server that is not what it should be: endless, huge, or no MLflow; and secrets in its address."""

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
from pyrometer.collect.trackers.mlflow import Curves, FoundRun, Mlflow

NOW_MS = 1_790_000_000_000
RUN = {"info": {"run_id": "abc", "experiment_id": "1", "start_time": NOW_MS}}
Said = tuple[dict[str, Any] | bytes, dict[str, str]]


@pytest.fixture
def asked():
    """Asks a server that answers as it is told to; what it was asked is kept."""
    heard: list[Any] = []
    servers = []

    def of(answer: Callable[[str], Said], ask: Callable[[Mlflow], Any], user: str = "") -> Any:
        class Server(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                heard.append(self.headers)
                body, headers = answer(self.path)
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(int(headers.get("status", 200)))
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - as the base class calls it

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        async def asking() -> Any:
            mlflow = Mlflow(f"http://{user}127.0.0.1:{server.server_port}")
            try:
                return await ask(mlflow)
            finally:
                await mlflow.close()

        return asyncio.run(asking()), heard

    yield of
    for server in servers:
        server.shutdown()
        server.server_close()


async def found_runs(mlflow: Mlflow) -> list[FoundRun]:
    return [one async for one in mlflow.search({"1": "sft"})]


@pytest.mark.parametrize("tokens", ["the same", "others"])
def test_a_server_that_never_says_that_there_is_no_more(asked, monkeypatch, tokens):
    monkeypatch.setattr(collect, "MOST_PAGES", 20)
    count = iter(range(1_000))
    nothing = lambda _: ({"next_page_token": "again" if tokens == "the same" else str(next(count))}, {})  # noqa: E731
    at_most = 2 if tokens == "the same" else 20
    for ask in (found_runs, Mlflow.experiments, lambda mlflow: mlflow.history("abc", "loss")):
        found, heard = asked(nothing, ask)
        assert not found
        assert len(heard) == at_most
        heard.clear()


def test_values_that_are_no_numbers_and_a_run_with_too_many(asked, monkeypatch):
    monkeypatch.setattr(collect, "MOST_VALUES", 3)
    values = [{"key": "a", "value": value, "timestamp": NOW_MS, "step": 1} for value in ("NaN", "none", 1e300)]

    def answer(path: str) -> Said:
        metrics = [{**value, "key": name} for name in "ab" for value in values[-1:]]
        return {"runs": [{**RUN, "data": {"metrics": metrics}}], "metrics": values}, {}

    async def read(mlflow: Mlflow) -> Any:
        curves = Curves(mlflow)
        (found,) = await found_runs(mlflow)
        return [point.value for point in await curves.points(found)], curves.left_out

    (points, left_out), _ = asked(answer, read)
    assert [str(value) for value in points] == ["nan", "nan", "1e+300"]
    assert left_out == 1


def test_a_metric_that_the_server_cannot_read_keeps_no_other_from_being_read(asked):
    value = {"value": 1, "timestamp": NOW_MS, "step": 1}

    def answer(path: str) -> Said:
        if "get-history" in path and "metric_key=a" in path:
            return {"error_code": "INVALID_PARAMETER_VALUE", "message": "no"}, {"status": "400"}
        metrics = [{**value, "key": name} for name in "ab"]
        return {"runs": [{**RUN, "data": {"metrics": metrics}}], "metrics": [{**value, "key": "b"}]}, {}

    async def read(mlflow: Mlflow) -> Any:
        curves = Curves(mlflow)
        (found,) = await found_runs(mlflow)
        return [point.name for point in await curves.points(found)], curves.left_out

    assert asked(answer, read)[0] == (["b"], 1)


@pytest.mark.parametrize(
    "said",
    [
        ({"metrics": [{"key": "a", "value": 1, "timestamp": NOW_MS, "step": 2**80}]}, {}),
        (b"{" * 100_000, {}),
        (gzip.compress(gzip.compress(b"{}")), {"Content-Encoding": "gzip, gzip"}),
        (gzip.compress(b" " * 70 * 2**20), {"Content-Encoding": "gzip"}),
    ],
    ids=["no integer of a database", "no JSON", "packed twice", "a bomb"],
)
def test_answers_that_nobody_can_want(asked, said):
    with pytest.raises(SourceError, match="answers"):
        asked(lambda _: said, lambda mlflow: mlflow.history("abc", "loss"))


@pytest.mark.parametrize(
    "uri",
    [
        "postgresql://me:pa55@db/mlflow",
        "mysql+pymysql://me:pa55@db:x/y?password=pa55",
        "http://me:pa55@[::1/",
        "db://me:?/pa55@db",
    ],
)
def test_an_address_that_is_refused_is_said_without_its_password(uri):
    with pytest.raises(SourceError, match="not the address of an MLflow") as error:
        Mlflow(uri)
    assert "pa55" not in str(error.value)


def test_a_user_and_a_password_in_the_address_are_sent_as_they_are_and_not_shown(asked):
    async def shown(mlflow: Mlflow) -> str:
        await mlflow.experiments()
        return mlflow.uri

    uri, heard = asked(lambda _: ({}, {}), shown, user="me:p%40ss@")
    assert "p" not in uri.removeprefix("http")
    assert base64.b64decode(heard[0]["Authorization"].removeprefix("Basic ")) == b"me:p@ss"
