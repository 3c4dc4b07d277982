"""The table of benchmarks/detect.py: how findings are scored, and the report."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def table():
    sys.path.insert(0, str(REPOSITORY / "benchmarks"))
    try:
        yield importlib.import_module("detect_table")
    finally:
        sys.path.remove(str(REPOSITORY / "benchmarks"))


def finding(cause, culprit=None, **more):
    return {"cause": cause, "culprit": culprit} | more


def test_score_counts_by_cause_and_culprits_among_found_findings(table):
    truth = [
        finding("hang", {"rank": 1}),
        finding("hang", {"rank": 2}),
        finding("hang", {"rank": 3}),
        finding("hang", {"rank": 4}, detectable=False),
        finding("plateau"),
    ]
    causes = [
        {"cause": "hang", "planted": 3, "found": 3, "matched": 2},
        {"cause": "plateau", "planted": 1, "found": 1, "matched": 1},
    ]
    scored = {
        "causes": causes,
        "missed": [finding("hang", {"rank": 3})],
        "wrong_culprit": [finding("hang", {"rank": 2})],
    }
    assert table.tallies(truth, scored) == {
        "hang": table.Tally(3, 3, 2, named=2, named_right=1),
        "plateau": table.Tally(1, 1, 1),
    }


def test_report_lists_stopped_and_clean_runs(table):
    nights = table.Row(
        "simulated",
        "overnight",
        "full",
        "simulated",
        3,
        10,
        456.0,
        {"hang": table.Tally(4, 3, 3, 3, 2), "plateau": table.Tally(1, 1, 1)},
        0.0012,
    )
    days = table.Row("clean", "quiet", "full", "simulated", 2, 2, 608.0, {}, 0.0)
    lines = table.markdown([nights, days]).splitlines()
    assert "| overnight | full | simulated | 3 of 10 | 456 | 4 | 100.0 % | 80.0 % | 66.7 % | 0.12 % |" in lines
    assert "| quiet | full | simulated | 2 | 608 | 0 | – | – | – | 0.00 % |" in lines
    assert "| `hang` | 100.0 % (3/3) | 75.0 % (3/4) | 66.7 % (2/3) |" in lines
