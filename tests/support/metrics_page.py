"""Reads a page of metrics as Prometheus' own parser does."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

Sample = tuple[dict[str, str], float]


def samples(page: str) -> dict[str, list[Sample]]:
    """Labels and value of every sample, by the name that was written (the parser ends counters in `_total`)."""
    found: dict[str, list[Sample]] = defaultdict(list)
    for family in text_string_to_metric_families(page):
        for one in family.samples:
            name = one.name if f"\n{one.name}" in page else one.name.removesuffix("_total")
            found[name].append((one.labels, one.value))
    return dict(found)
