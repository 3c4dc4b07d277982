"""Findings as alerts, for an Alertmanager: it groups, routes and silences them, and knows them by their labels.

It forgets what is not sent again, so everything that goes on is sent every minute, each time with an end that is a few
minutes away; what is over is sent with its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pyrometer.account.sums import iso
from pyrometer.act.messages import Facts, Place, of_finding
from pyrometer.act.post import Outcome, is_address, post, secret_of
from pyrometer.act.told import Told
from pyrometer.model.settings import SettingError, Settings
from pyrometer.model.states import CRITICAL_CAUSES

NAME = "PyrometerFinding"
SEND_EVERY_S = 60.0
LASTS_MS = 5 * 60_000  # without being sent again
RESOLVED_MS = 15 * 60_000  # that something is over is said for so long
MOST_AT_ONCE = 200


def labels_of(facts: Facts) -> dict[str, str]:
    """What an alert is known by. They are kept from when it is first sent: other labels were another alert."""
    workload, culprit = facts["workload"] or {}, facts["culprit"] or {}
    named = {
        "alertname": NAME,
        "cause": facts["cause"],
        "severity": "critical" if facts["cause"] in CRITICAL_CAUSES else "warning",
        "team": facts["team"],
        "experiment": facts["experiment"],
        "namespace": workload.get("namespace"),
        "workload": workload.get("name"),
        "node": culprit.get("node"),
        "rank": culprit.get("rank"),
        "finding": facts["id"],
    }
    return {name: str(value) for name, value in named.items() if value not in (None, "")}


def alert(one: Told, place: Place, now_ms: int) -> dict[str, Any]:
    """One finding as it is sent."""
    facts = one.facts
    message = of_finding("over" if one.is_over else "opened", facts, place)
    ends_ms = min(facts["to_ms"], now_ms) if one.is_over else now_ms + LASTS_MS
    annotations = {
        "summary": message.head,
        "description": "\n".join([*message.lines, *facts["evidence"]]),
        "suggestion": facts["suggestion"],
        "usd": "" if facts["usd_micro"] is None else f"{facts['usd_micro'] / 1e6:.2f}",
    }
    found = {
        "labels": one.labels,
        "annotations": annotations,
        "startsAt": iso(facts["from_ms"], place.zone),
        "endsAt": iso(max(ends_ms, facts["from_ms"] + 1_000), place.zone),  # what ends before it begins is refused
    }
    return found | ({"generatorURL": message.link} if message.link else {})


def alerts_of(entries: Iterable[Told], place: Place, now_ms: int) -> list[dict[str, Any]]:
    """What is to be sent: what goes on, and what was over lately."""
    return [
        alert(one, place, now_ms)
        for one in entries
        if one.labels is not None and (not one.is_over or now_ms - one.over_at_ms < RESOLVED_MS)
    ]


class Alertmanagers:
    """Those that are told; each of them everything, as they want it."""

    def __init__(self, settings: Settings) -> None:
        self.urls = settings.alertmanager_urls
        self._settings = settings
        for url in self.urls:
            if not is_address(url):
                raise SettingError(
                    f"Setting 'alertmanager_urls' has value {_shown(url)!r}. Name an address: http://127.0.0.1:9093."
                )

    def shown(self) -> list[str]:
        """Their addresses, as they may be said."""
        return [_shown(url) for url in self.urls]

    async def send(self, url: str, alerts: Sequence[dict[str, Any]]) -> Outcome:
        """Sends alerts to one of them."""
        headers = {}
        if self._settings.alertmanager_token_file:
            token = secret_of("alertmanager_token_file", self._settings.alertmanager_token_file)
            headers["Authorization"] = f"Bearer {token}"
        for begin in range(0, len(alerts), MOST_AT_ONCE):
            address = f"{url.rstrip('/')}/api/v2/alerts"
            outcome = await post(address, alerts[begin : begin + MOST_AT_ONCE], headers)
            if not outcome.sent:
                return outcome._replace(said=f"{_shown(url)}: {outcome.said}")
        return Outcome(True)


def _shown(url: str) -> str:
    """An address without its password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
