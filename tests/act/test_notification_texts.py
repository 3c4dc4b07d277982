"""Texts of notifications: cost, time, owner, evidence and links, within the limits of a message."""

from __future__ import annotations

from datetime import UTC

import pytest

from pyrometer.act.notification_texts import (
    MAX_EVIDENCE_LINES,
    MAX_LINE_CHARS,
    MAX_LISTED_FINDINGS,
    MessageContext,
    facts_of,
    of_finding,
    of_several,
)
from tests.support.clusters import MINUTE, START_MS
from tests.support.made_findings import finding

CONTEXT = MessageContext("https://p.example.com", UTC)


def facts(**more):
    times = {"from_ms": START_MS, "to_ms": START_MS + 60 * MINUTE, "seen_ms": START_MS}
    return facts_of(finding(**more)) | times | {"gpu_ms": 7_200_000, "usd_micro": 6_000_000}


@pytest.mark.parametrize(
    ("kind", "head"),
    [
        ("opened", "$6.00 so far"),
        ("grown", "$6.00 so far ($2.00 at the last notification)"),
        ("again", "Reopened, $6.00 so far"),
        ("over", "Ended, $6.00 in total"),
        ("found", "$6.00"),
    ],
)
def test_message_head_shows_the_cost_of_its_kind(kind, head):
    message = of_finding(kind, facts(), CONTEXT, before_usd_micro=2_000_000 if kind == "grown" else 0)
    assert message.head == f"{head}: aaaaaaaaaaaa waited for rank 7"


def test_message_names_owner_and_culprit():
    _, owner, culprit = of_finding("opened", facts(), CONTEXT).lines
    assert owner == "Team nlp, experiment sft, PyTorchJob ml/llama"
    assert culprit == "Culprit: rank 7, node n0"


def test_message_about_an_ended_finding_has_no_evidence_and_no_obsolete_suggestion():
    message = of_finding("over", facts(cause="idle_held"), CONTEXT)
    assert (message.points, message.ending) == ((), "")
    assert of_finding("over", facts(), CONTEXT).ending == "Move it."


def test_message_link_has_the_time_range_and_the_finding():
    assert of_finding("opened", facts(), CONTEXT).link.endswith("#finding-aaaaaaaaaaaa")
    assert "until=" not in of_finding("opened", facts(), CONTEXT).link
    assert "until=" in of_finding("over", facts(), CONTEXT).link
    assert of_finding("over", facts(), MessageContext("", UTC)).link == ""


def test_facts_are_cut_to_the_limits_of_a_message():
    cut = facts_of(finding(evidence=["x" * 5_000] * 50, suggestion="y" * 5_000))
    assert len(cut["evidence"]) == MAX_EVIDENCE_LINES
    assert {len(line) for line in (*cut["evidence"], cut["suggestion"])} == {MAX_LINE_CHARS}


def test_several_findings_are_one_message_with_their_total():
    message = of_several([("opened", facts()), ("over", facts())] * MAX_LISTED_FINDINGS, CONTEXT)
    assert message.head == f"{2 * MAX_LISTED_FINDINGS} more findings, $120 together"
    assert len(message.points) == MAX_LISTED_FINDINGS
    assert message.points[1].startswith("$6.00, ended: ")
    assert message.ending == f"And {MAX_LISTED_FINDINGS} more."


def test_several_findings_without_a_price_are_in_gpu_hours():
    unpriced = facts() | {"usd_micro": None}
    assert "4.0 GPU-hours together" in of_several([("opened", unpriced)] * 2, CONTEXT).head
