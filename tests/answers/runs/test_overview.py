"""The error for a run that is not in a time range."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.model.settings import Settings
from pyrometer.questions.registry import NotFoundError, bring_up_to_date, question
from pyrometer.store import Store
from tests.support import clusters


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("run", "Run 'run' did not run in this time range. `pyrometer runs` shows when it ran."),
        ("runn", "Run 'runn' not found in this time range. `pyrometer runs` lists them."),
    ],
)
def test_error_for_a_run_outside_the_time_range_is_not_a_misspelling(tmp_path: Path, run: str, message: str) -> None:
    with Store(tmp_path, create=True) as store:
        ended = [one._replace(ended_ms=clusters.at(40), outcome="succeeded") for one in clusters.run()]
        store.append([*clusters.cluster(), *clusters.job(), *ended, *clusters.all_ranks(0, 40)])
        covered = bring_up_to_date(store, Settings(), now_ms=clusters.START_MS + 3 * clusters.HOUR)
        assert covered is not None
        with pytest.raises(NotFoundError) as refused:
            question("show", {"run": run, "last": "30m"}, Settings())(store, covered)
    assert str(refused.value) == message
