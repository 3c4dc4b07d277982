"""The formats of messages: Slack's incoming webhooks, and JSON for other receivers."""

from __future__ import annotations

from typing import Any

from pyrometer.act.notification_texts import Message

MAX_SECTION_CHARS = 3_000  # Slack refuses more
MAX_TEXT_CHARS = 3_000


def as_slack(message: Message) -> dict[str, Any]:
    """The body for Slack. Names from outside are plain text in it: no mention, no link, no markup."""
    lines = [f"*{_escaped(message.head.replace('*', '∗'))}*", *map(_escaped, message.lines)]
    lines += [f"• {_escaped(point)}" for point in message.points]
    if message.ending:
        lines.append(_escaped(message.ending if message.kind in ("several", "report") else f"Do: {message.ending}"))
    if message.link:
        lines.append(f"<{_escaped(message.link)}|Open>")
    return {
        "text": _joined([_escaped(message.head)], MAX_TEXT_CHARS),
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}} for text in _sections(lines)
        ],
    }


def as_json(message: Message) -> dict[str, Any]:
    """The body for other receivers: the message as plain text, and the fields of the finding."""
    lines = [message.head, *message.lines, *(f"- {point}" for point in message.points)]
    lines += [message.ending] if message.ending else []
    return {"kind": message.kind, "text": "\n".join(lines), "url": message.link or None, **(message.fields or {})}


def _sections(lines: list[str]) -> list[str]:
    """Joins lines into sections of the maximum length."""
    sections: list[str] = [""]
    for line in lines:
        cut = _joined([line], MAX_SECTION_CHARS)
        if len(sections[-1]) + 1 + len(cut) > MAX_SECTION_CHARS:
            sections.append("")
        sections[-1] = f"{sections[-1]}\n{cut}".strip("\n")
    return sections


def _joined(lines: list[str], max_chars: int) -> str:
    """Joins lines and cuts the text, but never inside an escaped character."""
    text = "\n".join(lines)
    if len(text) <= max_chars:
        return text
    cut = text[: max_chars - 1]
    amp = cut.rfind("&")
    return (cut[:amp] if amp > cut.rfind(";") else cut) + "…"


def _escaped(text: str) -> str:
    """Escapes Slack's three special characters and joins lines."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").split())
