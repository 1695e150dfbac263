"""Requests of an HTTP/2 connection, from their header block to the end of the reply (RFC 9113, 5.1 and 8.1).

Windows are given back as data comes; `Limits.unfinished_bytes` is what bounds memory. What breaks the rules of one
stream raises `Http2StreamError`, what breaks those of the connection `Http2ConnectionError`.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from ingero_http.http2 import frames as h2
from ingero_http.http2.flood_guard import FloodGuard
from ingero_http.http2.frames import ErrorCode, Http2ConnectionError, Http2StreamError
from ingero_http.http2.hpack import Field
from ingero_http.http2.messages import Exchange, Failure, Reply, Service, check_trailers
from ingero_http.http2.streams import CONNECTION_WINDOW, STREAM_WINDOW, Outbox, Stream
from ingero_http.limits import Limits
from ingero_http.listener import Listener

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_LATE: Final = 1024
"""Streams that we ended early and whose late frames are passed over."""


class Requests:
    """The streams of one connection. `flush` writes what is in the outbox, `close` ends the connection."""

    __slots__ = (
        "_close", "_flush", "_late", "_outbox", "_server", "_service", "_window", "final", "flood", "last", "streams",
    )  # fmt: skip

    def __init__(
        self,
        server: Listener[Any],
        service: Service,
        outbox: Outbox,
        flush: Callable[[], None],
        close: Callable[[], None],
    ) -> None:
        self._server, self._service = server, service
        self._outbox, self._flush, self._close = outbox, flush, close
        self._late: dict[int, None] = {}
        self._window = CONNECTION_WINDOW
        self.flood = FloodGuard()
        self.streams: dict[int, Stream] = {}
        self.last = 0
        """The highest stream that was opened."""
        self.final = h2.LARGEST_STREAM
        """The highest stream that is served; the connection closes behind the last reply once it is set."""

    @property
    def owed(self) -> bool:
        """Whether an answer to a whole request is under way."""
        return any(stream.task for stream in self.streams.values())

    # What the client sends.

    def begin(self, number: int, ended: bool, found: tuple[Exchange, int | None] | None) -> None:
        """A new request: what it asks for and its content-length, `None` when its fields are too large."""
        if number > self.final:
            return
        server = self._server
        if len(self.streams) >= server.limits.streams:
            raise Http2StreamError(ErrorCode.REFUSED_STREAM, "too many streams")
        self.flood.served += 1
        server.counters.requests += 1
        exchange, length = found or (_UNREAD, None)
        stream = self.streams[number] = Stream(number, exchange, length, self._outbox.first_credit)
        stream.complete = ended
        if not found:
            self._refuse(stream, Failure.HEADERS_TOO_LARGE)
            self.flood.count_reset()
            return
        reply = exchange.begin()
        if reply is not None:
            self._answer(stream, reply)
            self.flood.count_reset()
        elif length is not None and length > server.limits.body_bytes:
            self._refuse(stream, Failure.BODY_TOO_LARGE)
        elif ended:
            self._complete(stream, b"")

    def data(self, flags: int, number: int, payload: bytes) -> None:
        """A DATA frame (RFC 9113, 6.1)."""
        size = len(payload)
        self._window -= size
        if self._window < CONNECTION_WINDOW >> 1:
            self._outbox.frames.append(h2.window_update(0, CONNECTION_WINDOW - self._window))
            self._window = CONNECTION_WINDOW
        if flags & h2.PADDED:
            payload = h2.content(flags & h2.PADDED, payload)
        stream = self.streams.get(number)
        if stream is None or stream.complete:
            self._stray(number, stream)
            return
        stream.window -= size
        if flags & h2.END_STREAM and not stream.body and size <= self._server.limits.body_bytes:
            self._complete(stream, payload)
            return
        if not self._keep(stream, payload):
            return
        if flags & h2.END_STREAM:
            self._complete(stream, self._take(stream))
        elif stream.window < STREAM_WINDOW >> 1:
            self._outbox.frames.append(h2.window_update(number, STREAM_WINDOW - stream.window))
            stream.window = STREAM_WINDOW
        if not payload:
            self.flood.count_empty_frame()

    def trailers(self, number: int, ended: bool, fields: list[Field] | None) -> None:
        """The fields behind a body, `None` when they are too large."""
        stream = self.streams.get(number)
        if stream is None or stream.complete:
            self._stray(number, stream)
            return
        if not ended or fields is None:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "trailers that do not end the stream, or are too large")
        check_trailers(fields)
        self._complete(stream, self._take(stream))

    def abandoned(self, number: int) -> None:
        """The client ends a stream."""
        self._must_be_known(number)
        self._drop(number)
        self._late.pop(number, None)  # nothing can be on its way any more
        self.flood.count_reset()

    def allow(self, number: int, octets: int) -> None:
        """The client's window of a stream, or with 0 of the connection, grows."""
        if not number:
            for stream in self._outbox.allow(octets):
                self._finish(stream)
            return
        self._must_be_known(number)
        one = self.streams.get(number)
        if self._outbox.allow_stream(one, octets) and one:
            self._finish(one)

    def settle(self, values: dict[int, int]) -> None:
        """The client's SETTINGS."""
        credit = values.get(h2.INITIAL_WINDOW_SIZE, self._outbox.first_credit)
        for stream in self._outbox.settle(credit, self.streams):
            self._finish(stream)

    def _stray(self, number: int, stream: Stream | None) -> None:
        """A frame of a request that has ended already."""
        if number in self._late or number > self.final:
            return
        if stream is not None:
            raise Http2StreamError(ErrorCode.STREAM_CLOSED, "the request has ended")
        self._must_be_known(number)
        raise Http2ConnectionError(ErrorCode.STREAM_CLOSED, "the stream has ended")

    def _must_be_known(self, number: int) -> None:
        if number > self.last or not number & 1:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a frame on a stream that was never opened")

    # Bodies.

    def _keep(self, stream: Stream, payload: bytes) -> bool:
        """Add to a body; says whether the request is still wanted."""
        server = self._server
        if len(stream.body) + len(payload) > server.limits.body_bytes:
            self._refuse(stream, Failure.BODY_TOO_LARGE)
            return False
        if server.unfinished + len(payload) > server.limits.unfinished_bytes:
            server.counters.overloaded += 1
            self._refuse(stream, Failure.OVERLOADED)
            return False
        if not isinstance(stream.body, bytearray):
            stream.body = bytearray(stream.body)
        stream.body += payload
        server.unfinished += len(payload)
        return True

    def _take(self, stream: Stream) -> bytes:
        body = bytes(stream.body)
        self._server.unfinished -= len(body)
        stream.body = b""
        return body

    # Replies.

    def _complete(self, stream: Stream, body: bytes) -> None:
        if stream.length is not None and stream.length != len(body):
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "content-length and data differ")
        stream.complete = True
        try:
            answer = stream.exchange.complete(body)
        except Exception as error:
            answer = self._failed(error)
        if isinstance(answer, Reply):
            self._answer(stream, answer)
        else:
            stream.task = asyncio.ensure_future(answer)
            stream.task.add_done_callback(partial(self._finish_later, stream))

    def _finish_later(self, stream: Stream, task: "asyncio.Future[Reply]") -> None:
        stream.task = None
        if task.cancelled() or stream.number not in self.streams:
            return
        error = task.exception()
        self._answer(stream, self._failed(error) if error else task.result())
        self._flush()

    def _failed(self, error: BaseException) -> Reply:
        self._server.counters.handler_errors += 1
        log.error("handler_failed", exc_info=error)
        return self._service.fail(Failure.HANDLER_FAILED)

    def _refuse(self, stream: Stream, failure: Failure) -> None:
        self._server.counters.too_large += failure in (Failure.BODY_TOO_LARGE, Failure.HEADERS_TOO_LARGE)
        self._answer(stream, self._service.fail(failure))

    def _answer(self, stream: Stream, reply: Reply) -> None:
        if not stream.complete:
            stream.complete = True
            self._pass_over(stream.number)
        if self._outbox.reply(stream, reply):
            self._finish(stream)

    # The end of a stream.

    def _finish(self, stream: Stream) -> None:
        """The reply is out; what the client still sends of an unfinished request is not wanted."""
        if stream.number in self._late:
            self._outbox.frames.append(h2.reset(stream.number, ErrorCode.NO_ERROR))
        self._drop(stream.number)

    def reset(self, number: int, code: ErrorCode) -> None:
        """End a stream that broke a rule."""
        self._outbox.frames.append(h2.reset(number, code))
        self._pass_over(number)
        self._drop(number)
        if code != ErrorCode.REFUSED_STREAM:
            self.flood.count_reset()

    def expire(self, now: float, limits: Limits) -> bool:
        """End requests and replies that take too long; says whether a request was cut short."""
        late = [stream for stream in self.streams.values() if now - stream.since > limits.read_seconds]
        slow = [stream for stream in late if not stream.complete]
        for stream in slow:
            self._refuse(stream, Failure.TOO_SLOW)
        for stream in late:
            if stream.number in self._outbox.waiting and now - stream.since > limits.idle_seconds:
                self._outbox.frames.append(h2.reset(stream.number, ErrorCode.CANCEL))
                self._drop(stream.number)
        return bool(slow)

    def forget(self) -> None:
        """The connection is gone: nobody waits for an answer any more."""
        for stream in self.streams.values():
            self._let_go(stream)
        self.streams.clear()
        self._flush = self._close = _nothing

    def _pass_over(self, number: int) -> None:
        self._late[number] = None
        if len(self._late) > _LATE:
            del self._late[next(iter(self._late))]

    def _drop(self, number: int) -> None:
        stream = self.streams.pop(number, None)
        if stream:
            self._outbox.waiting.pop(number, None)
            self._let_go(stream)
            if not self.streams and self.final != h2.LARGEST_STREAM:
                self._close()

    def _let_go(self, stream: Stream) -> None:
        if stream.body:
            self._server.unfinished -= len(stream.body)
            stream.body = b""
        if stream.task:
            stream.task.cancel()


class _Unread:
    """Stands in for what a request asks whose fields are too large to say."""

    def begin(self) -> Reply | None:
        raise NotImplementedError

    def complete(self, body: bytes) -> Reply:
        raise NotImplementedError


_UNREAD: Final = _Unread()


def _nothing() -> None:
    """Stands in for the way to a connection that is gone, so that its objects need no garbage collector."""
