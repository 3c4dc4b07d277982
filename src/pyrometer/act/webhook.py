"""Sends messages to a webhook. Its address is a secret: it is read from a file each time, and told to nobody."""

from __future__ import annotations

from pyrometer.act.messages import Message
from pyrometer.act.post import Outcome, address_of, post
from pyrometer.act.slack import as_json, as_slack
from pyrometer.model.settings import SettingError, Settings


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
