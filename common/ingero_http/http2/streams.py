"""Streams of an HTTP/2 connection, and replies sent within the client's flow-control windows (RFC 9113, 5.2)."""

import asyncio
import time
from typing import Any, Final

from ingero_http.http2 import frames as h2
from ingero_http.http2.frames import ErrorCode, Http2ConnectionError, Http2StreamError
from ingero_http.http2.messages import Exchange, Reply

CONNECTION_WINDOW: Final = 4 << 20
"""Receive window of a connection, bytes."""
STREAM_WINDOW: Final = 1 << 20
"""Receive window of a stream, bytes."""


class Stream:
    """One request and its reply. Windows are in bytes: what the client allows to send, and what it may send."""

    __slots__ = (
        "body", "complete", "exchange", "length", "number", "pending_data", "pending_trailers", "receive_window",
        "send_window", "since", "task",
    )  # fmt: skip

    def __init__(self, number: int, exchange: Exchange, length: int | None, send_window: int) -> None:
        self.number, self.exchange, self.length, self.send_window = number, exchange, length, send_window
        self.receive_window = STREAM_WINDOW
        self.since = time.monotonic()
        self.body: bytes | bytearray = b""
        self.complete = False
        """Whether the request is complete or its rest is ignored."""
        self.task: asyncio.Future[Any] | None = None
        self.pending_data = self.pending_trailers = b""
        """Data that waits for a window, and the trailer block that follows it."""


class Outbox:
    """Frames to be written, and replies that wait for a window of the client."""

    __slots__ = ("blocked", "frames", "initial_window", "replied", "send_window")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.blocked: dict[int, Stream] = {}
        self.send_window = self.initial_window = h2.INITIAL_WINDOW
        self.replied = False

    def reply(self, stream: Stream, reply: Reply) -> bool:
        """Send a reply; returns whether all of it could be sent."""
        if not self.replied:
            self.replied, reply = True, reply.as_first()
        size = len(reply.data)
        if reply.pieces and (not size or (size <= self.send_window and size <= stream.send_window)):
            self.send_window -= size
            self.frames.append(stream.number.to_bytes(4, "big").join(reply.pieces))
            return True
        self.frames.append(h2.frame(h2.HEADERS, h2.END_HEADERS, stream.number, reply.head))
        stream.pending_data, stream.pending_trailers = reply.data, reply.tail
        return self._send_pending(stream)

    def _send_pending(self, stream: Stream) -> bool:
        """Send as much as both windows allow, and then the trailers; returns whether all could be sent."""
        while stream.pending_data:
            size = min(len(stream.pending_data), self.send_window, stream.send_window, h2.MAX_FRAME)
            if size <= 0:
                self.blocked[stream.number] = stream
                return False
            part, stream.pending_data = stream.pending_data[:size], stream.pending_data[size:]
            self.send_window -= size
            stream.send_window -= size
            last = not stream.pending_data and not stream.pending_trailers
            self.frames.append(h2.frame(h2.DATA, h2.END_STREAM if last else 0, stream.number, part))
        if stream.pending_trailers:
            self.frames.append(
                h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream.number, stream.pending_trailers)
            )
        self.blocked.pop(stream.number, None)
        return True

    def set_initial_window(self, send_window: int, streams: dict[int, Stream]) -> list[Stream]:
        """Apply SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113, 6.9.2); returns the streams whose reply it completed."""
        change, self.initial_window = send_window - self.initial_window, send_window
        for stream in streams.values():
            stream.send_window += change
            if stream.send_window > h2.MAX_WINDOW:
                raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is above 2^31-1")
        return self._send_blocked()

    def grow_window(self, size: int) -> list[Stream]:
        """Apply a window update of the connection; returns the streams whose reply it completed."""
        if not size:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a window update of 0")
        exhausted = self.send_window <= 0
        self.send_window += size
        if self.send_window > h2.MAX_WINDOW:
            raise Http2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is above 2^31-1")
        # If the window was not exhausted, blocked streams wait for their own windows.
        return self._send_blocked() if exhausted else []

    def grow_stream_window(self, stream: Stream | None, size: int) -> bool:
        """Apply a window update of a stream, `None` if it has ended; returns whether it completed the reply."""
        if not size:
            raise Http2StreamError(ErrorCode.PROTOCOL_ERROR, "a window update of 0")
        if stream is None:
            return False
        stream.send_window += size
        if stream.send_window > h2.MAX_WINDOW:
            raise Http2StreamError(ErrorCode.FLOW_CONTROL_ERROR, "the stream's window is above 2^31-1")
        return stream.number in self.blocked and self._send_pending(stream)

    def _send_blocked(self) -> list[Stream]:
        done = []
        for stream in list(self.blocked.values()):
            if self.send_window <= 0:
                break
            if self._send_pending(stream):
                done.append(stream)
        return done
