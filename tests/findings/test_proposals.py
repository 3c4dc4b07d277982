"""Proposals of detectors: what identifies a finding."""

from __future__ import annotations

from pyrometer.findings.proposals import Proposal, Scope


def proposal(**more: object) -> Proposal:
    scope = (Scope("p0", 0, 60_000), Scope("p1", 0, 60_000))
    made = Proposal("hang", "llama", 0, 60_000, ("hang",), scope, "hung for 1 min", (), "Restart it.")
    return made._replace(**more)


def test_subject_has_the_pods_of_the_scope() -> None:
    assert proposal().subject == ("hang", "llama", 0, 60_000, ("p0", "p1"))


def test_subject_does_not_depend_on_evidence_or_confidence() -> None:
    assert proposal(evidence=("rank 3 stopped",), confidence=0.5).subject == proposal().subject


def test_subject_of_the_platform_has_no_owner_and_no_pod() -> None:
    scope = (Scope(None, 0, 60_000, node_uid="n0", slot_index=1),)
    assert proposal(owner_uid=None, scope=scope).subject == ("hang", None, 0, 60_000, (None,))
