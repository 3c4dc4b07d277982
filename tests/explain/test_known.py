"""What is remembered gives its name to what is found again: to everybody, and to the team whose it is."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import nights
from pyrometer.account.answer_json import iso
from pyrometer.account.ledger import LedgerCoverage
from pyrometer.model.records import Finding
from pyrometer.model.settings import Settings
from pyrometer.serve.questions import bring_up_to_date, question
from pyrometer.store import Store


def hang(store: Store, covered: LedgerCoverage, **asked: str) -> dict[str, Any]:
    return nights.only("hang", question("why", {"all": "1"} | asked, Settings())(store, covered))


def test_it_has_one_name_for_all_who_may_see_it(tmp_path: Path) -> None:
    stuck = [nights.event("stuck", 30, rank) for rank in range(4)]
    with Store(tmp_path, create=True) as store:
        store.append([*nights.cluster(), *nights.job(), *nights.run(), *nights.all_ranks(0, 29), *stuck])
        covered = bring_up_to_date(store, Settings(), now_ms=nights.at(120))
        assert covered is not None
        alone = hang(store, covered)
        assert alone["seen"] is None
        later = {"all": "", "since": iso(nights.at(60), UTC)}
        assert hang(store, covered, **later)["id"] != alone["id"]  # it seems to begin with the window
        store.append(
            [
                Finding(nights.at(40), "ours", "hang", "llama", nights.at(30), nights.at(40), nights.at(40)),
                Finding(nights.at(40), "theirs", "hang", "another", nights.at(30), nights.at(40), nights.at(40)),
                Finding(nights.at(40), "other", "idle_held", "llama", nights.at(30), nights.at(40), nights.at(40)),
            ]
        )
        store.set_meta("findings_looked_ms", str(nights.at(110)))
        for asked in ({"team": "nlp"}, later, later | {"team": "nlp"}):
            found = hang(store, covered, **asked)
            assert (found["id"], found["seen"], found["owner_uid"]) == ("ours", iso(nights.at(40), UTC), "llama")
