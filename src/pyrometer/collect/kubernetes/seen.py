"""What a watch saw of an object."""

from __future__ import annotations

from typing import Any, NamedTuple

from pyrometer.collect.kubernetes import objects


class ObservedObject(NamedTuple):
    """An object as it is, or that it is gone. `seen_ms` is when; of one that vanished, when it was last known to be."""

    object: Any
    seen_ms: int
    gone: bool = False
    vanished: bool = False  # nobody saw it go: it was not there any more when everything was listed again
    chain: tuple[objects.OwnerObject, ...] = ()  # its owners, the nearest first
