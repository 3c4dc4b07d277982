"""The hooks of a process: the life of its rank, and installation."""

from __future__ import annotations

import faulthandler

import pytest

from pyrometer.train.hooks import hook_installer
from pyrometer.train.hooks.hook_installer import WATCHED, Hooks


class Rank:
    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def sdk_failed(self, error: BaseException) -> None:
        self.errors.append(error)


@pytest.fixture(autouse=True)
def _own_stack_timer(monkeypatch):
    """New hooks wrap this function of the whole process."""
    monkeypatch.setattr(faulthandler, "dump_traceback_later", faulthandler.dump_traceback_later)


@pytest.fixture
def rank() -> Rank:
    return Rank()


@pytest.fixture
def hooks(rank) -> Hooks:
    return Hooks(lambda: rank)


def test_start_rank_keeps_the_created_rank(hooks, rank):
    hooks.start_rank()
    assert hooks.rank is rank


def test_failed_start_leaves_the_process_without_a_rank():
    def fails() -> None:
        raise OSError("no space")

    hooks = Hooks(fails)
    hooks.start_rank()
    assert hooks.rank is None


def test_disable_reports_the_error_once(hooks, rank):
    hooks.start_rank()
    error = ZeroDivisionError()
    hooks.disable(error)
    hooks.disable(error)
    assert hooks.rank is None
    assert rank.errors == [error]


def test_fork_becomes_a_rank_of_its_own_when_it_trains(hooks, rank):
    hooks.start_rank()
    lineage = hooks.lineage
    hooks.before_fork()
    hooks.forked()
    assert hooks.rank is None
    assert hooks.lineage is not lineage
    assert hooks.rank_after_fork() is rank
    hooks.detach()
    assert hooks.rank_after_fork() is None


def test_install_runs_once_per_module(hooks, monkeypatch):
    installed = []
    monkeypatch.setitem(hook_installer._INSTALL, "torch", lambda hooks, module: installed.append(module))
    for name in ("torch", "torch", "json"):
        hooks.install(name, name)
    assert installed == ["torch"]
    assert "torch" in WATCHED


def test_failed_installation_disables_the_sdk(hooks, rank, monkeypatch):
    hooks.start_rank()
    monkeypatch.setitem(hook_installer._INSTALL, "torch", lambda hooks, module: module.missing)
    hooks.install("torch", object())
    assert hooks.rank is None
    assert [type(error) for error in rank.errors] == [AttributeError]
