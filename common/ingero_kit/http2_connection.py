"""One HTTP/2 connection of a server (RFC 9113): frames in, requests to the service, replies out within both windows.

A connection works through all it received and then writes all answers at once. Priorities are ignored, nothing is
pushed. Windows are given back as data comes; `Limits.unfinished_bytes` is what bounds memory. What breaks the rules
of one stream resets it; what breaks those of the connection ends it with a GOAWAY in words.
"""

import asyncio
import time
from functools import partial
from typing import Final, Protocol, cast

from ingero_kit import http2_frames as h2
from ingero_kit.http2_blocks import Block, Blocks
from ingero_kit.http2_frames import Code, ConnectionFault, StreamFault
from ingero_kit.http2_messages import Failure, Reply, Service, check_trailers
from ingero_kit.http2_streams import CONNECTION_WINDOW, STREAM_WINDOW, Outbox, Stream
from ingero_kit.listener import Counters, Limits
from ingero_kit.logs import get

log = get(__name__)

_RESETS: Final = 512
"""Streams that may end in a reset between two sweeps (about a second)."""
_NOISE: Final = 1000
"""Frames that ask for nothing between two sweeps, besides eight for every request."""
_LATE: Final = 1024
"""Streams that we ended early and whose late frames are passed over."""
_DRAIN_PING: Final = b"\0drained"
_DRAIN_SECONDS: Final = 1.0
_GREETING: Final = len(h2.PREFACE) + h2.HEAD_OCTETS


class Host(Protocol):
    """The server, as a connection sees it."""

    limits: Limits
    counters: Counters
    service: Service
    greeting: bytes
    """Our SETTINGS and the connection's window."""
    unfinished: int
    """Octets of bodies that have begun and not ended."""

    def enter(self, connection: "Connection") -> bool:
        """Count a connection; says whether it may stay."""

    def leave(self, connection: "Connection") -> None:
        """Forget a connection."""


class Connection(asyncio.Protocol):
    """One client."""

    __slots__ = (
        "_blocks", "_draining", "_final", "_greeted", "_host", "_last", "_late", "_noise", "_outbox", "_over",
        "_progress", "_resets", "_rest", "_served", "_stalled", "_streams", "_transport", "_window",
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._blocks = Blocks(host.limits.header_bytes)
        self._outbox = Outbox()
        self._rest = b""
        """The beginning of a frame."""
        self._greeted = self._over = False
        self._streams: dict[int, Stream] = {}
        self._late: dict[int, None] = {}
        self._last = 0
        self._final = h2.LARGEST_STREAM
        self._window = CONNECTION_WINDOW
        self._noise = self._resets = self._served = 0
        self._progress = time.monotonic()
        self._stalled = self._draining = 0.0

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._host.enter(self):
            self._over = True
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over, self._transport = True, None
        self._host.leave(self)
        for stream in self._streams.values():
            self._let_go(stream)
        self._streams.clear()

    def pause_writing(self) -> None:
        self._stalled = time.monotonic()
        if self._transport:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._stalled = 0.0
        if self._transport and not self._over:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._rest:
            data = self._rest + data
        try:
            at = self._frames(data) if self._greeted else self._greet(data)
            if at:
                self._progress = time.monotonic()
            self._rest = data[at:]
        except ConnectionFault as fault:
            self._host.counters.malformed += 1
            self._end(fault.code, str(fault))
        self._flush()

    def _flush(self) -> None:
        frames = self._outbox.frames
        if frames and self._transport and not self._over:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
            frames.clear()

    def _end(self, code: Code, words: str = "") -> None:
        """Say goodbye and close behind it."""
        if self._over or self._transport is None:
            return
        if self._greeted:
            self._outbox.frames.append(h2.go_away(min(self._last, self._final), code, words))
        self._flush()
        self._over = True
        self._transport.close()

    # Frames.

    def _greet(self, data: bytes) -> int:
        """Expect the preface and SETTINGS behind it (RFC 9113, 3.4)."""
        if not data.startswith(h2.PREFACE[: len(data)]):
            if data[:5] in (b"POST ", b"GET /", b"PUT /") and self._transport:
                self._outbox.frames.append(b"HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\n\r\n")
            raise ConnectionFault(Code.PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < _GREETING:
            return 0
        if data[len(h2.PREFACE) + 3] != h2.SETTINGS:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "SETTINGS must come first")
        self._greeted = True
        self._outbox.frames.append(self._host.greeting)
        return len(h2.PREFACE) + self._frames(data[len(h2.PREFACE) :])

    def _frames(self, data: bytes) -> int:
        """Work through all whole frames; returns the offset behind them."""
        at, end = 0, len(data)
        unpack = h2.FRAME_HEAD.unpack_from
        while end - at >= 9 and not self._over:
            high, low, kind, flags, number = unpack(data, at)
            length = high << 8 | low
            if length > h2.LARGEST_FRAME:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a frame of {length} octets")
            if at + 9 + length > end:
                break
            payload = data[at + 9 : at + 9 + length]
            at += 9 + length
            number &= h2.LARGEST_STREAM
            if self._blocks.open and kind != h2.CONTINUATION:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a header block is interrupted")
            try:
                if kind == h2.DATA:
                    self._data(flags, number, payload)
                elif kind == h2.HEADERS:
                    block = self._blocks.begin(flags, number, payload)
                    if block:
                        self._block(block)
                else:
                    self._control(kind, flags, number, payload)
            except StreamFault as fault:
                self._host.counters.malformed += fault.code != Code.REFUSED_STREAM
                self._reset(number, fault.code)
        return at

    def _block(self, block: Block) -> None:
        """A whole header block: a new request or the trailers of one."""
        number, ended, octets = block
        if number <= self._last:
            self._trailers(number, ended, octets)
            return
        self._last = number
        host = self._host
        found = self._blocks.route(octets, host.service)
        if number > self._final:
            return
        if len(self._streams) >= host.limits.streams:
            raise StreamFault(Code.REFUSED_STREAM, "too many streams")
        self._served += 1
        host.counters.requests += 1
        exchange, length = found or (_UNREAD, None)
        stream = self._streams[number] = Stream(number, exchange, length, self._outbox.first_credit)
        stream.complete = ended
        if not found:
            self._refuse(stream, Failure.HEADERS_TOO_LARGE)
            return
        reply = exchange.begin()
        if reply is not None:
            self._answer(stream, reply)
        elif length is not None and length > host.limits.body_bytes:
            self._refuse(stream, Failure.BODY_TOO_LARGE)
        elif ended:
            self._complete(stream, b"")

    def _trailers(self, number: int, ended: bool, octets: bytes) -> None:
        fields = self._blocks.fields(octets)
        stream = self._streams.get(number)
        if stream is None or stream.complete:
            self._stray(number, stream)
            return
        if not ended or fields is None:
            raise StreamFault(Code.PROTOCOL_ERROR, "trailers that do not end the stream, or are too large")
        check_trailers(fields)
        self._complete(stream, self._take(stream))

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._window -= size
        if self._window < CONNECTION_WINDOW >> 1:
            self._outbox.frames.append(h2.window_update(0, CONNECTION_WINDOW - self._window))
            self._window = CONNECTION_WINDOW
        stream = self._streams.get(number)
        if stream is None or stream.complete:
            self._stray(number, stream)
            return
        if flags & h2.PADDED:
            payload = h2.content(flags & h2.PADDED, payload)
        stream.window -= size
        if flags & h2.END_STREAM and not stream.body and size <= self._host.limits.body_bytes:
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
            self._quiet()

    def _stray(self, number: int, stream: Stream | None) -> None:
        """A frame of a request that has ended already."""
        if number in self._late or number > self._final:
            return
        if stream is not None:
            raise StreamFault(Code.STREAM_CLOSED, "the request has ended")
        self._must_be_known(number)
        raise ConnectionFault(Code.STREAM_CLOSED, "the stream has ended")

    def _must_be_known(self, number: int) -> None:
        if number > self._last or not number & 1:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame on a stream that was never opened")

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        self._quiet()
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
                raise ConnectionFault(Code.PROTOCOL_ERROR, "PRIORITY of the connection")
            if len(payload) != 5:
                raise StreamFault(Code.FRAME_SIZE_ERROR, "PRIORITY is five octets")
        elif kind == h2.PUSH_PROMISE:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "clients push nothing")
        elif kind in (h2.SETTINGS, h2.PING, h2.GOAWAY):
            if number:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame of the connection on a stream")
            if kind == h2.SETTINGS:
                self._settle(flags, payload)
            elif kind == h2.PING:
                self._ping(flags, payload)
            elif len(payload) < 8:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "GOAWAY is at least eight octets")

    def _quiet(self) -> None:
        """Bound what asks for nothing and costs us work."""
        self._noise += 1
        if self._noise > _NOISE + 8 * self._served:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def _settle(self, flags: int, payload: bytes) -> None:
        if flags & h2.ACK:
            if payload:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "an acknowledgement with settings")
            return
        values = h2.read_settings(payload)
        self._outbox.frames.append(h2.frame(h2.SETTINGS, h2.ACK, 0))
        credit = values.get(h2.INITIAL_WINDOW_SIZE, self._outbox.first_credit)
        for stream in self._outbox.settle(credit, self._streams):
            self._finish(stream)

    def _ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "PING is eight octets")
        if not flags & h2.ACK:
            self._outbox.frames.append(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif payload == _DRAIN_PING and self._draining:
            self._finalise()

    def _allowed(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE is four octets")
        octets = int.from_bytes(payload, "big") & h2.LARGEST_WINDOW
        if not number:
            for stream in self._outbox.allow(octets):
                self._finish(stream)
            return
        self._must_be_known(number)
        one = self._streams.get(number)
        if self._outbox.allow_stream(one, octets) and one:
            self._finish(one)

    def _abandoned(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "RST_STREAM is four octets")
        self._must_be_known(number)
        self._drop(number)
        self._count_reset()

    # Requests and replies.

    def _keep(self, stream: Stream, payload: bytes) -> bool:
        """Add to a body; says whether the request is still wanted."""
        limits = self._host.limits
        if len(stream.body) + len(payload) > limits.body_bytes:
            self._refuse(stream, Failure.BODY_TOO_LARGE)
            return False
        if self._host.unfinished + len(payload) > limits.unfinished_bytes:
            self._refuse(stream, Failure.OVERLOADED)
            return False
        if not isinstance(stream.body, bytearray):
            stream.body = bytearray(stream.body)
        stream.body += payload
        self._host.unfinished += len(payload)
        return True

    def _take(self, stream: Stream) -> bytes:
        body = bytes(stream.body)
        self._host.unfinished -= len(body)
        stream.body = b""
        return body

    def _complete(self, stream: Stream, body: bytes) -> None:
        if stream.length is not None and stream.length != len(body):
            raise StreamFault(Code.PROTOCOL_ERROR, "content-length and data differ")
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
        if task.cancelled() or stream.number not in self._streams:
            return
        error = task.exception()
        self._answer(stream, self._failed(error) if error else task.result())
        self._flush()

    def _failed(self, error: BaseException) -> Reply:
        self._host.counters.handler_errors += 1
        log.error("handler_failed", exc_info=error)
        return self._host.service.fail(Failure.HANDLER_FAILED)

    def _refuse(self, stream: Stream, failure: Failure) -> None:
        self._host.counters.too_large += failure in (Failure.BODY_TOO_LARGE, Failure.HEADERS_TOO_LARGE)
        self._answer(stream, self._host.service.fail(failure))

    def _answer(self, stream: Stream, reply: Reply) -> None:
        if not stream.complete:
            stream.complete = True
            self._pass_over(stream.number)
        if self._outbox.reply(stream, reply):
            self._finish(stream)

    def _finish(self, stream: Stream) -> None:
        """The reply is out; what the client still sends of an unfinished request is not wanted."""
        if stream.number in self._late:
            self._outbox.frames.append(h2.reset(stream.number, Code.NO_ERROR))
        self._drop(stream.number)

    def _reset(self, number: int, code: Code) -> None:
        self._outbox.frames.append(h2.reset(number, code))
        self._pass_over(number)
        self._drop(number)
        if code != Code.REFUSED_STREAM:
            self._count_reset()

    def _count_reset(self) -> None:
        self._resets += 1
        if self._resets > _RESETS:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many streams end in a reset")

    def _pass_over(self, number: int) -> None:
        self._late[number] = None
        if len(self._late) > _LATE:
            del self._late[next(iter(self._late))]

    def _drop(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream:
            self._outbox.waiting.pop(number, None)
            self._let_go(stream)
            if not self._streams and self._final != h2.LARGEST_STREAM:
                self.close()

    def _let_go(self, stream: Stream) -> None:
        if stream.body:
            self._host.unfinished -= len(stream.body)
            stream.body = b""
        if stream.task:
            stream.task.cancel()

    # The server's side.

    @property
    def busy(self) -> bool:
        """Whether an answer is owed, or the client may not have heard yet that none will be given any more."""
        if self._over or not self._greeted:
            return False
        unheard = self._final == h2.LARGEST_STREAM and time.monotonic() < self._draining + _DRAIN_SECONDS
        return bool(self._streams) or unheard

    def drain(self) -> None:
        """Announce the end; what the client sent before it heard of that is still served (RFC 9113, 6.8)."""
        if self._over or not self._greeted:
            return
        self._draining = time.monotonic()
        self._outbox.frames += [
            h2.go_away(h2.LARGEST_STREAM, Code.NO_ERROR),
            h2.frame(h2.PING, 0, 0, _DRAIN_PING),
        ]
        self._flush()

    def _finalise(self) -> None:
        self._final = self._last
        if self._streams:
            self._outbox.frames.append(h2.go_away(self._last, Code.NO_ERROR))
        else:
            self.close()

    def close(self) -> None:
        """Say goodbye and close behind what is written."""
        if self._transport and not self._greeted:
            self._transport.abort()
        self._end(Code.NO_ERROR)

    def expire(self, now: float, limits: Limits) -> bool:
        """End what takes too long; says whether a request was cut short."""
        self._noise = self._resets = self._served = 0
        transport = self._transport
        if transport is None:
            return False
        quiet = now - self._progress
        if now - (self._stalled or now) > limits.idle_seconds or (self._over and quiet > limits.idle_seconds):
            transport.abort()
        if self._over:
            return False
        begun = self._blocks.since or (self._progress if self._rest or not self._greeted else now)
        if now - begun > limits.read_seconds:
            self._end(Code.NO_ERROR, "a frame took too long")
            return bool(self._rest)
        late = [stream for stream in self._streams.values() if now - stream.since > limits.read_seconds]
        slow = [stream for stream in late if not stream.complete]
        for stream in slow:
            self._refuse(stream, Failure.TOO_SLOW)
        for stream in late:
            if stream.number in self._outbox.waiting and now - stream.since > limits.idle_seconds:
                self._outbox.frames.append(h2.reset(stream.number, Code.CANCEL))
                self._drop(stream.number)
        if not self._streams and quiet > limits.idle_seconds:
            self.close()
        self._flush()
        return bool(slow)


class _Unread:
    """Stands in for what a request asks whose fields are too large to say."""

    def begin(self) -> Reply | None:
        raise NotImplementedError

    def complete(self, body: bytes) -> Reply:
        raise NotImplementedError


_UNREAD: Final = _Unread()
