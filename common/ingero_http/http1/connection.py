"""One HTTP/1.1 connection: parses requests, calls the handler, writes responses in the order of the requests."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from typing import cast

from ingero_http.content import DecodeError, decompress
from ingero_http.http1.head_cache import CachedHead
from ingero_http.http1.messages import Handler, HeadCheck, Request, Response
from ingero_http.http1.parser import RequestParser
from ingero_http.limits import Limits
from ingero_http.listener import LINGER_SECONDS, TURN_BYTES, Listener
from ingero_http.structured_logs import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Http1Connection(asyncio.Protocol):
    """One client.

    Clients often repeat a request's head: a head equal to the last one is not parsed again. While a response is being
    computed, or the client does not read it, the connection reads no more; input already received is in `_pending`.
    """

    __slots__ = (
        "_cached_head", "_check_head", "_closing", "_counted", "_draining", "_handler", "_parser", "_pending",
        "_queue", "_reading_paused", "_served", "_server", "_since", "_task", "_transport", "_turn_scheduled",
        "_write_paused",
    )  # fmt: skip

    def __init__(
        self, server: Listener["Http1Connection"], handler: Handler, check_head: HeadCheck | None = None
    ) -> None:
        self._server, self._handler, self._check_head = server, handler, check_head
        self._parser = RequestParser(self, server.limits, server.counters)
        self._transport: asyncio.Transport | None = None
        self._since = time.monotonic()
        """When the connection was opened, its latest request started or its last response was written."""
        self._queue: deque[Request | Response] = deque()
        """Requests after one whose response is being computed, and the refusal that ends the connection."""
        self._task: asyncio.Task[None] | None = None
        self._pending: bytes | memoryview = b""
        self._counted = 0
        """Bytes of this connection in `Listener.unfinished`."""
        self._closing = False
        """Whether the last response has been written."""
        self._draining = False
        """Whether the next response is the last one."""
        self._served = self._reading_paused = self._write_paused = self._turn_scheduled = False
        self._cached_head: CachedHead | None = None

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.register(self):
            self._closing = True
            self._parser.stop()
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.unregister(self)
        if self._task:
            self._task.cancel()
        self._transport = self._cached_head = None
        self._closing = True
        self._queue.clear()
        self._pending = b""
        self._parser.close()
        self._count_unfinished()

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser.stopped:
            return
        if self._task or self._turn_scheduled or self._write_paused:
            self._defer(bytes(self._pending) + data)
            return
        if self._cached_head and not parser.in_request:
            request = self._cached_head.read(data, self._server.limits.body_bytes)
            if request:
                self._since = time.monotonic()
                if self.head_received(request):
                    self.request_received(request)
                return
        self._process(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._transport:
            self._server.writing_paused(self)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._server.writing_resumed(self)
        # Not at once: this may be called while a response is written.
        asyncio.get_running_loop().call_soon(self._resume)

    # Input, in turns with other connections.

    def _process(self, data: bytes | memoryview) -> None:
        """Parse up to `TURN_BYTES` of the input, and defer the rest until other connections had their turn."""
        parser = self._parser
        starts_request = not parser.in_request
        size = len(data)
        if size <= TURN_BYTES:
            parser.feed(data)
        else:
            view = memoryview(data)
            parser.feed(view[:TURN_BYTES])
            size = TURN_BYTES
            if parser.body_missing and not parser.stopped:
                # Copying the rest of a body takes next to no time.
                size = min(TURN_BYTES + parser.body_missing, len(view))
                parser.feed(view[TURN_BYTES:size])
        if size < len(data) and not parser.stopped:
            self._server.counters.turns_ended += 1
            self._defer(memoryview(data)[size:])
        request, parser.completed = parser.completed, None
        if request and starts_request and not parser.in_request and size == len(data):
            self._cached_head = CachedHead.of(bytes(data), request)
        if parser.in_request or self._counted or self._pending:
            self._count_unfinished()

    def _defer(self, data: bytes | memoryview) -> None:
        """Keep input that cannot be processed now, and read no more until it is."""
        self._pending = data
        if not self._reading_paused and self._transport:
            self._reading_paused = True
            self._transport.pause_reading()
        if not (self._task or self._turn_scheduled or self._write_paused):
            self._turn_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self._resume()

    def _resume(self) -> None:
        """Process what is queued and pending, unless there is still a reason to wait."""
        if self._closing or self._task or self._turn_scheduled or self._write_paused:
            return
        unanswered = self._answer_queued()
        if unanswered:
            self._task = asyncio.ensure_future(self._answer_later(*unanswered))
        if self._queue or self._task or self._closing:
            return
        pending, self._pending = self._pending, b""
        if pending:
            self._process(pending)
        waits = self._pending or self._task
        if self._reading_paused and not waits and self._transport and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def _count_unfinished(self) -> None:
        """Count buffered bytes of incomplete requests; a request beyond the limit is refused."""
        server = self._server
        for _ in range(2):
            held = self._parser.buffered + len(self._pending)
            server.unfinished += held - self._counted
            self._counted = held
            if not held or server.unfinished <= server.limits.unfinished_bytes:
                return
            server.counters.overloaded += 1
            self.refuse(Response(503, b"too much is being received at once", extra=b"retry-after: 1\r\n"))

    # What the parser reports.

    def request_started(self) -> None:
        """The first byte of a request has come."""
        self._since = time.monotonic()

    def head_received(self, request: Request) -> bool:
        """The head of a request is complete; returns whether its body is wanted."""
        response = self._check_head(request) if self._check_head else None
        if response:
            self.refuse(response, request.method)
        return response is None

    def continue_expected(self) -> None:
        """The client waits for `100 Continue` before it sends the body."""
        if self._transport and not self._task and not self._queue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def request_received(self, request: Request) -> None:
        """A request is complete."""
        self._served = True
        self._server.counters.requests += 1
        if self._task or self._write_paused:
            self._queue.append(request)
            return
        answer = self._answer(request)
        if isinstance(answer, Response):
            self._write(answer, request)
        else:
            self._task = asyncio.ensure_future(self._answer_later(answer, request))

    def refuse(self, response: Response, method: bytes = b"") -> None:
        """Answer after the pending responses, and ignore further input."""
        if self._parser.stopped:
            return
        self._parser.stop()
        self._pending = b""
        if self._task or self._queue:
            self._queue.append(response)
        else:
            self._write_last(response, method or self._parser.method)

    # Responses.

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
            return self._handler_failed()

    def _handler_failed(self) -> Response:
        self._server.counters.handler_errors += 1
        log.exception("handler_failed")
        return Response(500, b"internal error")

    async def _answer_later(self, answer: Awaitable[Response], request: Request) -> None:
        """Await one response after the other until the queue is empty."""
        while True:
            try:
                response = await answer
            except Exception:
                response = self._handler_failed()
            self._write(response, request)
            unanswered = self._answer_queued()
            if unanswered is None:
                break
            answer, request = unanswered
        self._task = None
        self._resume()

    def _answer_queued(self) -> tuple[Awaitable[Response], Request] | None:
        """Answer queued requests up to the first whose response has to be awaited."""
        while self._queue and not self._closing and not self._write_paused:
            request = self._queue.popleft()
            if isinstance(request, Response):
                self._write_last(request)
                return None
            answer = self._answer(request)
            if not isinstance(answer, Response):
                return answer, request
            self._write(answer, request)
        return None

    def _write(self, response: Response, request: Request) -> None:
        keep_alive = request.keep_alive and not self._server.closing and not self._draining
        if not keep_alive:
            self._write_last(response, request.method)
        elif self._transport and not self._closing:
            data = response.encode(True)
            if request.method == b"HEAD" and response.body:
                data = data[: -len(response.body)]
            self._transport.write(data)

    def _write_last(self, response: Response, method: bytes = b"") -> None:
        """Write a response and close the connection."""
        if self._transport is None or self._closing:
            return
        self._closing = True
        self._parser.stop()
        self._since = time.monotonic()
        data = response.encode(False)
        self._transport.write(data[: -len(response.body)] if method == b"HEAD" and response.body else data)
        if self._parser.in_request and self._transport.can_write_eof():
            # The rest of the request is read and dropped for a while: a reset would take the response with it.
            self._transport.write_eof()
        else:
            self._transport.close()

    # listener.Connection.

    @property
    def busy(self) -> bool:
        """Whether a response is pending or not yet read by the client."""
        return self._task is not None or self._turn_scheduled or self._write_paused

    @property
    def idle_since(self) -> float | None:
        """When the latest request started; `None` while its response is pending."""
        return None if self._task or self._turn_scheduled else self._since

    @property
    def unsent(self) -> int:
        """Bytes of responses that the client has not read."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def drain(self) -> None:
        """The connection closes after its next response."""
        self._draining = True

    def close(self) -> None:
        """Close once everything is written."""
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport:
            self._transport.abort()

    def expire(self, now: float, limits: Limits) -> bool:
        """Close the connection if a request takes too long or none comes; returns whether a request was cut short."""
        if self._transport is None or self.busy:
            return False
        in_request = self._parser.in_request
        if self._closing:
            allowed = min(LINGER_SECONDS, limits.read_seconds)
        else:
            allowed = limits.read_seconds if in_request or not self._served else limits.idle_seconds
        if now - self._since <= allowed:
            return False
        if in_request and not self._parser.stopped:
            self.refuse(Response(408, b"the request took too long"))
            self._count_unfinished()
            return True
        self._transport.abort()
        return False
