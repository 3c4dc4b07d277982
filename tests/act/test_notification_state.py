"""The state of notifications: each finding is sent at its start and its end, through failures and restarts."""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pyrometer.act import notification_state
from pyrometer.act.notification_state import NotificationState
from tests.support.effort import THOROUGH
from tests.support.made_findings import FindingHistory, finding

LEAST = 20_000_000
# from when to when, in minutes, and what a minute costs
episodes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60), st.sampled_from((0.1, 1.0, 30.0))), max_size=4)
STORY = re.compile(r"(opened( grown)*( over)?|found)?")


@settings(max_examples=60 if THOROUGH else 20)
@given(episodes, st.data())
def test_each_finding_is_sent_once_at_its_start_and_end(
    episodes: list[tuple[int, int, float]], data: st.DataObject
) -> None:
    seen, stories = FindingHistory(), defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        state = NotificationState(Path(folder), LEAST)
        for minute in range(0, 130, 5):
            found = []
            for number, (begin, length, usd) in enumerate(episodes):
                to = min(begin + length, minute)
                if begin < to:
                    cause = "hang" if number == 0 else "straggler"
                    found.append(finding(f"job-{number}", cause=cause, usd=usd * (to - begin), since=begin, to=to))
            if state.update(seen.look(minute, *found), minute, has_receiver=True):
                state.write(state.text())
            delivered = [due for due in state.due() if minute >= 120 or data.draw(st.booleans())]
            for kind, one in delivered:
                stories[one.facts["id"]].append(kind)
            if delivered:
                state.mark_sent(delivered)
                state.write(state.text())
            if data.draw(st.integers(0, 4)) == 0:
                state = NotificationState(Path(folder), LEAST)  # the server starts again
        assert state.due() == []
    for number, (_, length, usd) in enumerate(episodes):
        story = " ".join(stories[f"job-{number}"])
        assert STORY.fullmatch(story), story
        if usd * length * 1_000_000 >= LEAST:
            assert story.endswith(("over", "found"))
        assert story in ("", "opened over") or usd * length * 1_000_000 >= LEAST


def test_unreadable_state_starts_empty_without_old_notifications(tmp_path: Path) -> None:
    for broken in ("", "{", "[]", '{"findings": {"a": {"nonsense": 1}}, "reports": {}}'):
        (tmp_path / notification_state.FILE).write_text(broken)
        state = NotificationState(tmp_path, LEAST)
        assert state.update(FindingHistory().look(90, finding(to=60)), 0, has_receiver=True)
        assert state.due() == []


def test_finding_that_the_store_lost_is_over(tmp_path: Path) -> None:
    state = NotificationState(tmp_path, LEAST)
    state.update(FindingHistory().look(60, finding()), 0, has_receiver=True)
    state.mark_sent(state.due())
    state.update([], 1000, has_receiver=True)
    ((kind, one),) = state.due()
    assert (kind, one.over_at_ms) == ("over", 1000)
    state.mark_sent([(kind, one)])
    state.update([], 2000, has_receiver=True)
    assert json.loads(state.text())["findings"] == {}


def test_notification_state_has_a_limited_size(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(notification_state, "MAX_NOTICES", 3)
    state = NotificationState(tmp_path, LEAST)
    state.update(
        FindingHistory().look(60, *(finding(f"job-{number}", to=50 + number) for number in range(9))),
        0,
        has_receiver=True,
    )
    assert sorted(state.entries) == ["job-6", "job-7", "job-8"]


def test_growth_without_a_price_is_measured_in_gpu_hours(tmp_path: Path) -> None:
    state = NotificationState(tmp_path, LEAST)
    free = {"usd_micro": None}
    hours_ms = 3_600_000
    found = [finding(f"job-{hours}", gpu_ms=hours * hours_ms, **free) for hours in (9, 10)]
    state.update(FindingHistory().look(60, *found), 0, has_receiver=True)
    assert [one.facts["id"] for _, one in state.due()] == ["job-10"]
