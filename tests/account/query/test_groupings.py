"""The groupings of answers."""

from __future__ import annotations

from pyrometer.account.query.groupings import (
    GROUPINGS,
    HELD,
    HOLDER_GROUPINGS,
    KUBEFLOW_GROUPINGS,
    PRICE,
    TIME_GROUPINGS,
)


def test_groupings_are_unique() -> None:
    assert len(set(GROUPINGS)) == len(GROUPINGS)


def test_groupings_by_holder_include_pipelines_and_sweeps() -> None:
    assert set(KUBEFLOW_GROUPINGS) < set(HOLDER_GROUPINGS) < set(GROUPINGS)


def test_groupings_by_time_are_from_short_to_long() -> None:
    assert TIME_GROUPINGS == ("hour", "day", "month")


def test_internal_groupings_cannot_be_requested() -> None:
    assert not {HELD, PRICE} & set(GROUPINGS)
