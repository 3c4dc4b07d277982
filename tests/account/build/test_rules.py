"""The results of the accounting rules on frozen facts: they change only together with the version of the rules."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_results import RESULTS, SCENARIOS, results

from pyrometer.account.build.rules import (
    ACCOUNT_RULES,
    LEDGER_SETTINGS,
    STALE,
    UNVERSIONED_RULES,
    Provenance,
    ledger_settings,
)
from pyrometer.model.settings import Settings
from pyrometer.model.states import STATES

RECORDED = json.loads(RESULTS.read_text())
RECORD = "Record the new results with `python tools/ledger_results.py`, and name the change in CHANGELOG.md."


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_results_change_only_with_the_version_of_the_rules(scenario: str) -> None:
    assert RECORDED["rules"] == ACCOUNT_RULES, f"ACCOUNT_RULES was raised. {RECORD}"
    assert results(scenario) == RECORDED["results"][scenario], (
        f"The same facts give another ledger: raise ACCOUNT_RULES in account/build/rules.py. {RECORD} "
        "An upgrade then rebuilds time that is not closed."
    )


def test_the_frozen_facts_reach_every_state() -> None:
    reached = {state for one in RECORDED["results"].values() for state in one["states"]}
    assert reached == {state.name for state in STATES}


hashes = st.text("0123456789abcdef", max_size=32)


@given(st.integers(0, 999), st.lists(st.integers(0, 10**12)), hashes, hashes, hashes)
def test_a_provenance_is_read_as_it_was_written(
    rules: int, settings: list[int], code: str, prices: str, inputs: str
) -> None:
    made = Provenance(rules, tuple(settings), code, prices, inputs)
    assert Provenance.parse(str(made)) == made


def test_digests_of_the_first_edition_have_no_version() -> None:
    assert Provenance.parse("a" * 64) == Provenance(UNVERSIONED_RULES, (), "", "", "")
    assert Provenance.parse(None) is Provenance.parse("") is Provenance.parse(STALE) is None


def test_settings_that_a_part_does_not_record_have_their_current_values() -> None:
    current = Settings(idle_gap_ms=1, hang_limit_ms=2)
    made = Provenance(1, (7, 8), "", "", "")
    assert ledger_settings(made.settings_over(current)) == (7, 8, *ledger_settings(current)[2:])
    assert set(LEDGER_SETTINGS) <= set(Settings._fields)
