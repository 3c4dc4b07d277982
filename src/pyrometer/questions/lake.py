"""Questions to a lake: the same parameters and answers as for one server, over one or all of its clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pyrometer.account.query.answer_json import iso
from pyrometer.account.query.energy import tariff_of
from pyrometer.account.query.fleet import Fleet, LakeCluster, LakeQuestion
from pyrometer.account.query.scope import ScopeNotFoundError
from pyrometer.account.query.time_range import TimeRangeError, zone_of
from pyrometer.model.settings import Settings
from pyrometer.questions.parameters import QuestionError, common_parameters, groupings_of
from pyrometer.questions.registry import Answer, NotFoundError, Question, question
from pyrometer.store.engines import Engine, Progress
from pyrometer.store.lake import manifests
from pyrometer.store.lake.storage import LakeStorage

SUMMED = ("cost", "charges")  # summed over clusters, by every engine
LISTED = ("runs",)  # lists that are joined
MIB = 1 << 20


class Lake(NamedTuple):
    """A lake and the clusters to ask. `settings_of` returns the settings that answers about a cluster depend on."""

    storage: LakeStorage
    clusters: Sequence[str]
    cache_folder: str
    cache_mib: int
    settings_of: Callable[[Mapping[str, Any]], Settings]


def answer_of_lake(
    lake: Lake, what: str, parameters: Mapping[str, str], engine: Engine, progress: Progress = lambda done, total: None
) -> Answer:
    """The answer, with the time up to which each cluster is accounted."""
    threads = 1 if engine.splits else None  # a task has one core of its node
    members = [
        LakeCluster(lake.storage.url, manifest, lake.cache_folder, lake.cache_mib * MIB, threads)
        for manifest in manifests(lake.storage, lake.clusters)
    ]
    settings = [lake.settings_of(member.manifest.settings) for member in members]
    zones = sorted({one.timezone for one in settings})
    if "tz" not in parameters:
        _check_zones(members, zones)
    if len(zones) > 1 and "tz" not in parameters:
        raise QuestionError(f"The clusters of this lake have different time zones ({', '.join(zones)}). Pass --tz.")
    question(what, parameters, settings[0])  # raises errors before anything is read
    if what in SUMMED and "cause" not in groupings_of(parameters):
        answer = _summed(Fleet(members, engine, progress), what, parameters, settings)
    else:
        _refuse(what, parameters, engine, members)
        questions = [question(what, parameters, one) for one in settings]
        answer = _of_one(members[0], questions[0]) if len(members) == 1 else _listed(members, questions)
    zone = common_parameters(what, parameters, settings[0]).zone
    known = [{"cluster": m.name, "to": iso(m.covered.end_ms, zone)} for m in members]
    return answer | {"clusters": known}


def _check_zones(members: Sequence[LakeCluster], zones: Iterable[str]) -> None:
    """Refuses time zones that do not exist: a manifest may come from anywhere."""
    try:
        for zone in zones:
            zone_of(zone)
    except TimeRangeError as error:
        names = ", ".join(repr(member.name) for member in members)
        raise QuestionError(f"A manifest of this lake ({names}) is not valid: {error}") from None


def _summed(fleet: Fleet, what: str, parameters: Mapping[str, str], settings: Sequence[Settings]) -> Answer:
    common = common_parameters(what, parameters, settings[0])
    lake_question = LakeQuestion(
        time_range=common.window(fleet.covered),
        by=tuple(groupings_of(parameters)),
        zone=common.zone,
        price_usd_micro=common.price_usd_micro,
        team=common.team,
        experiment=common.experiment,
    )
    try:
        if what == "charges":
            return fleet.charges(lake_question, common.share)
        return fleet.cost(lake_question, [tariff_of(one) for one in settings], common.share)
    except ScopeNotFoundError as error:
        raise NotFoundError(str(error)) from None


def _refuse(what: str, parameters: Mapping[str, str], engine: Engine, members: Sequence[LakeCluster]) -> None:
    """Refuses questions that cannot be joined over clusters or divided among machines."""
    name = "cost --by cause" if what == "cost" else what
    if engine.splits:
        raise QuestionError(f"`{name}` cannot be divided among machines. Use --engine local.")
    if len(members) > 1 and what not in LISTED:
        names = ", ".join(member.name for member in members)
        raise QuestionError(f"`{name}` needs one cluster. Pass --cluster NAME. Clusters in this lake: {names}.")


def _of_one(member: LakeCluster, ask: Question) -> Answer:
    with member.reading() as reading:
        reading.fetch_beside()
        return ask(reading, member.covered)


def _listed(members: Sequence[LakeCluster], questions: Sequence[Question]) -> Answer:
    """The rows of several clusters, newest first. A team or an experiment need not exist in all of them."""
    rows: list[Answer] = []
    answer: Answer | None = None
    nothing: NotFoundError | None = None
    for member, ask in zip(members, questions, strict=True):
        try:
            answer = _of_one(member, ask)
        except NotFoundError as error:
            nothing = error
            continue
        rows += [row | {"cluster": member.name} for row in answer["rows"]]
    if answer is None and nothing is not None:
        raise nothing
    return (answer or {}) | {"rows": sorted(rows, key=lambda row: datetime.fromisoformat(row["started"]), reverse=True)}
