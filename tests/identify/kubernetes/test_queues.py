"""The demand of jobs that wait in queues (Kueue)."""

from __future__ import annotations

from pyrometer.model.records import Event, Pod, Workload
from pyrometer.model.units import SHARE_WHOLE
from tests.support.watched_cluster import T0, WatchedCluster, owner, queued_job


class TestQueues:
    """Kueue: a job that waits has no pods yet."""

    def test_queued_job_waits_until_its_admission(self) -> None:
        chain = (owner("Job", "j"),)
        watched = WatchedCluster()
        waiting = [r for r in watched.see(queued_job(), chain=chain) if isinstance(r, Pod)]
        assert [(p.phase, p.created_ms, p.gpu_share, p.queue, p.workload_uid) for p in waiting] == [
            ("Pending", T0, 8 * SHARE_WHOLE, "research", "j")
        ] * 2
        at_ms = T0 + 90_000
        admitted = queued_job(("QuotaReserved", "True", at_ms), ("Admitted", "True", at_ms))
        found = watched.see(admitted, chain=chain)
        assert [(e.kind, e.duration_ms) for e in found if isinstance(e, Event)] == [("admitted", 90_000)]
        assert {p.ended_ms for p in found if isinstance(p, Pod)} == {at_ms}
        assert watched.see(admitted, chain=chain) == []

    def test_evicted_job_waits_again(self) -> None:
        chain = (owner("Job", "j"),)
        watched = WatchedCluster()
        watched.see(queued_job(), chain=chain)
        watched.see(queued_job(("QuotaReserved", "True", T0 + 1_000), ("Admitted", "True", T0 + 1_000)), chain=chain)
        back = queued_job(("QuotaReserved", "False", T0 + 50_000), ("Evicted", "True", T0 + 50_000))
        found = watched.see(back, chain=chain)
        assert [(e.kind, e.reason) for e in found if isinstance(e, Event)] == [("evicted", "Evicted")]
        assert {(p.phase, p.created_ms, p.ended_ms) for p in watched.newest(Pod)} == {("Pending", T0 + 50_000, None)}

    def test_queued_job_has_a_workload_before_any_pod(self) -> None:
        watched = WatchedCluster()
        watched.see(queued_job(), chain=(owner("Job", "j"),))
        (workload,) = watched.newest(Workload)
        assert (workload.kind, workload.queue, workload.team, workload.team_rule) == (
            "Job",
            "research",
            "research",
            "queue",
        )
