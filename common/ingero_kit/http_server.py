"""A small HTTP/1.1 server for hot routes: httptools parses, one handler answers, everything is bounded.

It exists because the OTLP receiver must answer more pushes a second on one core than an ASGI server can (`make bench`
prints both); everything that is not hot belongs on FastAPI.
"""

import asyncio
import re
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

import httptools
import zstandard

from ingero_kit.listener import Counters, Limits, Listener
from ingero_kit.logs import get

__all__ = ["Counters", "DecodeError", "HttpServer", "Limits", "Request", "Response", "decompress"]

log = get(__name__)

_REASONS: Final = {
    200: b"OK", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found",
    405: b"Method Not Allowed", 408: b"Request Timeout", 413: b"Content Too Large", 415: b"Unsupported Media Type",
    429: b"Too Many Requests", 431: b"Request Header Fields Too Large", 500: b"Internal Server Error",
    503: b"Service Unavailable",
}  # fmt: skip
_MAX_PIPELINED: Final = 64
_DIGITS: Final = 18
"""Most digits of a length; 2^63 has one more."""
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ?([0-9]{1,%d})\r\n" % _DIGITS, re.IGNORECASE)
_UNUSUAL: Final = frozenset((b"expect", b"transfer-encoding"))
"""Headers after which a body is not simply what follows the head."""


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
    """An answer. `extra` is raw header lines, each ended by CRLF; `ready` the whole answer, once encoded."""

    status: int = 200
    body: bytes = b""
    content_type: bytes = b"text/plain; charset=utf-8"
    extra: bytes = b""
    ready: bytes = b""

    def encode(self, keep_alive: bool) -> bytes:
        """Render the whole answer; that of a kept connection is remembered for those who answer the same again."""
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
Guard = Callable[[Request], Response | None]
"""Looks at a request before its body is read; an answer ends the connection."""


class DecodeError(Exception):
    """A body that cannot be decompressed; `status` is the HTTP status to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def decompress(encoding: bytes, body: bytes, limit: int) -> bytes:
    """Undo a Content-Encoding, never producing more than `limit` bytes.

    Raises `DecodeError` for an unknown encoding (415), damaged data (400) or too much of it (413).
    """
    if encoding in (b"", b"identity"):
        return body
    try:
        if encoding in (b"gzip", b"x-gzip", b"deflate"):
            inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
            data = inflater.decompress(body, limit + 1)
            complete = inflater.eof
        elif encoding == b"zstd":
            reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body, read_across_frames=True)
            data = reader.read(limit + 1)
            complete = True
        else:
            raise DecodeError(
                415, f"content-encoding {encoding.decode('latin-1')!r} is not supported: use gzip or zstd"
            )
    except (zlib.error, zstandard.ZstdError) as error:
        raise DecodeError(400, f"the body is not valid {encoding.decode('latin-1')}: {error}") from None
    if len(data) > limit:
        raise DecodeError(413, f"the body is larger than {limit} bytes when decompressed")
    if not complete:
        raise DecodeError(400, f"the body is truncated {encoding.decode('latin-1')}")
    return data


class _Head(NamedTuple):
    """What stands before and behind the length in the head of a request, and what such a head says."""

    before: bytes
    behind: bytes
    request: Request

    @classmethod
    def of(cls, data: bytes, request: Request) -> "_Head | None":
        """The head of the one request that `data` is; `None` if its body is not simply what follows the head."""
        end = data.find(b"\r\n\r\n") + 4
        length = _LENGTH.search(data, 0, end)
        if not request.keep_alive or not length or int(length[1]) != len(data) - end:
            return None
        if not _UNUSUAL.isdisjoint(request.headers):
            return None
        return cls(data[: length.start(1)], data[length.end(1) : end], replace(request, body=b""))

    def read(self, data: bytes, limit: int) -> Request | None:
        """The request that `data` is, if it is one, whole, with this head and a body of `limit` bytes at most."""
        before, behind, request = self
        start = len(before)
        if not data.startswith(before):
            return None
        end = data.find(b"\r", start, start + _DIGITS + 1)
        size = end + len(behind)
        length = data[start:end]
        if not data.startswith(behind, end) or not length.isdigit() or not int(length) == len(data) - size <= limit:
            return None
        headers = request.headers
        if headers[b"content-length"] != length:
            headers = {**headers, b"content-length": length}
        return Request(request.method, request.path, request.query, headers, data[size:])


class _Connection(asyncio.Protocol):
    """One client. It asks the same again and again: a request whose head is the last one's is not parsed again."""

    __slots__ = (
        "_body", "_head", "_headers", "_known", "_last", "_parser", "_reading", "_refused", "_request",
        "_server", "_since", "_task", "_transport", "_url", "_waiting",
    )  # fmt: skip

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._since = time.monotonic()
        self._waiting: deque[Request] = deque()
        self._task: asyncio.Task[None] | None = None
        self._refused = False
        self._known: _Head | None = None
        self._last: Request | None = None
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head = 0
        self._body: bytes | bytearray = b""
        self._request: Request | None = None
        self._reading = False

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.enter(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.leave(self)
        if self._task:
            self._task.cancel()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._known and not self._reading:
            request = self._known.read(data, self._server.limits.body_bytes)
            if request:
                self._again(request)
                return
        begins = not self._reading
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(Response(400, b"protocol upgrades are not supported"))
        except httptools.HttpParserError as error:
            if not self._refused:
                self._server.counters.malformed += 1
                self._refuse(Response(400, f"not HTTP/1.1: {error}".encode()))
        last, self._last = self._last, None
        if last and begins and not self._reading:
            self._known = _Head.of(data, last)

    def _again(self, request: Request) -> None:
        """A request whose head was read before."""
        self._since = time.monotonic()
        if self._admit(request):
            self._complete(request)

    def _admit(self, request: Request) -> bool:
        """Ask the guard; who does not pass is answered, and the connection ends."""
        answer = self._server.guard(request) if self._server.guard else None
        if answer:
            self._refuse(answer)
        return answer is None

    def eof_received(self) -> bool:
        return False

    # The parser's side.

    def on_message_begin(self) -> None:
        self._reading = True
        self._since = time.monotonic()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value
        self._count_head(len(name) + len(value))

    def _count_head(self, size: int) -> None:
        self._head += size
        if self._head > self._server.limits.header_bytes:
            self._server.counters.too_large += 1
            self._refuse(Response(431, b"the request's headers are too large"))

    def on_headers_complete(self) -> None:
        if self._refused:
            return
        headers = self._headers
        length = headers.get(b"content-length")
        if length and len(length) < 20 and length.isdigit() and int(length) > self._server.limits.body_bytes:
            self._server.counters.too_large += 1
            self._refuse(Response(413, b"the body is larger than %d bytes" % self._server.limits.body_bytes))
            return
        path, _, query = self._url.partition(b"?")
        parser = self._parser
        request = Request(parser.get_method(), path, query, headers, b"", parser.should_keep_alive())
        self._request = request
        if not self._admit(request):
            return
        if b"expect" in headers and headers[b"expect"].lower() == b"100-continue" and self._transport:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        if not self._body:
            self._body = body
        else:
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            self._body += body
        if len(self._body) > self._server.limits.body_bytes:
            self._server.counters.too_large += 1
            self._refuse(Response(413, b"the body is larger than %d bytes" % self._server.limits.body_bytes))

    def on_message_complete(self) -> None:
        request = self._request
        if self._refused or request is None:
            return
        request.body = bytes(self._body)
        self._last = request
        self._reset()
        self._complete(request)

    def _complete(self, request: Request) -> None:
        self._server.counters.requests += 1
        encoding = request.headers.get(b"content-encoding")
        if encoding:
            try:
                request.body = decompress(encoding.lower(), request.body, self._server.limits.decoded_bytes)
            except DecodeError as error:
                self._server.counters.malformed += 1
                self._refuse(Response(error.status, str(error).encode()))
                return
        if self._task:
            self._waiting.append(request)
            if len(self._waiting) > _MAX_PIPELINED:
                self._refuse(Response(429, b"too many requests in one pipeline", extra=b"retry-after: 1\r\n"))
            return
        answer = self._answer(request)
        if isinstance(answer, Response):
            self._write(answer, request.keep_alive)
        else:
            self._task = asyncio.ensure_future(self._finish(answer, request))

    def _answer(self, request: Request) -> Response | Awaitable[Response]:
        try:
            return self._server.handler(request)
        except Exception:
            return self._failed()

    def _failed(self) -> Response:
        self._server.counters.handler_errors += 1
        log.exception("handler_failed")
        return Response(500, b"internal error")

    async def _finish(self, answer: Awaitable[Response], request: Request) -> None:
        while True:
            try:
                response = await answer
            except Exception:
                response = self._failed()
            self._write(response, request.keep_alive)
            while self._waiting:
                request = self._waiting.popleft()
                following = self._answer(request)
                if not isinstance(following, Response):
                    answer = following
                    break
                self._write(following, request.keep_alive)
            else:
                self._task = None
                return

    def _write(self, response: Response, keep_alive: bool) -> None:
        transport = self._transport
        if transport is None or self._refused:
            return
        keep_alive = keep_alive and not self._server.closing
        transport.write(response.encode(keep_alive))
        if not keep_alive:
            self._refused = True
            transport.close()

    def _refuse(self, response: Response) -> None:
        self._write(response, False)
        self._refused = True

    @property
    def busy(self) -> bool:
        """Whether an answer is under way."""
        return self._task is not None

    def drain(self) -> None:
        """The server's own flag ends the connection behind its next answer."""

    def close(self) -> None:
        """Close behind what is written."""
        if self._transport:
            self._transport.close()

    def expire(self, now: float, limits: Limits) -> bool:
        """Close the connection when a request takes too long or none comes; says whether a request was cut short."""
        if self._task or self._transport is None:
            return False
        if now - self._since <= (limits.read_seconds if self._reading else limits.idle_seconds):
            return False
        cut_short = self._reading and not self._refused
        if cut_short:
            self._refuse(Response(408, b"the request took too long"))
        else:
            self._transport.abort()
        return cut_short


class HttpServer(Listener[_Connection]):
    """Listens, bounds and hands every request to one handler.

    A handler that returns a `Response` is answered at once; one that returns an awaitable holds its connection (not
    the server) until it is done. Answers of one connection keep the order of its requests.
    """

    def __init__(self, handler: Handler, *, limits: Limits | None = None, guard: Guard | None = None) -> None:
        super().__init__(limits)
        self.handler = handler
        self.guard = guard

    def connection(self) -> asyncio.BaseProtocol:
        """A new connection's protocol."""
        return _Connection(self)
