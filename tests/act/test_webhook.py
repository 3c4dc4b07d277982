"""The webhook: a server sends each finding once, and its address stays secret."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from pyrometer.act.notification_texts import Message
from pyrometer.act.webhook import Webhook
from pyrometer.model.settings import SettingError, Settings
from pyrometer.store import Store
from tests.support import clusters
from tests.support.server_process import serving
from tests.support.webhook_receiver import SECRET, receiving


def until_shown(client: httpx.Client, metric: str) -> None:
    """Waits for background work of the server."""
    for _ in range(300):
        if metric in client.get("/metrics").text:
            return
        time.sleep(0.1)
    raise AssertionError(f"{metric} was not shown within half a minute")


@pytest.mark.heavy
def test_server_sends_each_finding_once_and_keeps_the_webhook_secret(tmp_path: Path) -> None:
    hours_ms = clusters.HOUR
    until_ms = time.time_ns() // 1_000_000 // hours_ms * hours_ms
    stuck = [clusters.event("stuck", 61, rank) for rank in range(4)]
    records = [*clusters.cluster(), *clusters.job(), *clusters.run(), *clusters.all_ranks(0, 60), *stuck]
    with Store(tmp_path / "data", create=True) as store:
        store.append(clusters.shifted(records, until_ms - 2 * hours_ms - clusters.START_MS))
    with receiving() as receiver:
        (tmp_path / "url").write_text(receiver.url)
        environment = {
            "PYROMETER_WEBHOOK_URL_FILE": str(tmp_path / "url"),
            "PYROMETER_PUBLIC_URL": "https://burn.example.com",
        }
        with serving(tmp_path / "data", **environment) as client:
            receiver.wait()
            finding = next(one for one in client.get("/api/v1/why").json()["findings"] if one["cause"] == "hang")
            until_shown(client, 'pyrometer_messages_total{outcome="sent",receiver="webhook"} 1.0')
        with serving(tmp_path / "data", **environment) as client:
            again = [one["id"] for one in client.get("/api/v1/why").json()["findings"]]
            until_shown(client, 'pyrometer_finding_usd{cause="hang"')
    assert finding["id"] in again
    assert finding["id"] in (tmp_path / "data" / "told.json").read_text()
    heads = [head for head in receiver.heads if "hung" in head]
    assert len(heads) == 1
    assert heads[0].endswith(finding["title"])
    assert f"#finding-{finding['id']}" in json.dumps(receiver.bodies)
    left = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "url"]
    assert [path for path in left if SECRET.encode() in path.read_bytes()] == []


def settings(path: Path, form: str = "slack") -> Settings:
    return Settings()._replace(webhook_url_file=str(path), webhook_form=form)


def test_webhook_without_an_address_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingError):
        Webhook(settings(tmp_path / "missing"))


@pytest.mark.parametrize(("form", "key"), [("slack", "text"), ("json", "kind")])
def test_webhook_sends_the_configured_format(tmp_path: Path, form: str, key: str) -> None:
    with receiving() as receiver:
        (tmp_path / "url").write_text(receiver.url)
        outcome = asyncio.run(Webhook(settings(tmp_path / "url", form)).send_patiently(Message("opened", "hello")))
    assert outcome.sent
    assert key in receiver.bodies[0]


def test_webhook_reads_its_address_again_for_each_message(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("https://127.0.0.1:9/old")
    webhook = Webhook(settings(tmp_path / "url"))
    (tmp_path / "url").unlink()
    outcome = asyncio.run(webhook.send(Message("opened", "hello")))
    assert not outcome.sent
    assert "127.0.0.1" not in str(outcome)
