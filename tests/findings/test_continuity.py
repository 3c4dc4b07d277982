"""A finding keeps its ID when it is found again: for all users, and for its own team."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.answer_json import iso
from pyrometer.model.records import Finding
from pyrometer.model.settings import Settings
from pyrometer.questions.registry import bring_up_to_date, question
from pyrometer.store import Store
from tests.support import clusters


def hang(store: Store, covered: LedgerCoverage, **parameters: str) -> dict[str, Any]:
    return clusters.only_finding("hang", question("why", {"all": "1"} | parameters, Settings())(store, covered))


def test_finding_has_one_id_for_all_users(tmp_path: Path) -> None:
    stuck = [clusters.event("stuck", 30, rank) for rank in range(4)]
    with Store(tmp_path, create=True) as store:
        store.append([*clusters.cluster(), *clusters.job(), *clusters.run(), *clusters.all_ranks(0, 29), *stuck])
        covered = bring_up_to_date(store, Settings(), now_ms=clusters.at(120))
        assert covered is not None
        alone = hang(store, covered)
        assert alone["seen"] is None
        later = {"all": "", "since": iso(clusters.at(60), UTC)}
        assert hang(store, covered, **later)["id"] != alone["id"]  # it seems to begin with the window
        store.append(
            [
                Finding(clusters.at(40), "ours", "hang", "llama", clusters.at(30), clusters.at(40), clusters.at(40)),
                Finding(
                    clusters.at(40), "theirs", "hang", "another", clusters.at(30), clusters.at(40), clusters.at(40)
                ),
                Finding(
                    clusters.at(40), "other", "idle_held", "llama", clusters.at(30), clusters.at(40), clusters.at(40)
                ),
            ]
        )
        store.set_meta("findings_looked_ms", str(clusters.at(110)))
        for parameters in ({"team": "nlp"}, later, later | {"team": "nlp"}):
            found = hang(store, covered, **parameters)
            assert (found["id"], found["seen"], found["owner_uid"]) == ("ours", iso(clusters.at(40), UTC), "llama")
