"""One HTTP/2 connection of a server (RFC 9113): reads frames, passes those of requests to `Requests`, writes replies.

A connection processes up to `TURN_BYTES` of its input, writes the replies and leaves the rest for its next turn.
Until then, and while the client does not read its replies, it reads no more input. Priorities are ignored, nothing is
pushed. A stream error resets its stream; a connection error ends the connection with a GOAWAY that names the error.
"""

import asyncio
import time
from typing import Final, cast

from ingero_http.http2 import frames as h2
from ingero_http.http2.frames import ErrorCode, Http2ConnectionError, Http2StreamError
from ingero_http.http2.header_blocks import HeaderBlock, HeaderBlockReader
from ingero_http.http2.messages import Service
from ingero_http.http2.requests import Requests
from ingero_http.http2.streams import Outbox
from ingero_http.limits import Limits
from ingero_http.listener import LINGER_SECONDS, TURN_BYTES, Listener

_DRAIN_PING: Final = b"\0drained"
_DRAIN_SECONDS: Final = 1.0
"""How long a client may take to confirm that it knows of the drain."""
_PREFACE_AND_HEAD: Final = len(h2.PREFACE) + h2.FRAME_HEAD_BYTES
_WRONG_VERSION: Final = b"this port takes gRPC alone, over HTTP/2; OTLP over HTTP has another, usually 4318\n"
_NOT_HTTP1: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_WRONG_VERSION), _WRONG_VERSION)
)


class Http2Connection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_blocks", "_closing", "_counted", "_drain_started", "_greeting", "_last_frame_at", "_outbox", "_pending",
        "_preface_received", "_requests", "_server", "_service", "_transport", "_turn_scheduled", "_write_paused",
    )  # fmt: skip

    def __init__(self, server: Listener["Http2Connection"], service: Service, greeting: bytes) -> None:
        self._server, self._service, self._greeting = server, service, greeting
        self._transport: asyncio.Transport | None = None
        self._blocks = HeaderBlockReader(server.limits.header_bytes)
        self._outbox = Outbox()
        self._requests = Requests(server, service, self._outbox, self._flush, self.close)
        self._pending = b""
        """The start of a frame, or frames that wait for the next turn."""
        self._counted = 0
        """Bytes of this connection in `Listener.unfinished`, bodies excluded."""
        self._preface_received = self._closing = self._write_paused = self._turn_scheduled = False
        self._last_frame_at = time.monotonic()
        self._drain_started = 0.0

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.register(self):
            self._closing = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing, self._transport = True, None
        self._server.unregister(self)
        self._requests.connection_lost()
        self._pending = b""
        self._count_unfinished()

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._transport:
            self._transport.pause_reading()
            self._server.writing_paused(self)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._server.writing_resumed(self)
        # Not at once: this may be called while replies are written.
        asyncio.get_running_loop().call_soon(self._resume)

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._pending:
            data = self._pending + data
        if self._turn_scheduled or self._write_paused:
            self._pending = data
            self._count_unfinished()
        else:
            self._process(data)

    def _process(self, data: bytes) -> None:
        """Process up to `TURN_BYTES`; further frames wait until other connections had their turn."""
        try:
            processed = self._read_frames(data) if self._preface_received else self._read_preface(data)
            if processed:
                self._last_frame_at = time.monotonic()
            self._pending = data[processed:]
        except Http2ConnectionError as error:
            self._server.counters.malformed += 1
            self._go_away(error.code, str(error))
        self._flush()
        if self._closing:
            self._pending = b""
        elif self._preface_received and h2.has_whole_frame(self._pending):
            self._server.counters.turns_ended += 1
            self._turn_scheduled = True
            if self._transport:
                self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._pending or self._counted or self._blocks.in_block:
            self._count_unfinished()

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self._resume()

    def _resume(self) -> None:
        """Process what is pending, unless there is still a reason to wait."""
        if self._closing or self._turn_scheduled or self._write_paused:
            return
        if self._preface_received and h2.has_whole_frame(self._pending):
            self._process(self._pending)
        if not (self._turn_scheduled or self._write_paused or self._closing) and self._transport:
            self._transport.resume_reading()

    def _count_unfinished(self) -> None:
        """Count buffered bytes other than bodies; a connection that exceeds the limit of all connections ends."""
        held = 0 if self._closing else len(self._pending) + self._blocks.buffered
        self._server.unfinished += held - self._counted
        self._counted = held
        if held and self._server.unfinished > self._server.limits.unfinished_bytes:
            self._server.counters.overloaded += 1
            self._go_away(ErrorCode.ENHANCE_YOUR_CALM, "too much is being received at once")
            self._count_unfinished()

    def _flush(self) -> None:
        frames = self._outbox.frames
        if frames and self._transport and not self._closing:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
            frames.clear()

    def _go_away(self, code: ErrorCode, message: str = "") -> None:
        """Send GOAWAY and close."""
        if self._closing or self._transport is None:
            return
        if self._preface_received:
            last = min(self._requests.last_opened, self._requests.last_accepted)
            self._outbox.frames.append(h2.go_away(last, code, message))
        self._flush()
        self._closing = True
        self._last_frame_at = time.monotonic()
        if code != ErrorCode.NO_ERROR and self._transport.can_write_eof():
            # Further input is read and dropped for a while: a reset of TCP would take the GOAWAY with it.
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    # Frames.

    def _read_preface(self, data: bytes) -> int:
        """Expect the preface and SETTINGS (RFC 9113, 3.4); returns how many bytes were processed."""
        if not data.startswith(h2.PREFACE[: len(data)]):
            if data[:5] in (b"POST ", b"GET /", b"PUT /") and self._transport:
                self._outbox.frames.append(_NOT_HTTP1)
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < _PREFACE_AND_HEAD:
            return 0
        if data[len(h2.PREFACE) + 3] != h2.SETTINGS:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS must come first")
        self._preface_received = True
        self._outbox.frames.append(self._greeting)
        return len(h2.PREFACE) + self._read_frames(data[len(h2.PREFACE) :])

    def _read_frames(self, data: bytes) -> int:
        """Process whole frames, up to `TURN_BYTES` of them; returns how many bytes were processed."""
        at, end = 0, len(data)
        unpack, blocks, requests = h2.FRAME_HEAD.unpack_from, self._blocks, self._requests
        while end - at >= 9 and at < TURN_BYTES and not self._closing:
            high, low, kind, flags, number = unpack(data, at)
            length = high << 8 | low
            if length > h2.MAX_FRAME:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes")
            if at + 9 + length > end:
                break
            payload = data[at + 9 : at + 9 + length]
            at += 9 + length
            number &= h2.MAX_STREAM
            if blocks.in_block and kind != h2.CONTINUATION:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            try:
                if kind == h2.DATA:
                    requests.data_received(flags, number, payload)
                elif kind == h2.HEADERS:
                    block = blocks.start_block(flags, number, payload)
                    if block:
                        self._header_block(block)
                else:
                    self._control_frame(kind, flags, number, payload)
            except Http2StreamError as error:
                self._server.counters.malformed += error.code != ErrorCode.REFUSED_STREAM
                requests.reset(number, error.code)
        return at

    def _header_block(self, block: HeaderBlock) -> None:
        """A complete header block starts a request or holds the trailers of one."""
        number, ended, data = block
        requests = self._requests
        if number <= requests.last_opened:
            requests.trailers_received(number, ended, self._blocks.decode(data))
            return
        requests.last_opened = number
        requests.head_received(number, ended, self._blocks.route(data, self._service))

    def _control_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        self._requests.flood.count_empty_frame()
        if kind == h2.CONTINUATION:
            block = self._blocks.continue_block(flags, number, payload)
            if block:
                self._header_block(block)
        elif kind == h2.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == h2.RST_STREAM:
            self._rst_stream(number, payload)
        elif kind == h2.PRIORITY:
            if not number:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
            if len(payload) != 5:
                raise Http2StreamError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is not five bytes long")
        elif kind == h2.PUSH_PROMISE:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        elif kind in (h2.SETTINGS, h2.PING, h2.GOAWAY):
            if number:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a frame for the connection on a stream")
            if kind == h2.SETTINGS:
                self._settings(flags, payload)
            elif kind == h2.PING:
                self._ping(flags, payload)
            elif len(payload) < 8:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is shorter than eight bytes")

    def _settings(self, flags: int, payload: bytes) -> None:
        if flags & h2.ACK:
            if payload:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            return
        values = h2.read_settings(payload)
        self._outbox.frames.append(h2.frame(h2.SETTINGS, h2.ACK, 0))
        self._requests.apply_settings(values)

    def _ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "PING is not eight bytes long")
        if not flags & h2.ACK:
            self._outbox.frames.append(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif payload == _DRAIN_PING and self._drain_started:
            self._finish_drain()

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE is not four bytes long")
        self._requests.grow_window(number, int.from_bytes(payload, "big") & h2.MAX_WINDOW)

    def _rst_stream(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM is not four bytes long")
        self._requests.reset_by_client(number)

    # listener.Connection.

    @property
    def busy(self) -> bool:
        """Whether a reply is owed, or the client may not know yet that the connection drains."""
        if self._closing or not self._preface_received:
            return False
        if self._requests.streams or self._turn_scheduled:
            return True
        drain_ends = self._drain_started + _DRAIN_SECONDS
        return self._requests.last_accepted == h2.MAX_STREAM and time.monotonic() < drain_ends

    @property
    def unsent(self) -> int:
        """Bytes of replies that the client has not read."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def drain(self) -> None:
        """Announce the end; requests sent before the client learns of it are still served (RFC 9113, 6.8)."""
        if self._closing or not self._preface_received:
            return
        self._drain_started = time.monotonic()
        self._outbox.frames += [
            h2.go_away(h2.MAX_STREAM, ErrorCode.NO_ERROR),
            h2.frame(h2.PING, 0, 0, _DRAIN_PING),
        ]
        self._flush()

    def _finish_drain(self) -> None:
        """The client has answered the PING, so it knows of the end: accept no more streams."""
        requests = self._requests
        requests.last_accepted = requests.last_opened
        if requests.streams:
            self._outbox.frames.append(h2.go_away(requests.last_opened, ErrorCode.NO_ERROR))
        else:
            self.close()

    def close(self) -> None:
        """Send GOAWAY and close once everything is written."""
        if self._transport and not self._preface_received:
            self._transport.abort()
        self._go_away(ErrorCode.NO_ERROR)

    def abort(self) -> None:
        """Close at once."""
        if self._transport:
            self._transport.abort()

    @property
    def idle_since(self) -> float | None:
        """When frames were last received; `None` while a reply is owed."""
        return None if self._requests.awaiting_answer else self._last_frame_at

    def expire(self, now: float, limits: Limits) -> bool:
        """End what takes too long; returns whether a request was cut short."""
        self._requests.flood.renew()
        if self._transport is None or self._turn_scheduled or self._write_paused:
            return False
        silence = now - self._last_frame_at
        if self._closing:
            if silence > min(LINGER_SECONDS, limits.read_seconds):
                self._transport.abort()
            return False
        started = self._blocks.since or (self._last_frame_at if self._pending or not self._preface_received else now)
        if now - started > limits.read_seconds:
            self._go_away(ErrorCode.NO_ERROR, "a frame took too long")
            return bool(self._pending)
        slow = self._requests.expire(now, limits)
        if not self._requests.streams and silence > limits.idle_seconds:
            self.close()
        self._flush()
        return slow
