"""The task that looks for findings: it stores them, counts them, and passes them to notifications and to the page."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from typing import Any

from pyrometer.account.query.answer_json import iso
from pyrometer.act.finding_lifecycle import FindingTracker, ms_of
from pyrometer.act.notifier import Notifier
from pyrometer.export.ledger_metrics import LedgerCollector
from pyrometer.model.records import Finding
from pyrometer.model.units import MS_PER_DAY, MS_PER_MINUTE
from pyrometer.serve.core import Core
from pyrometer.serve.http.answering import Answer, Ask
from pyrometer.serve.http.event_stream import EventStream
from pyrometer.serve.http.http_error import HttpError
from pyrometer.serve.runtime import run_to_end

# The questions of the first page that a user opens. Their answers are kept in the cache.
SHOWN_FIRST: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("burn", {}),
    ("cluster", {}),
    ("worth", {}),
    ("runs", {}),
    ("cost", {"by": "team,experiment", "last": "31d"}),
    ("cost", {"by": "day,team", "last": "31d"}),
)
# Findings that ended are asked about once more over their whole time: how many at a time, and how far back.
MAX_SUMMED_UP, MAX_SUMMED_UP_MS = 5, 31 * MS_PER_DAY


def first_experiment(worth: Answer) -> str | None:
    """The experiment that the page shows until the user chooses one."""
    return next((row["experiment"] for row in worth["rows"] if row["experiment"] and row["metric"]), None)


class FindingsTask:
    """Looks for findings again and again."""

    def __init__(self, core: Core, ask: Ask, notifier: Notifier, metrics: LedgerCollector, events: EventStream) -> None:
        self._core = core
        self._ask = ask
        self._notifier = notifier
        self._metrics = metrics
        self._events = events
        self._tracker: FindingTracker | None = None  # None until the first look
        self._announced: dict[str | None, set[str]] = {}  # ids of findings by team; None: all teams

    async def look(self) -> None:
        """Looks for findings, and asks what the page shows first, so that its answers are ready."""
        try:
            await self.find()
        except HttpError:  # there is no data yet
            return
        for what, parameters in SHOWN_FIRST:
            await self._ask(what, dict(parameters))
        with suppress(HttpError):
            if experiment := first_experiment(await self._ask("worth", {})):
                await self._ask("worth", {"experiment": experiment})

    async def find(self) -> None:
        """Looks for findings, and stores them, so that a finding keeps its id."""
        answer = await self._ask("why", {})
        async with self._core.lock:
            tracker, news = await run_to_end(self._remember, answer)
        longer = [one for one in news if one.over_ms is not None and one.from_ms < ms_of(answer["window"]["from"])]
        for one in longer[:MAX_SUMMED_UP]:
            await self._sum_up(tracker, one)
        await self._notifier.update(tracker.all())
        await asyncio.to_thread(self._metrics.set_findings, answer["findings"])
        self._announce(None, answer["findings"])
        for team in self._events.teams():  # a team's findings come from the team's own data
            with suppress(HttpError):  # there is no data of that team
                self._announce(team, (await self._ask("why", {}, team))["findings"])

    def _remember(self, answer: Answer) -> tuple[FindingTracker, list[Finding]]:
        store = self._core.store
        if self._tracker is None:
            self._tracker = FindingTracker.of(store)
        return self._tracker, self._tracker.remember(store, answer)

    async def _sum_up(self, tracker: FindingTracker, ended: Finding) -> None:
        """Stores the total cost of a finding that is longer than the time range in which it was found."""
        until_ms = ended.to_ms + MS_PER_MINUTE
        since, until = iso(max(ended.from_ms, until_ms - MAX_SUMMED_UP_MS), UTC), iso(until_ms, UTC)
        with suppress(HttpError):
            found = (await self._ask("why", {"since": since, "until": until}))["findings"]
            summed_up = [tracker.learn(finding) for finding in found if finding["id"] == ended.finding_id]
            async with self._core.lock:
                await run_to_end(self._core.store.append, summed_up)

    def _announce(self, team: str | None, findings: list[dict[str, Any]]) -> None:
        """Sends an event for each finding that is new to the listeners of a team."""
        announced = self._announced.get(team, set())
        for finding in findings:
            if finding["id"] not in announced:
                names = ("id", "cause", "title", "team", "from", "to", "usd_micro", "usd")
                self._events.send_to_team(team, "finding", {name: finding[name] for name in names})
        self._announced[team] = {finding["id"] for finding in findings}
