"""Event kinds: unique names, and pairs of events that restate the ledger."""

from __future__ import annotations

from pyrometer.model import events
from pyrometer.model.events import RESTATING
from pyrometer.model.states import STATE


def kinds() -> list[str]:
    return [value for name, value in vars(events).items() if name.isupper() and isinstance(value, str)]


def test_event_kinds_are_unique():
    assert len(set(kinds())) == len(kinds()) > 20


def test_restating_events_open_and_close_a_known_state():
    for pair in RESTATING:
        assert pair.state in STATE
        assert {pair.opens, pair.closes} <= set(kinds())
    edges = [kind for pair in RESTATING for kind in (pair.opens, pair.closes)]
    assert len(set(edges)) == len(edges)
