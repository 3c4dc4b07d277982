"""The text in which exporters show metrics (Prometheus' and OpenMetrics'), read fast because it repeats itself.

An exporter sends the same names and the same label blocks (`{gpu="0",…}`) every time, and one block stands behind every
metric of a device: so both are made sense of once, and afterwards only the number is read. Whatever is not known that
way goes to the official parser. What a name or a block means is the caller's business: a `Reader` is told how to make
something of them, and keeps that instead of the labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from prometheus_client.parser import text_string_to_metric_families

Name = TypeVar("Name")
Labels = TypeVar("Labels")

MOST_KEPT = 512  # names, and label blocks, of one exporter: a device has one or two, and another with each new pod
LONGEST_LINE = 16 * 2**10  # the official parser takes long over long lines

_REGULAR = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*+",?)*+)\})? ')
# An exemplar of OpenMetrics stands behind the sample; the official parser of the older format does not know it.
_EXEMPLAR = re.compile(r'([^{"#]*+(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*+")*+\})?+[^#]*?)\s+#.*')


class ScrapeError(Exception):
    """What an exporter answered cannot be used; the text is one sentence."""


class Parsed(NamedTuple, Generic[Name, Labels]):
    """What a text says, and how much of it could not be read."""

    samples: list[tuple[Name, Labels, float, int | None]]  # name, labels, value, time in ms where it is written
    unfinished: int  # 1 when the text ends in the middle of a line; that line is left out
    unreadable: int  # lines that are no samples


class ExpositionReader(Generic[Name, Labels]):
    """Reads the texts of one exporter. A name, or labels, of which None is made are left out. What is made of names may
    be shared among the readers of many exporters: those of one kind have the same."""

    def __init__(
        self,
        name: Callable[[str], Name | None],
        labels: Callable[[Mapping[str, str]], Labels | None],
        *,
        most_kept: int = MOST_KEPT,
        names: dict[str, Name | None] | None = None,
    ) -> None:
        self._make_name, self._make_labels = name, labels
        self._most_kept = most_kept
        self._names: dict[str, Name | None] = {} if names is None else names
        self._blocks: dict[str, Labels | None] = {}

    def read(self, text: bytes) -> Parsed[Name, Labels]:
        """The samples of a text."""
        for kept in (self._names, self._blocks):
            if len(kept) > self._most_kept:  # of pods and metrics that are gone: what is still there comes again
                kept.clear()
        whole, rest = _whole_lines(text)
        seconds = rest == "# EOF" or whole.rstrip().endswith("\n# EOF")  # OpenMetrics writes times in seconds
        samples: list[tuple[Name, Labels, float, int | None]] = []
        names, blocks, append = self._names, self._blocks, samples.append
        readable = unreadable = 0
        for line in whole.split("\n"):
            if not line or line[0] == "#":
                continue
            series, brace, number = line.rpartition("} ")
            if not brace:
                series, _, number = line.rpartition(" ")
            name_text, _, block = series.partition("{")
            try:
                name = names[name_text]
                if name is not None:
                    labels = blocks[block]
                    value, time_ms = _number(number, seconds)
                    if labels is not None:
                        append((name, labels, value, time_ms))
                readable += 1
            except (KeyError, ValueError, OverflowError):
                line = line.strip()
                if not line or line[0] == "#":
                    continue
                try:
                    samples += self._learn(line, seconds)
                    readable += 1
                except (ValueError, OverflowError):
                    unreadable += 1
        if not readable:
            if _is_binary(whole):
                raise ScrapeError("The answer is binary, not metrics text: is it the right port?")
            raise ScrapeError(
                f"The answer is no metrics text: not one of its {unreadable} lines can be read."
                if unreadable
                else "The answer holds no metrics: has the exporter just started, or found no GPU?"
            )
        unfinished = int(bool(rest) and not rest.startswith("#"))
        return Parsed(samples, unfinished, unreadable)

    def _learn(self, line: str, seconds: bool) -> list[tuple[Name, Labels, float, int | None]]:
        """A line by the official parser; its name and block are known from now on, if they are written as usual."""
        if len(line) > LONGEST_LINE:
            raise ValueError("a line that is too long")
        if _is_binary(line):
            raise ValueError("a line that is no text")
        regular = _REGULAR.match(line)
        if regular and self._make_name(regular[1]) is None:
            self._names[regular[1]] = None
            return []
        exemplar = _EXEMPLAR.fullmatch(line)
        (family,) = text_string_to_metric_families(exemplar[1] if exemplar else line)
        (sample,) = family.samples
        name, labels = self._make_name(sample.name), self._make_labels(sample.labels)
        if regular:
            self._names[regular[1]] = name
            self._blocks[regular[2] or ""] = labels
        if name is None or labels is None:
            return []
        time_ms = None
        if sample.timestamp is not None:  # the parser takes it for milliseconds
            time_ms = round(float(sample.timestamp) * (1_000_000 if seconds else 1_000))
        return [(name, labels, float(sample.value), time_ms)]


def _number(text: str, seconds: bool) -> tuple[float, int | None]:
    """The value, and the time where one is written."""
    if "_" in text:
        raise ValueError(text)  # Python would read 1_000
    try:
        return float(text), None
    except ValueError:
        value, time = text.split()
        return float(value), round(float(time) * 1000) if seconds else int(time)


def _whole_lines(text: bytes) -> tuple[str, str]:
    """The text without the line in whose middle it ends, and that line."""
    if text.lstrip()[:1] == b"<":
        raise ScrapeError("The answer is a web page, not metrics: is the path right, and is no login before it?")
    whole, _, rest = text.rpartition(b"\n")
    return whole.decode(errors="surrogateescape"), rest.decode(errors="replace").strip()


def _is_binary(text: str) -> bool:
    """Whether bytes in it were no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
