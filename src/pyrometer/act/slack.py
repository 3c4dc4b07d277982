"""A message as Slack's incoming webhooks take it, which know no other fields; and as other receivers want it."""

from __future__ import annotations

from typing import Any

from pyrometer.act.messages import Message

MOST_OF_A_SECTION = 3_000  # characters; more is refused
MOST_OF_A_TEXT = 3_000


def as_slack(message: Message) -> dict[str, Any]:
    """The body. What others have written is text in it: no mention, no link, no markup."""
    said = [f"*{_escaped(message.head.replace('*', '∗'))}*", *map(_escaped, message.lines)]
    said += [f"• {_escaped(point)}" for point in message.points]
    if message.ending:
        said.append(_escaped(message.ending if message.kind in ("several", "report") else f"Do: {message.ending}"))
    if message.link:
        said.append(f"<{_escaped(message.link)}|Look at it>")
    return {
        "text": _joined([_escaped(message.head)], MOST_OF_A_TEXT),
        "blocks": [
            {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}} for text in _sections(said)
        ],
    }


def as_json(message: Message) -> dict[str, Any]:
    """For other receivers: what is told as plain text, and the fields of what it is about."""
    said = [message.head, *message.lines, *(f"- {point}" for point in message.points)]
    said += [message.ending] if message.ending else []
    return {"kind": message.kind, "text": "\n".join(said), "url": message.link or None, **(message.fields or {})}


def _sections(lines: list[str]) -> list[str]:
    """Lines together, as many as a section holds."""
    sections: list[str] = [""]
    for line in lines:
        cut = _joined([line], MOST_OF_A_SECTION)
        if len(sections[-1]) + 1 + len(cut) > MOST_OF_A_SECTION:
            sections.append("")
        sections[-1] = f"{sections[-1]}\n{cut}".strip("\n")
    return sections


def _joined(lines: list[str], most: int) -> str:
    """Cut where no escaped character is."""
    text = "\n".join(lines)
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    amp = cut.rfind("&")
    return (cut[:amp] if amp > cut.rfind(";") else cut) + "…"


def _escaped(text: str) -> str:
    """Slack's own three characters; and one line."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").split())
