"""`data_stall` on a small cluster: steps that wait for data, on all nodes or on one."""

from __future__ import annotations

import pytest

from tests.support.clusters import (
    NORMAL_STEP_MS,
    all_ranks,
    cluster,
    explain,
    interval,
    job,
    minutes,
    run,
    sole_finding,
    steps,
)


class TestDataStall:
    def test_data_stall_on_every_node_has_no_culprit(self, tmp_path):
        records = [
            *cluster(),
            *job(),
            *run(),
            *all_ranks(0, 30),
            *all_ranks(30, 60, data_ms=24_000),
            *all_ranks(60, 120),
        ]
        finding = sole_finding(explain(tmp_path, records))
        assert (finding["cause"], interval(finding)) == ("data_stall", minutes(30, 60))
        assert finding["culprit"] is None
        assert finding["gpu_ms"] == 4 * 30 * 24_000
        assert finding["evidence"][0].startswith("40%")

    def test_data_stall_on_one_node_names_the_node(self, tmp_path):
        slow = [w for rank in (2, 3) for w in steps(rank, 30, 60, **(NORMAL_STEP_MS | {"data_ms": 24_000}))]
        fine = [w for rank in (0, 1) for w in steps(rank, 30, 60, **NORMAL_STEP_MS)]
        records = [*cluster(), *job(), *run(), *all_ranks(0, 30), *slow, *fine, *all_ranks(60, 120)]
        finding = sole_finding(explain(tmp_path, records))
        assert finding["culprit"] == {"node": "node-1"}
        assert finding["gpu_ms"] == 2 * 30 * 24_000

    @pytest.mark.parametrize(("from_min", "to_min"), [(0, 6), (50, 52)], ids=["a cold loader", "a new epoch"])
    def test_few_late_batches_are_not_a_data_stall(self, tmp_path, from_min, to_min):
        late = all_ranks(from_min, to_min, data_ms=24_000)
        records = [*run(), *all_ranks(0, from_min), *late, *all_ranks(to_min, 120)]
        assert explain(tmp_path, [*cluster(), *job(), *records])["findings"] == []

    def test_lasting_data_stall_from_the_first_step_is_found(self, tmp_path):
        records = [*run(), *all_ranks(0, 25, data_ms=24_000), *all_ranks(25, 120)]
        finding = sole_finding(explain(tmp_path, [*cluster(), *job(), *records]))
        assert (finding["cause"], interval(finding)) == ("data_stall", minutes(0, 25))

    def test_little_waiting_is_not_a_data_stall(self, tmp_path):
        assert explain(tmp_path, [*cluster(), *job(), *run(), *all_ranks(0, 120, data_ms=3_000)])["findings"] == []
