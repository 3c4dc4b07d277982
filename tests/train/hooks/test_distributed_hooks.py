"""The rendezvous and the waits of FSDP."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyrometer.train.hooks.distributed_hooks import DistributedHooks
from pyrometer.train.steps import ring
from pyrometer.train.steps.recorder import Recorder


class Hooks:
    def __init__(self) -> None:
        self.rank = None
        self.joined: list[int] = []
        self.errors: list[BaseException] = []

    def start_rank(self) -> None:
        self.rank = SimpleNamespace(joined_group=self.joined.append, recorder=Recorder(ring.Ring.in_memory()))

    def disable(self, error: BaseException) -> None:
        self.errors.append(error)


def test_rendezvous_starts_the_rank_and_is_reported_once():
    hooks = Hooks()
    distributed = DistributedHooks(hooks)

    def init_process_group(backend: str) -> str:
        return distributed._rendezvous(lambda backend: backend, backend)  # a second hooked name

    assert distributed._rendezvous(init_process_group, "gloo") == "gloo"
    assert len(hooks.joined) == 1


def test_failed_rendezvous_can_be_tried_again():
    hooks = Hooks()
    distributed = DistributedHooks(hooks)

    def fails() -> None:
        raise ValueError("no store")

    with pytest.raises(ValueError, match="no store"):
        distributed._rendezvous(fails)
    assert hooks.joined == []
    distributed._rendezvous(lambda: None)
    assert len(hooks.joined) == 1


def test_wait_of_fsdp_is_communication():
    pytest.importorskip("torch", reason="make setup installs torch")
    hooks = Hooks()
    hooks.start_rank()

    class FSDPParamGroup:
        def unshard(self) -> int:
            return hooks.rank.recorder.phase

    DistributedHooks(hooks).install_fsdp(SimpleNamespace(FSDPParamGroup=FSDPParamGroup))
    assert FSDPParamGroup().unshard() == ring.COMM
    assert hooks.rank.recorder.row[ring.COMM] > 0
    assert not hooks.errors
