"""What can be wrong with a question; both front ends render it in one shape."""

from typing import Any


class Refused(Exception):
    """A question that is not answered: `code` for machines, the text and `hint` for people, `status` for HTTP."""

    def __init__(self, code: str, message: str, hint: str = "", status: int = 400, retry_seconds: float = 0) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.status = status
        self.retry_seconds = retry_seconds

    def fields(self, request_id: str) -> dict[str, Any]:
        """The one shape."""
        return {"code": self.code, "message": str(self), "hint": self.hint, "request_id": request_id}
