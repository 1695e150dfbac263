"""One HTTP/1.1 connection: bytes in, requests to the handler, responses out in the order of the requests."""

import asyncio
import re
import time
from collections import deque
from collections.abc import Awaitable
from typing import Any, Final, cast

import httptools
import structlog

from ingero_http.content import DecodeError, decompress
from ingero_http.http1.head_cache import CachedHead
from ingero_http.http1.messages import Handler, HeadCheck, Request, Response
from ingero_http.limits import Limits
from ingero_http.listener import LINGER_SECONDS, TURN_BYTES, Listener

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_HOST: Final = re.compile(rb"(?:\[[0-9A-Fa-f:.]+(?:%25[\w.~-]+)?\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.ASCII)
_ORIGIN: Final = re.compile(rb"^https?://[^/?#]*", re.IGNORECASE)
"""What precedes the path where a request's target is absolute (RFC 9112, 3.2.2)."""
_CHUNK_HEAD: Final = 16
"""Octets that a chunk may take besides its data."""
_CHUNK_EXTRA: Final = 64 << 10
"""Octets that all chunks of a body may take beyond that, for extensions and trailers."""


class Connection(asyncio.Protocol):
    """One client. It asks the same again and again: a request whose head is the last one's is not parsed again.

    While an answer is under way or not read, nothing more is read; what came already waits in `_rest`.
    """

    __slots__ = (
        "_asked", "_body", "_check_head", "_chunked", "_chunks", "_closed", "_fed", "_handler", "_head", "_headers",
        "_held", "_hosts", "_known", "_last", "_missing", "_parser", "_paused", "_reading", "_refused", "_request",
        "_rest", "_server", "_since", "_stalled", "_task", "_transport", "_turn", "_url", "_waiting",
    )  # fmt: skip

    def __init__(self, server: Listener["Connection"], handler: Handler, check_head: HeadCheck | None = None) -> None:
        self._server, self._handler, self._check_head = server, handler, check_head
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._since = time.monotonic()
        self._waiting: deque[Request | Response] = deque()
        """Requests that came before the answer to an earlier one, and the refusal that ends them."""
        self._task: asyncio.Task[None] | None = None
        self._rest: bytes | memoryview = b""
        """What came and waits for its turn."""
        self._held = 0
        """Octets that count as unfinished."""
        self._refused = self._closed = False
        """Whether what follows is not looked at, and whether nothing more will be written."""
        self._asked = self._paused = self._stalled = self._turn = False
        self._known: CachedHead | None = None
        self._last: Request | None = None
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head = self._hosts = self._missing = self._chunks = self._fed = 0
        self._chunked = False
        self._body: bytes | bytearray = b""
        self._request: Request | None = None
        self._reading = False

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.register(self):
            self._closed = self._refused = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.unregister(self)
        if self._task:
            self._task.cancel()
        # The parser knows us and we know the parser: nothing of this is to wait for the garbage collector.
        self._transport = self._parser = self._known = self._last = None
        self._closed = self._refused = True
        self._waiting.clear()
        self._rest = b""
        self._reset()
        self._hold()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._task or self._turn or self._stalled:
            self._wait(bytes(self._rest) + data)
            return
        if self._known and not self._reading:
            request = self._known.read(data, self._server.limits.body_bytes)
            if request:
                self._again(request)
                return
        self._work(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._stalled = True
        if self._transport:
            self._server.writing_paused(self)

    def resume_writing(self) -> None:
        self._stalled = False
        self._server.writing_resumed(self)
        # Not at once: this may be called while an answer is written.
        asyncio.get_running_loop().call_soon(self._go_on)

    # Turns.

    def _work(self, data: bytes | memoryview) -> None:
        """Work through a share of what came, and wait with the rest until others had their turn."""
        begins = not self._reading
        share = len(data)
        if share <= TURN_BYTES:
            self._feed(data)
        else:
            view = memoryview(data)
            self._feed(view[:TURN_BYTES])
            share = TURN_BYTES
            if self._missing and not self._refused:
                # To copy a body is no work to speak of.
                share = min(TURN_BYTES + self._missing, len(view))
                self._feed(view[TURN_BYTES:share])
        if share < len(data) and not self._refused:
            self._server.counters.turns_ended += 1
            self._wait(memoryview(data)[share:])
        last, self._last = self._last, None
        if last and begins and not self._reading and share == len(data):
            self._known = CachedHead.of(bytes(data), last)
        if self._reading or self._held or self._rest:
            self._hold()

    def _wait(self, data: bytes | memoryview) -> None:
        """Keep what cannot be worked through now, and read no more before it is."""
        self._rest = data
        if not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()
        if not (self._task or self._turn or self._stalled):
            self._turn = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn = False
        self._go_on()

    def _go_on(self) -> None:
        """Work through what waits, unless there still is a reason to wait."""
        if self._closed or self._task or self._turn or self._stalled:
            return
        following = self._answer_waiting()
        if following:
            self._task = asyncio.ensure_future(self._finish(*following))
        if self._waiting or self._task or self._closed:
            return
        rest, self._rest = self._rest, b""
        if rest:
            self._work(rest)
        if self._paused and not (self._rest or self._task) and self._transport and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _hold(self) -> None:
        """Count what we hold of requests that are not whole; beyond what is allowed the request is refused."""
        server = self._server
        for _ in range(2):
            held = self._head + len(self._body) + len(self._rest)
            server.unfinished += held - self._held
            self._held = held
            if not held or server.unfinished <= server.limits.unfinished_bytes:
                return
            server.counters.overloaded += 1
            self._refuse(Response(503, b"too much is being received at once", extra=b"retry-after: 1\r\n"))

    def _feed(self, data: bytes | memoryview) -> None:
        """Give the parser some octets."""
        chunked = self._chunked
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._malformed(b"not HTTP/1.1: %b" % str(error).encode())
        if chunked and self._chunked:
            self._fed += len(data)
            if self._fed > len(self._body) + _CHUNK_HEAD * self._chunks + _CHUNK_EXTRA:
                self._malformed(b"too much besides the data of chunks")

    def _stay(self, rest: bytes | memoryview) -> None:
        """Ignore the wish to speak another protocol (RFC 9110, 7.8): the parser stops there, another one goes on."""
        if self._refused:
            return
        parser, since = self._parser, self._since
        if parser.get_method() == b"CONNECT":
            self._refuse(Response(405, b"this is no proxy"))
            return
        headers = self._headers
        asked = {option.strip().lower() for option in headers.pop(b"connection", b"").split(b",")}
        del headers[b"upgrade"]
        headers[b"connection"] = b"close" if b"close" in asked else b"keep-alive"
        lines = b"".join([b"%b: %b\r\n" % field for field in headers.items()])
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (
            parser.get_method(),
            self._url,
            parser.get_http_version().encode(),
            lines,
        )
        self._reset()
        self._parser = httptools.HttpRequestParser(self)
        self._feed(head)
        self._since = since
        if rest and not self._refused:
            self._feed(rest)

    def _again(self, request: Request) -> None:
        """A request whose head was read before."""
        self._since = time.monotonic()
        if self._admit(request):
            self._complete(request)

    def _admit(self, request: Request) -> bool:
        """Check the head; a request that fails the check is answered, and the connection ends."""
        answer = self._check_head(request) if self._check_head else None
        if answer:
            self._refuse(answer, request.method)
        return answer is None

    # The parser's side.

    def on_message_begin(self) -> None:
        self._reading = True
        self._since = time.monotonic()

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        if self._request or self._refused:
            return  # a trailer: it may say nothing that the head did not (RFC 9110, 6.5.1)
        name = name.lower()
        self._headers[name] = value
        if name == b"host":
            self._hosts += 1

    def _count_head(self, size: int) -> None:
        self._head += size
        if self._head > self._server.limits.header_bytes and not self._refused:
            self._server.counters.too_large += 1
            self._refuse(Response(431, b"the request's headers are too large"))

    def on_headers_complete(self) -> None:
        parser, headers, limits = self._parser, self._headers, self._server.limits
        if self._refused or parser.should_upgrade():
            return
        version = parser.get_http_version()
        wrong = _wrong_head(version, headers, self._hosts)
        if wrong:
            self._malformed(wrong)
            return
        length = headers.get(b"content-length", b"0")
        if len(length) < 20 and length.isdigit():
            self._missing = int(length)
        if self._missing > limits.body_bytes:
            self._too_large()
            return
        self._chunked = b"transfer-encoding" in headers
        path, _, query = _ORIGIN.sub(b"", self._url).partition(b"?")
        request = Request(parser.get_method(), path or b"/", query, headers, b"", parser.should_keep_alive())
        self._request = request
        if not self._admit(request):
            return
        waits = headers.get(b"expect", b"").lower() == b"100-continue" and version == "1.1"
        if waits and self._transport and not self._task and not self._waiting:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_body(self, body: bytes) -> None:
        if self._refused:
            return
        self._missing -= len(body)
        if not self._body:
            self._body = body
        else:
            if not isinstance(self._body, bytearray):
                self._body = bytearray(self._body)
            self._body += body
        if len(self._body) > self._server.limits.body_bytes:
            self._too_large()

    def on_message_complete(self) -> None:
        request = self._request
        if self._refused or request is None:
            return
        request.body = bytes(self._body)
        self._last = request
        self._reset()
        self._complete(request)

    # Answers.

    def _complete(self, request: Request) -> None:
        self._asked = True
        self._server.counters.requests += 1
        if self._task or self._stalled:
            self._waiting.append(request)
            return
        answer = self._answer(request)
        if isinstance(answer, Response):
            self._write(answer, request)
        else:
            self._task = asyncio.ensure_future(self._finish(answer, request))

    def _answer(self, request: Request) -> Response | Awaitable[Response]:
        encoding = request.headers.get(b"content-encoding")
        try:
            if encoding:
                request.body = decompress(encoding.lower(), request.body, self._server.limits.decoded_bytes)
            return self._handler(request)
        except DecodeError as error:
            self._server.counters.malformed += 1
            request.keep_alive = False
            return Response(error.status, str(error).encode())
        except Exception:
            return self._failed()

    def _failed(self) -> Response:
        self._server.counters.handler_errors += 1
        log.exception("handler_failed")
        return Response(500, b"internal error")

    async def _finish(self, answer: Awaitable[Response], request: Request) -> None:
        """Answer one request after the other until none waits."""
        while True:
            try:
                response = await answer
            except Exception:
                response = self._failed()
            self._write(response, request)
            following = self._answer_waiting()
            if following is None:
                break
            answer, request = following
        self._task = None
        self._go_on()

    def _answer_waiting(self) -> tuple[Awaitable[Response], Request] | None:
        """Answer what waits, up to the next answer that has to be waited for."""
        while self._waiting and not self._closed and not self._stalled:
            request = self._waiting.popleft()
            if isinstance(request, Response):
                self._end(request)
                return None
            answer = self._answer(request)
            if not isinstance(answer, Response):
                return answer, request
            self._write(answer, request)
        return None

    def _write(self, response: Response, request: Request) -> None:
        keep_alive = request.keep_alive and not self._server.closing
        if not keep_alive:
            self._end(response, request.method)
        elif self._transport and not self._closed:
            data = response.encode(True)
            if request.method == b"HEAD" and response.body:
                data = data[: -len(response.body)]
            self._transport.write(data)

    def _end(self, response: Response, method: bytes = b"") -> None:
        """Answer for the last time."""
        if self._transport is None or self._closed:
            return
        self._refused = self._closed = True
        self._since = time.monotonic()
        data = response.encode(False)
        self._transport.write(data[: -len(response.body)] if method == b"HEAD" and response.body else data)
        if self._reading and self._transport.can_write_eof():
            # What is still to come is read and dropped for a moment: a reset would take the answer with it.
            self._transport.write_eof()
        else:
            self._transport.close()

    def _refuse(self, response: Response, method: bytes = b"") -> None:
        """Answer, behind what is under way, and look at nothing that follows."""
        if self._refused:
            return
        self._refused = True
        self._rest = self._body = b""
        self._head = 0
        if self._task or self._waiting:
            self._waiting.append(response)
        else:
            self._end(response, method or self._parser.get_method())

    def _malformed(self, words: bytes) -> None:
        if not self._refused:
            self._server.counters.malformed += 1
            self._refuse(Response(400, words))

    def _too_large(self) -> None:
        self._server.counters.too_large += 1
        self._refuse(Response(413, b"the body is larger than %d bytes" % self._server.limits.body_bytes))

    # The server's side.

    @property
    def busy(self) -> bool:
        """Whether an answer is under way, or not read."""
        return self._task is not None or self._turn or self._stalled

    @property
    def idle_since(self) -> float | None:
        """When the request that is being read, or the latest one, began; `None` while its answer is under way."""
        return None if self._task or self._turn else self._since

    @property
    def unsent(self) -> int:
        """Octets of answers that the client has not read."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def drain(self) -> None:
        """The server's own flag ends the connection behind its next answer."""

    def close(self) -> None:
        """Close behind what is written."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport:
            self._transport.abort()

    def expire(self, now: float, limits: Limits) -> bool:
        """Close the connection when a request takes too long or none comes; says whether a request was cut short."""
        if self._transport is None or self.busy:
            return False
        if self._closed:
            patience = min(LINGER_SECONDS, limits.read_seconds)
        else:
            patience = limits.read_seconds if self._reading or not self._asked else limits.idle_seconds
        if now - self._since <= patience:
            return False
        if self._reading and not self._refused:
            self._refuse(Response(408, b"the request took too long"))
            self._hold()
            return True
        self._transport.abort()
        return False


def _wrong_head(version: str, headers: dict[bytes, bytes], hosts: int) -> bytes | None:
    """What is wrong with the head of a request (RFC 9112, 2.3 and 3.2), if anything is."""
    if version not in ("1.0", "1.1"):
        return b"not HTTP/1.1"
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return b"a request needs one Host"
    if hosts and not _HOST.fullmatch(headers[b"host"]):
        return b"Host is none"
    return None
