"""OTLP onward: a bounded queue, batches, retries for what may be retried, and a counter for everything lost.

Protobuf messages joined end to end are one message with all their repeated fields, so a batch is a concatenation and
nothing is decoded on the way.
"""

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

import grpc
import httpx
import orjson
from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ingero_fleet.settings import OtlpExporterConfig
from ingero_kit.backoff import Backoff, parse_retry_after
from ingero_kit.logs import get
from ingero_kit.otlp_server import Push, Signal
from ingero_kit.tokens import read_tokens

log = get(__name__)

_MESSAGES: Final = {
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
    Signal.TRACES: ExportTraceServiceRequest,
}

RETRYABLE_HTTP: Final = frozenset({408, 429, 502, 503, 504})
RETRYABLE_GRPC: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
"""What the OTLP specification allows to send again."""


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


class HttpTransport:
    """OTLP/HTTP in protobuf."""

    def __init__(self, config: OtlpExporterConfig) -> None:
        self._url = config.endpoint.rstrip("/")
        if "://" not in self._url:
            self._url = f"{'http' if config.tls.insecure else 'https'}://{self._url}"
        verify = config.tls.context() if self._url.startswith("https") else False
        self._client = httpx.AsyncClient(verify=verify, timeout=config.timeout, trust_env=False)
        self._headers = {"content-type": "application/x-protobuf"}
        if config.bearer_token_file:
            self._headers["authorization"] = f"Bearer {read_tokens(config.bearer_token_file)[0]}"

    async def send(self, signal: Signal, body: bytes) -> None:
        """POST one batch."""
        try:
            answer = await self._client.post(self._url + signal.path, content=body, headers=self._headers)
        except httpx.HTTPError as error:
            raise Retryable(f"{type(error).__name__}: {error}") from None
        if answer.status_code in RETRYABLE_HTTP:
            raise Retryable(
                f"HTTP {answer.status_code}", parse_retry_after(answer.headers.get("retry-after"), time.time())
            )
        if answer.status_code >= 300:
            raise Permanent(f"HTTP {answer.status_code}: {answer.text[:200]}")

    async def close(self) -> None:
        """Give connections back."""
        await self._client.aclose()


class GrpcTransport:
    """OTLP/gRPC."""

    def __init__(self, config: OtlpExporterConfig) -> None:
        tls = config.tls
        if tls.insecure:
            self._channel = grpc.aio.insecure_channel(config.endpoint)
        else:
            tls.context()
            self._channel = grpc.aio.secure_channel(
                config.endpoint,
                grpc.ssl_channel_credentials(
                    tls.ca_file.read_bytes() if tls.ca_file else None,
                    tls.key_file.read_bytes() if tls.key_file else None,
                    tls.cert_file.read_bytes() if tls.cert_file else None,
                ),
            )
        self._timeout = config.timeout
        self._metadata: tuple[tuple[str, str], ...] = ()
        if config.bearer_token_file:
            self._metadata = (("authorization", f"Bearer {read_tokens(config.bearer_token_file)[0]}"),)

    async def send(self, signal: Signal, body: bytes) -> None:
        """Call Export with one batch."""
        call = self._channel.unary_unary(signal.grpc_method, None, None)
        try:
            await call(body, timeout=self._timeout, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            kind = Retryable if error.code() in RETRYABLE_GRPC else Permanent
            raise kind(f"{error.code().name}: {(error.details() or '')[:200]}") from None

    async def close(self) -> None:
        """Give the channel back."""
        await self._channel.close(None)


class Exporter:
    """Takes pushes without ever blocking and sends them on in the background."""

    def __init__(
        self, name: str, config: OtlpExporterConfig, transport: Transport, loop: asyncio.AbstractEventLoop
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
            attempt += 1
            self.counters.retries += 1
            await asyncio.sleep(delay)


def as_protobuf(push: Push) -> bytes | None:
    """The push in protobuf; `None` when its JSON cannot be read as OTLP."""
    if push.encoding == "protobuf":
        return push.body
    try:
        message = ParseDict(orjson.loads(push.body), _MESSAGES[push.signal](), ignore_unknown_fields=True)
    except (ParseError, ValueError):
        return None
    return bytes(message.SerializeToString())


def make_transport(name: str, config: OtlpExporterConfig) -> Transport:
    """The transport behind an exporter's name."""
    return HttpTransport(config) if name == "otlphttp" else GrpcTransport(config)
