"""Reads the requests of one HTTP/1.1 connection with httptools, within limits."""

import re
from typing import TYPE_CHECKING, Any, Final

import httptools

from ingero_http.http1.messages import Request, Response
from ingero_http.limits import Counters, Limits

if TYPE_CHECKING:
    from ingero_http.http1.connection import Http1Connection

_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+(?:%25[\w.~-]+)?\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.ASCII)
_ORIGIN: Final = re.compile(rb"^https?://[^/?#]*", re.IGNORECASE)
"""What precedes the path in an absolute request target (RFC 9112, 3.2.2)."""
_CHUNK_OVERHEAD: Final = 16
"""Bytes that a chunk may take in addition to its data."""
_CHUNKED_BODY_OVERHEAD: Final = 64 << 10
"""Bytes that all chunks of a body may take beyond that, for extensions and trailers."""


class RequestParser:
    """Parses the bytes of a connection and reports requests.

    `stopped`: further input is ignored. `in_request`: a request has started and is not complete. `body_missing`:
    bytes of the body that are still to come, if the head has a length. `completed`: the latest complete request, for
    the connection to take.
    """

    __slots__ = (
        "_body", "_chunk_count", "_chunked", "_chunked_bytes", "_connection", "_counters", "_head_bytes", "_headers",
        "_host_count", "_limits", "_parser", "_replaying", "_request", "_url", "body_missing", "completed",
        "in_request", "stopped",
    )  # fmt: skip

    def __init__(self, connection: "Http1Connection", limits: Limits, counters: Counters) -> None:
        self._connection, self._limits, self._counters = connection, limits, counters
        self._parser: Any = httptools.HttpRequestParser(self)
        self.stopped = self._replaying = False
        self.completed: Request | None = None
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = self._host_count = self._chunk_count = self._chunked_bytes = self.body_missing = 0
        self._chunked = self.in_request = False
        self._body: bytes | bytearray = b""
        self._request: Request | None = None

    @property
    def buffered(self) -> int:
        """Buffered bytes of an incomplete request."""
        return self._head_bytes + len(self._body)

    @property
    def method(self) -> bytes:
        """Method of the request that is being read."""
        method: bytes = self._parser.get_method()
        return method

    def stop(self) -> None:
        """Ignore further input and drop what is buffered."""
        self.stopped = True
        self._body = b""
        self._head_bytes = 0

    def close(self) -> None:
        """Stop, and break reference cycles, so that closed connections are freed without the garbage collector."""
        self.stop()
        self._reset()
        self._parser = self.completed = None
        del self._connection

    def feed(self, data: bytes | memoryview) -> None:
        """Parse some bytes."""
        chunked = self._chunked
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._malformed(b"not HTTP/1.1: %b" % str(error).encode())
        if chunked and self._chunked:
            self._chunked_bytes += len(data)
            allowed = len(self._body) + _CHUNK_OVERHEAD * self._chunk_count + _CHUNKED_BODY_OVERHEAD
            if self._chunked_bytes > allowed:
                self._malformed(b"too much besides the data of chunks")

    def _ignore_upgrade(self, rest: bytes | memoryview) -> None:
        """Ignore a request to change the protocol (RFC 9110, 7.8).

        httptools stops there. A new parser gets the head again without the upgrade, and then the rest.
        """
        if self.stopped:
            return
        parser = self._parser
        if parser.get_method() == b"CONNECT":
            self._connection.refuse(Response(405, b"this is no proxy"))
            return
        headers = self._headers
        options = {option.strip().lower() for option in headers.pop(b"connection", b"").split(b",")}
        del headers[b"upgrade"]
        headers[b"connection"] = b"close" if b"close" in options else b"keep-alive"
        lines = b"".join([b"%b: %b\r\n" % field for field in headers.items()])
        version = parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (parser.get_method(), self._url, version, lines)
        self._reset()
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        self.feed(head)
        self._replaying = False
        if rest and not self.stopped:
            self.feed(rest)

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        self.in_request = True
        if not self._replaying:
            self._connection.request_started()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        if self._request or self.stopped:
            return  # trailers must not change what the head says (RFC 9110, 6.5.1)
        name = name.lower()
        self._headers[name] = value
        if name == b"host":
            self._host_count += 1

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.header_bytes and not self.stopped:
            self._counters.too_large += 1
            self._connection.refuse(Response(431, b"the request's headers are too large"))

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        if self.stopped or parser.should_upgrade():
            return
        version = parser.get_http_version()
        error = _head_error(version, headers, self._host_count)
        if error:
            self._malformed(error)
            return
        length = headers.get(b"content-length", b"0")
        if len(length) < 20 and length.isdigit():
            self.body_missing = int(length)
        if self.body_missing > self._limits.body_bytes:
            self._too_large()
            return
        self._chunked = b"transfer-encoding" in headers
        path, _, query = _ORIGIN.sub(b"", self._url).partition(b"?")
        request = Request(parser.get_method(), path or b"/", query, headers, b"", parser.should_keep_alive())
        self._request = request
        if not self._connection.head_received(request):
            return
        if headers.get(b"expect", b"").lower() == b"100-continue" and version == "1.1":
            self._connection.continue_expected()

    def on_chunk_header(self) -> None:
        self._chunk_count += 1

    def on_body(self, body: bytes) -> None:
        if self.stopped:
            return
        self.body_missing -= len(body)
        if not self._body:
            self._body = body
        else:
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            self._body += body
        if len(self._body) > self._limits.body_bytes:
            self._too_large()

    def on_message_complete(self) -> None:
        request = self._request
        if self.stopped or request is None:
            return
        request.body = bytes(self._body)
        self.completed = request
        self._reset()
        self._connection.request_received(request)

    def _malformed(self, reason: bytes) -> None:
        if not self.stopped:
            self._counters.malformed += 1
            self._connection.refuse(Response(400, reason))

    def _too_large(self) -> None:
        self._counters.too_large += 1
        self._connection.refuse(Response(413, b"the body is larger than %d bytes" % self._limits.body_bytes))


def _head_error(version: str, headers: dict[bytes, bytes], host_count: int) -> bytes | None:
    """The error in a head (RFC 9112, 2.3 and 3.2); `None` if it is valid."""
    if version not in ("1.0", "1.1"):
        return b"not HTTP/1.1"
    if host_count > 1 or (host_count == 0 and version == "1.1"):
        return b"a request needs one Host"
    if host_count and not _HOST.fullmatch(headers[b"host"]):
        return b"the Host header is not a host"
    return None
