"""A server that pushes over OTLP: what /metrics shows, every span once, and nothing that a receiver does harms it."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pyrometer.export.otlp_push import PUSH_MARKS_KEY
from pyrometer.model.records import Event, Span
from pyrometer.model.settings import SettingError, Settings
from pyrometer.serve.core import Core
from pyrometer.serve.main import Services, build_services
from pyrometer.serve.tasks.otlp_push_task import receiver
from pyrometer.store import Store
from tests.support import clusters
from tests.support.kube_server import free_port
from tests.support.otel_conventions import convention_names
from tests.support.otlp_receiver import Receiver, plain, receiving

NOW = time.time_ns() // 1_000_000
AGO = NOW - 5 * 60_000


def step(rank: int, number: int) -> Span:
    at_ms = AGO + 1000 * number
    return Span(at_ms, f"{number:032x}", f"{rank:08x}{number:08x}", "step", 900_000, "r", 1, rank, number)


def over() -> list[Any]:
    """A run of four ranks on two nodes that was over an hour and a half after it began, a few minutes ago."""
    ended_ms = clusters.at(90)
    known = [*clusters.cluster(), *clusters.job(), *clusters.run(ended_ms=ended_ms, outcome="succeeded")]
    beats = [Event(clusters.at(minute), "watched", cluster="test") for minute in range(91)]
    return clusters.shifted([*known, *clusters.all_ranks(0, 90), *beats], AGO + 60_000 - ended_ms)


def pushing(store: Store, url: str, *, times: int = 1, **more: Any) -> Services:
    """A server that pushes some times."""

    async def run() -> Services:
        server = build_services(Core(store, Settings(otlp_endpoint=url, **more)), open_to_all=True)
        await server.accounting.update()
        for _ in range(times):
            await server.push.push()
        return server

    return asyncio.run(run())


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path / "data", create=True) as store:
        store.set_meta(PUSH_MARKS_KEY, f'{{"since_ms": {AGO}, "ranks": [], "runs": {{}}}}')  # it has pushed since then
        store.append([step(rank, number) for rank in (0, 1) for number in range(1, 6)])
        yield store


def ids(receiver: Receiver) -> list[str]:
    return sorted(span.span_id.hex() for _, span in receiver.spans() if span.name == "step")


def test_pushed_metrics_equal_scraped_metrics(store):
    from tests.support.server_in_process import server_and_client  # the same server answers

    async def both() -> tuple[str, Services]:
        async with server_and_client(store) as (server, client):
            await server.accounting.update()
            server.push._settings = Settings(otlp_endpoint=receiver.url)
            await server.push.push()
            return (await client.get("/metrics")).text, server

    with receiving() as receiver:
        page, _ = asyncio.run(both())
        pushed = {
            (metric.name, *sorted(plain(point.attributes).items())): point.as_double
            for _, metric, point in receiver.points()
        }
        resource = receiver.points()[0][0]
    shown = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    moving = ("process_", "pyrometer_otlp_pushes")  # between the two
    assert {key for key in pushed if not key[0].startswith(moving)} == {
        key for key in shown if not key[0].startswith(moving)
    }
    assert all(pushed[key] == shown[key] for key in pushed if not key[0].startswith(moving))
    assert len(pushed) > 30
    assert resource["service.name"] == "pyrometer"
    assert set(resource) <= convention_names()


def test_span_is_pushed_once_and_retried_after_failure(store):
    with receiving() as receiver:
        receiver.answers = [200, 503]  # the metrics are taken, the spans are not
        server = pushing(store, receiver.url)
        assert ids(receiver) == []
        assert server.push.counts["traces", "failed"] == 1
        pushing(store, receiver.url, times=2)
        assert ids(receiver) == sorted(step(rank, number).span_id for rank in (0, 1) for number in range(1, 6))
        store.append([step(0, 6)])
        pushing(store, receiver.url)  # another process continues where the last one stopped
        assert ids(receiver).count(step(0, 6).span_id) == 1
        assert len(ids(receiver)) == 11


def test_lifecycle_of_an_ended_run_is_pushed_once(store):
    store.append(over())
    with receiving() as receiver:
        pushing(store, receiver.url, times=3)
        run_spans = [(resource, span) for resource, span in receiver.spans() if resource["pyrometer.run"] == "run"]
    assert run_spans, "no lifecycle span was pushed"
    assert len({span.span_id for _, span in run_spans}) == len(run_spans)
    (root,) = (span for _, span in run_spans if not span.parent_span_id)
    assert (root.end_time_unix_nano - root.start_time_unix_nano) // 10**9 == 90 * 60
    assert {span.trace_id for _, span in run_spans} == {root.trace_id}


def test_unreachable_receiver_is_logged_once(store, caplog, tmp_path):
    secret = tmp_path / "headers"
    secret.write_text("Authorization: Bearer very-secret\nX-Scope-OrgID: lab\n")
    with caplog.at_level(logging.WARNING):
        server = pushing(store, f"http://127.0.0.1:{free_port()}", times=2, otlp_headers_file=str(secret))
    assert server.push.counts == {("metrics", "failed"): 2, ("traces", "failed"): 2}
    assert [record.getMessage() for record in caplog.records] == [
        "metrics over OTLP: no response (ConnectError)",
        "traces over OTLP: no response (ConnectError)",
    ]
    with receiving() as receiver:
        pushing(store, receiver.url, otlp_headers_file=str(secret))
        assert {(of["authorization"], of["x-scope-orgid"]) for of in receiver.headers} == {
            ("Bearer very-secret", "lab")
        }
        assert len(ids(receiver)) == 10
    assert "very-secret" not in caplog.text


def test_permanently_rejected_body_does_not_block_later_ones(store):
    with receiving() as receiver:
        receiver.answers = [200, 400]
        assert pushing(store, receiver.url).push.counts["traces", "refused"] == 1
        store.append([step(0, 6)])
        pushing(store, receiver.url)
        assert ids(receiver) == [step(0, 6).span_id]


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("collector:4318", None),
        ("http://user:pw@collector:4318", None),
        ("http://c/?key=1", None),
        ("http://collector:4318", "no colon"),
        ("http://collector:4318", "Bad Name: x"),
    ],
)
def test_invalid_endpoint_settings_are_rejected_without_secrets(tmp_path, url, headers):
    path = tmp_path / "headers"
    if headers is not None:
        path.write_text(headers)
    with pytest.raises(SettingError) as error:
        receiver(Settings(otlp_endpoint=url, otlp_headers_file=str(path) if headers else ""))
    assert "pw" not in str(error.value)
    assert (headers or "key=1") not in str(error.value)


def test_only_settings_set_the_endpoint(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    assert receiver(Settings()) is None
