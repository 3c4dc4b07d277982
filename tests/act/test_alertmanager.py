"""Findings as alerts: in a real Alertmanager each finding is one alert until it is resolved."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from pyrometer.act import alertmanager
from pyrometer.act.alertmanager import RESOLVED_MS, alert, alerts_of, labels_of
from pyrometer.act.notification_state import Notice
from pyrometer.act.notification_texts import MessageContext, facts_of
from pyrometer.act.notifier import Notifier
from pyrometer.model.settings import Settings
from tests.support.made_findings import FindingHistory, finding
from tests.support.prometheus_servers import Server
from tests.support.webhook_receiver import Receiver, receiving

PLACE = MessageContext("https://burn.example.com", UTC)
NUMBERS = {"from_ms": 10**12, "to_ms": 10**12 + 60_000, "seen_ms": 10**12, "gpu_ms": 1, "usd_micro": 1_500_000}

CONFIG = """
global: {{resolve_timeout: 1m}}
route: {{receiver: us, group_by: [finding], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}}
receivers: [{{name: us, webhook_configs: [{{url: "{url}", send_resolved: true}}]}}]
"""


@pytest.fixture
def notified() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def manager(tmp_path: Path, notified: Receiver) -> Iterator[Server]:
    if shutil.which("prometheus-alertmanager") is None:
        pytest.skip("needs prometheus-alertmanager: apt-get install prometheus-alertmanager")
    folder = tmp_path / "manager"
    folder.mkdir()
    (folder / "config.yml").write_text(CONFIG.format(url=notified.url))
    server = Server(
        lambda port: [
            "prometheus-alertmanager",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--config.file={folder}/config.yml",
            f"--storage.path={folder}/data",
            "--cluster.listen-address=",
        ],
        folder,
        "/-/ready",
    )
    yield server
    server.close()


async def nothing(since: str, until: str) -> None:
    return None


@pytest.mark.heavy
def test_finding_is_one_alert_from_start_to_end(
    tmp_path: Path, manager: Server, notified: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alertmanager, "MAX_ALERTS_PER_REQUEST", 1)
    settings = Settings(alertmanager_urls=(f"{manager.url}/",), public_url="https://burn.example.com")
    seen = FindingHistory()

    def alerts() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx.get(f"{manager.url}/api/v2/alerts").json()
        return sorted(found, key=lambda one: one["labels"]["finding"])

    def silence() -> None:
        now = datetime.now(UTC)
        matcher = {"name": "team", "value": "nlp", "isRegex": False, "isEqual": True}
        silence = {
            "matchers": [matcher],
            "startsAt": now.isoformat(),
            "endsAt": (now + timedelta(hours=1)).isoformat(),
            "createdBy": "us",
            "comment": "we know",
        }
        httpx.post(f"{manager.url}/api/v2/silences", json=silence).raise_for_status()

    async def test() -> None:
        for at_min, usd in ((60, 50.0), (61, 51.0), (62, 1000.0)):
            notifier = Notifier(settings, tmp_path, nothing)  # it starts again each time
            changed = {"culprit": {"rank": 3, "node": "n9"}} if at_min > 60 else {}
            small = finding("small", usd=1, to=at_min)
            await notifier.update(seen.look(at_min, finding(usd=usd, to=at_min, **changed), finding("other"), small))
            await sent(notifier)
        (one, other) = await asyncio.to_thread(alerts)
        assert other["labels"]["finding"] == "other"
        assert one["labels"] == {
            "alertname": "PyrometerFinding",
            "cause": "straggler",
            "severity": "warning",
            "team": "nlp",
            "experiment": "sft",
            "namespace": "ml",
            "workload": "llama",
            "node": "n0",
            "rank": "7",
            "finding": "aaaaaaaaaaaa",
        }
        assert one["status"]["state"] == "active"
        assert one["annotations"]["summary"] == "$1,000 so far: aaaaaaaaaaaa waited for rank 7"
        assert one["annotations"]["usd"] == "1000.00"
        assert one["generatorURL"].startswith("https://burn.example.com/?since=")
        await asyncio.to_thread(silence)
        assert [one["status"]["state"] for one in await asyncio.to_thread(alerts)] == ["suppressed"] * 2
        for silenced in (await asyncio.to_thread(httpx.get, f"{manager.url}/api/v2/silences")).json():
            await asyncio.to_thread(httpx.delete, f"{manager.url}/api/v2/silence/{silenced['id']}")
        await asyncio.to_thread(notified.wait, 2)
        await notifier.update(seen.look(90, finding("other", to=90)))
        await sent(notifier)
        await asyncio.to_thread(notified.wait)
        assert [one["labels"]["finding"] for one in await asyncio.to_thread(alerts)] == ["other"]

    async def sent(notifier: Notifier) -> None:
        task = asyncio.create_task(notifier.run())
        while notifier.counts["alertmanager", "sent"] < 1:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        notifier.counts.clear()

    asyncio.run(test())
    received = [(body["status"], one["labels"]["finding"]) for body in notified.bodies for one in body["alerts"]]
    assert sorted(received) == [("firing", "aaaaaaaaaaaa"), ("firing", "other"), ("resolved", "aaaaaaaaaaaa")]


def test_alertmanager_token_is_sent_and_never_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = tmp_path / "token"
    token.write_text("xyzzy\n")
    with receiving() as receiver:
        url = receiver.url.partition("/services")[0]
        settings = Settings(alertmanager_urls=(url,), alertmanager_token_file=str(token))
        receiver.answers = [(401, {}, b"who is xyzzy?")]

        async def test() -> None:
            notifier = Notifier(settings, tmp_path, nothing)
            await notifier.update(FindingHistory().look(60, finding()))
            task = asyncio.create_task(notifier.run())
            await asyncio.to_thread(receiver.wait)
            notifier._alerts[url].set()
            await asyncio.to_thread(receiver.wait)
            token.unlink()
            notifier._alerts[url].set()
            while notifier.counts["alertmanager", "failed"] < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(test())
    assert receiver.headers[0]["Authorization"] == "Bearer xyzzy"
    assert "HTTP 401" in caplog.text
    assert "'alertmanager_token_file' names" in caplog.text
    assert "xyzzy" not in caplog.text


def test_resolved_alert_ends_after_its_start() -> None:
    facts = facts_of(finding(culprit=None, workload=None, team="platform", experiment=None)) | NUMBERS
    over = Notice(facts, is_over=True, over_at_ms=10**12, labels=labels_of(facts))
    assert set(over.labels or {}) == {"alertname", "cause", "severity", "team", "finding"}
    sent = alert(over, PLACE, 10**12)  # by a clock that is behind
    assert sent["startsAt"] < sent["endsAt"]
    goes_on = alert(over._replace(is_over=False), PLACE, 2 * 10**12)
    assert datetime.fromisoformat(goes_on["endsAt"]).timestamp() * 1000 > 2 * 10**12
    assert len(alerts_of([over, over._replace(labels=None)], PLACE, 10**12)) == 1
    assert alerts_of([over], PLACE, 10**12 + RESOLVED_MS) == []
