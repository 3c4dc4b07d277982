"""Sends messages to a webhook. Its address is a secret that is read from a file each time and never shown."""

from __future__ import annotations

import asyncio

from pyrometer.act.http_post import SendResult, address_of, post
from pyrometer.act.notification_texts import Message
from pyrometer.act.slack import as_json, as_slack
from pyrometer.model.settings import SettingError, Settings

RETRY_PAUSES_S = (1.0, 5.0, 25.0)  # for commands that send one message and exit
MAX_WAIT_S = 120.0


class Webhook:
    """A webhook with the format from the settings."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.webhook_url_file
        self._form = {"slack": as_slack, "json": as_json}[settings.webhook_form]
        address_of("webhook_url_file", self._path)  # raises for an invalid file

    async def send(self, message: Message) -> SendResult:
        """Sends one message, once."""
        try:
            url = address_of("webhook_url_file", self._path)
        except SettingError as error:
            return SendResult(False, str(error))
        return await post(url, self._form(message))

    async def send_patiently(self, message: Message) -> SendResult:
        """Sends one message with a few retries."""
        for pause_s in (*RETRY_PAUSES_S, None):
            outcome = await self.send(message)
            wait_s = max(pause_s or 0.0, outcome.retry_after_s or 0.0)
            if outcome.sent or outcome.permanent or pause_s is None or wait_s > MAX_WAIT_S:
                break
            await asyncio.sleep(wait_s)
        return outcome
