"""XIDs from the NVML replacement library."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from pyrometer.agent import xid_watch
from pyrometer.agent.nvml import Nvml
from pyrometer.agent.xid_watch import XidWatch
from tests.support.nvml_library import NOT_SUPPORTED, Answers


def test_xid_watch_reports_xid_of_its_gpu(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    answers.set(count=3)
    answers.add(1)
    answers.add(2)
    answers.set(**{"2.events": NOT_SUPPORTED})
    reported = threading.Semaphore(0)
    monkeypatch.setattr(xid_watch, "WAIT_MS", 20)  # so that it ends soon
    with closing(Nvml()) as nvml:
        watch = XidWatch(nvml.gpus, on_xid=lambda uuid, xid: reported.release())
        assert watch.last == {"GPU-00000000": 0, "GPU-00000001": 0}  # the third one cannot report any
        answers.set(**{"xid.1": "1 48", "xid.2": "1 79"})
        assert reported.acquire(timeout=10)
        assert reported.acquire(timeout=10)
        assert watch.last == {"GPU-00000000": 0, "GPU-00000001": 79}
        watch.close()
