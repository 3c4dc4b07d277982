"""Finds tensors in batches and in the arguments of calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_TENSORS, MAX_DEPTH = 4, 3  # enough to recognize a batch


def collect_tensors(value: Any, tensor_type: type, found: list[Any], depth: int = 0) -> None:
    """Appends the first few tensors near the surface of a value."""
    if isinstance(value, tensor_type):
        found.append(value)
    elif depth < MAX_DEPTH:
        if not isinstance(value, (list, tuple)):  # `list | tuple` would create a new object in every call
            if not isinstance(value, Mapping):
                return
            value = value.values()
        for part in value:
            if len(found) >= MAX_TENSORS:
                return
            if isinstance(part, tensor_type):
                found.append(part)
            else:
                collect_tensors(part, tensor_type, found, depth + 1)


def local_loss(loss: Any, tensor_type: type) -> Any:
    """A loss as a plain tensor. None where only several ranks together have its value."""
    placements = getattr(loss, "placements", None)
    if placements is not None:  # a DTensor
        return loss.to_local() if all(placement.is_replicate() for placement in placements) else None
    return loss if isinstance(loss, tensor_type) else None
