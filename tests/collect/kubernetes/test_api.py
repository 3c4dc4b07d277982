"""The client for the API server."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyrometer.collect.kubernetes.api import ApiError, DeniedError, GoneError, MissingError, _refusal, connect, root
from pyrometer.collect.source import SourceError


def test_root_of_core_and_named_groups():
    assert root("", "v1") == "/api/v1"
    assert root("apps", "v1") == "/apis/apps/v1"


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, DeniedError), (403, DeniedError), (404, MissingError), (410, GoneError), (500, ApiError)],
)
def test_refusal_has_class_of_status_and_message_of_body(status, error):
    refusal = _refusal(status, b'{"message": "no  access"}', "/api/v1/pods")
    assert (type(refusal), str(refusal)) == (error, "no access")
    assert str(_refusal(status, b"", "/api/v1/pods")) == f"/api/v1/pods: HTTP {status}"


def test_connect_error_names_missing_kubeconfig(tmp_path: Path):
    with pytest.raises(
        SourceError, match=r"No cluster found: there is no kubeconfig at .*/none, and .* Set KUBECONFIG"
    ):
        connect(environment={"KUBECONFIG": str(tmp_path / "none")})


def test_connect_error_names_invalid_kubeconfig(tmp_path: Path):
    (tmp_path / "config").write_text("[")
    with pytest.raises(SourceError, match="cannot be used"):
        connect(environment={"KUBECONFIG": str(tmp_path / "config")})
