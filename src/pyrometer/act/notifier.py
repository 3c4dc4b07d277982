"""Sends notifications: findings to a webhook and to Alertmanagers, and a report in the morning.

Nothing waits for a receiver. State is kept on disk, and receivers that do not answer are tried again later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyrometer.account.query.time_range import TimeRangeError, zone_of
from pyrometer.act import morning_report
from pyrometer.act.alertmanager import SEND_EVERY_S, Alertmanagers, alerts_of, labels_of
from pyrometer.act.finding_lifecycle import TrackedFinding
from pyrometer.act.http_post import SendResult, is_address
from pyrometer.act.notification_state import NotificationState
from pyrometer.act.notification_texts import Facts, Message, MessageContext, of_finding, of_night, of_several
from pyrometer.act.webhook import Webhook
from pyrometer.model.human import dollars
from pyrometer.model.settings import SettingError, Settings
from pyrometer.render.why_html import render_html
from pyrometer.store import files

MAX_MESSAGES_PER_MINUTE = 6  # the last one summarizes the remaining findings
MINUTE_S = 60.0
FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 600.0
CLOCK_INTERVAL_S = 20.0
FILE, WEBHOOK = "file", "webhook"  # destinations of a report
AskWhy = Callable[[str, str], Awaitable[Facts | None]]  # the answer of `why` for a time range; None if there is none
log = logging.getLogger("pyrometer")


class Notifier:
    """Sends notifications to the configured receivers. Raises for invalid settings."""

    def __init__(self, settings: Settings, folder: Path, ask_why: AskWhy) -> None:
        self.settings = settings
        self.counts: Counter[tuple[str, str]] = Counter()  # messages by receiver and outcome
        self._folder = folder
        self._ask_why = ask_why
        self._webhook = Webhook(settings) if settings.webhook_url_file else None
        self._alertmanagers = Alertmanagers(settings)
        self._report_at = morning_report.time_of(settings)
        self._context = context_of(settings)
        self._state = NotificationState(folder, settings.tell_min_usd_micro) if self.is_on else None
        self._report: tuple[morning_report.DueReport, Message] | None = None  # to be sent to the webhook
        self._saving = asyncio.Lock()
        self._unsaved = 0  # changes that are not on disk yet
        self._news = asyncio.Event()
        self._alerts = {url: asyncio.Event() for url in self._alertmanagers.urls}
        self._sent_s: deque[float] = deque()  # when messages were sent in the last minute
        self._trouble: dict[str, str] = {}  # by receiver, the last logged problem

    @property
    def is_on(self) -> bool:
        """Whether anything is configured."""
        return self._webhook is not None or bool(self._alertmanagers.urls) or self._report_at is not None

    async def update(self, findings: Iterable[TrackedFinding]) -> None:
        """Updates the state of findings. Notifications follow in the background."""
        if self._state is None:
            return
        changed = self._state.update(findings, _now_ms(), has_receiver=self._webhook is not None)
        for name, one in self._state.entries.items():
            worth = not one.is_over and one.is_worth(self._state.min_usd_micro)
            if self._alerts and one.labels is None and worth:
                self._state.entries[name] = one._replace(labels=labels_of(one.facts))
                changed = True
        if changed:
            await self._save()
            for event in self._alerts.values():
                event.set()
        self._news.set()

    async def run(self) -> None:
        """Runs until it is cancelled, then saves the state."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._webhook is not None:
                    tasks.create_task(self._notify(self._webhook))
                for url, event in self._alerts.items():
                    tasks.create_task(self._alert(url, event))
                if self._report_at is not None:
                    tasks.create_task(self._every_morning())
        finally:
            if self._state is not None and self._unsaved:  # threads that have not started will not start any more
                self._write(self._state, self._state.text())

    async def _save(self) -> None:
        if self._state is None:
            return
        self._unsaved += 1
        async with self._saving:  # newer states are written later
            if await asyncio.to_thread(self._write, self._state, self._state.text()):
                self._unsaved -= 1

    def _write(self, state: NotificationState, text: str) -> bool:
        """Writes the state to disk. If that fails, this process still remembers it."""
        try:
            state.write(text)
        except OSError as error:
            self._log_once("disk", f"Cannot save which notifications were sent; some may be repeated: {error.strerror}")
            return False
        self._log_once("disk", "")
        return True

    # -- a webhook --------------------------------------------------------------------------------------------------

    async def _notify(self, webhook: Webhook) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            message, mark_sent = await self._next()
            outcome = await webhook.send(message)
            self._count(WEBHOOK, outcome, "The webhook")
            if outcome.sent or outcome.permanent:
                self._sent_s.append(time.monotonic())
                pause_s = FIRST_PAUSE_S
                mark_sent()
                await self._save()
            else:
                await asyncio.sleep(max(pause_s, outcome.retry_after_s or 0.0))
                pause_s = min(2 * pause_s, MAX_PAUSE_S)

    async def _next(self) -> tuple[Message, Callable[[], None]]:
        """Waits for the next message. Also returns the function to call after it was sent."""
        while True:
            self._news.clear()
            found = self._due()
            if found is not None:
                return found
            await self._news.wait()

    def _due(self) -> tuple[Message, Callable[[], None]] | None:
        state = self._state
        now_s = time.monotonic()
        while self._sent_s and now_s - self._sent_s[0] >= MINUTE_S:
            self._sent_s.popleft()
        allowed = MAX_MESSAGES_PER_MINUTE - len(self._sent_s)
        if state is None or allowed <= 0:
            if allowed <= 0:
                wait_s = MINUTE_S - (now_s - self._sent_s[0])
                asyncio.get_running_loop().call_later(max(wait_s, 0.01), self._news.set)
            return None
        if self._report is not None:
            due, message = self._report
            return message, lambda: self._reported(due)
        found = state.due()
        if not found:
            return None
        if allowed == 1 and len(found) > 1:
            several = [(kind, one.facts) for kind, one in found]
            return of_several(several, self._context), lambda: state.mark_sent(found)
        kind, one = found[0]
        return of_finding(kind, one.facts, self._context, one.sent_usd_micro), lambda: state.mark_sent(found[:1])

    # -- Alertmanagers ------------------------------------------------------------------------------------------------

    async def _alert(self, url: str, changed: asyncio.Event) -> None:
        while True:
            alerts = alerts_of(self._state.entries.values(), self._context, _now_ms()) if self._state else []
            if alerts:
                try:
                    outcome = await self._alertmanagers.send(url, alerts)
                except SettingError as error:
                    outcome = SendResult(False, str(error))
                self._count("alertmanager", outcome, "An Alertmanager")
            with suppress(TimeoutError):
                async with asyncio.timeout(SEND_EVERY_S):
                    await changed.wait()
            changed.clear()

    # -- in the morning -----------------------------------------------------------------------------------------------

    async def _every_morning(self) -> None:
        while True:
            try:
                await self.report()
            except Exception as error:  # findings are still reported, whatever fails here
                self._log_once("report", f"The report failed and will be retried: {error}")
            await asyncio.sleep(CLOCK_INTERVAL_S)

    async def report(self, now: datetime | None = None) -> None:
        """Makes the report of the last night if it is due and was not made yet."""
        due = (
            morning_report.last_due(self._report_at, self._context.zone, now or datetime.now(UTC))
            if self._report_at
            else None
        )
        if due is None or self._state is None:
            return
        destinations = {FILE: self.settings.report_file, WEBHOOK: self.settings.webhook_url_file}
        missing = [name for name, where in destinations.items() if where and self._state.reports.get(name) != due.day]
        if self._report is not None and self._report[0] == due:
            missing = [name for name in missing if name != WEBHOOK]
        if not missing:
            return
        answer = await self._ask_why(*_window(due, self.settings.report_hours))
        if answer is None:
            return
        if WEBHOOK in missing:
            self._report = (due, of_night(answer, self._context))
            self._news.set()
        if FILE in missing:
            path = morning_report.path_of(self.settings, self._folder, due)
            await asyncio.to_thread(_write, path, answer)
            self._state.reports[FILE] = due.day
            await self._save()

    def _reported(self, due: morning_report.DueReport) -> None:
        if self._state is not None:
            self._state.reports[WEBHOOK] = due.day
        self._report = None

    # -- errors -------------------------------------------------------------------------------------------------------

    def _count(self, receiver: str, outcome: SendResult, name: str) -> None:
        self.counts[receiver, "sent" if outcome.sent else "refused" if outcome.permanent else "failed"] += 1
        action = "refused a message" if outcome.permanent else "did not accept a message, which will be retried"
        self._log_once(receiver, "" if outcome.sent else f"{name} {action}: {outcome.error}")

    def _log_once(self, receiver: str, trouble: str) -> None:
        """Logs a problem when it changes."""
        if trouble and self._trouble.get(receiver) != trouble:
            log.warning("%s", trouble)
        self._trouble[receiver] = trouble


def receivers(settings: Settings) -> list[str]:
    """Describes each configured receiver in one sentence. Raises for invalid settings."""
    minimum = dollars(settings.tell_min_usd_micro)
    context, at = context_of(settings), morning_report.time_of(settings)
    sentences = []
    if settings.webhook_url_file:
        Webhook(settings)
        form = settings.webhook_form
        sentences.append(
            f"Findings of {minimum} or more are sent to the webhook in {settings.webhook_url_file} ({form})."
        )
    sentences += [
        f"Findings of {minimum} or more are sent as alerts to {url}." for url in Alertmanagers(settings).shown()
    ]
    if at is not None:
        where = [settings.report_file, "the webhook" if settings.webhook_url_file else ""]
        to = " and ".join(one for one in where if one)
        sentences.append(f"A report of {settings.report_hours} hours is sent at {at:%H:%M} {context.zone} to {to}.")
    return sentences


def context_of(settings: Settings) -> MessageContext:
    """The address and time zone of messages, from the settings."""
    url = settings.public_url.rstrip("/")
    if url and not is_address(url):
        raise SettingError(
            f"Setting 'public_url' has value {settings.public_url!r}. Use an address such as https://pyrometer.example.com."
        )
    try:
        return MessageContext(url, zone_of(settings.timezone))
    except TimeRangeError as error:
        raise SettingError(str(error)) from None


def _window(due: morning_report.DueReport, hours: int) -> tuple[str, str]:
    at = due.at.astimezone(UTC)
    return (at - timedelta(hours=hours)).isoformat(), at.isoformat()


def _write(path: Path, answer: Facts) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, render_html(answer))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
