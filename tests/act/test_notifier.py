"""Notifications: one at the start and one at the end of a finding, whatever the receiver does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pyrometer.act import notifier as notifying
from pyrometer.act.notifier import Notifier, receivers
from pyrometer.model.settings import SettingError, Settings
from tests.support import clusters
from tests.support.made_findings import FindingHistory, finding
from tests.support.webhook_receiver import SECRET, Receiver, receiving

Wait = Callable[[int], Awaitable[None]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(notifying, "CLOCK_INTERVAL_S", 0.01)


def configured(folder: Path, url: str, **more: Any) -> Settings:
    path = folder / "webhook-url"
    path.write_text(f"{url}\n")
    return Settings(webhook_url_file=str(path), **more)


async def nothing(since: str, until: str) -> None:
    return None


def run_notifier(
    settings: Settings, folder: Path, during: Callable[[Notifier, Wait], Awaitable[None]], *receivers: Receiver
) -> None:
    """Runs a notifier until `during` returns."""

    async def run() -> None:
        notifier = Notifier(settings, folder, nothing)
        task = asyncio.create_task(notifier.run())

        async def wait(count: int) -> None:
            for one in receivers:
                await asyncio.to_thread(one.wait, count)
            await asyncio.sleep(0)

        try:
            await during(notifier, wait)
            while notifier._state is not None and (notifier._state.due() or notifier._report):
                await asyncio.sleep(0.01)  # until what was answered is written down
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_notifier_sends_one_message_at_the_start_and_one_at_the_end(tmp_path: Path, receiver: Receiver) -> None:
    seen = FindingHistory()

    async def during(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(60, finding(usd=50)))
        await wait(1)
        for minute in range(61, 75):
            await notifier.update(seen.look(minute, finding(usd=50 + minute, to=minute)))
        await notifier.update(seen.look(90, finding(usd=200, to=75)))
        await wait(1)
        await notifier.update(seen.look(100))

    run_notifier(configured(tmp_path, receiver.url, public_url="https://burn.example.com/"), tmp_path, during, receiver)
    assert receiver.heads == [
        "$50 so far: aaaaaaaaaaaa waited for rank 7",
        "Ended, $200 in total: aaaaaaaaaaaa waited for rank 7",
    ]
    text = receiver.bodies[0]["blocks"][0]["text"]["text"]
    assert "Team nlp, experiment sft, PyTorchJob ml/llama" in text
    assert "Culprit: rank 7, node n0" in text
    assert "• it was late\nDo: Move it.\n<https://burn.example.com/?since=" in text
    assert "#finding-aaaaaaaaaaaa|Open>" in text
    assert {tuple(body) for body in receiver.bodies} == {("text", "blocks")}  # Slack knows no other


def test_notifier_sends_cheap_findings_after_growth_and_hangs_at_once(tmp_path: Path, receiver: Receiver) -> None:
    seen = FindingHistory()

    async def during(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(
            seen.look(10, finding("slow", usd=19, to=10), finding("hung", cause="hang", usd=1, to=10))
        )
        await wait(1)
        await notifier.update(
            seen.look(20, finding("slow", usd=21, to=20), finding("hung", cause="hang", usd=12, to=20))
        )
        await wait(1)
        await notifier.update(
            seen.look(30, finding("slow", usd=30, to=30), finding("hung", cause="hang", usd=22, to=30))
        )
        await wait(1)

    run_notifier(configured(tmp_path, receiver.url), tmp_path, during, receiver)
    assert receiver.heads == [
        "$1.00 so far: hung waited for rank 7",
        "$21 so far: slow waited for rank 7",
        "$22 so far ($1.00 at the last notification): hung waited for rank 7",
    ]


def test_notifier_sends_one_message_for_a_finding_that_already_ended(tmp_path: Path, receiver: Receiver) -> None:
    seen = FindingHistory()
    settings = configured(tmp_path, receiver.url)

    async def during(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(90, finding("past", to=60)))
        await notifier.update(seen.look(91, finding("past", to=60), finding("lost", since=61, to=70)))
        await wait(1)

    run_notifier(settings, tmp_path, during, receiver)
    assert receiver.heads == ["$100: lost waited for rank 7"]


def test_notifier_restart_repeats_and_loses_nothing(tmp_path: Path, receiver: Receiver) -> None:
    seen = FindingHistory()
    settings = configured(tmp_path, receiver.url)

    async def opens(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(60, finding()))
        await wait(1)

    async def ends(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(65, finding(to=65)))
        await notifier.update(seen.look(80, finding(to=65)))
        await wait(1)

    async def nothing_new(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(81, finding(to=65)))

    for during in (opens, ends, nothing_new):
        run_notifier(settings, tmp_path, during, receiver)
    assert [head.partition(":")[0] for head in receiver.heads] == ["$100 so far", "Ended, $100 in total"]


def test_unavailable_receiver_blocks_nothing_and_gets_the_end(tmp_path: Path) -> None:
    seen = FindingHistory()
    with receiving() as first:
        settings = configured(tmp_path, first.url)
        port = int(first.url.split("/")[2].rpartition(":")[2])

    async def away(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(60, finding()))
        while notifier.counts["webhook", "failed"] < 3:
            await asyncio.sleep(0.01)
        await notifier.update(seen.look(61, finding(to=61)))
        await notifier.update(seen.look(80, finding(to=61)))
        with receiving(port) as receiver:
            await asyncio.to_thread(receiver.wait)
            assert receiver.heads == ["$100: aaaaaaaaaaaa waited for rank 7"]

    run_notifier(settings, tmp_path, away)
    kept = json.loads((tmp_path / "told.json").read_text())
    assert kept["findings"]["aaaaaaaaaaaa"]["told"] == "over"


def test_notifier_obeys_retry_after_and_drops_only_rejected_messages(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    slept: list[float] = []
    sleep = asyncio.sleep

    async def asleep(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(notifying.asyncio, "sleep", asleep)
    seen = FindingHistory()
    receiver.answers = [
        (500, {}, f"<html>{SECRET}</html>".encode()),
        (302, {"Location": "http://127.0.0.1:1/elsewhere"}, b""),
        (404, {}, b"no_service"),
        (429, {"Retry-After": "40"}, b"rate_limited"),
        (429, {"Retry-After": "99999999"}, b""),
        (200, {}, b"ok"),
        (400, {}, b"invalid_blocks"),
    ]

    async def during(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(60, finding()))
        await wait(6)
        await notifier.update(seen.look(61, finding(to=61), finding("bad", to=61)))
        await wait(1)
        await notifier.update(seen.look(62, finding(to=62), finding("bad", to=62), finding("good", to=62)))
        await wait(1)

    run_notifier(configured(tmp_path, receiver.url), tmp_path, during, receiver)
    assert [head.rpartition(": ")[2].split()[0] for head in receiver.heads] == ["aaaaaaaaaaaa", "good"]
    pauses = [seconds for seconds in slept if seconds > 0.01]
    assert pauses == [0.02, 0.04, 40.0, 3600.0]
    assert "invalid_blocks" in caplog.text
    assert "no_service" in caplog.text
    assert "SECRET" not in caplog.text


def test_notifier_combines_many_findings_into_one_message(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifying, "MAX_MESSAGES_PER_MINUTE", 3)
    seen = FindingHistory()

    async def during(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(60, *(finding(f"job-{number:02}", usd=100 + number) for number in range(20))))
        await wait(3)
        await notifier.update(seen.look(61, *(finding(f"job-{number:02}", to=61) for number in range(20))))

    run_notifier(configured(tmp_path, receiver.url), tmp_path, during, receiver)
    assert [head.partition(":")[0] for head in receiver.heads] == [
        "$119 so far",
        "$118 so far",
        "18 more findings, $1,953 together",
    ]
    assert "And 8 more." in receiver.bodies[2]["blocks"][0]["text"]["text"]


def test_json_webhook_has_the_fields_of_the_finding(tmp_path: Path, receiver: Receiver) -> None:
    seen = FindingHistory()

    async def during(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(60, finding(usd=50)))
        await wait(1)

    run_notifier(configured(tmp_path, receiver.url, webhook_form="json"), tmp_path, during, receiver)
    (body,) = receiver.bodies
    assert (body["kind"], body["id"], body["cause"], body["team"]) == ("opened", "aaaaaaaaaaaa", "straggler", "nlp")
    assert (body["usd_micro"], body["usd"], body["ongoing"], body["url"]) == (50_000_000, 50.0, True, None)
    assert body["text"].startswith("$50 so far: aaaaaaaaaaaa")
    assert body["from"] < body["seen"]


def test_morning_report_is_written_and_sent_once_per_day(tmp_path: Path, receiver: Receiver) -> None:
    settings = configured(tmp_path, receiver.url, report_at="07:00", report_file="reports/%Y-%m-%d.html")
    windows: list[tuple[str, str]] = []
    burned = clusters.explain(tmp_path / "night", [*clusters.cluster(), *clusters.job()])
    findings = [finding(f"job-{number}", usd=100 - number, gpu_hours=1.0, ongoing=False) for number in range(5)]

    async def night(since: str, until: str) -> dict[str, Any]:
        windows.append((since, until))
        return burned | {"findings": findings}

    async def mornings() -> None:
        for hour, minute in ((6, 59), (7, 0), (7, 1), (9, 0)):
            notifier = Notifier(settings, tmp_path, night)  # it starts again each time
            await notifier.report(datetime(2026, 11, 14, hour, minute, tzinfo=UTC))
            if notifier._report is not None:
                task = asyncio.create_task(notifier._notify(notifier._webhook))  # not by the real clock
                await asyncio.to_thread(receiver.wait)
                while notifier._report is not None:
                    await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await notifier._save()

    asyncio.run(mornings())
    assert windows == [("2026-11-13T19:00:00+00:00", "2026-11-14T07:00:00+00:00")]
    (written,) = (tmp_path / "reports").iterdir()
    assert written.name == "2026-11-14.html"
    assert "job-0 waited for rank 7" in written.read_text()
    assert receiver.heads == ["Last night: $29 for 8.0 GPU-hours, no waste found"]
    text = receiver.bodies[0]["blocks"][0]["text"]["text"]
    assert text.count("•") == 3
    assert "And 2 more findings, $193 together." in text


def test_notifier_is_off_without_configuration(tmp_path: Path) -> None:
    async def test() -> None:
        notifier = Notifier(Settings(), tmp_path, nothing)
        await notifier.update(FindingHistory().look(60, finding()))
        await asyncio.wait_for(notifier.run(), 5)  # there is nothing to run
        assert not notifier.is_on

    asyncio.run(test())
    assert list(tmp_path.iterdir()) == []


def test_notifier_sends_even_if_its_state_cannot_be_written(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    seen = FindingHistory()
    (tmp_path / "told.json.tmp").mkdir()  # in the way

    async def during(notifier: Notifier, wait: Wait) -> None:
        await notifier.update(seen.look(60, finding()))
        await wait(1)

    run_notifier(configured(tmp_path, receiver.url), tmp_path, during, receiver)
    assert len(receiver.heads) == 1
    assert caplog.text.count("Cannot save which notifications were sent") == 1


def test_receivers_are_listed_without_secrets(tmp_path: Path) -> None:
    settings = configured(
        tmp_path,
        f"https://hooks.example.com/{SECRET}",
        timezone="Europe/Berlin",
        report_at="7:00",
        alertmanager_urls=("http://me:xyzzy@alerts:9093",),
        report_file="reports/%d.html",
    )
    assert receivers(settings) == [
        f"Findings of $20 or more are sent to the webhook in {tmp_path / 'webhook-url'} (slack).",
        "Findings of $20 or more are sent as alerts to http://alerts:9093.",
        "A report of 12 hours is sent at 07:00 Europe/Berlin to reports/%d.html and the webhook.",
    ]
    assert receivers(Settings()) == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"webhook_url_file": "FOLDER/none"}, "'webhook_url_file' names FOLDER/none: No such file"),
        ({"webhook_url_file": "FOLDER/empty"}, "names FOLDER/empty, which must contain exactly one line"),
        ({"webhook_url_file": "FOLDER/word"}, "names FOLDER/word, which must contain an address"),
        ({"alertmanager_urls": ("alerts:9093",)}, "'alertmanager_urls' has value 'alerts:9093'"),
        ({"alertmanager_urls": ("ftp://me:xyzzy@alerts",)}, "'alertmanager_urls' has value 'ftp://alerts'"),
        ({"public_url": "burn.example.com"}, "'public_url' has value 'burn.example.com'"),
        ({"report_at": "7 o'clock", "report_file": "r.html"}, "Use a time of day"),
        ({"report_at": "07:00"}, "Set 'report_file' or 'webhook_url_file'"),
        ({"report_at": "07:00", "report_file": "r.html", "report_hours": 0}, "'report_hours' has value 0"),
    ],
)
def test_invalid_settings_are_rejected_without_secrets(tmp_path: Path, wrong, error) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "word").write_text("xyzzy\n")
    settings = {
        name: value.replace("FOLDER", str(tmp_path)) if isinstance(value, str) else value
        for name, value in wrong.items()
    }
    with pytest.raises(SettingError) as raised:
        Notifier(Settings(**settings), tmp_path, nothing)
    assert error.replace("FOLDER", str(tmp_path)) in str(raised.value)
    assert "xyzzy" not in str(raised.value)
