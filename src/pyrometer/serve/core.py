"""The state that all parts of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pyrometer.model.settings import Settings
from pyrometer.serve.disk import Disk
from pyrometer.store import Store


class Nodes(NamedTuple):
    """The nodes that Kubernetes reports. Without a cluster there are none."""

    uid_of: Callable[[str], str | None] = lambda name: None
    are_followed: bool = False  # whether a cluster is followed


@dataclass(frozen=True)
class Core:
    """A store with its lock, the settings, the state of the disk, and the nodes of the cluster.

    The lock is held while the store itself is used. Questions read snapshots of the store, so that senders do not wait
    for answers.
    """

    store: Store
    settings: Settings
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    disk: Disk = field(default_factory=Disk)
    nodes: Nodes = field(default_factory=Nodes)
