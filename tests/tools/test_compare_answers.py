"""`tools/compare_answers.py` finds changed values in an answer, and allows new wording and new fields."""

from __future__ import annotations

import pytest
from compare_answers import Answer, compare, report

FINDING = {
    "cause": "hang",
    "usd_micro": 2_000,
    "title": "llama hung",
    "suggestion": "Restart it.",
    "culprit": None,
    "evidence": ["rank 2 is behind", "the GPU is full"],
    "what_if": {"sentence": "It would have cost $1."},
}
WHY = {"findings": [FINDING], "evidence": {"gpu": "full"}, "states": [{"state": "train"}, {"state": "hang"}]}


def differing(new):
    return [(one.path, one.allowed) for one in compare(WHY, new)]


def with_finding(**changed):
    return WHY | {"findings": [FINDING | changed]}


def test_answer_equals_itself():
    assert differing(WHY) == []


@pytest.mark.parametrize(
    ("new", "path"),
    [
        (with_finding(usd_micro=2_001), "findings[0].usd_micro"),
        (with_finding(usd_micro=2_000.0), "findings[0].usd_micro"),
        (with_finding(usd_micro=None), "findings[0].usd_micro"),
        (with_finding(cause="straggler"), "findings[0].cause"),
        (with_finding(evidence=["rank 2 is behind"]), "findings[0].evidence"),
        (with_finding(title=""), "findings[0].title"),
        (with_finding(title=None), "findings[0].title"),
        (WHY | {"evidence": {"gpu": "partial"}}, "evidence.gpu"),
        (WHY | {"states": [{"state": "train"}, {"state": "hung"}]}, "states[1].state"),
        (WHY | {"findings": [FINDING, FINDING]}, "findings"),
        ({name: value for name, value in WHY.items() if name != "evidence"}, "evidence"),
    ],
)
def test_changed_value_is_a_difference(new, path):
    assert differing(new) == [(path, False)]


@pytest.mark.parametrize(
    ("new", "path"),
    [
        (with_finding(title="llama stopped making progress"), "findings[0].title"),
        (with_finding(evidence=["rank 2 lags", "the GPU is full"]), "findings[0].evidence[0]"),
        (with_finding(what_if={"sentence": "Cost if caught: $1."}), "findings[0].what_if.sentence"),
        (with_finding(root=None), "findings[0].root"),
    ],
)
def test_rewording_and_added_fields_are_allowed(new, path):
    assert differing(new) == [(path, True)]


def test_question_that_one_version_rejects_is_a_difference(capsys):
    base, failed = {"why --all": Answer(WHY)}, {"why --all": Answer(None, "exit status 1: Error: no.")}
    assert report("night", base, failed, False)[0] == 1
    assert "exit status 1" in capsys.readouterr().out
    assert report("night", base, {}, False)[0] == 1
    assert report("night", failed, failed, False)[0] == 0


def test_exact_mode_allows_no_difference(capsys):
    base, new = {"why": Answer(WHY)}, {"why": Answer(with_finding(title="llama stopped"))}
    assert report("night", base, new, False)[:2] == (0, 1)
    assert report("night", base, new, True)[:2] == (1, 0)
    assert '"llama hung" -> "llama stopped"' in capsys.readouterr().out
