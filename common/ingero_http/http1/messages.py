"""Requests and responses of HTTP/1.1, and the functions that answer them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

_REASONS: Final = {
    200: b"OK", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found",
    405: b"Method Not Allowed", 408: b"Request Timeout", 413: b"Content Too Large", 415: b"Unsupported Media Type",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large", 500: b"Internal Server Error",
    503: b"Service Unavailable",
}  # fmt: skip


@dataclass(slots=True)
class Request:
    """One request; header names are lower case, the body is decompressed."""

    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    body: bytes
    keep_alive: bool = True


@dataclass(slots=True)
class Response:
    """A response. `extra`: raw header lines, each ended by CRLF. `ready`: the encoded response, kept for reuse."""

    status: int = 200
    body: bytes = b""
    content_type: bytes = b"text/plain; charset=utf-8"
    extra: bytes = b""
    ready: bytes = b""

    def encode(self, keep_alive: bool) -> bytes:
        """The encoded response; the one for a connection that stays open is kept, because responses are reused."""
        if not keep_alive:
            return self._encode(b"connection: close\r\n")
        if not self.ready:
            self.ready = self._encode(b"")
        return self.ready

    def _encode(self, last: bytes) -> bytes:
        return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n%b" % (
            self.status,
            _REASONS.get(self.status, b"Unknown"),
            self.content_type,
            len(self.body),
            self.extra,
            last,
            self.body,
        )


Handler = Callable[[Request], Response | Awaitable[Response]]
HeadCheck = Callable[[Request], Response | None]
"""Checks a request before its body is read; a response ends the connection."""
