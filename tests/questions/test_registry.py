"""The questions: their checks, and errors for missing things."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyrometer.model.settings import Settings
from pyrometer.questions.parameters import DEFAULT_LAST, OWN_PARAMETERS, QuestionError
from pyrometer.questions.registry import NotFoundError, bring_up_to_date, question, question_names
from pyrometer.store import Store
from tests.support import clusters

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    with Store(tmp_path_factory.mktemp("registry"), create=True) as store:
        store.append([*clusters.cluster(), *clusters.job(), *clusters.run()])
        covered = bring_up_to_date(store, Settings(), now_ms=time.time_ns() // 1_000_000)
        assert covered is not None
        yield lambda what, **parameters: question(what, parameters, Settings())(store, covered)


def test_tables_of_parameters_name_known_questions() -> None:
    assert set(OWN_PARAMETERS) | set(DEFAULT_LAST) <= set(question_names())


def test_unknown_question_lists_known_ones() -> None:
    with pytest.raises(NotFoundError, match=r"Question 'waste' not found\. Known questions: why, "):
        question("waste", {}, Settings())


@pytest.mark.parametrize(
    ("what", "parameters", "words"),
    [
        ("cost", {"by": "teem"}, "Did you mean 'team'"),
        ("cost", {"by": "zzz"}, "Known: "),
        ("cost", {"by": "team,team"}, "the same one twice"),
        ("cost", {"by": ","}, "names no grouping"),
        ("show", {}, "Which run"),
        ("trace", {"run": "r", "attempt": "1"}, "Pass --step, too"),
        ("trace", {"run": "r", "step": "1", "sample": "a"}, "Pass only one of"),
        ("lineage", {"run": "r"}, "Choose one of --step N"),
        ("lineage", {"run": "r", "sample": "a", "attempt": "1"}, "Pass --step or --checkpoint"),
        ("lineage", {"run": "r", "step": "1", "metric": "loss"}, "Pass --spikes, too"),
        ("worth", {"target": "1"}, "--target needs an experiment"),
    ],
)
def test_invalid_question_is_rejected_before_the_store_is_read(
    what: str, parameters: dict[str, str], words: str
) -> None:
    with pytest.raises(QuestionError, match=words):
        question(what, parameters, Settings())


@pytest.mark.parametrize("what", [name for name in question_names() if "run" not in OWN_PARAMETERS.get(name, ())])
def test_every_question_without_a_run_has_an_answer(ask: Ask, what: str) -> None:
    assert ask(what, all="1")


@pytest.mark.parametrize(
    ("what", "parameters", "words"),
    [
        ("show", {"run": "ru"}, r"Run 'ru' not found in this time range\. Did you mean 'run'"),
        ("show", {"run": "zzz"}, "`pyrometer runs` lists them"),
        ("signals", {"run": "run", "until": "2001-01-01", "since": "2000-01-01"}, "did not run in this time range"),
        ("worth", {"experiment": "zzz"}, "Experiment 'zzz' not found"),
        ("cost", {"team": "zzz", "all": "1"}, "zzz"),
    ],
)
def test_missing_things_are_named_with_a_hint(ask: Ask, what: str, parameters: dict[str, str], words: str) -> None:
    with pytest.raises(NotFoundError, match=words):
        ask(what, **parameters)


def test_empty_store_has_no_ledger(tmp_path_factory: pytest.TempPathFactory) -> None:
    with Store(tmp_path_factory.mktemp("empty"), create=True) as store:
        assert bring_up_to_date(store, Settings(), now_ms=0) is None
