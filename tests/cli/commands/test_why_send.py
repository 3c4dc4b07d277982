"""`why --send`: the answer in short to a webhook, by hand or by cron, without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.act import webhook
from pyrometer.store import Store
from tests.support import clusters
from tests.support.webhook_receiver import SECRET, receiving


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Store(tmp_path / "data", create=True) as store:
        store.append([*clusters.cluster(), *clusters.job()])
    return tmp_path / "data"


def test_why_send_prints_the_answer_and_sends_a_summary(pyrometer, folder, tmp_path, monkeypatch):
    with receiving() as receiver:
        (tmp_path / "url").write_text(receiver.url)
        (folder / "settings.yaml").write_text(f"webhook_url_file: {tmp_path / 'url'}\n")
        monkeypatch.setattr(webhook, "RETRY_PAUSES_S", (0.0,))
        receiver.answers = [(503, {}, b"")]
        result = pyrometer("why", "--data", folder, "--all", "--send")
        assert (result.code, result.err) == (0, "")
        assert "$29 for 8.0 GPU-hours" in result.out
        assert receiver.heads == ["What burned: $29 for 8.0 GPU-hours, no waste found"]
        receiver.answers = [(410, {}, b"channel_is_archived")] * 2
        result = pyrometer("why", "--data", folder, "--all", "--send")
    assert result.code == 1
    assert (
        result.err
        == f"Error: The webhook of {tmp_path / 'url'} did not receive the summary: HTTP 410, channel_is_archived.\n"
    )
    assert SECRET not in result.out + result.err


def test_why_send_without_a_webhook_is_a_usage_error(pyrometer, folder):
    text = pyrometer("why", "--data", folder, "--send").failed(2)
    assert text == "--send needs a webhook: set webhook_url_file to a file with its URL."
