"""The state that all parts of a server share."""

from __future__ import annotations

from pathlib import Path

from pyrometer.model.settings import Settings
from pyrometer.serve.core import Core, Nodes
from pyrometer.store import Store


def test_nodes_without_a_cluster_are_unknown() -> None:
    nodes = Nodes()
    assert nodes.uid_of("h200-01") is None
    assert not nodes.are_followed


def test_each_core_has_its_own_lock_and_disk(tmp_path: Path) -> None:
    with Store(tmp_path, create=True) as store:
        one, other = Core(store, Settings()), Core(store, Settings())
        assert one.lock is not other.lock
        assert one.disk is not other.disk
