"""Slack messages: names are escaped, and texts respect the limits of Slack."""

from __future__ import annotations

import html
import re
from datetime import UTC

from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.act.notification_texts import MessageContext, facts_of, of_finding, of_several
from pyrometer.act.slack import MAX_SECTION_CHARS, as_slack
from tests.support.effort import THOROUGH
from tests.support.made_findings import finding

texts = st.text(max_size=40) | st.sampled_from(
    ("<!channel> look", "a & b <http://evil|here>", "&amp;", "*bold*\n```", "x" * 5000, "<" * 5000)
)
PLACE = MessageContext("https://burn.example.com", UTC)


@settings(max_examples=100 if THOROUGH else 12)
@given(st.sampled_from(("opened", "grown", "over", "found", "again")), texts, texts, st.lists(texts, max_size=20))
def test_slack_message_escapes_names_and_respects_limits(kind: str, title: str, team: str, evidence: list[str]) -> None:
    found = finding(title=title, team=team, evidence=evidence, suggestion=title)
    facts = facts_of(found) | {"from_ms": 10**12, "to_ms": 10**12, "seen_ms": 10**12, "gpu_ms": 1, "usd_micro": None}
    for message in (of_finding(kind, facts, PLACE), of_several([(kind, facts)] * 30, PLACE)):
        body = as_slack(message)
        sections = [block["text"]["text"] for block in body["blocks"]]
        assert len(sections) <= 50
        for text in (body["text"], *sections):
            assert 0 < len(text) <= MAX_SECTION_CHARS
            markup = re.findall(r"<[^>]*>", text)
            assert all(one.startswith("<https://burn.example.com/?since=") for one in markup)
            assert ">" not in re.sub(r"<[^>]*>", "", text)
            assert not re.search(r"&(?!amp;|lt;|gt;)", text)


def test_slack_escaping_is_reversible() -> None:
    facts = facts_of(finding(title="a<b> & c")) | {
        "from_ms": 10**12,
        "to_ms": 10**12,
        "seen_ms": 10**12,
        "gpu_ms": 1,
        "usd_micro": 2_000_000,
    }
    body = as_slack(of_finding("found", facts, PLACE))
    assert body["text"] == "$2.00: a&lt;b&gt; &amp; c"
    assert html.unescape(body["text"]) == "$2.00: a<b> & c"
