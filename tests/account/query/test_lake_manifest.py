"""The manifest fields of a data folder."""

from __future__ import annotations

import pytest

from pyrometer.account.build.ledger import LedgerCoverage
from pyrometer.account.query.lake_manifest import SOURCE, cluster_of, ensure_lake_source, manifest_header
from pyrometer.model.settings import Settings
from pyrometer.store.lake import LakeError
from tests.support.histories import BASE, folder, node


def test_lake_source_is_set_once() -> None:
    with folder() as store:
        ensure_lake_source(store)
        source = store.meta(SOURCE)
        ensure_lake_source(store)
        assert source
        assert store.meta(SOURCE) == source


def test_cluster_comes_from_the_setting_or_from_the_nodes() -> None:
    with folder() as store:
        store.append([node(BASE)])
        assert cluster_of(store, Settings()) == "prod"
        assert cluster_of(store, Settings(cluster="east")) == "east"


def test_cluster_without_a_unique_name_is_an_error() -> None:
    with folder() as store:
        with pytest.raises(LakeError, match="it has no nodes"):
            cluster_of(store, Settings())
        store.append([node(BASE), node(BASE, uid="n1")._replace(cluster="test")])
        with pytest.raises(LakeError, match="its nodes are of prod, test"):
            cluster_of(store, Settings())


def test_manifest_header_has_settings_but_no_addresses() -> None:
    with folder() as store:
        ensure_lake_source(store)
        header = manifest_header(store, Settings(cluster="east", pue=1.5), LedgerCoverage(1, 2, 0))
        assert (header.cluster, header.source, header.from_ms, header.end_ms) == ("east", store.meta(SOURCE), 1, 2)
    assert header.settings["pue"] == 1.5
    assert "lake" not in header.settings
    assert list(header.beside) == []
