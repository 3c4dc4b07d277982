"""`pyrometer close`, and what the other commands say of a month once it is closed."""

from __future__ import annotations

import asyncio
import json
from datetime import date
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from pyrometer.cli import main
from pyrometer.model.records import Allocation, Price
from pyrometer.model.settings import Settings
from pyrometer.model.units import MS_PER_HOUR, SHARE_WHOLE
from pyrometer.questions.tokens import Tokens
from pyrometer.serve.core import Core
from pyrometer.serve.main import build_services
from pyrometer.store import Store
from tests.support.hand_ledgers import job_records, ms_of, node_records
from tests.support.server_process import serving

END = ms_of(date(2026, 10, 31)) + 20 * MS_PER_HOUR
AGAIN = ms_of(date(2026, 11, 2))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two hours in October, and one in November, of which somebody holds half."""
    with Store(tmp_path / "data", create=True) as store:
        store.append(
            [
                Price(END, 2_000_000, 0),
                *node_records(END, END + 2 * MS_PER_HOUR),
                *node_records(AGAIN, AGAIN + MS_PER_HOUR),
                *job_records("nlp", "one", END, END + MS_PER_HOUR),
                *job_records("vision", "two", AGAIN, AGAIN + MS_PER_HOUR),
            ]
        )
    return tmp_path / "data"


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


def test_closed_month_does_not_change(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run_json(*words: str) -> tuple[dict[str, Any], str]:
        assert command(*words, "--data", str(data), "-o", "json") == 0
        result = capsys.readouterr()
        return json.loads(result.out), result.err

    assert command("close", "2026-10", "--data", str(data)) == 0
    assert "2026-10" in (result := capsys.readouterr().out)
    assert "$8.00" in result
    october, _ = run_json("cost", "--month", "2026-10")
    assert october["books"]["basis"] == "closed"
    with Store(data) as store:  # it turns out that somebody else held the other GPU
        store.append(job_records("search", "late", END, END + MS_PER_HOUR)[:2])
        store.append([Allocation(END + 2 * MS_PER_HOUR, "late", "n0", 1, END, END + MS_PER_HOUR, SHARE_WHOLE)])
    assert run_json("cost", "--month", "2026-10")[0] == october
    november, _ = run_json("cost", "--month", "2026-11")
    owed = {(row["team"], row["adjusts"]): row["usd"] for row in november["rows"]}
    assert owed == {
        ("vision", None): 2.0,
        ("platform", None): 2.0,
        ("search", "2026-10"): 2.0,
        ("platform", "2026-10"): -2.0,
    }
    assert command("cost", "--month", "2026-11", "--data", str(data)) == 0
    result = capsys.readouterr()
    assert "−$2.00" in result.out
    assert "2026-11: $4.00 from the ledger, $0.00 of adjustments to closed months." in result.err
    assert command("cost", "--all", "--data", str(data)) == 0
    assert "current figures of the ledger" in capsys.readouterr().err
    assert [one["month"] for one in run_json("close", "--list")[0]["months"]] == ["2026-10"]
    assert command("export", "focus", "--month", "2026-11", "--data", str(data)) == 0
    text = capsys.readouterr().out
    assert text.count("Correction of 2026-10") == 2
    assert ",-2.000000," in text  # a number, not a text
    assert command("check", str(data)) == 0
    kept = next((data / "closed").glob("*.parquet"))
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")
    assert command("check", str(data)) == 1
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
    data: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, message: str
) -> None:
    assert command("close", *words, "--data", str(data)) == status
    assert message in capsys.readouterr().err


def test_rebuild_prints_the_states_of_a_month_before_and_after(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("close", "2026-10", "--data", str(data)) == 0
    capsys.readouterr()
    assert command("rebuild", "--month", "2026-10", "--data", str(data)) == 0
    printed = capsys.readouterr().out
    assert "GPU-hours before" in printed
    assert "0.000 GPU-hours changed state. Its frozen charges are unaffected." in printed
    assert command("rebuild", "--month", "2026-10", "--data", str(data), "-o", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert all(row["gpu_ms_before"] == row["gpu_ms_after"] > 0 for row in answer["states"])
    assert command("rebuild", "--month", "2026-09", "--data", str(data)) == 2
    assert "The ledger has no rows in 2026-09." in capsys.readouterr().err


def test_admin_closes_a_month_over_http(data: Path) -> None:
    async def test() -> None:
        with Store(data) as store:
            tokens = Tokens(data)
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
def test_close_with_a_running_server_needs_the_server_option(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(data) as client:
        url = str(client.base_url)
        assert command("close", "2026-10", "--data", str(data)) == 1
        assert "only an admin can close a month there: pass --server" in capsys.readouterr().err
        assert command("close", "2026-10", "--server", url, "-o", "json") == 0
        assert json.loads(capsys.readouterr().out)["closed_by"] == "anybody"
        assert command("close", "2026-10", "--server", url) == 1
        assert "2026-10 was closed at" in capsys.readouterr().err
        assert command("close", "--list", "--data", str(data)) == 0  # asked of the server
        assert "2026-10" in capsys.readouterr().out
