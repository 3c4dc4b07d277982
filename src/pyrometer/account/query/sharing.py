"""Sharing time without a holder: the platform pays, all teams pay equally, or each in proportion to its use.

A team pays the same fraction of every GPU-millisecond without a holder, with any groupings. So the shares of groups add
up exactly to the share of the total. Amounts are kept in parts of a `unit`, in which they are integers, and are rounded
once in an answer. All time without a holder is shared, in any state: mostly `free` and `unhealthy`. Its energy is
shared, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyrometer.account.query.energy import EnergyUse, plus
from pyrometer.account.query.groupings import HELD, PRICE
from pyrometer.account.query.sums import Sum

NONE, EVEN, PROPORTIONAL = HOW = ("none", "even", "proportional")
SHOWN_TO_A_TEAM = (
    "hour",
    "day",
    "month",
    PRICE,
)  # what a team sees of its share: when and at which price, but not where


class Pot(NamedTuple):
    """Time without a holder, grouped by what a team sees of its share, and the part that each team pays."""

    parts: dict[str | None, int]  # by team
    platform: list[Sum]

    @property
    def unit(self) -> int:
        """The number of parts. Without a team that pays, the platform pays."""
        return sum(self.parts.values()) or 1


def parts_of(by_team: Sequence[Sum], how: str) -> dict[str | None, int]:
    """The part of each team; keys are (team, held, adjusts). Only teams that held GPUs in the time range pay,
    because adjusted time was held in another. If nothing has a price, GPU time is used instead of money."""
    held = [group for group in by_team if group.key[1] and group.key[2] is None and group.gpu_ms > 0]
    if how == EVEN:
        return {group.key[0]: 1 for group in held}
    weights = {group.key[0]: group.ms_price for group in held}
    if not any(weights.values()):
        weights = {group.key[0]: group.gpu_ms for group in held}
    return {team: weight for team, weight in weights.items() if weight}


def shared(groups: Sequence[Sum], by: Sequence[str], pot: Pot, team: str | None) -> list[Sum]:
    """Divides time without a holder among teams. Keys are (*by, held, adjusts), results are in parts of a unit and
    without `held`. If the answer is limited to a team, only its share is added."""
    place = {name: number for number, name in enumerate(by)}
    divided: list[Sum] = []
    for group in groups:
        *key, held, adjusts = group.key
        if held or not pot.parts or (team is None and "team" not in place):
            divided.append(_times(group, pot.unit, (*key, adjusts)))
        elif team is None:
            divided += [
                _times(group, part, (*_with(key, place["team"], name), adjusts)) for name, part in pot.parts.items()
            ]
    if team is not None and team in pot.parts:
        shown = [name for name in by if name in SHOWN_TO_A_TEAM]
        for group in pot.platform:
            known = {**dict(zip(shown, group.key, strict=False)), "team": team}
            divided.append(_times(group, pot.parts[team], (*(known.get(name) for name in by), group.key[-1])))
    return merged(divided)


def pot_groupings(by: Sequence[str]) -> tuple[str, ...]:
    """The groupings of the platform's time in an answer that is limited to a team."""
    return (*(name for name in by if name in SHOWN_TO_A_TEAM), HELD)


def is_platform(groups: Sequence[Sum]) -> list[Sum]:
    """The groups without a holder. Keys are (…, held, adjusts); results are without `held`."""
    return [group._replace(key=(*group.key[:-2], group.key[-1])) for group in groups if not group.key[-2]]


def _with(key: list[Any], place: int, value: Any) -> list[Any]:
    return [*key[:place], value, *key[place + 1 :]]


def _times(group: Sum, factor: int, key: tuple[Any, ...]) -> Sum:
    drawn = EnergyUse(*(amount * factor for amount in group.drawn))
    return Sum(key, group.gpu_ms * factor, group.ms_price * factor, group.unpriced_gpu_ms * factor, drawn)


def merged(groups: list[Sum]) -> list[Sum]:
    """Adds groups with equal keys, in the order of their first appearance."""
    found: dict[str, Sum] = {}
    for group in groups:
        name = repr(group.key)  # a workload is a dict, which cannot be hashed
        known = found.get(name)
        found[name] = group if known is None else _added(known, group)
    return list(found.values())


def _added(one: Sum, other: Sum) -> Sum:
    return Sum(
        one.key,
        one.gpu_ms + other.gpu_ms,
        one.ms_price + other.ms_price,
        one.unpriced_gpu_ms + other.unpriced_gpu_ms,
        plus(one.drawn, other.drawn),
    )
