"""The grammar of names, paths and numbers in manifests, catalogs and file lists from untrusted sources.

The grammar is in the types: fields with these types are checked when a record is read, before anything in it reaches
SQL or the file system.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
from msgspec import Meta

from pyrometer.model.columns import SCHEMAS

_WORD = r"[a-z][a-z0-9_]*"
PART_PATTERN = rf"(?:parts|hot)/(?P<kind>{_WORD})/[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}/[0-9A-Za-z_-]+\.parquet"
HOT_PATTERN = rf"hot_(?P<kind>{_WORD})_(?:[0-9]{{13}}|[0-9a-f]{{12}})"  # names in the oldest folders contain the hour
_MONTH = r"[0-9]{4}-[0-9]{2}"
_FILE = r"(?!(?:.*/)?\.\.?(?:/|\Z))[\w.+:@ -]+(?:/[\w.+:@ -]+)*"  # no `..`, no control characters, no backslashes
MAX_NAME, MAX_PATH, MAX_TEXT = 200, 1_000, 1 << 20  # characters
MAX_INT = 2**63 - 1  # the maximum BIGINT
MAX_TIME_MS = 10_100_000_000_000  # January 2290, after the last partition that can be stored


def _like(pattern: str) -> Meta:
    return Meta(pattern=rf"\A(?:{pattern})\Z", max_length=MAX_NAME)


Kind = Annotated[str, _like(_WORD)]
Columns = Annotated[str, Meta(pattern=r"\A[a-z0-9_,]+\Z", max_length=10_000)]
PartPath = Annotated[str, _like(PART_PATTERN)]
HotName = Annotated[str, _like(HOT_PATTERN)]
ClosedPath = Annotated[str, _like(rf"closed/{_MONTH}(?:-[0-9a-f]{{12}}\.parquet|\.json)")]
FilePath = Annotated[str, Meta(pattern=rf"\A{_FILE}\Z", max_length=MAX_PATH)]
Month = Annotated[str, _like(_MONTH)]
ChargesFile = Annotated[str, _like(rf"{_MONTH}-[0-9a-f]{{12}}\.parquet")]
Decimals = Annotated[str, _like(r"[0-9]+(?:\.[0-9]+)?(?:/[1-9][0-9]*)?")]  # of a fraction
Sha256 = Annotated[str, _like(r"[0-9a-f]{64}")]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Int = Annotated[int, Meta(ge=-MAX_INT - 1, le=MAX_INT)]
TimeMs = Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]

Record = TypeVar("Record", bound=tuple[Any, ...])


class GrammarError(ValueError):
    """A field does not match its grammar. The text names it and its value."""


def read_json(content: bytes) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise GrammarError("it is not JSON") from None
    if not isinstance(found, dict):
        raise GrammarError("it is not a JSON object")
    return found


def record_of(form: type[Record], fields: object, where: str = "") -> Record:
    """Creates a record from fields by name and checks their types. Fields with a default may be missing."""
    at = f"{where}." if where else ""
    if not isinstance(fields, Mapping):
        raise GrammarError(f"{where} is {shown(fields)}")
    names: tuple[str, ...] = form._fields  # type: ignore[attr-defined]
    defaults: dict[str, Any] = form._field_defaults  # type: ignore[attr-defined]
    for name in fields:
        if name not in names:
            raise GrammarError(f"{at}{shown(name)} is not a known field")
    values = []
    for name in names:
        if name not in fields and name not in defaults:
            raise GrammarError(f"{at}{name} is missing")
        values.append(fields.get(name, defaults.get(name)))
    return checked(form, values, where)


def checked(form: type[Record], values: Iterable[object], where: str = "") -> Record:
    """Creates a record from values in order and checks their types."""
    values = tuple(values)
    try:
        found: Record = msgspec.convert(values, form)
        return found
    except (msgspec.ValidationError, RecursionError):
        pass
    at = f"{where}." if where else ""
    for name, value in zip(form._fields, values, strict=True):  # type: ignore[attr-defined]
        try:
            msgspec.convert(value, _types_of(form)[name])
        except (msgspec.ValidationError, RecursionError):
            raise GrammarError(f"{at}{name} is {shown(value)}") from None
    raise GrammarError(f"{where or 'it'} is {shown(values)}")


def check_kind(kind: str, named: str) -> None:
    """Refuses an unknown record kind, and the path of a part or name of a hot table of another kind."""
    if kind not in SCHEMAS:
        raise UnknownKindError(kind)
    found = re.fullmatch(PART_PATTERN, named) or re.fullmatch(HOT_PATTERN, named)
    if found is None or found["kind"] != kind:
        raise GrammarError(f"{shown(named)} does not hold {kind} records")


class UnknownKindError(GrammarError):
    """A record kind that this version does not know, from a newer version."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"it has {kind} records, which this version does not know")


def check_meta(meta: Mapping[str, str], where: str = "meta") -> None:
    """Refuses texts that should be numbers according to their names."""
    for name, value in meta.items():
        if name.endswith("_ms") and not re.fullmatch(r"[0-9]{1,14}", value, re.ASCII):
            raise GrammarError(f"{where}.{shown(name)} is {shown(value)}")


@cache
def _types_of(form: type) -> dict[str, Any]:
    return get_type_hints(form, include_extras=True)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def shown(value: object) -> str:
    """An untrusted value, as one short line."""
    return _short.repr(value)
