"""The task that looks for findings."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core
from pyrometer.serve.main import build_services
from pyrometer.serve.tasks.findings_task import SHOWN_FIRST, first_experiment
from pyrometer.store import Store


def row(experiment: str | None, metric: str | None) -> dict[str, str | None]:
    return {"experiment": experiment, "metric": metric}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], None),
        ([row(None, "loss")], None),
        ([row("a", None)], None),
        ([row(None, "loss"), row("a", None), row("b", "loss"), row("c", "loss")], "b"),
    ],
)
def test_first_experiment_has_a_name_and_a_metric(rows: list[dict[str, str | None]], expected: str | None) -> None:
    assert first_experiment({"rows": rows}) == expected


def test_look_without_data_finds_nothing(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        services = build_services(Core(store, Settings()), open_to_all=True)
        asyncio.run(services.findings.look())
        store.expose_all(["finding"])
        assert store.connection.execute("FROM finding").fetchall() == []


def test_questions_that_are_shown_first_are_valid(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        services = build_services(Core(store, Settings()), open_to_all=True)
        for what, parameters in SHOWN_FIRST:  # HttpError would be raised for an invalid one, too
            answer = asyncio.run(services.answering.ask_if_available(what, dict(parameters)))
            assert answer is None
