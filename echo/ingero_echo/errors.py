"""Errors for users: those of the API, which both front ends return in one format, and the base of all of them."""

from typing import Any


class UserError(Exception):
    """An error whose text tells a user what to do; `hint` may say more."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class EchoApiError(UserError):
    """A request that is refused: `code` for machines, the text and `hint` for people, `status` for HTTP."""

    def __init__(self, code: str, message: str, hint: str = "", status: int = 400, retry_seconds: float = 0) -> None:
        super().__init__(message, hint)
        self.code = code
        self.status = status
        self.retry_seconds = retry_seconds

    def fields(self, request_id: str) -> dict[str, Any]:
        """The body of the response."""
        return {"code": self.code, "message": str(self), "hint": self.hint, "request_id": request_id}

    def headers(self, request_id: str) -> dict[str, str]:
        """The HTTP headers of the error."""
        headers = {"x-request-id": request_id}
        if self.retry_seconds:
            headers["retry-after"] = str(max(1, round(self.retry_seconds)))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers


def internal() -> EchoApiError:
    """The error for a fault of the server."""
    return EchoApiError("internal", "the request could not be served", "the log has it by its request_id", 500)
