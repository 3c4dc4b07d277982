"""Questions to a lake: the same words and the same answers, over one cluster or over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pyrometer.account.answer_json import iso
from pyrometer.account.energy import tariff_of
from pyrometer.account.fleet import Fleet, LakeCluster, LakeQuestion
from pyrometer.account.scope import ScopeNotFoundError
from pyrometer.model.settings import Settings
from pyrometer.serve.questions import Answer, NothingError, Question, QuestionError, groupings_of, heard_as, question
from pyrometer.store.engines import Engine, Progress
from pyrometer.store.lake import manifests
from pyrometer.store.lake.storage import LakeStorage

FOLDED = ("cost", "charges")  # what is summed over clusters, and by every engine
LISTED = ("runs",)  # what is a list, and is put together
MIB = 1 << 20


class Lake(NamedTuple):
    """A lake and which of its clusters are asked; `settings_of` gives the settings that answers about one depend on."""

    place: LakeStorage
    clusters: Sequence[str]
    cache_folder: str
    cache_mib: int
    settings_of: Callable[[Mapping[str, Any]], Settings]


def answer_of_lake(
    lake: Lake, what: str, parameters: Mapping[str, str], engine: Engine, progress: Progress = lambda done, total: None
) -> Answer:
    """The answer, and up to when each cluster is known."""
    threads = 1 if engine.splits else None  # a task has one core of its node
    members = [
        LakeCluster(lake.place.url, manifest, lake.cache_folder, lake.cache_mib * MIB, threads)
        for manifest in manifests(lake.place, lake.clusters)
    ]
    settings = [lake.settings_of(member.manifest.settings) for member in members]
    zones = sorted({one.timezone for one in settings})
    if len(zones) > 1 and "tz" not in parameters:
        raise QuestionError(f"The clusters of this lake have different time zones ({', '.join(zones)}): say --tz.")
    question(what, parameters, settings[0])  # what makes no sense is said before anything is read
    if what in FOLDED and "cause" not in groupings_of(parameters):
        answer = _folded(Fleet(members, engine, progress), what, parameters, settings)
    else:
        _refuse(what, parameters, engine, members)
        asked = [question(what, parameters, one) for one in settings]
        answer = _of_one(members[0], asked[0]) if len(members) == 1 else _listed(members, asked)
    zone = heard_as(what, parameters, settings[0]).zone
    known = [{"cluster": m.name, "to": iso(m.covered.end_ms, zone)} for m in members]
    return answer | {"clusters": known}


def _folded(fleet: Fleet, what: str, parameters: Mapping[str, str], settings: Sequence[Settings]) -> Answer:
    heard = heard_as(what, parameters, settings[0])
    asked = LakeQuestion(
        heard.window(fleet.covered), tuple(groupings_of(parameters)), heard.zone, heard.price_usd_micro, heard.team,
        heard.experiment,
    )  # fmt: skip
    try:
        if what == "charges":
            return fleet.charges(asked, heard.share)
        return fleet.cost(asked, [tariff_of(one) for one in settings], heard.share)
    except ScopeNotFoundError as error:
        raise NothingError(str(error)) from None


def _refuse(what: str, parameters: Mapping[str, str], engine: Engine, members: Sequence[LakeCluster]) -> None:
    """What cannot be put together from several clusters, and what is not mapped over machines."""
    asked = "cost --by cause" if what == "cost" else what
    if engine.splits:
        raise QuestionError(f"`{asked}` is not divided among machines, only `cost` and `export` are: --engine local.")
    if len(members) > 1 and what not in LISTED:
        names = ", ".join(member.name for member in members)
        raise QuestionError(f"`{asked}` is asked of one cluster: say --cluster NAME. There: {names}.")


def _of_one(member: LakeCluster, asked: Question) -> Answer:
    with member.reading() as reading:
        reading.fetch_beside()
        return asked(reading, member.covered)


def _listed(members: Sequence[LakeCluster], asked: Sequence[Question]) -> Answer:
    """Rows of several clusters, newest first; a team or an experiment need not be in all of them."""
    rows: list[Answer] = []
    answer: Answer | None = None
    nothing: NothingError | None = None
    for member, ask in zip(members, asked, strict=True):
        try:
            answer = _of_one(member, ask)
        except NothingError as error:
            nothing = error
            continue
        rows += [row | {"cluster": member.name} for row in answer["rows"]]
    if answer is None and nothing is not None:
        raise nothing
    return (answer or {}) | {"rows": sorted(rows, key=lambda row: datetime.fromisoformat(row["started"]), reverse=True)}
