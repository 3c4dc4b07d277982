"""The names that OpenTelemetry's semantic conventions list, as its own package has them."""

from __future__ import annotations

import importlib
import pkgutil

from opentelemetry.semconv import attributes
from opentelemetry.semconv._incubating import attributes as incubating


def conventional() -> set[str]:
    """Names of attributes, the stable ones and those that are not yet."""
    found: set[str] = set()
    for package in (attributes, incubating):
        for module in pkgutil.iter_modules(package.__path__):
            listed = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
            found |= {value for name, value in listed.items() if name.isupper() and isinstance(value, str)}
    return found
