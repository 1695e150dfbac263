"""Drives connections that push as fast as answers come, or at a fixed rate with latency from the intended moment."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

from ingero_analyze.loadgen.requests import Protocol, build, header_block
from ingero_contract import headers
from ingero_http.http2 import frames as h2

WINDOW: Final = 1 << 20
_THRESHOLD: Final = headers.THRESHOLD.lower().encode()
_GRPC_THRESHOLD: Final = headers.GRPC_THRESHOLD.encode()
_TAKEN: Final = (b"\0\0\0\0\0", b"\0\0\0\0\x02\x0a\0")
"""The answers to a push that was accepted completely: an empty one, and an empty partial success."""


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """The load to generate, over at most as many connections as nodes; `rate` 0 means as fast as answers come."""

    host: str
    port: int
    protocol: Protocol
    connections: int = 64
    nodes: int = 1000
    cluster: str = "load"
    seconds: float = 10.0
    pushes: int = 0
    rate: float = 0.0


@dataclass
class LoadResult:
    """The result of a run; latencies in seconds."""

    pushes: int = 0
    seconds: float = 0.0
    with_threshold: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Latency below which this share of pushes lies; 0 without any."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class _Link(asyncio.Protocol):
    """One connection with one pending push."""

    def __init__(self, plan: LoadPlan, host: str, number: int, done: "Callable[[_Link, bool, str], None]") -> None:
        self.intended = 0.0
        self.busy = False
        self.transport: asyncio.Transport | None = None
        self._done = done
        nodes = range(number, plan.nodes, plan.connections)
        self._requests = [build(plan.protocol, node, plan.cluster, host) for node in nodes]
        self._next = 0
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.busy:
            self.finish(False, "connection lost")

    def take(self) -> bytes:
        """The next node's request."""
        request = self._requests[self._next]
        self._next = (self._next + 1) % len(self._requests)
        return request

    def finish(self, threshold: bool, error: str) -> None:
        """Record the answer to the pending push."""
        self.busy = False
        self._done(self, threshold, error)

    def send(self) -> None:
        """Send the next push."""
        raise NotImplementedError


class _HttpLink(_Link):
    def send(self) -> None:
        self.busy = True
        if self.transport:
            self.transport.write(self.take())
        else:
            self.finish(False, "connection lost")

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._buffer[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 : head.find(b"\r\n", at) if head.find(b"\r\n", at) > 0 else end]) if at >= 0 else 0
        if len(self._buffer) < end + 4 + length:
            return
        self._buffer = self._buffer[end + 4 + length :]
        status = head[9:12]
        taken = status == b"200" and length <= len(b'{"partialSuccess":{}}')
        error = "" if taken else f"status {status.decode()}, {length} bytes"
        self.finish(_THRESHOLD in head, error)


class _GrpcLink(_Link):
    def __init__(self, plan: LoadPlan, host: str, number: int, done: "Callable[[_Link, bool, str], None]") -> None:
        super().__init__(plan, host, number, done)
        self._block = header_block(host)
        self._stream = 1
        self._seen = 0
        self._head = self._message = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        wanted = h2.settings({h2.HEADER_TABLE_SIZE: 0, h2.INITIAL_WINDOW_SIZE: WINDOW})
        self.transport.write(h2.PREFACE + wanted + h2.window_update(0, 1 << 30))

    def send(self) -> None:
        self.busy = True
        self._head = self._message = b""
        if self.transport is None:
            self.finish(False, "connection lost")
            return
        stream, self._stream = self._stream, self._stream + 2
        head = h2.frame(h2.HEADERS, h2.END_HEADERS, stream, self._block)
        self.transport.write(head + h2.frame(h2.DATA, h2.END_STREAM, stream, self.take()))

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while len(buffer) - at >= h2.FRAME_HEAD_BYTES:
            high, low, kind, flags, _ = h2.FRAME_HEAD.unpack_from(buffer, at)
            end = at + h2.FRAME_HEAD_BYTES + (high << 8 | low)
            if len(buffer) < end:
                break
            payload = buffer[at + h2.FRAME_HEAD_BYTES : end]
            at = end
            self._frame(kind, flags, payload)
        self._buffer = buffer[at:]

    def _frame(self, kind: int, flags: int, payload: bytes) -> None:
        transport = self.transport
        if kind == h2.SETTINGS and not flags & h2.ACK and transport:
            transport.write(h2.frame(h2.SETTINGS, h2.ACK, 0))
        elif kind == h2.PING and not flags & h2.ACK and transport:
            transport.write(h2.frame(h2.PING, h2.ACK, 0, payload))
        elif kind == h2.HEADERS:
            self._head += payload
            if flags & h2.END_STREAM and self.busy:
                error = "" if self._message in _TAKEN else f"refused: {self._head + self._message!r}"
                self.finish(_GRPC_THRESHOLD in self._head, error)
        elif kind == h2.DATA:
            self._message += payload
            self._seen += len(payload)
            if self._seen > WINDOW // 2 and transport:
                transport.write(h2.window_update(0, self._seen))
                self._seen = 0
        elif kind == h2.RST_STREAM and self.busy:
            self.finish(False, f"stream reset {int.from_bytes(payload, 'big')}")
        elif kind == h2.GOAWAY and transport:
            transport.close()


async def drive_load(plan: LoadPlan) -> LoadResult:
    """Run the plan; ends by itself after its seconds or pushes, whichever comes first."""
    loop = asyncio.get_running_loop()
    result, host = LoadResult(), f"{plan.host}:{plan.port}"
    over = loop.create_future()
    started = time.perf_counter()
    stop_at = started + plan.seconds
    idle: list[_Link] = []

    def done(link: _Link, threshold: bool, error: str) -> None:
        now = time.perf_counter()
        result.pushes += not error
        result.with_threshold += threshold
        if error:
            result.errors[error] += 1
        else:
            result.latencies.append(now - link.intended)
        enough = plan.pushes and result.pushes + result.errors.total() >= plan.pushes
        if enough or now >= stop_at or (error and link.transport is None):
            if not over.done() and (enough or now >= stop_at or all(item.transport is None for item in links)):
                over.set_result(None)
        elif plan.rate:
            idle.append(link)
        else:
            link.intended = now
            link.send()

    kind: type[_Link] = _GrpcLink if plan.protocol == "grpc" else _HttpLink
    links = [kind(plan, host, number, done) for number in range(plan.connections)]
    for link in links:
        await loop.create_connection(lambda link=link: link, plan.host, plan.port)  # type: ignore[misc]
    started = time.perf_counter()
    stop_at = started + plan.seconds
    if plan.rate:
        idle.extend(links)
        pacer = asyncio.create_task(_pace(plan.rate, stop_at, idle, over))
        await over
        pacer.cancel()
    else:
        for link in links:
            link.intended = time.perf_counter()
            link.send()
        await asyncio.wait([over], timeout=plan.seconds + 10)
    result.seconds = time.perf_counter() - started
    for link in links:
        if link.transport:
            link.busy = False
            link.transport.abort()
    return result


async def _pace(rate: float, stop_at: float, idle: list[_Link], over: "asyncio.Future[None]") -> None:
    """Send at fixed moments; a push that finds no free connection waits, and the wait counts as latency."""
    due = time.perf_counter()
    while due < stop_at and not over.done():
        now = time.perf_counter()
        while due <= now:
            if not idle:
                break
            link = idle.pop(0)  # in turn, because a receiver closes a connection that never sends
            link.intended = due
            link.send()
            due += 1 / rate
        await asyncio.sleep(min(0.001, max(0.0, due - time.perf_counter())) if idle else 0)
    if not over.done():
        over.set_result(None)
