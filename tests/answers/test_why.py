"""Waste is split into what findings explain and the rest; a share next to dollars is a share of dollars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyrometer.model.records import Price
from pyrometer.model.settings import Settings
from pyrometer.model.states import STATE
from pyrometer.questions.registry import bring_up_to_date, question
from pyrometer.render.why_text import render_text
from pyrometer.store import Store
from tests.support import clusters

HUNG = [
    *clusters.cluster(),
    *clusters.job(),
    *clusters.run(),
    *clusters.all_ranks(0, 40),
    *(clusters.event("stuck", 40, rank, step=3999, reason="backward") for rank in range(4)),
]


def why(folder: Path, records: list[Any], **parameters: str) -> dict[str, Any]:
    settings = Settings(finding_min_usd_micro=0)
    with Store(folder, create=True) as store:
        store.append(records)
        covered = bring_up_to_date(store, settings, now_ms=clusters.START_MS + 1000 * clusters.HOUR)
        assert covered is not None
        return question("why", {"all": "1", **parameters}, settings)(store, covered)


@pytest.mark.parametrize("price", [True, False])
def test_explained_and_unexplained_waste_add_up(tmp_path: Path, price: bool) -> None:
    records = [one for one in HUNG if price or not isinstance(one, Price)]
    answer = why(tmp_path, records)
    waste = answer["waste"]
    rows = [row for row in answer["states"] if row["family"] == "waste"]
    for key in ("gpu_ms", "usd_micro") if price else ("gpu_ms",):
        assert waste[key] == sum(row[key] for row in rows) > 0
        assert waste["explained"][key] + waste["unexplained"][key] == waste[key]
        assert waste["unexplained"][key] == sum(row[key] for row in answer["unexplained"])
    assert (waste["usd_micro"] is None) is not price
    assert waste["explained"]["gpu_ms"] > 0


def test_terminal_output_splits_the_waste(tmp_path: Path) -> None:
    answer = why(tmp_path, HUNG)
    answer["waste"]["explained"]["usd_micro"] = 1_330_000_000
    answer["waste"]["unexplained"]["usd_micro"] = 509_000_000
    assert "Findings explain $1,330 of the waste; $509 is unexplained." in render_text(answer)


def test_workloads_have_their_waste(tmp_path: Path) -> None:
    answer = why(tmp_path, HUNG)
    (row,) = answer["workloads"]
    (team,) = (team for team in answer["teams"] if team["team"] == row["team"])
    assert (row["waste_gpu_ms"], row["waste_usd_micro"]) == (team["waste_gpu_ms"], team["waste_usd_micro"])


def bars(text: str) -> dict[str, list[str]]:
    """The line of each state, without its bar."""
    lines = [line for line in text.splitlines() if line.startswith("  ") and line.strip()]
    return {line[2:25].strip(): [word for word in line[25:].split() if word.strip("█▏▎▍▌▋▊▉")] for line in lines}


def test_shares_are_of_dollars_with_partial_prices(tmp_path: Path) -> None:
    """A pool without a price: its time has no share of the dollars, and the others' shares are what they cost."""
    priced = next(one for one in HUNG if isinstance(one, Price))
    records = [one for one in HUNG if not isinstance(one, Price)]
    half = priced._replace(from_ms=clusters.at(60))  # the first hour has no price
    answer = why(tmp_path, [*records, half])
    total = answer["total"]
    assert 0 < total["unpriced_gpu_ms"] < total["gpu_ms"]
    shown = bars(render_text(answer))
    for row in answer["states"]:
        if row["usd_micro"] is None:
            assert shown[STATE[row["state"]].title][0] == "–"
            assert "unpriced" in shown[STATE[row["state"]].title]
        else:
            share = 100 * row["usd_micro"] / total["usd_micro"]
            assert float(shown[STATE[row["state"]].title][0].strip("<%")) == pytest.approx(share, abs=0.51)


def test_shares_without_prices_are_of_gpu_time(tmp_path: Path) -> None:
    text = render_text(why(tmp_path, [one for one in HUNG if not isinstance(one, Price)]))
    assert "$" not in text
    assert "Shares are of GPU time." in " ".join(text.split())
