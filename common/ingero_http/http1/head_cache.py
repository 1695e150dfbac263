"""Caches the head of a connection's last request; an equal head is compared instead of parsed. Pure."""

import re
from dataclasses import replace
from typing import Final, NamedTuple

from ingero_http.http1.messages import Request

_DIGITS: Final = 18
"""Most digits of a length; 2^63 has one more."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?([0-9]{1,%d})\r\n" % _DIGITS, re.IGNORECASE)
_UNUSUAL: Final = frozenset((b"expect", b"transfer-encoding"))
"""Headers with which a body is not just the bytes that follow the head."""


class CachedHead(NamedTuple):
    """The bytes before and after the content-length in a request's head, and the request that this head means."""

    prefix: bytes
    suffix: bytes
    request: Request

    @classmethod
    def of(cls, data: bytes, request: Request) -> "CachedHead | None":
        """The head of the one request in `data`; `None` if its body is not just the bytes that follow the head."""
        end = data.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(data, 0, end)
        if not request.keep_alive or not length or int(length[1]) != len(data) - end:
            return None
        if not _UNUSUAL.isdisjoint(request.headers):
            return None
        return cls(data[: length.start(1)], data[length.end(1) : end], replace(request, body=b""))

    def read(self, data: bytes, limit: int) -> Request | None:
        """The request in `data`, if it is one complete request with this head and a body of at most `limit` bytes."""
        prefix, suffix, request = self
        start = len(prefix)
        if not data.startswith(prefix):
            return None
        end = data.find(b"\r", start, start + _DIGITS + 1)
        size = end + len(suffix)
        length = data[start:end]
        if not data.startswith(suffix, end) or not length.isdigit() or not int(length) == len(data) - size <= limit:
            return None
        headers = request.headers
        if headers[b"content-length"] != length:
            headers = {**headers, b"content-length": length}
        return Request(request.method, request.path, request.query, headers, data[size:])
