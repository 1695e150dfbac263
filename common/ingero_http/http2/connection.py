"""One HTTP/2 connection of a server (RFC 9113): frames in, those of requests to `http2_requests`, answers out.

A connection works through a share of what it received, writes the answers at once and leaves the rest for its next
turn; it reads no more before that, nor while its answers are not read. Priorities are ignored, nothing is pushed.
What breaks the rules of one stream resets it; what breaks those of the connection ends it with a GOAWAY in words.
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
_PREFACE_AND_HEAD: Final = len(h2.PREFACE) + h2.HEAD_OCTETS


class Connection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_blocks", "_draining", "_greeted", "_greeting", "_held", "_outbox", "_over", "_progress", "_requests",
        "_rest", "_server", "_service", "_stalled", "_transport", "_turn",
    )  # fmt: skip

    def __init__(self, server: Listener["Connection"], service: Service, greeting: bytes) -> None:
        self._server, self._service, self._greeting = server, service, greeting
        self._transport: asyncio.Transport | None = None
        self._blocks = HeaderBlockReader(server.limits.header_bytes)
        self._outbox = Outbox()
        self._requests = Requests(server, service, self._outbox, self._flush, self.close)
        self._rest = b""
        """The beginning of a frame, or what waits for its turn."""
        self._held = 0
        """Octets that count as unfinished, besides bodies."""
        self._greeted = self._over = self._stalled = self._turn = False
        self._progress = time.monotonic()
        self._draining = 0.0

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.register(self):
            self._over = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over, self._transport = True, None
        self._server.unregister(self)
        self._requests.forget()
        self._rest = b""
        self._hold()

    def pause_writing(self) -> None:
        self._stalled = True
        if self._transport:
            self._transport.pause_reading()
            self._server.writing_paused(self)

    def resume_writing(self) -> None:
        self._stalled = False
        self._server.writing_resumed(self)
        # Not at once: this may be called while answers are written.
        asyncio.get_running_loop().call_soon(self._go_on)

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._rest:
            data = self._rest + data
        if self._turn or self._stalled:
            self._rest = data
            self._hold()
        else:
            self._work(data)

    def _work(self, data: bytes) -> None:
        """Work through a share; what is left of whole frames waits until others had their turn."""
        try:
            at = self._frames(data) if self._greeted else self._greet(data)
            if at:
                self._progress = time.monotonic()
            self._rest = data[at:]
        except Http2ConnectionError as fault:
            self._server.counters.malformed += 1
            self._end(fault.code, str(fault))
        self._flush()
        if self._over:
            self._rest = b""
        elif self._greeted and h2.is_whole(self._rest):
            self._server.counters.turns_ended += 1
            self._turn = True
            if self._transport:
                self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._rest or self._held or self._blocks.open:
            self._hold()

    def _next_turn(self) -> None:
        self._turn = False
        self._go_on()

    def _go_on(self) -> None:
        """Work through what waits, unless there still is a reason to wait."""
        if self._over or self._turn or self._stalled:
            return
        if self._greeted and h2.is_whole(self._rest):
            self._work(self._rest)
        if not (self._turn or self._stalled or self._over) and self._transport:
            self._transport.resume_reading()

    def _hold(self) -> None:
        """Count what is held besides bodies, with that of all connections; where it is too much, this one ends."""
        held = 0 if self._over else len(self._rest) + self._blocks.held
        self._server.unfinished += held - self._held
        self._held = held
        if held and self._server.unfinished > self._server.limits.unfinished_bytes:
            self._server.counters.overloaded += 1
            self._end(ErrorCode.ENHANCE_YOUR_CALM, "too much is being received at once")
            self._hold()

    def _flush(self) -> None:
        frames = self._outbox.frames
        if frames and self._transport and not self._over:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
            frames.clear()

    def _end(self, code: ErrorCode, words: str = "") -> None:
        """Say goodbye and close behind it."""
        if self._over or self._transport is None:
            return
        if self._greeted:
            self._outbox.frames.append(h2.go_away(min(self._requests.last, self._requests.final), code, words))
        self._flush()
        self._over = True
        self._progress = time.monotonic()
        if code != ErrorCode.NO_ERROR and self._transport.can_write_eof():
            # What is still to come is read and dropped for a moment: a reset would take the goodbye with it.
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._transport.close()

    # Frames.

    def _greet(self, data: bytes) -> int:
        """Expect the preface and SETTINGS behind it (RFC 9113, 3.4)."""
        if not data.startswith(h2.PREFACE[: len(data)]):
            if data[:5] in (b"POST ", b"GET /", b"PUT /") and self._transport:
                self._outbox.frames.append(b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\n\r\n")
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < _PREFACE_AND_HEAD:
            return 0
        if data[len(h2.PREFACE) + 3] != h2.SETTINGS:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "SETTINGS must come first")
        self._greeted = True
        self._outbox.frames.append(self._greeting)
        return len(h2.PREFACE) + self._frames(data[len(h2.PREFACE) :])

    def _frames(self, data: bytes) -> int:
        """Work through whole frames, a share of them at most; returns the offset behind them."""
        at, end = 0, len(data)
        unpack, blocks, requests = h2.FRAME_HEAD.unpack_from, self._blocks, self._requests
        while end - at >= 9 and at < TURN_BYTES and not self._over:
            high, low, kind, flags, number = unpack(data, at)
            length = high << 8 | low
            if length > h2.LARGEST_FRAME:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} octets")
            if at + 9 + length > end:
                break
            payload = data[at + 9 : at + 9 + length]
            at += 9 + length
            number &= h2.LARGEST_STREAM
            if blocks.open and kind != h2.CONTINUATION:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            try:
                if kind == h2.DATA:
                    requests.data(flags, number, payload)
                elif kind == h2.HEADERS:
                    block = blocks.begin(flags, number, payload)
                    if block:
                        self._block(block)
                else:
                    self._control(kind, flags, number, payload)
            except Http2StreamError as fault:
                self._server.counters.malformed += fault.code != ErrorCode.REFUSED_STREAM
                requests.reset(number, fault.code)
        return at

    def _block(self, block: HeaderBlock) -> None:
        """A whole header block: a new request or the trailers of one."""
        number, ended, octets = block
        requests = self._requests
        if number <= requests.last:
            requests.trailers(number, ended, self._blocks.fields(octets))
            return
        requests.last = number
        requests.begin(number, ended, self._blocks.route(octets, self._service))

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        self._requests.flood.count_empty_frame()
        if kind == h2.CONTINUATION:
            block = self._blocks.go_on(flags, number, payload)
            if block:
                self._block(block)
        elif kind == h2.WINDOW_UPDATE:
            self._allowed(number, payload)
        elif kind == h2.RST_STREAM:
            self._abandoned(number, payload)
        elif kind == h2.PRIORITY:
            if not number:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "PRIORITY of the connection")
            if len(payload) != 5:
                raise Http2StreamError(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY is five octets")
        elif kind == h2.PUSH_PROMISE:
            raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "clients push nothing")
        elif kind in (h2.SETTINGS, h2.PING, h2.GOAWAY):
            if number:
                raise Http2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a frame of the connection on a stream")
            if kind == h2.SETTINGS:
                self._settle(flags, payload)
            elif kind == h2.PING:
                self._ping(flags, payload)
            elif len(payload) < 8:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY is at least eight octets")

    def _settle(self, flags: int, payload: bytes) -> None:
        if flags & h2.ACK:
            if payload:
                raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            return
        values = h2.read_settings(payload)
        self._outbox.frames.append(h2.frame(h2.SETTINGS, h2.ACK, 0))
        self._requests.settle(values)

    def _ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "PING is eight octets")
        if not flags & h2.ACK:
            self._outbox.frames.append(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif payload == _DRAIN_PING and self._draining:
            self._finalise()

    def _allowed(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE is four octets")
        self._requests.allow(number, int.from_bytes(payload, "big") & h2.LARGEST_WINDOW)

    def _abandoned(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM is four octets")
        self._requests.abandoned(number)

    # The server's side.

    @property
    def busy(self) -> bool:
        """Whether an answer is owed, or the client may not have heard yet that none will be given any more."""
        if self._over or not self._greeted:
            return False
        unheard = self._requests.final == h2.LARGEST_STREAM and time.monotonic() < self._draining + _DRAIN_SECONDS
        return bool(self._requests.streams) or unheard or self._turn

    @property
    def unsent(self) -> int:
        """Octets of answers that the client has not read."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def drain(self) -> None:
        """Announce the end; what the client sent before it heard of that is still served (RFC 9113, 6.8)."""
        if self._over or not self._greeted:
            return
        self._draining = time.monotonic()
        self._outbox.frames += [
            h2.go_away(h2.LARGEST_STREAM, ErrorCode.NO_ERROR),
            h2.frame(h2.PING, 0, 0, _DRAIN_PING),
        ]
        self._flush()

    def _finalise(self) -> None:
        requests = self._requests
        requests.final = requests.last
        if requests.streams:
            self._outbox.frames.append(h2.go_away(requests.last, ErrorCode.NO_ERROR))
        else:
            self.close()

    def close(self) -> None:
        """Say goodbye and close behind what is written."""
        if self._transport and not self._greeted:
            self._transport.abort()
        self._end(ErrorCode.NO_ERROR)

    def abort(self) -> None:
        """Close at once."""
        if self._transport:
            self._transport.abort()

    @property
    def idle_since(self) -> float | None:
        """When frames came last; `None` while an answer is owed."""
        return None if self._requests.owed else self._progress

    def expire(self, now: float, limits: Limits) -> bool:
        """End what takes too long; says whether a request was cut short."""
        self._requests.flood.renew()
        if self._transport is None or self._turn or self._stalled:
            return False
        quiet = now - self._progress
        if self._over:
            if quiet > min(LINGER_SECONDS, limits.read_seconds):
                self._transport.abort()
            return False
        begun = self._blocks.since or (self._progress if self._rest or not self._greeted else now)
        if now - begun > limits.read_seconds:
            self._end(ErrorCode.NO_ERROR, "a frame took too long")
            return bool(self._rest)
        slow = self._requests.expire(now, limits)
        if not self._requests.streams and quiet > limits.idle_seconds:
            self.close()
        self._flush()
        return slow
