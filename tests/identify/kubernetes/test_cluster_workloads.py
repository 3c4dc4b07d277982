"""The workloads of a cluster: their records, gangs and attempts."""

from __future__ import annotations

import pytest

from pyrometer.identify.kubernetes.cluster_workloads import ClusterWorkloads
from pyrometer.identify.kubernetes.workload_kinds import RuleError
from pyrometer.model.records import Pod, Workload
from pyrometer.model.settings import Settings
from tests.support.watched_cluster import T0, WatchedCluster, node, owner, pod


def test_invalid_team_rule_is_rejected() -> None:
    with pytest.raises(RuleError, match="team_rules"):
        ClusterWorkloads("test", Settings(team_rules=("lable:team",)))


def test_gang_is_the_smallest_size_that_an_owner_specifies() -> None:
    watched = WatchedCluster(node())
    large, small = owner("Job", "j"), owner("JobSet", "set", "jobset.x-k8s.io")
    large.gang_pods, small.gang_pods = 8, 4
    watched.see(pod(), chain=(large, small))
    assert [workload.gang_pods for workload in watched.newest(Workload)] == [4]


def test_a_single_pod_has_no_gang() -> None:
    watched = WatchedCluster(node())
    single = owner("Job", "j")
    single.gang_pods = 1
    watched.see(pod(), chain=(single,))
    assert [workload.gang_pods for workload in watched.newest(Workload)] == [None]


def test_record_is_written_once_for_all_pods_of_a_workload() -> None:
    watched = WatchedCluster(node())
    for name in ("a", "b"):
        watched.see(pod(name), chain=(owner("Job", "j"),))
    assert len([record for record in watched.records if isinstance(record, Workload)]) == 1


def test_forgotten_workload_continues_its_attempt_numbers() -> None:
    watched = WatchedCluster(node())
    job = owner("Job", "j")
    watched.see(pod("a", phase="Failed", end_ms=T0 + 60_000), chain=(job,))
    watched.see(pod("a", phase="Failed", end_ms=T0 + 60_000), gone=True)
    watched.cluster.tick(T0 + 40 * 86_400_000)
    watched.see(pod("b", start_ms=T0 + 41 * 86_400_000), chain=(job,))
    assert {record.name: record.attempt for record in watched.newest(Pod)} == {"a": 1, "b": 2}
