"""One answer over several clusters is the sum of theirs to the last digit, wherever the time is cut."""

from __future__ import annotations

import random
from datetime import UTC
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyrometer.account.closing.closing_months import close
from pyrometer.account.query import fleet
from pyrometer.account.query.time_range import TimeRange
from pyrometer.model.units import MS_PER_DAY
from pyrometer.questions.parameters import QuestionError
from pyrometer.questions.registry import NotFoundError
from pyrometer.store.catalog import Part
from pyrometer.store.engines import Local
from pyrometer.store.lake import LakeStorage
from tests.support.effort import DETERMINISTIC, EFFORT
from tests.support.hand_lakes import (
    TARIFF,
    as_text,
    copy_to_lake,
    facts,
    fill_store,
    folder_answer,
    lake_answer,
    random_question,
)
from tests.support.hand_ledgers import FIRST, hours_after, next_month, random_day, write_days
from tests.support.histories import folder


class Cutting(Local):
    """As an engine with many machines does: work in small pieces, one core each."""

    splits = True


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(fleet, "ROWS_OF_A_PIECE", 13)


def answer_or_error(answering, *arguments, **more):
    """The answer, or the text of the error."""
    try:
        return as_text(answering(*arguments, **more))
    except NotFoundError as error:
        return str(error)


@settings(max_examples=EFFORT, derandomize=DETERMINISTIC, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**48))
def test_a_cluster_in_a_lake_gives_the_answers_of_its_folder(seed: int) -> None:
    chance = random.Random(seed)
    with folder() as store, TemporaryDirectory() as lake:
        fill_store(store, facts(seed))
        copy_to_lake(store, LakeStorage(lake), "east")
        for _ in range(3):
            question = random_question(chance)
            if "cluster" in question["by"].split(","):
                continue  # it has the lake's name there
            expected = answer_or_error(folder_answer, store, question)
            for engine in (Local(), Cutting()):
                assert answer_or_error(lake_answer, LakeStorage(lake), question, engine=engine) == expected, question


@settings(max_examples=EFFORT, derandomize=DETERMINISTIC, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(st.integers(0, 2**48))
def test_three_clusters_answer_like_one_with_all_records(seed: int) -> None:
    """Their objects have the same identities; in the one folder that has all of them, each its own."""
    names = ("east", "north", "west")
    with folder() as whole, TemporaryDirectory() as lake:
        fill_store(whole, *(facts(seed + number, name) for number, name in enumerate(names)))
        for number, name in enumerate(names):
            with folder() as store:
                fill_store(store, facts(seed + number))
                copy_to_lake(store, LakeStorage(lake), name)
        chance = random.Random(seed)
        for _ in range(2):
            question = random_question(chance)
            if {"workload", "cluster"} & set(question["by"].split(",")):
                continue  # these have identities of their own, or the lake's name
            assert _figures(lake_answer_by_team(lake, question, Cutting())) == _figures(of(whole, question)), question


def of(store, question):
    try:
        return folder_answer(store, question)
    except NotFoundError as error:
        return {"rows": [str(error)]}


def lake_answer_by_team(lake, question, engine):
    try:
        return lake_answer(LakeStorage(lake), question, engine=engine)
    except NotFoundError as error:
        return {"rows": [str(error)]}


def _figures(answer):
    """Without an order, and without the halves of watt-hours that equal rows share by their order."""
    rows = [
        {name: value for name, value in row.items() if "energy" not in name and name not in ("kwh", "co2e_g")}
        if isinstance(row, dict)
        else row
        for row in answer["rows"]
    ]
    return as_text(answer | {"rows": sorted(map(repr, rows))})


def test_a_closed_month_is_what_was_charged_and_the_next_one_has_its_adjustments(tmp_path) -> None:
    chance, month = random.Random(5), f"{FIRST:%Y-%m}"
    with folder() as store:
        fill_store(store, facts(5))
        write_days(store, {next_month(FIRST): random_day(chance, next_month(FIRST))})
        close(store, TARIFF, month, UTC, now_ms=hours_after(next_month(FIRST), 2), by="ann")
        write_days(store, {FIRST: random_day(chance, FIRST)})
        copy_to_lake(store, LakeStorage(str(tmp_path)), "here")
        for named in (month, f"{next_month(FIRST):%Y-%m}"):
            for more in (
                {"by": "state,node"},
                {"by": "day,team", "share_platform": "even"},
                {"team": "nlp"},
                {"by": "hour"},
            ):
                question = {"month": named, **more}
                expected = answer_or_error(folder_answer, store, question)
                assert (
                    answer_or_error(lake_answer, LakeStorage(str(tmp_path)), question, engine=Cutting()) == expected
                ), question
            expected = as_text(folder_answer(store, {"month": named}, "charges"))
            assert as_text(lake_answer(LakeStorage(str(tmp_path)), {"month": named}, what="charges")) == expected
        with folder() as other:
            fill_store(other, facts(6))
            copy_to_lake(other, LakeStorage(str(tmp_path)), "west")
        both = lake_answer(LakeStorage(str(tmp_path)), {"month": month})
        assert both["books"]["basis"] == "mixed"
        one, another = (
            lake_answer(LakeStorage(str(tmp_path)), {"month": month}, clusters=[name]) for name in ("here", "west")
        )
        assert one["books"]["basis"] == "closed"
        assert both["total"]["gpu_ms"] == one["total"]["gpu_ms"] + another["total"]["gpu_ms"]


def test_energy_cost_of_sites_is_added_and_unknown_if_one_is_unknown(tmp_path) -> None:
    lake, dear = LakeStorage(str(tmp_path)), TARIFF._replace(energy_usd_per_kwh=3.1)
    with folder() as store:
        fill_store(store, facts(7))
        for name, tariff in (("cheap", TARIFF), ("dear", dear), ("silent", TARIFF._replace(energy_usd_per_kwh=0.0))):
            store.set_meta("lake_source", name)
            copy_to_lake(store, lake, name, settings=tariff)
    cheap, dear_one, both, all_three = (
        lake_answer(lake, {"all": "1"}, clusters=names)["total"]
        for names in (["cheap"], ["dear"], ["cheap", "dear"], [])
    )
    assert cheap["energy_usd_micro"] > 0
    assert abs(both["energy_usd_micro"] - cheap["energy_usd_micro"] - dear_one["energy_usd_micro"]) <= 1
    assert all_three["energy_usd_micro"] is None
    assert all_three["energy_gpu_ms"] == 3 * cheap["energy_gpu_ms"]


def test_questions_that_need_one_cluster_name_the_option(tmp_path) -> None:
    lake = LakeStorage(str(tmp_path))
    with folder() as store:
        fill_store(store, facts(8))
        for name in ("east", "west"):
            store.set_meta("lake_source", name)
            copy_to_lake(store, lake, name)
        with pytest.raises(
            QuestionError, match=r"`cost --by cause` needs one cluster\. Pass --cluster NAME\. .*: east, west"
        ):
            lake_answer(lake, {"by": "cause"})
        with pytest.raises(QuestionError, match="`why` cannot be divided among machines"):
            lake_answer(lake, {}, what="why", clusters=["east"], engine=Cutting())
        with pytest.raises(NotFoundError, match="There is no team 'absent'"):
            lake_answer(lake, {"team": "absent"})
        store.set_meta("lake_source", "east")
        copy_to_lake(store, lake, "east", settings=TARIFF._replace(timezone="Europe/Berlin"))
        with pytest.raises(QuestionError, match=r"different time zones \(Europe/Berlin, UTC\)\. Pass --tz"):
            lake_answer(lake, {})
        assert lake_answer(lake, {"tz": "UTC", "all": "1"})["rows"]


def test_a_time_range_is_cut_at_part_boundaries() -> None:
    parts = [Part("ledger_row", day * MS_PER_DAY, (day + 1) * MS_PER_DAY, str(day), 5, 1, None, "") for day in range(6)]
    window = TimeRange(MS_PER_DAY + 60_000, 5 * MS_PER_DAY + 60_000)
    cut = fleet.pieces(parts, window)
    assert [piece.from_ms for piece in cut] == [window.from_ms, 3 * MS_PER_DAY, 5 * MS_PER_DAY]
    assert [piece.to_ms for piece in cut] == [*(piece.from_ms for piece in cut[1:]), window.to_ms]
    assert fleet.pieces([], window) == [window]
