"""The errors that end a request with a status and one sentence for the client."""

from __future__ import annotations

from pyrometer.questions.tokens import Principal


class HttpError(Exception):
    """A request that is not answered: the HTTP status, and a text that names what to do."""

    def __init__(self, status: int, text: str, *, retry_s: int = 1, principal: Principal | None = None) -> None:
        super().__init__(text)
        self.status, self.text, self.retry_s = status, text, retry_s
        self.principal = principal  # None: not authenticated

    @property
    def headers(self) -> dict[str, str] | None:
        """The headers that the status needs."""
        return {
            401: {"WWW-Authenticate": "Bearer"},
            408: {"Connection": "close"},
            429: {"Retry-After": str(self.retry_s)},
        }.get(self.status)


class WrongTokenError(HttpError):
    """A token that does not exist."""
