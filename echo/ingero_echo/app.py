"""The wiring of Echo: settings in; store, writer, listeners and front ends out. The only place where they meet."""

import asyncio
import contextlib
import gc
import logging
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ingero_contract import echo
from ingero_echo import retention
from ingero_echo.auth import Callers, RateLimit
from ingero_echo.collector import INGEST, LISTENERS, MAINTAINER, QUESTIONS, REQUESTS, SEALER, WRITER
from ingero_echo.database_file import StoreError
from ingero_echo.errors import EchoApiError, UserError
from ingero_echo.ingest_audit import INTERVAL_SECONDS, IngestAudit
from ingero_echo.ingest_handler import IngestAuthenticator, IngestHandler
from ingero_echo.lake.maintainer import Maintainer
from ingero_echo.lake.sealer import SealCounters, Sealer, open_lake
from ingero_echo.lazy_apps import LazyApps
from ingero_echo.middleware import MAX_BODY, AuditLog, AuthMiddleware, UnreadResponses
from ingero_echo.settings import EchoConfig
from ingero_echo.source_stats import SOURCE, SourceStats
from ingero_echo.store import Store
from ingero_echo.writer import Writer
from ingero_http.asgi import API_LIMITS, AsgiServer, head_as_get
from ingero_http.http1.messages import Request, Response
from ingero_http.http1.server import Http1Server
from ingero_http.limits import Counters
from ingero_kit.addresses import parse_endpoint
from ingero_kit.exposition import Collector
from ingero_kit.extras import pip_command
from ingero_kit.logs import get
from ingero_kit.metrics_table import TableCollector
from ingero_kit.otlp_receiver import OtlpGrpcReceiver, OtlpHttpReceiver
from ingero_kit.process_memory import leave_out_pydantic_v1
from ingero_kit.process_metrics import PROCESS
from ingero_kit.signals import on_end

log = get(__name__)

DRAIN_SECONDS = 5.0
"""How long a stop waits for running requests."""


class Echo:
    """One Echo process."""

    def __init__(self, config: EchoConfig) -> None:
        self.config = config
        self.ports: dict[str, int] = {}
        self._tokens = Callers(config.auth.tokens_file, config.auth.grace)
        self._audit = AuditLog(config.auth.audit_file)
        self._ingest_audit = IngestAudit(self._audit.write)
        self._store: Store | None = None
        self._writer: Writer | None = None
        self._ingest_handler: IngestHandler | None = None
        self._sealer: Sealer | None = None
        self._source: SourceStats | None = None
        self._maintainer: Maintainer | None = None
        self._api: AsgiServer | None = None
        self._health: Http1Server | None = None
        self._http: OtlpHttpReceiver | None = None
        self._grpc: OtlpGrpcReceiver | None = None
        self._requests: Counter[tuple[str, str]] = Counter()
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()

    async def start(self) -> None:
        """Answer health checks at once, open the store, then accept events.

        Raises `SettingsError`, `OSError`, `StoreError` or `DatabaseLocked`, with a message for the user.
        """
        self._stack.callback(self._audit.close)
        self._stack.callback(self._ingest_audit.write_lines)
        await self._front_ends()
        store = await asyncio.to_thread(Store.open, self.config.store)
        self._stack.callback(store.close)
        writer = Writer(store, self.config.ingest)
        await asyncio.to_thread(writer.start)
        self._stack.callback(writer.stop)
        clock = await asyncio.to_thread(retention.retention_clock, store, time.time_ns(), time.monotonic_ns())
        per_second = self.config.ingest.requests_per_second
        rate = RateLimit(per_second, max(1, round(per_second))) if per_second else None
        self._ingest_handler = IngestHandler(
            self._tokens, writer, self.config.retention.age, clock, self._ingest_audit, rate
        )
        self._stack.callback(self._ingest_handler.close)
        await self._receivers(self._ingest_handler)
        self._store, self._writer = store, writer
        if self.config.table:
            take_over = writer.take_over if self.config.source else None
            self._sealer = Sealer(store, writer.call, open_lake, self.config.table, take_over)
            self._sealer.start()
            self._stack.callback(self._sealer.stop)
            if self.config.source:
                self._read_source(store, writer, self._sealer, clock)
            if self.config.table.maintain_every is not None:
                folder = self.config.store.path.absolute().with_name(self.config.store.path.name + ".maintenance")
                self._maintainer = Maintainer(open_lake, self.config.table, folder)
                self._maintainer.start()
                self._stack.callback(self._maintainer.stop)
        self._tasks.append(asyncio.create_task(self._retain(writer, store, clock)))
        self._tasks.append(asyncio.create_task(self._apps.run()))
        self._tasks.append(asyncio.create_task(self._audit_pushes()))

    def _read_source(self, store: Store, writer: Writer, sealer: Sealer, clock: retention.RetentionClock) -> None:
        assert self.config.source and self.config.table
        try:
            from ingero_echo.stream_source import DecodeLimits, NatsSource  # optional
        except ModuleNotFoundError as error:
            raise UserError(f"source.nats needs more packages ({error.name})", pip_command("echo-source")) from None
        age = int(self.config.retention.age * 1e9)
        limits = DecodeLimits(
            self.config.ingest.max_decoded_body_size, lambda now: clock.now(now, time.monotonic_ns()) - age
        )
        source = NatsSource(self.config.source.nats, store, writer, sealer, limits, self.config.table.every)
        self._source = sealer.counters.source = source.stats
        self._tasks.append(asyncio.create_task(source.run()))

    def _sealing(self) -> SealCounters | None:
        return self._sealer.counters if self._sealer else None

    async def _front_ends(self) -> None:
        config = self.config
        collectors: list[Collector] = [
            TableCollector(REQUESTS, lambda: self._requests), TableCollector(QUESTIONS, lambda: self._apps),
            TableCollector(LISTENERS, self._listeners), TableCollector(INGEST, lambda: self._ingest_handler),
            TableCollector(WRITER, lambda: self._writer),
            TableCollector(SEALER, self._sealing),
            TableCollector(SOURCE, lambda: self._source),
            TableCollector(MAINTAINER, lambda: self._maintainer.counters if self._maintainer else None),
            PROCESS,
        ]  # fmt: skip
        unread = UnreadResponses()
        self._apps = LazyApps(
            config,
            lambda: self._store,
            collectors,
            self.backup,
            MAX_BODY,
            unread.check,
            self._sealing,
            lambda: self._writer.counters.failure if self._writer else None,
        )
        middleware = AuthMiddleware(
            head_as_get(self._apps.api), self._apps.mcp, self._unready,
            self._liveness_error, self._tokens,
            RateLimit(config.api.requests_per_second, config.api.burst), self._audit,
            self._count_request, unread,
        )  # fmt: skip
        if config.api.health_endpoint:
            self._health = Http1Server(self._probe, limits=API_LIMITS)
            await self._listen("health", self._health, config.api.health_endpoint, purpose="health")
        self._api = AsgiServer(middleware)
        await self._listen("api", self._api, config.api.endpoint, tls=config.tls)

    def _count_request(self, handler: str, status_class: str) -> None:
        self._requests[handler, status_class] += 1

    async def _listen(self, name: str, server: Any, endpoint: str, **options: Any) -> None:
        """Start a listener, which ends with the process."""
        self.ports[name] = await server.start(*parse_endpoint(endpoint), **options)
        self._stack.push_async_callback(server.stop, DRAIN_SECONDS)

    def _probe(self, request: Request) -> Response:
        """Liveness and readiness on a separate listener, which API clients cannot exhaust."""
        path = request.path.decode("latin-1")
        if path not in (echo.LIVE, echo.READY):
            return Response(404, f"not found: {echo.LIVE}, {echo.READY}\n".encode())
        liveness_error = self._liveness_error()
        if liveness_error:
            return Response(503, f"{liveness_error}\n".encode())
        unready = self._unready()
        if path == echo.READY and unready:
            return Response(503, f"{unready}; {unready.hint}\n".encode())
        return Response(200, b"ok\n")

    def _listeners(self) -> dict[str, Counters]:
        found = {"otlp_http": self._http, "otlp_grpc": self._grpc, "api": self._api, "health": self._health}
        return {name: one.counters for name, one in found.items() if one}

    def _unready(self) -> EchoApiError | None:
        """What is missing before questions can be answered, if anything is."""
        if self._store is not None:
            return None
        return EchoApiError("not_ready", "the database is still being opened", "ask again", 503, 1)

    def _liveness_error(self) -> EchoApiError | None:
        """The failure that only a restart repairs, if there is one."""
        if self._writer is not None and not self._writer.alive:
            return EchoApiError("writer_ended", "nothing can be written any more", "restart Echo", 503)
        if self._apps.stuck(time.monotonic()):
            return EchoApiError("query_goes_on", "a query goes on long after it was cancelled", "restart Echo", 503)
        return None

    async def _receivers(self, handler: IngestHandler) -> None:
        config, authenticator = self.config.ingest, IngestAuthenticator(self._tokens, self._ingest_audit)
        if config.http_endpoint:
            self._http = OtlpHttpReceiver(handler, authenticator, config.limits())
            await self._listen("otlp/http", self._http, config.http_endpoint, tls=self.config.tls)
        if config.grpc_endpoint:
            limits = replace(config.limits(), body_bytes=config.max_decoded_body_size)
            self._grpc = OtlpGrpcReceiver(handler, authenticator, limits)
            await self._listen("otlp/grpc", self._grpc, config.grpc_endpoint, tls=self.config.tls)

    async def _audit_pushes(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            self._ingest_audit.write_lines()

    async def _retain(self, writer: Writer, store: Store, clock: retention.RetentionClock) -> None:
        while True:
            await asyncio.sleep(self.config.retention.every)
            try:
                now = clock.now(time.time_ns(), time.monotonic_ns())
                sealing = self.config.table is not None
                job = writer.call(partial(retention.sweep, store, self.config.retention, now, sealing=sealing))
                deleted = await asyncio.wrap_future(job)
                writer.counters.sweeps += 1
                writer.counters.deleted += deleted
                if deleted:
                    log.info("retention", deleted=deleted)
            except Exception as error:
                log.error("retention_failed", reason=str(error))

    def backup(self) -> dict[str, Any]:
        """Write a copy into the backup folder; blocks. Raises `EchoApiError`."""
        folder = self.config.store.backup_folder
        if folder is None:
            raise EchoApiError("not_configured", "backups are off", "set store.backup_folder", status=403)
        if self._store is None or self._writer is None:
            raise EchoApiError("not_ready", "the database is still being opened", "ask again", 503, 1)
        target = folder / time.strftime("echo-%Y%m%dT%H%M%SZ.duckdb", time.gmtime())
        store = self._store
        try:
            self._writer.call(lambda: store.copy(target)).result()
        except (StoreError, OSError) as error:
            raise EchoApiError("backup_failed", str(error), "make room or another folder", status=500) from None
        return {"name": target.name, "bytes": target.stat().st_size}

    def reload(self) -> None:
        """Reopen the audit file; on an error the old one stays in use."""
        try:
            self._audit.reopen()
            log.info("reloaded")
        except OSError as error:
            log.error("reload_failed", reason=str(error))

    async def stop(self) -> None:
        """Stop accepting events, write and answer those that wait, then close."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()


async def serve(make: Callable[[], Echo], announce: Callable[[dict[str, int]], None]) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reloads."""
    logging.getLogger("mcp").setLevel(logging.WARNING)
    echo = make()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_end(ended.set)
    loop.add_signal_handler(signal.SIGHUP, echo.reload)
    try:
        await echo.start()
        # Objects of the start-up live as long as the process: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 50, 50)
        announce(echo.ports)
        log.info("started", ports=echo.ports)
        await ended.wait()
        log.info("stopping")
    finally:
        gc.unfreeze()
        await echo.stop()
    log.info("stopped")


def run_service(make: Callable[[], Echo], announce: Callable[[dict[str, int]], None]) -> None:
    """`serve` on the fastest event loop that is installed."""
    import uvloop

    leave_out_pydantic_v1()
    uvloop.run(serve(make, announce))


def run(config: EchoConfig, announce: Callable[[dict[str, int]], None]) -> None:
    """Run one Echo."""
    run_service(lambda: Echo(config), announce)
