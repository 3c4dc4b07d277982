"""Tells people what was found: over a webhook, to Alertmanagers, and in the morning what the night has cost.

Nobody waits for a receiver: what is to be told is kept on disk until it was told, and those who do not answer are asked
again later.
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

from pyrometer.account.windows import WindowError, zone_of
from pyrometer.act import morning
from pyrometer.act.alertmanager import SEND_EVERY_S, Alertmanagers, alerts_of, labels_of
from pyrometer.act.lives import Life
from pyrometer.act.messages import Facts, Message, Place, of_finding, of_night, of_several
from pyrometer.act.post import Outcome, is_address
from pyrometer.act.told import Book
from pyrometer.act.webhook import Webhook
from pyrometer.explain.html import render_html
from pyrometer.explain.words import dollars
from pyrometer.model.settings import SettingError, Settings
from pyrometer.store import files

MOST_A_MINUTE = 6  # messages; then one that sums up the rest
MINUTE_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 600.0
LOOK_AT_THE_CLOCK_S = 20.0
FILE, WEBHOOK = "file", "webhook"  # where a report goes
Night = Callable[[str, str], Awaitable[Facts | None]]  # the answer about a time; None: there is none
log = logging.getLogger("pyrometer")


class Teller:
    """Off until something is configured; what is wrong with that is said at once."""

    def __init__(self, settings: Settings, folder: Path, night: Night) -> None:
        self.settings = settings
        self.counts: Counter[tuple[str, str]] = Counter()  # messages by receiver and outcome
        self._folder = folder
        self._night = night
        self._webhook = Webhook(settings) if settings.webhook_url_file else None
        self._alertmanagers = Alertmanagers(settings)
        self._report_at = morning.time_of(settings)
        self._place = place_of(settings)
        self._book = Book(folder, settings.tell_min_usd_micro) if self.is_on else None
        self._report: tuple[morning.Due, Message] | None = None  # that the webhook is still to be told
        self._saving = asyncio.Lock()
        self._unsaved = 0  # changes that are not on the disk yet
        self._news = asyncio.Event()
        self._alerts = {url: asyncio.Event() for url in self._alertmanagers.urls}
        self._sent_s: deque[float] = deque()  # when messages went, within a minute
        self._trouble: dict[str, str] = {}  # by receiver, as it was said last

    @property
    def is_on(self) -> bool:
        """Whether anything is configured."""
        return self._webhook is not None or bool(self._alertmanagers.urls) or self._report_at is not None

    async def take(self, lives: Iterable[Life]) -> None:
        """How findings stand now. They are told by and by."""
        if self._book is None:
            return
        changed = self._book.take(lives, _now_ms(), heard=self._webhook is not None)
        for name, one in self._book.entries.items():
            worth = not one.is_over and one.is_worth(self._book.least_usd_micro)
            if self._alerts and one.labels is None and worth:
                self._book.entries[name] = one._replace(labels=labels_of(one.facts))
                changed = True
        if changed:
            await self._save()
            for event in self._alerts.values():
                event.set()
        self._news.set()

    async def run(self) -> None:
        """For ever; what was told until it is stopped is written down."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._webhook is not None:
                    tasks.create_task(self._tell(self._webhook))
                for url, event in self._alerts.items():
                    tasks.create_task(self._alert(url, event))
                if self._report_at is not None:
                    tasks.create_task(self._every_morning())
        finally:
            if self._book is not None and self._unsaved:  # a thread that has not begun does not begin any more
                self._write(self._book, self._book.text())

    async def _save(self) -> None:
        if self._book is None:
            return
        self._unsaved += 1
        async with self._saving:  # what is newer is written later
            if await asyncio.to_thread(self._write, self._book, self._book.text()):
                self._unsaved -= 1

    def _write(self, book: Book, text: str) -> bool:
        """Onto the disk; what cannot be written is known here as long as this process lives."""
        try:
            book.write(text)
        except OSError as error:
            self._say("disk", f"What was told cannot be written down, and may be told again: {error.strerror}")
            return False
        self._say("disk", "")
        return True

    # -- a webhook --------------------------------------------------------------------------------------------------

    async def _tell(self, webhook: Webhook) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            message, told = await self._next()
            outcome = await webhook.send(message)
            self._count(WEBHOOK, outcome, "The webhook")
            if outcome.sent or outcome.hopeless:
                self._sent_s.append(time.monotonic())
                pause_s = FIRST_PAUSE_S
                told()
                await self._save()
            else:
                await asyncio.sleep(max(pause_s, outcome.after_s or 0.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _next(self) -> tuple[Message, Callable[[], None]]:
        """What is to be told next, as soon as there is something and it may be; and what to do when it was."""
        while True:
            self._news.clear()
            found = self._due()
            if found is not None:
                return found
            await self._news.wait()

    def _due(self) -> tuple[Message, Callable[[], None]] | None:
        book = self._book
        now_s = time.monotonic()
        while self._sent_s and now_s - self._sent_s[0] >= MINUTE_S:
            self._sent_s.popleft()
        may = MOST_A_MINUTE - len(self._sent_s)
        if book is None or may <= 0:
            if may <= 0:
                wait_s = MINUTE_S - (now_s - self._sent_s[0])
                asyncio.get_running_loop().call_later(max(wait_s, 0.01), self._news.set)
            return None
        if self._report is not None:
            due, message = self._report
            return message, lambda: self._reported(due)
        found = book.due()
        if not found:
            return None
        if may == 1 and len(found) > 1:
            several = [(kind, one.facts) for kind, one in found]
            return of_several(several, self._place), lambda: book.mark(found)
        kind, one = found[0]
        return of_finding(kind, one.facts, self._place, one.told_usd_micro), lambda: book.mark(found[:1])

    # -- Alertmanagers ------------------------------------------------------------------------------------------------

    async def _alert(self, url: str, changed: asyncio.Event) -> None:
        while True:
            alerts = alerts_of(self._book.entries.values(), self._place, _now_ms()) if self._book else []
            if alerts:
                try:
                    outcome = await self._alertmanagers.send(url, alerts)
                except SettingError as error:
                    outcome = Outcome(False, str(error))
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
            except Exception as error:  # whatever it is, findings are still told
                self._say("report", f"The report could not be made, and is tried again: {error}")
            await asyncio.sleep(LOOK_AT_THE_CLOCK_S)

    async def report(self, now: datetime | None = None) -> None:
        """Makes the report of the last night, if it is due and not made yet."""
        due = morning.last_due(self._report_at, self._place.zone, now or datetime.now(UTC)) if self._report_at else None
        if due is None or self._book is None:
            return
        wanted = {FILE: self.settings.report_file, WEBHOOK: self.settings.webhook_url_file}
        missing = [name for name, where in wanted.items() if where and self._book.reports.get(name) != due.day]
        if self._report is not None and self._report[0] == due:
            missing = [name for name in missing if name != WEBHOOK]
        if not missing:
            return
        answer = await self._night(*_window(due, self.settings.report_hours))
        if answer is None:
            return
        if WEBHOOK in missing:
            self._report = (due, of_night(answer, self._place))
            self._news.set()
        if FILE in missing:
            path = morning.path_of(self.settings, self._folder, due)
            await asyncio.to_thread(_write, path, answer)
            self._book.reports[FILE] = due.day
            await self._save()

    def _reported(self, due: morning.Due) -> None:
        if self._book is not None:
            self._book.reports[WEBHOOK] = due.day
        self._report = None

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def _count(self, receiver: str, outcome: Outcome, who: str) -> None:
        self.counts[receiver, "sent" if outcome.sent else "refused" if outcome.hopeless else "failed"] += 1
        lost = "this one is left out" if outcome.hopeless else "it is tried again"
        self._say(receiver, "" if outcome.sent else f"{who} did not take a message, {lost}: {outcome.said}")

    def _say(self, receiver: str, trouble: str) -> None:
        """Once, until it is another."""
        if trouble and self._trouble.get(receiver) != trouble:
            log.warning("%s", trouble)
        self._trouble[receiver] = trouble


def receivers(settings: Settings) -> list[str]:
    """Who is told what, in words; what is wrong with that is raised."""
    least = dollars(settings.tell_min_usd_micro)
    place, at = place_of(settings), morning.time_of(settings)
    said = []
    if settings.webhook_url_file:
        Webhook(settings)
        form = settings.webhook_form
        said.append(f"Findings from {least} on go to the webhook of {settings.webhook_url_file} ({form}).")
    said += [f"Findings from {least} on are alerts of {url}." for url in Alertmanagers(settings).shown()]
    if at is not None:
        where = [settings.report_file, "the webhook" if settings.webhook_url_file else ""]
        to = " and ".join(one for one in where if one)
        said.append(f"A report of {settings.report_hours} hours is made at {at:%H:%M} {place.zone}: {to}.")
    return said


def place_of(settings: Settings) -> Place:
    """Where messages come from, as the settings say."""
    url = settings.public_url.rstrip("/")
    if url and not is_address(url):
        raise SettingError(
            f"Setting 'public_url' has value {settings.public_url!r}. Name an address: https://pyrometer.example.com."
        )
    try:
        return Place(url, zone_of(settings.timezone))
    except WindowError as error:
        raise SettingError(str(error)) from None


def _window(due: morning.Due, hours: int) -> tuple[str, str]:
    at = due.at.astimezone(UTC)
    return (at - timedelta(hours=hours)).isoformat(), at.isoformat()


def _write(path: Path, answer: Facts) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, render_html(answer))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
