"""States and causes: complete tables, families, and titles."""

from __future__ import annotations

from pyrometer.model.states import (
    CAUSE,
    CAUSES,
    CLAIMS,
    CRITICAL_CAUSES,
    FAMILIES,
    IMMEDIATE_CAUSES,
    INTERVAL_STATES,
    STATE,
    STATES,
    cause_title,
    state_title,
)


def test_states_have_unique_names_and_known_families():
    assert len(STATE) == len(STATES)
    assert {state.family for state in STATES} == set(FAMILIES)
    assert set(INTERVAL_STATES) <= set(STATE)


def test_causes_claim_known_states():
    assert all(CLAIMS[cause] and set(CLAIMS[cause]) <= set(STATE) for cause in CAUSES)


def test_immediate_causes_are_critical():
    assert set(IMMEDIATE_CAUSES) <= set(CRITICAL_CAUSES) <= set(CAUSES)


def test_titles_fall_back_to_code_names():
    assert state_title("train") == "Training"
    assert cause_title("stranded") == CAUSE["stranded"].title
    assert state_title("quantum_wait") == "quantum_wait"
    assert cause_title("cosmic_ray") == "cosmic_ray"
