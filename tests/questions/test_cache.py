"""The cache of answers, their tags, and pages of their rows."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyrometer.questions.cache import (
    AnswerCache,
    AnswerPage,
    CachedAnswer,
    is_known,
    key,
    last_will_do,
    question_of,
    tag,
)
from pyrometer.questions.parameters import QuestionError


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 60)), max_size=60))
def test_cache_is_bounded_and_keeps_the_newest(kept: list[tuple[str, int]]) -> None:
    all_kept = AnswerCache(max_bytes=100)
    newest: dict[str, int] = {}
    for name, size in kept:
        all_kept.add("", CachedAnswer(name, 0.0, 0.0), b"x" * size)
        newest[name] = size
        there = {one: body for one in "abcdef" if (body := all_kept._bodies.get(key("", one))) is not None}
        assert sum(map(len, there.values())) == all_kept._bytes <= 100
        assert all(len(body) == newest[one] for one, body in there.items())
        assert all_kept.get(key("", name)) == b"x" * size


@pytest.mark.parametrize(
    ("if_none_match", "known"),
    [('W/"a-b"', True), ('"a-b"', True), ('"x", W/"a-b"', True), ("*", True), ("", False), ('"a"', False)],
)
def test_is_known_matches_etags(if_none_match: str, known: bool) -> None:
    assert is_known('W/"a-b"', if_none_match) is known


@pytest.mark.parametrize(
    "parameters",
    [
        {"limit": "0"},
        {"limit": "x"},
        {"limit": "99999999999999999999"},
        {"cursor": "no cursor"},
        {"cursor": "eA=="},
        {"cursor": "\U0001f525"},
    ],
)
def test_invalid_page_parameters_are_rejected(parameters: dict[str, str]) -> None:
    with pytest.raises(QuestionError):
        AnswerPage.requested("runs", dict(parameters))


def test_tag_depends_on_revision_and_parameters_but_not_their_order() -> None:
    one = tag("cost", {"by": "team", "all": "1"}, "r1")
    assert one == tag("cost", {"all": "1", "by": "team"}, "r1")
    assert one != tag("cost", {"all": "1"}, "r1")
    assert question_of(one) == question_of(tag("cost", {"all": "1", "by": "team"}, "r2"))


def test_pages_of_rows_continue_until_the_last_one() -> None:
    body = json.dumps({"rows": [1, 2, 3, 4, 5], "total": 15}).encode()
    page = AnswerPage.requested("cost", {"limit": "2"})
    rows = []
    while page is not None:
        answer = json.loads(page.cut(body, 'W/"r-q"'))
        assert answer["total"] == 15
        rows.append(answer["rows"])
        page = AnswerPage.requested("cost", {"limit": "2", "cursor": answer["next"]}) if answer["next"] else None
    assert rows == [[1, 2], [3, 4], [5]]


@pytest.mark.parametrize(("what", "parameters"), [("cost", {}), ("why", {"limit": "2"})])
def test_answer_without_pages_leaves_the_parameters(what: str, parameters: dict[str, str]) -> None:
    before = dict(parameters)
    assert AnswerPage.requested(what, parameters) is None
    assert parameters == before


def test_stale_is_taken_out_of_the_parameters() -> None:
    parameters = {"stale": "ok", "by": "team"}
    assert last_will_do(parameters)
    assert parameters == {"by": "team"}
    assert not last_will_do(parameters)
    with pytest.raises(QuestionError, match="The only value is ok"):
        last_will_do({"stale": "1"})


def test_newest_answer_is_kept_by_question_and_audience() -> None:
    answers = AnswerCache()
    first, second = (CachedAnswer(tag("why", {}, revision), 1.0, 0.0) for revision in ("r1", "r2"))
    answers.add("", first, b"1")
    answers.add("", second, b"2")
    question = question_of(first.tag)
    assert answers.newest("", question) == second
    assert answers.newest("vision", question) is None
    assert answers.get(key("", first.tag)) == b"1"


def test_slow_answer_may_be_renewed_after_a_pause_in_proportion_to_its_time() -> None:
    slow = CachedAnswer("t", took_s=10.0, at_s=100.0)
    assert slow.is_slow
    assert not slow.may_be_renewed(139.0)
    assert slow.may_be_renewed(141.0)
    assert not CachedAnswer("t", took_s=0.1, at_s=100.0).is_slow
