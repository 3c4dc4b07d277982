"""Messages that wait to be written."""

from __future__ import annotations

from pyrometer.train.run.outbox import MAX_MESSAGES, Outbox


def test_event_omits_fields_without_a_value():
    outbox = Outbox()
    outbox.event("stuck", at_ms=5, step=0, reason=None)
    assert outbox.take() == [("event", {"time_ms": 5, "kind": "stuck", "step": 0})]
    assert outbox.take() == []
    assert not outbox.urgent.is_set()


def test_urgent_messages_set_the_flag():
    outbox = Outbox()
    outbox.run(urgent=True, resumed_step=4)
    ((kind, fields),) = outbox.take()
    assert (kind, fields["resumed_step"]) == ("run", 4)
    assert fields["time_ms"] > 0
    assert outbox.urgent.is_set()


def test_outbox_drops_the_oldest_messages():
    outbox = Outbox()
    for step in range(MAX_MESSAGES + 2):
        outbox.event("note", step=step)
    messages = outbox.take()
    assert len(messages) == MAX_MESSAGES
    assert messages[0][1]["step"] == 2
