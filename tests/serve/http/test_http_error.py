"""The headers that a status needs."""

from __future__ import annotations

import pytest

from pyrometer.serve.http.http_error import HttpError, WrongTokenError


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (401, {"WWW-Authenticate": "Bearer"}),
        (408, {"Connection": "close"}),
        (429, {"Retry-After": "7"}),
        (404, None),
        (503, None),
    ],
)
def test_headers_depend_on_the_status(status: int, headers: dict[str, str] | None) -> None:
    assert HttpError(status, "Text.", retry_s=7).headers == headers


def test_error_without_a_principal_is_not_authenticated() -> None:
    error = WrongTokenError(401, "This token does not exist.")
    assert (error.status, error.text, error.principal) == (401, "This token does not exist.", None)
    assert str(error) == error.text
