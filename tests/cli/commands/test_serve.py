"""`pyrometer serve`: its options. tests/serve runs the server."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("listen", ["8411", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:70000", ":8411"])
def test_serve_refuses_an_invalid_address(pyrometer, tmp_path, listen):
    error = pyrometer("serve", "--data", tmp_path / "data", "--listen", listen).failed(2)
    assert error == f"--listen {listen!r} is not HOST:PORT, like 127.0.0.1:8411."
    assert not (tmp_path / "data").exists()


def test_serve_needs_a_data_folder(pyrometer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pyrometer("serve").failed(2) == "No data folder: pass --data DIR, or set PYROMETER_DATA."
