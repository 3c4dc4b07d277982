"""The kinds of jobs: the objects that own pods, and the fields that identify pods. `kinds.yaml` is the table."""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pyrometer.identify.yaml_text import YamlError, parsed

PLACES = ("label", "annotation", "env")
_FIELDS = ("kind", "group", "key", "name", "serves", "gang", "attempt", "rank", "parts", "ends")


class RuleError(Exception):
    """A rule that cannot be used; the text names the file, the entry and the way out."""


class FieldRef(NamedTuple):
    """A field of a pod or an object: a label, an annotation or a variable of its containers."""

    where: str
    key: str

    def __str__(self) -> str:
        return f"{self.where}:{self.key}"


class WorkloadKind(NamedTuple):
    """One rule of the table."""

    kind: str
    group: str | None = None
    key: tuple[FieldRef, ...] = ()
    name: tuple[FieldRef, ...] = ()
    serves: bool = False
    gang: str | None = None
    attempt: tuple[FieldRef, ...] = ()
    rank: tuple[FieldRef, ...] = ()
    parts: bool = False
    ends: bool = False

    @property
    def rule(self) -> str:
        """Its name in answers."""
        return f"{self.kind} by {self.key[0]}" if self.key else f"owner {self.kind}.{self.group}"


class WorkloadKinds(NamedTuple):
    """All rules: those for keys in their order, those for owners by group and kind."""

    by_key: tuple[WorkloadKind, ...]
    by_owner: dict[tuple[str, str], WorkloadKind]

    def of(self, group: str, kind: str) -> WorkloadKind | None:
        """The rule for an object, if there is one."""
        return self.by_owner.get((group, kind))

    def places(self) -> list[FieldRef]:
        """All fields that rules read."""
        rules = (*self.by_key, *self.by_owner.values())
        return [place for rule in rules for place in (*rule.key, *rule.name, *rule.attempt, *rule.rank)]


@cache
def known_kinds(own_rules: str = "") -> WorkloadKinds:
    """The rules of a file of one's own, then the bundled ones: the first one for an object counts."""
    bundled = _entries(
        resources.files("pyrometer.identify.kubernetes").joinpath("kinds.yaml").read_text("utf-8"), "kinds.yaml"
    )
    rules = bundled
    if own_rules:
        path = Path(own_rules)
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RuleError(f"Workload rules {path} cannot be read: {error}.") from None
        rules = _entries(text, f"Workload rules {path}") + bundled
    owners: dict[tuple[str, str], WorkloadKind] = {}
    for rule in rules:
        if rule.group is not None:
            owners.setdefault((rule.group, rule.kind), rule)
    return WorkloadKinds(tuple(rule for rule in rules if rule.key), owners)


def parse_field_ref(text: str, where: str) -> FieldRef:
    """Parses a field: `label:KEY`, `annotation:KEY`, `env:NAME`."""
    kind, colon, key = text.partition(":")
    if kind not in PLACES or not colon or not key:
        raise RuleError(f"{where}: {text!r} is not a field. Write label:KEY, annotation:KEY or env:NAME.")
    return FieldRef(kind, key)


def _entries(text: str, where: str) -> list[WorkloadKind]:
    try:
        entries = parsed(text) or []
    except YamlError as error:
        raise RuleError(f"{where} cannot be read: {error}.") from None
    if not isinstance(entries, list):
        raise RuleError(f"{where} is not a list of rules.")
    return [_entry(entry, f"{where}, rule {number}") for number, entry in enumerate(entries, 1)]


def _entry(entry: Any, where: str) -> WorkloadKind:
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        raise RuleError(f"{where} has no `kind`.")
    unknown = sorted(set(entry) - set(_FIELDS))
    if unknown:
        raise RuleError(f"{where} has {unknown[0]!r}. Known: {', '.join(_FIELDS)}.")
    if ("group" in entry) == ("key" in entry):
        raise RuleError(f"{where} needs one of `group` (of an object that owns pods) and `key` (where pods name it).")
    return WorkloadKind(
        kind=entry["kind"],
        group=entry.get("group"),
        key=_places(entry, "key", where),
        name=_places(entry, "name", where),
        serves=bool(entry.get("serves")),
        gang=entry.get("gang"),
        attempt=_places(entry, "attempt", where),
        rank=_places(entry, "rank", where),
        parts=bool(entry.get("parts")),
        ends=bool(entry.get("ends")),
    )


def _places(entry: dict[str, Any], field: str, where: str) -> tuple[FieldRef, ...]:
    written = entry.get(field) or []
    return tuple(parse_field_ref(str(text), where) for text in (written if isinstance(written, list) else [written]))
