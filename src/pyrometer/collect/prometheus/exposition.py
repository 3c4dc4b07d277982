"""A fast reader for the text formats of Prometheus and OpenMetrics, which exploits their repetition.

An exporter sends the same names and label blocks (`{gpu="0",…}`) in every response, and all metrics of a device have
the same block. Both are interpreted once and cached, so that later only numbers are parsed. Lines with unknown names or
blocks go to the official parser. The caller passes functions that interpret names and labels; the reader keeps their
results instead of the labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from prometheus_client.parser import text_string_to_metric_families

Name = TypeVar("Name")
Labels = TypeVar("Labels")

MAX_CACHED = 512  # names, and label blocks, of one exporter: a device has one or two, and one more for each new pod
MAX_LINE_CHARS = 16 * 2**10  # the official parser is slow with long lines

_REGULAR = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*+",?)*+)\})? ')
# OpenMetrics puts an exemplar after the sample, which the official parser of the older format does not support.
_EXEMPLAR = re.compile(r'([^{"#]*+(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*+")*+\})?+[^#]*?)\s+#.*')


class ScrapeError(Exception):
    """A response of an exporter cannot be used. The message is one sentence."""


class ParsedText(NamedTuple, Generic[Name, Labels]):
    """The samples of a text, and the number of lines that could not be read."""

    samples: list[tuple[Name, Labels, float, int | None]]  # name, labels, value, time in ms if given
    unfinished: int  # 1 if the text ends in the middle of a line, which is skipped
    unreadable: int  # invalid lines


class ExpositionReader(Generic[Name, Labels]):
    """Reads the texts of one exporter. Samples whose name or labels are interpreted as None are skipped.

    Readers of exporters of the same kind may share the interpreted names.
    """

    def __init__(
        self,
        name: Callable[[str], Name | None],
        labels: Callable[[Mapping[str, str]], Labels | None],
        *,
        max_cached: int = MAX_CACHED,
        names: dict[str, Name | None] | None = None,
    ) -> None:
        self._make_name, self._make_labels = name, labels
        self._max_cached = max_cached
        self._names: dict[str, Name | None] = {} if names is None else names
        self._blocks: dict[str, Labels | None] = {}

    def read(self, text: bytes) -> ParsedText[Name, Labels]:
        """Parses a text."""
        for kept in (self._names, self._blocks):
            if len(kept) > self._max_cached:  # drops entries of old pods; current ones are cached again
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
                raise ScrapeError("The response is binary, not metrics text. Check the port.")
            raise ScrapeError(
                f"The response is not metrics text. None of its {unreadable} lines can be read."
                if unreadable
                else "The response has no metrics. The exporter may have just started or found no GPU."
            )
        unfinished = int(bool(rest) and not rest.startswith("#"))
        return ParsedText(samples, unfinished, unreadable)

    def _learn(self, line: str, seconds: bool) -> list[tuple[Name, Labels, float, int | None]]:
        """Parses a line with the official parser, and caches its name and block if they have the usual form."""
        if len(line) > MAX_LINE_CHARS:
            raise ValueError("a line that is too long")
        if _is_binary(line):
            raise ValueError("a line that is not text")
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
        if sample.timestamp is not None:  # the parser assumes milliseconds
            time_ms = round(float(sample.timestamp) * (1_000_000 if seconds else 1_000))
        return [(name, labels, float(sample.value), time_ms)]


def _number(text: str, seconds: bool) -> tuple[float, int | None]:
    """The value, and the time if given."""
    if "_" in text:
        raise ValueError(text)  # Python would read 1_000
    try:
        return float(text), None
    except ValueError:
        value, time = text.split()
        return float(value), round(float(time) * 1000) if seconds else int(time)


def _whole_lines(text: bytes) -> tuple[str, str]:
    """Splits off the last line, which may be incomplete."""
    if text.lstrip()[:1] == b"<":
        raise ScrapeError(
            "The response is a web page, not metrics. Check the path, and whether a login page is in front of it."
        )
    whole, _, rest = text.rpartition(b"\n")
    return whole.decode(errors="surrogateescape"), rest.decode(errors="replace").strip()


def _is_binary(text: str) -> bool:
    """Whether some of its bytes were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
