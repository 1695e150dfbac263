"""Streams of an HTTP/2 connection and what is sent on them, within the client's windows (RFC 9113, 5.2). Pure."""

import asyncio
import time
from typing import Any, Final

from ingero_http.http2 import frames as h2
from ingero_http.http2.frames import ErrorCode, Http2ConnectionError, Http2StreamError
from ingero_http.http2.messages import Exchange, Reply

CONNECTION_WINDOW: Final = 4 << 20
"""Octets that a client may send ahead on all streams of a connection."""
STREAM_WINDOW: Final = 1 << 20
"""Octets that a client may send ahead on one stream."""


class Stream:
    """One request under way. `credit` is what the client allows us to send, `window` what we allow it, octets."""

    __slots__ = (
        "body",
        "complete",
        "credit",
        "exchange",
        "length",
        "number",
        "rest",
        "since",
        "tail",
        "task",
        "window",
    )

    def __init__(self, number: int, exchange: Exchange, length: int | None, credit: int) -> None:
        self.number, self.exchange, self.length, self.credit = number, exchange, length, credit
        self.window = STREAM_WINDOW
        self.since = time.monotonic()
        self.body: bytes | bytearray = b""
        self.complete = False
        """Whether nothing more of the request is expected."""
        self.task: asyncio.Future[Any] | None = None
        self.rest = self.tail = b""
        """Data that waits for the client's window, and the trailer block behind it."""


class Outbox:
    """Frames to be written, and replies that wait until the client allows them."""

    __slots__ = ("credit", "first_credit", "frames", "replied", "waiting")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.waiting: dict[int, Stream] = {}
        self.credit = self.first_credit = h2.INITIAL_WINDOW
        self.replied = False

    def reply(self, stream: Stream, reply: Reply) -> bool:
        """Send a reply; says whether all of it could be sent."""
        if not self.replied:
            self.replied, reply = True, reply.first()
        size = len(reply.data)
        if reply.pieces and (not size or (size <= self.credit and size <= stream.credit)):
            self.credit -= size
            self.frames.append(stream.number.to_bytes(4, "big").join(reply.pieces))
            return True
        self.frames.append(h2.frame(h2.HEADERS, h2.END_HEADERS, stream.number, reply.head))
        stream.rest, stream.tail = reply.data, reply.tail
        return self._proceed(stream)

    def _proceed(self, stream: Stream) -> bool:
        """Send as much as both windows allow, and the trailers behind the last of it."""
        while stream.rest:
            size = min(len(stream.rest), self.credit, stream.credit, h2.LARGEST_FRAME)
            if size <= 0:
                self.waiting[stream.number] = stream
                return False
            part, stream.rest = stream.rest[:size], stream.rest[size:]
            self.credit -= size
            stream.credit -= size
            last = not stream.rest and not stream.tail
            self.frames.append(h2.frame(h2.DATA, h2.END_STREAM if last else 0, stream.number, part))
        if stream.tail:
            self.frames.append(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream.number, stream.tail))
        self.waiting.pop(stream.number, None)
        return True

    def settle(self, credit: int, streams: dict[int, Stream]) -> list[Stream]:
        """Take over SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113, 6.9.2); returns what could be sent to its end."""
        change, self.first_credit = credit - self.first_credit, credit
        for stream in streams.values():
            stream.credit += change
            if stream.credit > h2.LARGEST_WINDOW:
                raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is above 2^31-1")
        return self._resume()

    def allow(self, octets: int) -> list[Stream]:
        """Take a window update of the connection; returns what could be sent to its end."""
        if not octets:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a window update of nothing")
        exhausted = self.credit <= 0
        self.credit += octets
        if self.credit > h2.LARGEST_WINDOW:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is above 2^31-1")
        # With credit left, whoever waits does so for its own window.
        return self._resume() if exhausted else []

    def allow_stream(self, stream: Stream | None, octets: int) -> bool:
        """Take a window update of a stream, `None` for one that has ended; says whether all could be sent by it."""
        if not octets:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "a window update of nothing")
        if stream is None:
            return False
        stream.credit += octets
        if stream.credit > h2.LARGEST_WINDOW:
            raise Http2StreamError(ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is above 2^31-1")
        return stream.number in self.waiting and self._proceed(stream)

    def _resume(self) -> list[Stream]:
        done = []
        for stream in list(self.waiting.values()):
            if self.credit <= 0:
                break
            if self._proceed(stream):
                done.append(stream)
        return done
