"""Metrics as text: prepared when the books are kept, sent when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

LONGEST_LABEL = 256  # characters of a label's value
MOST_FORMS = 4  # text and OpenMetrics, in the versions that scrapers ask for
_END = b"# EOF\n"  # of OpenMetrics

Encode = Callable[[Any], bytes]


class Collector(Protocol):
    """What has metrics to show."""

    def collect(self) -> Iterable[Metric]:
        """Its metrics."""


class Prepared:
    """Metrics as they were when they were prepared, in another thread than the one that answers.

    A thousand workloads are 0.7 MB and 60 ms of work: that is done where nobody waits, for the forms that were asked
    for before.
    """

    def __init__(self) -> None:
        self._families: tuple[Metric, ...] = ()
        self._texts: dict[str, tuple[Encode, bytes]] = {}

    def prepare(self, families: Iterable[Metric]) -> None:
        """From now on, these are shown."""
        prepared = tuple(families)
        texts = {form: (encode, encode(_Only(prepared))) for form, (encode, _) in list(self._texts.items())}
        self._families, self._texts = prepared, texts

    def collect(self) -> Iterator[Metric]:
        """The metrics, for a registry of `prometheus_client`."""
        yield from self._families

    def text(self, form: str, encode: Encode) -> bytes:
        """The same in a form, made once."""
        texts = self._texts
        if form not in texts:
            while len(texts) >= MOST_FORMS:
                del texts[next(iter(texts))]
            texts[form] = (encode, encode(self))
        return texts[form][1]


class _Only:
    """A registry of what is given."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(collectors: Iterable[Collector], accept: str) -> tuple[bytes, str]:
    """The text of what collectors have, in the form that the scraper asks for, and the name of that form."""
    encode, form = choose_encoder(accept)
    texts = [one.text(form, encode) if isinstance(one, Prepared) else encode(one) for one in collectors]
    ends = any(text.endswith(_END) for text in texts)
    return b"".join(text.removesuffix(_END) for text in texts) + (_END if ends else b""), form


def label(text: str | None) -> str:
    """A label's value. A long one is cut and ends in a digest, so that two that begin alike stay two."""
    value = text or ""
    if len(value) <= LONGEST_LABEL:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:12]
    return f"{value[: LONGEST_LABEL - len(digest) - 1]}~{digest}"
