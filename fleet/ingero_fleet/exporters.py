"""OTLP onward: a bounded queue, batches, retries for what may be retried, and a counter for everything lost.

Protobuf messages joined end to end are one message with all their repeated fields, so a batch is a concatenation and
nothing is decoded on the way.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import orjson
from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ingero_fleet.settings import ExporterConfig
from ingero_kit.backoff import Backoff
from ingero_kit.logs import get
from ingero_kit.otlp_server import Push, Signal

log = get(__name__)

_MESSAGES: Final = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
}


class Retryable(Exception):
    """The receiver asks to try again, after `seconds` if it said so."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class Permanent(Exception):
    """The receiver will never take this batch."""


class Transport(Protocol):
    """Sends one encoded request; raises `Retryable` or `Permanent`."""

    async def send(self, signal: Signal, body: bytes) -> None:
        """Send and wait for the answer."""

    async def close(self) -> None:
        """Give connections back."""


@dataclass
class ExporterCounters:
    """What became of pushes, by outcome."""

    sent: int = 0
    dropped_queue_full: int = 0
    dropped_permanent: int = 0
    dropped_elapsed: int = 0
    retries: int = 0


class Exporter:
    """Takes pushes without ever blocking and sends them on in the background."""

    def __init__(
        self, name: str, config: ExporterConfig, transport: Transport, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.name = name
        self.counters = ExporterCounters()
        self._config = config
        self._transport = transport
        self._loop = loop
        self._queue: deque[Push] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._draining = False
        self.tag: Callable[[bytes, str], bytes] | None = None
        """Says on metrics, in protobuf with their cluster, what Fleet knows of their senders."""

    def start(self) -> None:
        """Begin to send."""
        self._task = self._loop.create_task(self._run())

    @property
    def waiting(self) -> int:
        """Pushes in the queue."""
        return len(self._queue)

    def put(self, push: Push) -> None:
        """Queue a push, or drop it and count it when the queue is full; callable from any thread."""
        queue = self._config.sending_queue
        if len(self._queue) >= queue.queue_size or self._bytes + len(push.body) > queue.max_bytes:
            self.counters.dropped_queue_full += 1
            return
        self._queue.append(push)
        self._bytes += len(push.body)
        if not self._wake.is_set():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    async def stop(self, grace_seconds: float) -> None:
        """Send what is queued, for at most the time given, then close."""
        self._draining = True
        self._wake.set()
        if self._task:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._task, grace_seconds)
        self.counters.dropped_elapsed += len(self._queue)
        await self._transport.close()

    async def _run(self) -> None:
        while True:
            if not self._queue:
                if self._draining:
                    return
                self._wake.clear()
                if not self._queue:
                    await self._wake.wait()
                continue
            signal, body, count = self._batch()
            if body:
                await self._deliver(signal, body, count)

    def _batch(self) -> tuple[Signal, bytes, int]:
        signal = self._queue[0].signal
        parts: list[bytes] = []
        size = count = 0
        while self._queue and self._queue[0].signal is signal and (not parts or size < self._config.batch_bytes):
            push = self._queue.popleft()
            self._bytes -= len(push.body)
            body = as_protobuf(push)
            if body is None:
                self.counters.dropped_permanent += 1
                continue
            if self.tag and signal is Signal.METRICS:
                body = self.tag(body, push.cluster)
            parts.append(body)
            size += len(body)
            count += 1
        return signal, b"".join(parts), count

    async def _deliver(self, signal: Signal, body: bytes, count: int) -> None:
        started, attempt = time.monotonic(), 0
        backoff = Backoff(first=0.5, longest=30.0)
        while True:
            try:
                await self._transport.send(signal, body)
                self.counters.sent += count
                return
            except Permanent as error:
                self.counters.dropped_permanent += count
                log.warning("export_refused", exporter=self.name, reason=str(error), pushes=count)
                return
            except Retryable as error:
                delay = max(backoff.delay(attempt), error.seconds or 0.0)
                if self._draining or time.monotonic() + delay - started > self._config.max_elapsed_time:
                    self.counters.dropped_elapsed += count
                    log.warning("export_given_up", exporter=self.name, reason=str(error), pushes=count)
                    return
                if attempt == 0:
                    log.warning("export_retrying", exporter=self.name, reason=str(error))
            except asyncio.CancelledError:
                self.counters.dropped_elapsed += count
                raise
            except Exception:
                self.counters.dropped_permanent += count
                log.exception("export_failed", exporter=self.name, pushes=count)
                return
            attempt += 1
            self.counters.retries += 1
            await self._pause(delay, count)

    async def _pause(self, seconds: float, count: int) -> None:
        """Wait before the next try; a batch that is given up meanwhile is counted."""
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.counters.dropped_elapsed += count
            raise


def as_protobuf(push: Push) -> bytes | None:
    """The push in protobuf; `None` when its JSON cannot be read as OTLP."""
    if push.encoding == "protobuf":
        return push.body
    try:
        message = ParseDict(orjson.loads(push.body), _MESSAGES[push.signal](), ignore_unknown_fields=True)
    except (ParseError, ValueError):
        return None
    return bytes(message.SerializeToString())


def make_transport(name: str, config: ExporterConfig) -> Transport:
    """The transport behind an exporter's name; its library is loaded only now, since most Fleets send nothing on."""
    if name == "otlphttp":
        from ingero_fleet.transport_http import HttpTransport

        return HttpTransport(config)
    from ingero_fleet.transport_grpc import GrpcTransport

    return GrpcTransport(config)
