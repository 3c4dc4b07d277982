"""`pyrometer close`, and the answers of other commands about a closed month."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from pyrometer.cli import main
from pyrometer.model.records import Allocation
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, SHARE_WHOLE
from pyrometer.questions.tokens import Tokens
from pyrometer.serve.core import Core
from pyrometer.serve.main import build_services
from pyrometer.store import Store
from tests.support.hand_ledgers import job_records, ms_of
from tests.support.server_process import serving

OCTOBER_MS = ms_of(date(2026, 10, 31)) + 20 * MS_PER_HOUR


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


def test_closed_month_does_not_change(two_months: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run_json(*words: str) -> tuple[dict[str, Any], str]:
        assert command(*words, "--data", str(two_months), "-o", "json") == 0
        result = capsys.readouterr()
        return json.loads(result.out), result.err

    assert command("close", "2026-10", "--data", str(two_months)) == 0
    assert "2026-10" in (result := capsys.readouterr().out)
    assert "$8.00" in result
    october, _ = run_json("cost", "--month", "2026-10")
    assert october["books"]["basis"] == "closed"
    with Store(two_months) as store:  # the other GPU was held by another team
        store.append(job_records("search", "late", OCTOBER_MS, OCTOBER_MS + MS_PER_HOUR)[:2])
        store.append(
            [
                Allocation(
                    OCTOBER_MS + 2 * MS_PER_HOUR, "late", "n0", 1, OCTOBER_MS, OCTOBER_MS + MS_PER_HOUR, SHARE_WHOLE
                )
            ]
        )
    assert run_json("cost", "--month", "2026-10")[0] == october
    november, _ = run_json("cost", "--month", "2026-11")
    owed = {(row["team"], row["adjusts"]): row["usd"] for row in november["rows"]}
    assert owed == {
        ("vision", None): 2.0,
        ("platform", None): 2.0,
        ("search", "2026-10"): 2.0,
        ("platform", "2026-10"): -2.0,
    }
    assert command("cost", "--month", "2026-11", "--data", str(two_months)) == 0
    result = capsys.readouterr()
    assert "−$2.00" in result.out
    assert "2026-11: $4.00 from the ledger, $0.00 of adjustments to closed months." in result.err
    assert command("cost", "--all", "--data", str(two_months)) == 0
    assert "current figures of the ledger" in capsys.readouterr().err
    assert [one["month"] for one in run_json("close", "--list")[0]["months"]] == ["2026-10"]
    assert command("export", "focus", "--month", "2026-11", "--data", str(two_months)) == 0
    text = capsys.readouterr().out
    assert text.count("Correction of 2026-10") == 2
    assert ",-2.000000," in text  # a number, not a text
    assert command("check", str(two_months)) == 0
    kept = next((two_months / "closed").glob("*.parquet"))
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert command("check", str(two_months)) == 1
    assert "was changed after 2026-10 was closed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 2, "Pass a month like 2026-10, or --list"),
        (("2026-10", "--list"), 2, "Pass a month like 2026-10, or --list"),
        (("October",), 2, "--month 'October' is not a month"),
        (("2099-01",), 1, "2099-01 has not ended or settled yet. It can be closed from 2099-02-01T01:00:00Z."),
        (("2026-11", "--tz", "Nowhere/Land"), 2, "There is no time zone 'Nowhere/Land'"),
    ],
)
def test_month_that_cannot_be_closed_is_a_one_line_error(
    two_months: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, message: str
) -> None:
    assert command("close", *words, "--data", str(two_months)) == status
    assert message in capsys.readouterr().err


def test_admin_closes_a_month_over_http(two_months: Path) -> None:
    async def test() -> None:
        with Store(two_months) as store:
            tokens = Tokens(two_months)
            admin, viewer = (tokens.create(role, role, 0) for role in ("admin", "viewer"))
            server = build_services(Core(store, Settings()), open_to_all=False)
            transport = httpx.ASGITransport(server.application())
            async with httpx.AsyncClient(transport=transport, base_url="http://pyrometer.test") as client:

                async def say(method: str, path: str, token: str) -> httpx.Response:
                    return await client.request(method, path, headers={"Authorization": f"Bearer {token}"})

                before = await say("GET", "/api/v1/cost?month=2026-10", viewer)
                assert before.json()["books"] is None
                assert (await say("POST", "/api/v1/close?month=2026-10", viewer)).status_code == 403
                assert (await say("POST", "/api/v1/close", admin)).status_code == 400
                assert (await say("POST", "/api/v1/close?month=2099-01", admin)).status_code == 409
                done = await say("POST", "/api/v1/close?month=2026-10", admin)
                assert (done.status_code, done.json()["closed_by"]) == (200, "admin")
                after = await say("GET", "/api/v1/cost?month=2026-10", viewer)
                assert after.json()["books"]["basis"] == "closed"
                assert after.json()["rows"] == before.json()["rows"]
                assert after.headers["ETag"] != before.headers["ETag"]
                assert (await say("GET", "/api/v1/closed", viewer)).json()["months"][0]["month"] == "2026-10"
                assert (await say("POST", "/api/v1/rebuild?month=2026-10", viewer)).status_code == 403
                assert (await say("POST", "/api/v1/rebuild", admin)).status_code == 400
                assert (await say("POST", "/api/v1/rebuild?month=2099-01", admin)).status_code == 400
                rebuilt = (await say("POST", "/api/v1/rebuild?month=2026-10", admin)).json()
                assert (rebuilt["month"], rebuilt["changed_gpu_ms"], rebuilt["adjusted"]) == ("2026-10", 0, False)
                team = tokens.create("team", "team_viewer", 0, "nlp")  # sees what its team was charged, and no more
                own = (await say("GET", "/api/v1/cost?month=2026-10&by=team,node,state", team)).json()
                assert ({row["team"] for row in own["rows"]}, own["total"]["usd"]) == ({"nlp"}, 2.0)
                (closed,) = (await say("GET", "/api/v1/closed", team)).json()["months"]
                assert (closed["total"]["usd"], closed["closed_by"]) == (2.0, None)
                shared = "/api/v1/cost?month=2026-10&by=team,node&share_platform=even"
                assert (await say("GET", shared, team)).json()["total"]["usd"] == 8.0  # the only one who held anything

    asyncio.run(test())


@pytest.mark.heavy
def test_close_with_a_running_server_needs_the_server_option(
    two_months: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(two_months) as client:
        url = str(client.base_url)
        assert command("close", "2026-10", "--data", str(two_months)) == 1
        assert "only an admin can close a month there: pass --server" in capsys.readouterr().err
        assert command("close", "2026-10", "--server", url, "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["closed_by"] == "anybody"
        assert command("close", "2026-10", "--server", url) == 1
        assert "2026-10 was closed at" in capsys.readouterr().err
        assert command("close", "--list", "--data", str(two_months)) == 0  # asked of the server
        assert "2026-10" in capsys.readouterr().out
