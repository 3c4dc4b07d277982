"""benchmarks/edge.py in small: a cluster over real sockets into a real server, without losses."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def edge():
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("edge")
    finally:
        sys.path[:] = before


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="exporters are distinguished by addresses in 127.1.0.0/16")
def test_edge_cluster_records_are_stored_completely(edge, tmp_path):
    found = edge.run(edge.Size(64, gpus_a_pod=4), minutes=0.75, speed=30, alone_s=0.25, scratch=tmp_path)
    stored = found["stored"]
    assert all(sent == kept for sent, kept in stored.values()), stored
    assert stored["GPU samples"][0] >= 64  # every exporter was asked
    assert stored["windows of steps"][0] >= 56  # every node that trains has sent
    assert stored["pods"][0] >= 14
    assert (found["code"], found["check"]) == (0, 0)
    assert found["phases"]["together"]["answers"]["failed"] == 0
