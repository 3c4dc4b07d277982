"""Values that an attacker may write into a manifest, and the paths of all values in one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

TEXTS = (
    "../../outside",
    "/tmp/outside",
    "parts/../../../outside.parquet",
    "a\0b",
    "a\nb",
    "a\\..\\b",
    "",
    ".",
    "..",
    "*",
    "x'; COPY (SELECT 1) TO '/tmp/outside.csv'; --",
    "z(a int); CREATE TABLE y",
    "parts/event/2025-10-10/*.parquet",
    "tokens.json",
    "pyrometer.duckdb",
    "~/outside",
    "%2e%2e/outside",
    "ü" * 5_000,
    "\u202e",
    "-1",
    "1e400",
)
VALUES: tuple[Any, ...] = (*TEXTS, None, True, -1, 2**63, 2**70, 1.5, [], {}, [[]], {"a": {}}, [1], 0, 10**13)

Step = str | int


def paths_in(value: Any, at: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """The paths of all values in JSON, nested ones included."""
    yield at
    if isinstance(value, dict):
        for name, one in value.items():
            yield from paths_in(one, (*at, name))
    elif isinstance(value, list):
        for number, one in enumerate(value[:3]):
            yield from paths_in(one, (*at, number))


def replace_at(value: Any, at: tuple[Step, ...], by: Any) -> Any:
    """The same JSON with another value at one path."""
    if not at:
        return by
    copied = value.copy()
    copied[at[0]] = replace_at(value[at[0]], at[1:], by)
    return copied


def rename_at(value: Any, at: tuple[Step, ...], by: str) -> Any:
    """The same JSON with another name at one path."""
    if len(at) == 1:
        return {by if name == at[0] else name: one for name, one in value.items()}
    copied = value.copy()
    copied[at[0]] = rename_at(value[at[0]], at[1:], by)
    return copied


def folder_contents(folder: Path) -> dict[str, bytes]:
    """The contents of all files in a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
