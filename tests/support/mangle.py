"""Nearly valid inputs: bytes and JSON values with a few broken parts."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

NUMBERS = (
    b"NaN",
    b"nan",
    b"Inf",
    b"-Inf",
    b"inf",
    b"-0",
    b"-1",
    b"0",
    b"1e400",
    b"-1e-400",
    b"1e308",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551615",
    b"1" * 400,
    b"1" * 5_000,
    b"0x10",
    b"1_000",
    b"1e999999999",
    b".5",
    b"2147483648",
    b"65536",
    b"-9223372036854775809",
    "٣".encode(),
    b"null",
    b"true",
    b'"12"',
    b"",
)
TEXTS = (
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    "\u202e".encode(),
    "\ufeff".encode(),
    b"\r\n",
    b"\n",
    b"\\",
    b'"',
    b"'",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b" ",
    b"#",
    b"&a",
    b"*a",
    b"!!int x",
    b"!!timestamp x",
    b"<<",
    b"../",
    b"%s",
    b"\\ud800",
    b"a" * 20_000,
    b"[" * 3_000,
    b'{"a":' * 3_000,
    b"\x80" * 12,
    b"\x0a\x00" * 100,
    b"2026-13-45",
    b"0001-01-01",
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


@st.composite
def mangled(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of the seeds after up to four mutations."""
    content = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, 4))):
        content = _mutate(draw, content)
    return content


def _mutate(draw: st.DrawFn, content: bytes) -> bytes:
    what = draw(st.sampled_from(("flip", "cut", "drop", "twice", "insert", "number", "number", "swap")))
    at, length = draw(st.integers(0, len(content))), draw(st.integers(1, 200))
    if what == "flip" and at < len(content):
        return content[:at] + bytes([content[at] ^ draw(st.integers(1, 255))]) + content[at + 1 :]
    if what == "cut":
        return content[:at]
    if what == "drop":
        return content[:at] + content[at + length :]
    if what == "twice":
        return content[:at] + content[at : at + length] * draw(st.integers(2, 4)) + content[at + length :]
    if what == "insert":
        return content[:at] + draw(st.sampled_from(TEXTS + NUMBERS)) + content[at:]
    if what == "number" and (found := _NUMBER.search(content, at)):
        return content[: found.start()] + draw(st.sampled_from(NUMBERS)) + content[found.end() :]
    half = len(content) // 2
    return content[half:] + content[:half]


# -- values -----------------------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    -0.0,
    2**31,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**300,
    float("nan"),
    float("inf"),
    1e308,
    0.5,
    "",
    " ",
    "0",
    "-1",
    "NaN",
    "1e400",
    "9" * 19,
    "9" * 400,
    "\x00",
    "\u202e",
    "\U0001f525",
    "a" * 20_000,
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "2026-02-30T00:00:00Z",
    "2026-10-08",
    [],
    {},
    [[]],
    [None],
    {"a": None},
    {"": ""},
    [1, "a", None],
    {"a": {"b": [{"c": 1}]}},
    "1Gi",
    "100m",
    "1e3",
    "-5",
    "½",
    "٣",
    "📈",
)
DEEP = 3_000


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _places(one, (*at, key))


@st.composite
def mangled_value(draw: st.DrawFn, seeds: Sequence[Any]) -> Any:
    """One of the seeds with up to four of its parts replaced, removed, duplicated or wrapped."""
    value = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        places = list(_places(value))
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        parent = value
        for key in way:
            parent = parent[key]
        what = draw(st.sampled_from(("replace", "replace", "replace", "gone", "twice", "inside")))
        if what == "gone":
            del parent[last]
        elif what == "twice" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[last]))
        elif what == "inside":
            parent[last] = draw(st.sampled_from(([parent[last]], {"a": parent[last]})))
        else:
            parent[last] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return value


def as_json(value: Any) -> bytes:
    """A value as JSON. NaN becomes null, because JSON has none, and infinities become numbers beyond all limits."""
    text = json.dumps(value).replace("-Infinity", "-1e999").replace("Infinity", "1e999")
    return text.replace("NaN", "null").encode()
