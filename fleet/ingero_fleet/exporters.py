"""Exports OTLP: a bounded queue, batches, retries where they are allowed, and a counter for every loss.

Concatenated protobuf messages are one message with all their repeated fields, so a batch is built without decoding. A
batch that the receiver refuses for its content is halved until only the refused records are lost.
"""

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from ingero_fleet.export_state import ExportState, Obstacle
from ingero_fleet.exporter_settings import ExportBoundsConfig, ExporterConfig, NatsExporterConfig
from ingero_fleet.otlp_parts import as_protobuf, count_records, halves, rejected
from ingero_kit import otlp_client
from ingero_kit.backoff import Backoff
from ingero_kit.extras import pip_command
from ingero_kit.logs import get
from ingero_kit.otlp_client import DeliveryFailure, Disposition, OtlpClient
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_kit.settings import SettingsError
from ingero_kit.tokens import read_authorization

log = get(__name__)

MAX_SPLITS: Final = 128
"""Most cuts of a refused batch: enough to isolate a few bad records, few for a receiver that refuses everything."""


class _Outcome(StrEnum):
    """The outcome of one request; its value is that of the counter."""

    SENT = "sent"
    REFUSED = "refused"
    LOST = "dropped_permanent"
    GIVEN_UP = "dropped_elapsed"


class Exporter:
    """Takes pushes without blocking and sends them in the background."""

    def __init__(
        self, name: str, config: ExportBoundsConfig, client: OtlpClient, loop: asyncio.AbstractEventLoop, *,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        """`clock` and `sleep` are those of the retries."""
        self.name = name
        self.counters: Counter[str] = Counter()
        """Pushes by outcome, retries, and rejected records. A push counts as sent when any of its records was."""
        self._config = config
        self._client = client
        self._loop = loop
        self._clock, self._sleep = clock, sleep
        self._obstacle: Obstacle | None = None
        self._queue: deque[Push] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._under_way = 0
        self._refusal = ""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._draining = False
        self.tag: Callable[[bytes, str], bytes] | None = None
        """Adds what Fleet knows about senders to metrics; takes protobuf and cluster."""

    def start(self) -> None:
        """Start sending."""
        self._task = self._loop.create_task(self._run())

    @property
    def waiting(self) -> int:
        """Pushes in the queue."""
        return len(self._queue)

    def state(self) -> ExportState:
        """What waits, and what prevents its delivery at present."""
        queue = self._config.sending_queue
        with self._lock:
            pushes, used = len(self._queue), self._bytes
        return ExportState(
            waiting=pushes + self._under_way,
            full=max(pushes / queue.queue_size, used / queue.max_bytes),
            obstacle=self._obstacle,
        )

    def export(self, push: Push) -> None:
        """Queue a push, or drop it and count it when the queue is full; callable from any thread."""
        queue = self._config.sending_queue
        with self._lock:
            if len(self._queue) >= queue.queue_size or self._bytes + len(push.body) > queue.max_bytes:
                self.counters["dropped_queue_full"] += 1
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
        self.counters["dropped_elapsed"] += len(self._queue) + self._under_way
        await self._client.close()

    async def _run(self) -> None:
        while self._queue or not self._draining:
            if not self._queue:
                self._wake.clear()
                if not self._queue:
                    await self._wake.wait()
                continue
            try:
                signal, bodies = self._batch()
                if bodies:
                    await self._send(signal, bodies)
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """An error that nobody foresaw costs the pushes under way, and no more."""
        log.exception("export_failed", exporter=self.name, pushes=self._under_way)
        self._note(DeliveryFailure.INTERNAL, f"{type(error).__name__}: {error}")
        self._count(_Outcome.LOST, self._under_way)

    def _batch(self) -> tuple[Signal, list[bytes]]:
        """Pushes of one signal, each as a request in protobuf."""
        signal = self._queue[0].signal
        bodies: list[bytes] = []
        size = 0
        while self._queue and self._queue[0].signal is signal and (not bodies or size < self._config.batch_bytes):
            with self._lock:
                push = self._queue.popleft()
                self._bytes -= len(push.body)
            self._under_way += 1
            try:
                body = push.body if push.encoding == "protobuf" else as_protobuf(push).body
            except ValueError:
                self._count(_Outcome.LOST, 1)
                continue
            if self.tag and signal is Signal.METRICS:
                body = self.tag(body, push.cluster)
            bodies.append(body)
            size += len(body)
        return signal, bodies

    async def _send(self, signal: Signal, bodies: list[bytes]) -> None:
        """Send a batch, and count the outcome of every push."""
        groups, splits = [bodies], MAX_SPLITS
        while groups:
            group = groups.pop()
            outcome = await self._deliver(signal, b"".join(group))
            if outcome is _Outcome.REFUSED and splits > 0:
                if len(group) > 1:
                    middle = len(group) // 2
                    groups += [group[middle:], group[:middle]]
                    splits -= 1
                    continue
                outcome, splits = await self._rescue(signal, group[0], splits)
            self._count(outcome, len(group))
        if self._refusal:
            log.warning("export_refused", exporter=self.name, reason=self._refusal, pushes=len(bodies))
            self._refusal = ""

    async def _rescue(self, signal: Signal, body: bytes, splits: int) -> tuple[_Outcome, int]:
        """Send those records of a refused push that the receiver accepts; also returns how many cuts are left."""
        refused, sent, parts = 0, False, [body]
        while parts:
            part = parts.pop()
            if part is not body:
                outcome = await self._deliver(signal, part)
                if outcome is _Outcome.SENT:
                    sent = True
                    continue
                if outcome is not _Outcome.REFUSED:
                    return _Outcome.SENT if sent else outcome, splits
            try:
                two = halves(signal, part) if splits > 0 else None
                if two is None:
                    refused += count_records(signal, part)
                else:
                    parts += reversed(two)
                    splits -= 1
            except ValueError:  # not protobuf after all: its records cannot be separated
                break
        self.counters["rejected_records"] += refused if sent else 0
        return _Outcome.SENT if sent else _Outcome.REFUSED, splits

    def _count(self, outcome: _Outcome, pushes: int) -> None:
        self._under_way -= pushes
        self.counters[_Outcome.LOST if outcome is _Outcome.REFUSED else outcome] += pushes

    async def _deliver(self, signal: Signal, body: bytes) -> _Outcome:
        """Send one request until it is accepted, refused, or too old."""
        started, attempt = self._clock(), 0
        backoff = Backoff(first=0.5, longest=30.0)
        while True:
            try:
                result = await self._client.send(signal, body)
            except Exception as error:
                log.exception("export_failed", exporter=self.name, bytes=len(body))
                self._note(DeliveryFailure.INTERNAL, f"{type(error).__name__}: {error}")
                return _Outcome.LOST
            if result.failure is None:
                self._answered(signal, result.response)
                self._obstacle = None
                return _Outcome.SENT
            if result.disposition is Disposition.SPLIT:
                self._refusal = result.detail
                return _Outcome.REFUSED
            self._note(result.failure, result.detail)
            if result.disposition is Disposition.DROP:
                log.warning("export_refused", exporter=self.name, reason=result.detail, bytes=len(body))
                return _Outcome.LOST
            delay = max(backoff.delay(attempt), result.retry_after or 0.0)
            if self._draining or self._clock() + delay - started > self._config.max_elapsed_time:
                log.warning("export_given_up", exporter=self.name, reason=result.detail, bytes=len(body))
                return _Outcome.GIVEN_UP
            if attempt == 0:
                log.warning("export_retrying", exporter=self.name, reason=result.detail)
            attempt += 1
            self.counters["retries"] += 1
            await self._sleep(delay)

    def _note(self, failure: DeliveryFailure, detail: str) -> None:
        """Record why nothing is delivered at present, and since when."""
        since = self._obstacle.since if self._obstacle else time.time()
        self._obstacle = Obstacle(since=since, failure=str(failure), detail=detail)

    def _answered(self, signal: Signal, response: bytes) -> None:
        """Count the records that a receiver rejected in a partial success."""
        refused = rejected(signal, response) if response else 0
        if refused:
            self.counters["rejected_records"] += refused
            log.warning("export_partly_rejected", exporter=self.name, records=refused)


def make_client(name: str, config: ExporterConfig | NatsExporterConfig) -> OtlpClient:
    """The client for an exporter's name. Raises `SettingsError` for what is unusable: token, certificate, library."""
    if isinstance(config, NatsExporterConfig):
        try:
            from ingero_fleet.nats_exporter import NatsOtlpClient  # optional
        except ModuleNotFoundError as error:
            raise SettingsError(f"exporters.nats: {error}: {pip_command('fleet-log')}") from None
        return NatsOtlpClient(config)
    read_authorization(config.bearer_token_file)
    return otlp_client.make_client(
        otlp_client.ClientConfig(
            endpoint=config.endpoint,
            tls=config.tls,
            token_file=config.bearer_token_file,
            timeout=config.timeout,
            protocol="http" if name == "otlphttp" else "grpc",
        )
    )
