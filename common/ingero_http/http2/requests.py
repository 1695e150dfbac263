"""Requests of an HTTP/2 connection, from their header block to the end of the reply (RFC 9113, 5.1 and 8.1).

Receive windows are refilled as data comes; memory is bounded by `Limits.unfinished_bytes`. Stream errors are raised
as `Http2StreamError`, connection errors as `Http2ConnectionError`.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from ingero_http.http2 import frames as h2
from ingero_http.http2.flood_guard import FloodGuard
from ingero_http.http2.frames import ErrorCode, Http2ConnectionError, Http2StreamError
from ingero_http.http2.hpack import Field
from ingero_http.http2.messages import Exchange, Reply, RequestFailure, Service, check_trailers
from ingero_http.http2.streams import CONNECTION_WINDOW, STREAM_WINDOW, Outbox, Stream
from ingero_http.limits import Limits
from ingero_http.listener import Listener
from ingero_http.structured_logs import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_MAX_ENDED_EARLY: Final = 1024
"""Streams that the server ended early and whose late frames are ignored."""


class Requests:
    """The streams of one connection. `flush` writes the frames of the outbox, `close` ends the connection."""

    __slots__ = (
        "_close", "_ended_early", "_flush", "_outbox", "_receive_window", "_server", "_service", "flood",
        "last_accepted", "last_opened", "streams",
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
        self._ended_early: dict[int, None] = {}
        self._receive_window = CONNECTION_WINDOW
        self.flood = FloodGuard()
        self.streams: dict[int, Stream] = {}
        self.last_opened = 0
        """The highest stream that was opened."""
        self.last_accepted = h2.MAX_STREAM
        """The highest stream that will be served; once it is lowered, the connection closes after the last reply."""

    @property
    def awaiting_answer(self) -> bool:
        """Whether the reply to a complete request is being computed."""
        return any(stream.task for stream in self.streams.values())

    # Frames of the client.

    def head_received(self, number: int, ended: bool, found: tuple[Exchange, int | None] | None) -> None:
        """A request starts. `found`: its exchange and its content-length, `None` if its fields are too large."""
        if number > self.last_accepted:
            return
        server = self._server
        if len(self.streams) >= server.limits.streams:
            raise Http2StreamError(ErrorCode.REFUSED_STREAM, "too many streams")
        self.flood.served += 1
        server.counters.requests += 1
        exchange, length = found or (_UNREADABLE, None)
        stream = self.streams[number] = Stream(number, exchange, length, self._outbox.initial_window)
        stream.complete = ended
        if not found:
            self._refuse(stream, RequestFailure.HEADERS_TOO_LARGE)
            self.flood.count_reset()
            return
        reply = exchange.begin()
        if reply is not None:
            self._answer(stream, reply)
            self.flood.count_reset()
        elif length is not None and length > server.limits.body_bytes:
            self._refuse(stream, RequestFailure.BODY_TOO_LARGE)
        elif ended:
            self._complete(stream, b"")

    def data_received(self, flags: int, number: int, payload: bytes) -> None:
        """A DATA frame (RFC 9113, 6.1)."""
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < CONNECTION_WINDOW >> 1:
            self._outbox.frames.append(h2.window_update(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        if flags & h2.PADDED:
            payload = h2.strip_padding(flags & h2.PADDED, payload)
        stream = self.streams.get(number)
        if stream is None or stream.complete:
            self._check_late_frame(number, stream)
            return
        stream.receive_window -= size
        if flags & h2.END_STREAM and not stream.body and size <= self._server.limits.body_bytes:
            self._complete(stream, payload)
            return
        if not self._append_body(stream, payload):
            return
        if flags & h2.END_STREAM:
            self._complete(stream, self._take_body(stream))
        elif stream.receive_window < STREAM_WINDOW >> 1:
            self._outbox.frames.append(h2.window_update(number, STREAM_WINDOW - stream.receive_window))
            stream.receive_window = STREAM_WINDOW
        if not payload:
            self.flood.count_empty_frame()

    def trailers_received(self, number: int, ended: bool, fields: list[Field] | None) -> None:
        """The trailers of a request, `None` if they are too large."""
        stream = self.streams.get(number)
        if stream is None or stream.complete:
            self._check_late_frame(number, stream)
            return
        if not ended or fields is None:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "trailers that do not end the stream, or are too large")
        check_trailers(fields)
        self._complete(stream, self._take_body(stream))

    def reset_by_client(self, number: int) -> None:
        """The client resets a stream."""
        self._check_opened(number)
        self._remove(number)
        self._ended_early.pop(number, None)  # no late frame can follow a reset
        self.flood.count_reset()

    def grow_window(self, number: int, size: int) -> None:
        """A WINDOW_UPDATE for a stream, or for the connection if `number` is 0."""
        if not number:
            for stream in self._outbox.grow_window(size):
                self._finish(stream)
            return
        self._check_opened(number)
        updated = self.streams.get(number)
        if self._outbox.grow_stream_window(updated, size) and updated:
            self._finish(updated)

    def apply_settings(self, values: dict[int, int]) -> None:
        """SETTINGS of the client."""
        window = values.get(h2.INITIAL_WINDOW_SIZE, self._outbox.initial_window)
        for stream in self._outbox.set_initial_window(window, self.streams):
            self._finish(stream)

    def _check_late_frame(self, number: int, stream: Stream | None) -> None:
        """A frame on a stream whose request has ended is ignored if the server ended it, otherwise it is an error."""
        if number in self._ended_early or number > self.last_accepted:
            return
        if stream is not None:
            raise Http2StreamError(ErrorCode.STREAM_CLOSED, "the request has ended")
        self._check_opened(number)
        raise Http2ConnectionError(ErrorCode.STREAM_CLOSED, "the stream has ended")

    def _check_opened(self, number: int) -> None:
        if number > self.last_opened or not number & 1:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a frame on a stream that was never opened")

    # Bodies.

    def _append_body(self, stream: Stream, payload: bytes) -> bool:
        """Add to a body; returns whether more of it is wanted."""
        server = self._server
        if len(stream.body) + len(payload) > server.limits.body_bytes:
            self._refuse(stream, RequestFailure.BODY_TOO_LARGE)
            return False
        if server.unfinished + len(payload) > server.limits.unfinished_bytes:
            server.counters.overloaded += 1
            self._refuse(stream, RequestFailure.OVERLOADED)
            return False
        if not isinstance(stream.body, bytearray):
            stream.body = bytearray(stream.body)
        stream.body += payload
        server.unfinished += len(payload)
        return True

    def _take_body(self, stream: Stream) -> bytes:
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
        return self._service.fail(RequestFailure.HANDLER_FAILED)

    def _refuse(self, stream: Stream, failure: RequestFailure) -> None:
        self._server.counters.too_large += failure in (
            RequestFailure.BODY_TOO_LARGE,
            RequestFailure.HEADERS_TOO_LARGE,
        )
        self._answer(stream, self._service.fail(failure))

    def _answer(self, stream: Stream, reply: Reply) -> None:
        if not stream.complete:
            stream.complete = True
            self._ignore_late_frames(stream.number)
        if self._outbox.reply(stream, reply):
            self._finish(stream)

    # The end of a stream.

    def _finish(self, stream: Stream) -> None:
        """The reply is written; if the request is not complete, the client need not send the rest."""
        if stream.number in self._ended_early:
            self._outbox.frames.append(h2.rst_stream(stream.number, ErrorCode.NO_ERROR))
        self._remove(stream.number)

    def reset(self, number: int, code: ErrorCode) -> None:
        """Reset a stream after a stream error."""
        self._outbox.frames.append(h2.rst_stream(number, code))
        self._ignore_late_frames(number)
        self._remove(number)
        if code != ErrorCode.REFUSED_STREAM:
            self.flood.count_reset()

    def expire(self, now: float, limits: Limits) -> bool:
        """End requests and replies that take too long; returns whether a request was cut short."""
        late = [stream for stream in self.streams.values() if now - stream.since > limits.read_seconds]
        slow = [stream for stream in late if not stream.complete]
        for stream in slow:
            self._refuse(stream, RequestFailure.TOO_SLOW)
        for stream in late:
            if stream.number in self._outbox.blocked and now - stream.since > limits.idle_seconds:
                self._outbox.frames.append(h2.rst_stream(stream.number, ErrorCode.CANCEL))
                self._remove(stream.number)
        return bool(slow)

    def connection_lost(self) -> None:
        """Cancel requests in progress, and break the reference cycles with the connection."""
        for stream in self.streams.values():
            self._release(stream)
        self.streams.clear()
        self._flush = self._close = _do_nothing

    def _ignore_late_frames(self, number: int) -> None:
        self._ended_early[number] = None
        if len(self._ended_early) > _MAX_ENDED_EARLY:
            del self._ended_early[next(iter(self._ended_early))]

    def _remove(self, number: int) -> None:
        stream = self.streams.pop(number, None)
        if stream:
            self._outbox.blocked.pop(number, None)
            self._release(stream)
            if not self.streams and self.last_accepted != h2.MAX_STREAM:
                self._close()

    def _release(self, stream: Stream) -> None:
        if stream.body:
            self._server.unfinished -= len(stream.body)
            stream.body = b""
        if stream.task:
            stream.task.cancel()


class _Unreadable:
    """Exchange of a request whose fields are too large to be read; it is refused before this is used."""

    def begin(self) -> Reply | None:
        raise NotImplementedError

    def complete(self, body: bytes) -> Reply:
        raise NotImplementedError


_UNREADABLE: Final = _Unreadable()


def _do_nothing() -> None:
    """Replaces the methods of a closed connection."""
