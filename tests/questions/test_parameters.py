"""Checks of the parameters of questions."""

from __future__ import annotations

import pytest

from pyrometer.model.settings import Settings
from pyrometer.questions.parameters import (
    MAX_NAME_LENGTH,
    MAX_SAMPLE_LENGTH,
    QuestionError,
    common_parameters,
    groupings_of,
    number_of,
    omitted_parts,
    one_of,
    sample_of,
    target_of,
)


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("25,000", 25_000), (" 7 ", 7), (str(2**62), 2**62)])
def test_number_is_read_with_separators(text: str, expected: int) -> None:
    assert number_of({"step": text}, "step") == expected


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "\u0663", str(2**62 + 1), "9" * 1_000])
def test_number_rejects_other_texts(text: str) -> None:
    with pytest.raises(QuestionError, match=r"--step .* is not a whole number from 0 to"):
        number_of({"step": text}, "step")


def test_missing_number_is_none() -> None:
    assert number_of({}, "step") is None


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", ""])
def test_target_must_be_a_finite_number(text: str) -> None:
    with pytest.raises(QuestionError, match="--target"):
        target_of({"target": text})


def test_target_is_optional_and_may_be_negative() -> None:
    assert target_of({}) is None
    assert target_of({"target": "-2.5e-3"}) == -0.0025


def test_one_of_allows_one_parameter() -> None:
    names = ("step", "sample")
    assert one_of({}, names) is None
    assert one_of({"sample": "a", "run": "r"}, names) == "sample"
    with pytest.raises(QuestionError, match="Pass only one of --step, --sample"):
        one_of({"sample": "a", "step": "1"}, names)


def test_omitted_parts_are_checked() -> None:
    assert omitted_parts({}) == []
    assert omitted_parts({"without": " windows ,findings,"}) == ["windows", "findings"]
    with pytest.raises(QuestionError, match="Known values: windows, findings"):
        omitted_parts({"without": "all"})


def test_sample_length_is_limited() -> None:
    assert sample_of({"sample": "s" * MAX_SAMPLE_LENGTH}) == "s" * MAX_SAMPLE_LENGTH
    with pytest.raises(QuestionError, match="The maximum is 1,000"):
        sample_of({"sample": "s" * (MAX_SAMPLE_LENGTH + 1)})


def test_groupings_default_to_team() -> None:
    assert groupings_of({}) == ["team"]
    assert groupings_of({"by": "day, team,,"}) == ["day", "team"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"color": "red"}, "Parameter 'color' is unknown"),
        ({"at": "2026-11-14"}, "Parameter 'at' is unknown"),
        ({"team": ""}, "--team has 0 characters"),
        ({"experiment": "e" * (MAX_NAME_LENGTH + 1)}, "--experiment has 1,001 characters"),
        ({"price": "cheap"}, "is not a number of dollars"),
        ({"price": "nan"}, "--price 'nan'"),
        ({"price": "-1"}, "is not between 0 and 1,000,000"),
        ({"price": "1e999999"}, "--price '1e999999'"),
        ({"share_platform": "half"}, "--share-platform 'half' is unknown"),
        ({"share_platform": "even", "experiment": "sft"}, "divides among teams"),
    ],
)
def test_invalid_common_parameters_are_named(parameters: dict[str, str], words: str) -> None:
    with pytest.raises(QuestionError, match=words):
        common_parameters("cost", parameters, Settings())


def test_price_is_in_micro_dollars() -> None:
    assert common_parameters("cost", {"price": "$2.50"}, Settings()).price_usd_micro == 2_500_000
    assert common_parameters("cost", {}, Settings()).price_usd_micro is None


def test_time_zone_is_the_servers_unless_passed() -> None:
    settings = Settings(timezone="Europe/Berlin")
    assert str(common_parameters("cost", {}, settings).zone) == "Europe/Berlin"
    assert str(common_parameters("cost", {"tz": "Asia/Tokyo"}, settings).zone) == "Asia/Tokyo"


def test_experiment_of_worth_is_its_own_parameter() -> None:
    assert common_parameters("worth", {"experiment": "sft"}, Settings()).experiment is None
    assert common_parameters("cost", {"experiment": "sft"}, Settings()).experiment == "sft"
