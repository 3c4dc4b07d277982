"""Sends findings as alerts to Alertmanagers, which group, route and silence them by their labels.

An Alertmanager forgets alerts that are not sent again. Open findings are therefore sent every minute with an end a few
minutes ahead. Ended findings are sent with their end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pyrometer.account.query.answer_json import iso
from pyrometer.act.http_post import SendResult, is_address, post, secret_of
from pyrometer.act.notification_state import Notice
from pyrometer.act.notification_texts import Facts, MessageContext, of_finding
from pyrometer.model.settings import SettingError, Settings
from pyrometer.model.states import CRITICAL_CAUSES

NAME = "PyrometerFinding"
SEND_EVERY_S = 60.0
EXPIRES_MS = 5 * 60_000  # unless the alert is sent again
RESOLVED_MS = 15 * 60_000  # for how long an ended finding is still sent
MAX_ALERTS_PER_REQUEST = 200


def labels_of(facts: Facts) -> dict[str, str]:
    """The labels of an alert, stored when it is first sent, because other labels are another alert."""
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


def alert(one: Notice, context: MessageContext, now_ms: int) -> dict[str, Any]:
    """One finding as an alert."""
    facts = one.facts
    message = of_finding("over" if one.is_over else "opened", facts, context)
    ends_ms = min(facts["to_ms"], now_ms) if one.is_over else now_ms + EXPIRES_MS
    annotations = {
        "summary": message.head,
        "description": "\n".join([*message.lines, *facts["evidence"]]),
        "suggestion": facts["suggestion"],
        "usd": "" if facts["usd_micro"] is None else f"{facts['usd_micro'] / 1e6:.2f}",
    }
    found = {
        "labels": one.labels,
        "annotations": annotations,
        "startsAt": iso(facts["from_ms"], context.zone),
        "endsAt": iso(max(ends_ms, facts["from_ms"] + 1_000), context.zone),  # an end before the start is refused
    }
    return found | ({"generatorURL": message.link} if message.link else {})


def alerts_of(entries: Iterable[Notice], context: MessageContext, now_ms: int) -> list[dict[str, Any]]:
    """Returns the alerts to send: open findings and recently ended ones."""
    return [
        alert(one, context, now_ms)
        for one in entries
        if one.labels is not None and (not one.is_over or now_ms - one.over_at_ms < RESOLVED_MS)
    ]


class Alertmanagers:
    """The configured Alertmanagers. Each gets every alert, as Alertmanager expects from its clients."""

    def __init__(self, settings: Settings) -> None:
        self.urls = settings.alertmanager_urls
        self._settings = settings
        for url in self.urls:
            if not is_address(url):
                raise SettingError(
                    f"Setting 'alertmanager_urls' has value {_shown(url)!r}. Name an address: http://127.0.0.1:9093."
                )

    def shown(self) -> list[str]:
        """Their addresses without secrets."""
        return [_shown(url) for url in self.urls]

    async def send(self, url: str, alerts: Sequence[dict[str, Any]]) -> SendResult:
        """Sends alerts to one Alertmanager."""
        headers = {}
        if self._settings.alertmanager_token_file:
            token = secret_of("alertmanager_token_file", self._settings.alertmanager_token_file)
            headers["Authorization"] = f"Bearer {token}"
        for begin in range(0, len(alerts), MAX_ALERTS_PER_REQUEST):
            address = f"{url.rstrip('/')}/api/v2/alerts"
            outcome = await post(address, alerts[begin : begin + MAX_ALERTS_PER_REQUEST], headers)
            if not outcome.sent:
                return outcome._replace(error=f"{_shown(url)}: {outcome.error}")
        return SendResult(True)


def _shown(url: str) -> str:
    """An address without its password and query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
