"""The attribute names in the semantic conventions of OpenTelemetry, from its own package."""

from __future__ import annotations

import importlib
import pkgutil

from opentelemetry.semconv import attributes
from opentelemetry.semconv._incubating import attributes as incubating


def convention_names() -> set[str]:
    """The names of stable and of incubating attributes."""
    found: set[str] = set()
    for package in (attributes, incubating):
        for module in pkgutil.iter_modules(package.__path__):
            listed = vars(importlib.import_module(f"{package.__name__}.{module.name}"))
            found |= {value for name, value in listed.items() if name.isupper() and isinstance(value, str)}
    return found
