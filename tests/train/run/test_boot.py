"""How the SDK gets into a process, without PyTorch."""

from __future__ import annotations

import importlib
import sys

import pytest

from pyrometer.train.run import boot


@pytest.fixture
def no_target(monkeypatch):
    monkeypatch.setattr(boot, "_hooks", None)
    monkeypatch.setattr(boot, "_init_arguments", {})
    for variable in ("PYROMETER_ENDPOINT", "PYROMETER_SPOOL", "PYROMETER_DISABLED"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("no_target")
def test_start_without_a_target_only_keeps_the_arguments():
    boot.start(run="sft", experiment=None)
    assert boot.init_arguments() == {"run": "sft"}
    assert boot.hooks() is None
    assert boot.rank() is None
    boot.become_rank()
    assert boot.rank() is None


@pytest.mark.usefixtures("no_target")
@pytest.mark.parametrize(
    ("variables", "enabled"),
    [
        ({}, False),
        ({"PYROMETER_ENDPOINT": "http://a:1"}, True),
        ({"PYROMETER_SPOOL": "/spool"}, True),
        ({"PYROMETER_SPOOL": "/spool", "PYROMETER_DISABLED": "0"}, True),
        ({"PYROMETER_SPOOL": "/spool", "PYROMETER_DISABLED": "1"}, False),
    ],
)
def test_sdk_is_enabled_by_a_target(monkeypatch, variables, enabled):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert boot._is_enabled() is enabled


def test_import_finder_reports_watched_modules_after_their_import(tmp_path, monkeypatch):
    for name in ("watched_module", "other_module"):
        (tmp_path / f"{name}.py").write_text("value = 7")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    imported = []
    finder = boot._ImportFinder(
        frozenset({"watched_module"}), lambda name, module: imported.append((name, module.value))
    )
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    importlib.import_module("other_module")
    module = importlib.import_module("watched_module")
    assert imported == [("watched_module", 7)]
    assert not isinstance(module.__loader__, boot._NotifyingLoader)
    assert not isinstance(module.__spec__.loader, boot._NotifyingLoader)


def test_import_finder_leaves_missing_modules_missing(monkeypatch):
    finder = boot._ImportFinder(frozenset({"missing_module"}), lambda *_: None)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("missing_module")


def test_errors_are_printed_only_for_debugging(monkeypatch, capsys):
    monkeypatch.delenv("PYROMETER_DEBUG", raising=False)
    boot._log_error(OSError("no space"))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PYROMETER_DEBUG", "1")
    boot._log_error(OSError("no space"))
    assert capsys.readouterr().err == "pyrometer: OSError: no space\n"
