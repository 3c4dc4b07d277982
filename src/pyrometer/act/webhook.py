"""Sends messages to a webhook. Its address is a secret: it is read from a file each time, and told to nobody."""

from __future__ import annotations

import asyncio

from pyrometer.act.messages import Message
from pyrometer.act.post import Outcome, address_of, post
from pyrometer.act.slack import as_json, as_slack
from pyrometer.model.settings import SettingError, Settings

PAUSES_S = (1.0, 5.0, 25.0)  # of who sends one message and is done
MOST_PATIENT_S = 120.0


class Webhook:
    """One receiver; what it gets is as the settings say."""

    def __init__(self, settings: Settings) -> None:
        self._path = settings.webhook_url_file
        self._form = {"slack": as_slack, "json": as_json}[settings.webhook_form]
        address_of("webhook_url_file", self._path)  # what is wrong with it is said at once

    async def send(self, message: Message) -> Outcome:
        """Sends one message, once."""
        try:
            url = address_of("webhook_url_file", self._path)
        except SettingError as error:
            return Outcome(False, str(error))
        return await post(url, self._form(message))

    async def send_patiently(self, message: Message) -> Outcome:
        """Sends one message; a receiver that does not take it is asked a few times more."""
        for pause_s in (*PAUSES_S, None):
            outcome = await self.send(message)
            wait_s = max(pause_s or 0.0, outcome.after_s or 0.0)
            if outcome.sent or outcome.hopeless or pause_s is None or wait_s > MOST_PATIENT_S:
                break
            await asyncio.sleep(wait_s)
        return outcome
