"""Pods → one workload: the root object above them, or the label that they share; what it is called, who pays for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyrometer.collect.kubernetes import objects
from pyrometer.identify.kubernetes.workload_kinds import FieldRef, WorkloadKind, WorkloadKinds

# The suffixes that generators of names add: a hash, a timestamp, a number of a run.
_GENERATED = re.compile(r"(-[0-9]{8,}|-(?=[a-z0-9]*[0-9])[bcdfghjklmnpqrstvwxz2456789]{5,10})+$")


class Identity(NamedTuple):
    """The workload that a pod belongs to, and how that is known."""

    uid: str
    kind: str
    group: str
    namespace: str
    name: str
    rule: str
    of_kind: WorkloadKind | None  # its rule in the table
    root: objects.OwnerObject | None  # the object itself, where it could be read


def identify(
    cluster: str, pod: objects.PodObject, chain: Sequence[objects.OwnerObject], kinds: WorkloadKinds
) -> Identity:
    """The workload of a pod. `chain`: its known owners, the nearest first."""
    for kind in kinds.by_key:
        value = first(kind.key, pod)
        if value is not None:
            uid = f"{cluster}/{pod.metadata.namespace}/{kind.kind}/{value}"
            name = first(kind.name, pod) or value
            return Identity(
                uid=uid,
                kind=kind.kind,
                group="",
                namespace=pod.metadata.namespace,
                name=name,
                rule=kind.rule,
                of_kind=kind,
                root=None,
            )
    for place, owner in enumerate(chain):
        of_kind = kinds.of(owner.group, owner.kind)
        if of_kind is not None and of_kind.parts and (job := _highest(chain[:place])) is not None:
            return owned(job, _described(chain[: chain.index(job) + 1], kinds))
        if of_kind is not None and of_kind.ends:
            return owned(owner, _described(chain[: place + 1], kinds))
    if chain:
        return owned(chain[-1], _described(chain, kinds))
    meta = pod.metadata
    return Identity(
        uid=meta.uid,
        kind="Pod",
        group="",
        namespace=meta.namespace,
        name=meta.name,
        rule="the pod itself",
        of_kind=None,
        root=None,
    )


def _highest(chain: Sequence[objects.OwnerObject]) -> objects.OwnerObject | None:
    """The job below an object that is made of jobs; a pod in between is the step that created it."""
    return next((owner for owner in reversed(chain) if (owner.group, owner.kind) != ("", "Pod")), None)


def _described(chain: Sequence[objects.OwnerObject], kinds: WorkloadKinds) -> WorkloadKind | None:
    """The entry for the last of these. If it has no place for ranks, the nearest kind below that has one does."""
    known = [kind for owner in reversed(chain) if (kind := kinds.of(owner.group, owner.kind))]
    rank = next((kind.rank for kind in known if kind.rank), ())
    root = kinds.of(chain[-1].group, chain[-1].kind)
    if root is None:
        return WorkloadKind(chain[-1].kind, chain[-1].group, rank=rank) if rank else None
    return root._replace(rank=rank)


def owned(owner: objects.OwnerObject, of_kind: WorkloadKind | None) -> Identity:
    """The workload that an object is."""
    meta = owner.metadata
    rule = of_kind.rule if of_kind else f"owner {owner.kind}.{owner.group}"
    return Identity(
        uid=meta.uid,
        kind=owner.kind,
        group=owner.group,
        namespace=meta.namespace,
        name=meta.name,
        rule=rule,
        of_kind=of_kind,
        root=owner,
    )


def first(places: Iterable[FieldRef], pod: objects.PodObject) -> str | None:
    """The value of the first of these fields that a pod has."""
    for place in places:
        value = at(place, pod.metadata, pod.spec.containers or ())
        if value:
            return value
    return None


def number(places: Iterable[FieldRef], pod: objects.PodObject) -> int | None:
    """The value as a number; None if it is not a number."""
    value = first(places, pod)
    return int(value) if value is not None and value.isdecimal() and len(value) < 10 else None


def at(place: FieldRef, meta: objects.Meta, containers: Iterable[objects.ContainerObject] = ()) -> str | None:
    """The value of a field of an object."""
    if place.where == "label":
        return (meta.labels or {}).get(place.key)
    if place.where == "annotation":
        return (meta.annotations or {}).get(place.key)
    return next(
        (each.value for one in containers for each in one.env or [] if each.name == place.key and each.value), None
    )


# -- ownership ------------------------------------------------------------------------------------------------------


class RuleResult(NamedTuple):
    """A name and the rule that gave it."""

    value: str
    rule: str


class RuleContext(NamedTuple):
    """The sources of team and experiment rules: the objects of a workload, its namespace, its queue."""

    metas: Sequence[objects.Meta]  # the root first, the pod last
    identity: Identity
    namespace_labels: Mapping[str, str]
    queue: str | None


def by_rules(rules: Iterable[str], where: RuleContext) -> RuleResult | None:
    """The first rule that has an answer.

    A rule is `label:KEY` or `annotation:KEY` (of the workload, its owners or its pods), `namespace-label:KEY`, `queue`,
    `namespace`, or `name` (the workload's, without what was generated).
    """
    for rule in rules:
        kind, _, key = rule.partition(":")
        value: str | None = None
        if kind in ("label", "annotation"):
            place = FieldRef(kind, key)
            value = next((found for meta in where.metas if (found := at(place, meta))), None)
        elif kind == "namespace-label":
            value = where.namespace_labels.get(key)
        elif rule == "queue":
            value = where.queue
        elif rule == "namespace":
            value = where.identity.namespace
        elif rule == "name":
            value = ungenerated(where.identity.name)
        if value:
            return RuleResult(value, rule)
    return None


def is_rule(text: str) -> bool:
    """Whether a text is a rule that `by_rules` understands."""
    kind, colon, key = text.partition(":")
    if colon:
        return kind in ("label", "annotation", "namespace-label") and bool(key)
    return text in ("queue", "namespace", "name")


def ungenerated(name: str) -> str:
    """A workload's name without the suffix that something added to make it unique."""
    return _GENERATED.sub("", name) or name
