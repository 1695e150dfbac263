"""The wiring of Fleet: settings in, listeners, engine and exporters out. The only place where they meet."""

import asyncio
import gc
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from ingero_fleet import api
from ingero_fleet.collectives.desk import CollectivesDesk, CollectivesPage
from ingero_fleet.cost.desk import CostDesk, CostPage
from ingero_fleet.engine import Engine
from ingero_fleet.exporters import Exporter, make_transport
from ingero_fleet.page.live import LivePage
from ingero_fleet.page.serve import add_page
from ingero_fleet.pages import FindingsPage, VitalsPage
from ingero_fleet.settings import AuthConfig, FleetConfig
from ingero_kit.asgi import Server, bind
from ingero_kit.clock import steady_clock
from ingero_kit.logs import get
from ingero_kit.otlp_server import Guardian, OtlpGrpcReceiver, OtlpHttpReceiver, Signal, parse_endpoint
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ServerTls
from ingero_kit.tokens import Tokens

log = get(__name__)

DRAIN_SECONDS = 5.0
"""How long a stop waits for what is under way."""


@dataclass
class Running:
    """What was started, for stopping it and for saying where it listens."""

    ports: dict[str, int] = field(default_factory=dict)
    servers: list[tuple[Server, asyncio.Task[None]]] = field(default_factory=list)
    http: OtlpHttpReceiver | None = None
    grpc: OtlpGrpcReceiver | None = None


class Fleet:
    """One Fleet process."""

    def __init__(self, config: FleetConfig) -> None:
        self.config = config
        self.running = Running()
        self._guardians: list[tuple[Guardian, AuthConfig]] = []
        self._reload: Callable[[], FleetConfig] | None = None

    async def start(self) -> None:
        """Open every configured listener; raises `SettingsError` or `OSError` in words when one cannot be had."""
        config, loop = self.config, asyncio.get_running_loop()
        pipelines = config.service.pipelines
        exporters: dict[str, Exporter] = {}
        routes: dict[Signal, list[Exporter]] = {}
        for kind in Signal:
            for name in getattr(pipelines, kind.name.lower()).exporters:
                if name == "prometheus":
                    continue
                if name not in exporters:
                    settings = getattr(config.exporters, name)
                    exporters[name] = Exporter(name, settings, make_transport(name, settings), loop)
                routes.setdefault(kind, []).append(exporters[name])
        self.engine = Engine(config.processors.ingero, steady_clock(), routes)
        self._collectives = CollectivesDesk(
            config.processors.nccl, self.engine.forward if routes.get(Signal.METRICS) else None
        )
        self.engine.intake.collectives = self._collectives.take
        self.engine.after_tick.append(lambda picture: self._collectives.judge(picture.tick.now))
        self._cost = CostDesk(
            config.processors.cost,
            self.engine.table.hardware,
            config.processors.ingero.cohort.by,
            self.engine.clock(),
        )
        self.engine.after_tick.append(lambda picture: self._cost.book(picture, self.engine.config.push_interval))
        self._live = LivePage(lambda: self.engine.config, self._cost, self._collectives)
        self.engine.after_tick.append(self._live.record)
        for exporter in exporters.values():
            exporter.start()
        await self._receivers()
        await self._pages()
        self._ticking = loop.create_task(self.engine.run())

    async def _receivers(self) -> None:
        protocols, running = self.config.receivers.otlp.protocols, self.running
        if protocols.http:
            listener = protocols.http
            running.http = OtlpHttpReceiver(self.engine.intake, self._guardian(listener.auth), listener.limits())
            host, port = parse_endpoint(listener.endpoint)
            running.ports["otlp/http"] = await running.http.start(host, port, tls=listener.tls)
            self.engine.listeners["otlp_http"] = running.http.counters
        if protocols.grpc:
            settings = protocols.grpc
            running.grpc = OtlpGrpcReceiver(self.engine.intake, self._guardian(settings.auth), settings.limits())
            host, port = parse_endpoint(settings.endpoint)
            running.ports["otlp/grpc"] = await running.grpc.start(host, port, tls=settings.tls)
            self.engine.listeners["otlp_grpc"] = running.grpc.counters

    async def _pages(self) -> None:
        extensions, engine = self.config.extensions, self.engine
        by = self.config.processors.ingero.cohort.by
        wanted = self.config.service.extensions
        if "ingero_threshold" in wanted:
            threshold = extensions.ingero_threshold
            app = api.agent_api(engine, self._guardian(threshold.auth), self._cost)
            await self._serve("threshold", app, threshold.agent_endpoint, threshold.tls)
            await self._serve(
                "diagnostics",
                add_page(api.admin_api(engine, self._collectives), self._live),
                threshold.admin_endpoint,
            )
        if "healthee" in wanted:
            healthee = extensions.healthee
            app = api.health_api(engine, self._guardian(healthee.auth))
            await self._serve("health", app, healthee.endpoint, healthee.tls)
        if "zpages" in wanted:
            await self._serve("zpages", api.zpages(engine), extensions.zpages.endpoint)
        if any(
            "prometheus" in getattr(self.config.service.pipelines, kind.name.lower()).exporters for kind in Signal
        ):
            findings = CollectorRegistry()
            findings.register(FindingsPage(lambda: engine.picture, by))
            findings.register(CostPage(lambda: self._cost))
            findings.register(CollectivesPage(self._collectives))
            await self._serve("prometheus", api.metrics_app(findings), self.config.exporters.prometheus.endpoint)
        vitals = CollectorRegistry()
        vitals.register(VitalsPage(engine))
        ProcessCollector(registry=vitals)
        PlatformCollector(registry=vitals)
        await self._serve("telemetry", api.metrics_app(vitals), self.config.service.telemetry.metrics.address)

    def _guardian(self, auth: AuthConfig) -> Guardian:
        guardian = Guardian(Tokens.read(auth.bearer_token_file) if auth.bearer_token_file else None)
        self._guardians.append((guardian, auth))
        return guardian

    async def _serve(self, name: str, app: FastAPI, endpoint: str, tls: ServerTls | None = None) -> None:
        server, socket = bind(app, endpoint, tls, DRAIN_SECONDS, name)
        self.running.ports[name] = socket.getsockname()[1]
        task = asyncio.create_task(server.serve(sockets=[socket]))
        self.running.servers.append((server, task))

    def reload(self) -> None:
        """Read tokens and certificates again. What cannot be read is said, and the old ones stay."""
        try:
            for guardian, auth in self._guardians:
                if auth.bearer_token_file:
                    guardian.tokens = Tokens.read(auth.bearer_token_file)
            for receiver in (self.running.http, self.running.grpc):
                if receiver:
                    receiver.reload_certificates()
            if self._reload:
                self.adopt(self._reload())
            log.info("reloaded")
        except (SettingsError, OSError) as error:
            log.error("reload_failed", reason=str(error))

    def adopt(self, config: FleetConfig) -> None:
        """Take over what may change while running: the processor's settings. Listeners need a restart."""
        new, old = config.processors.ingero, self.engine.config
        kept = {name: getattr(old, name) for name in ("cohort", "push_interval", "detector")}
        if any(getattr(new, name) != value for name, value in kept.items()):
            log.warning("restart_needed", settings=[f"processors.ingero.{name}" for name in kept])
            new = new.model_copy(update=kept)
        if config.model_copy(update={"processors": self.config.processors}) != self.config:
            log.warning("restart_needed", settings=["receivers, extensions, exporters, service"])
        self._cost.adopt(config.processors.cost)
        self.engine.config = new

    def on_reload(self, read: Callable[[], FleetConfig]) -> None:
        """Say how the settings are read again."""
        self._reload = read

    async def stop(self) -> None:
        """Stop taking pushes, answer what is under way, send what is queued, then close."""
        self._live.close()
        if self.running.http:
            await self.running.http.stop(DRAIN_SECONDS)
        if self.running.grpc:
            await self.running.grpc.stop(DRAIN_SECONDS)
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)
        self.engine.close()
        await asyncio.gather(*(exporter.stop(DRAIN_SECONDS) for exporter in self.engine.exporters.values()))
        for server, _ in self.running.servers:
            server.should_exit = True
        await asyncio.gather(*(task for _, task in self.running.servers), return_exceptions=True)


async def serve(
    config: FleetConfig, read: Callable[[], FleetConfig], announce: Callable[[dict[str, int]], None]
) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reloads."""
    fleet = Fleet(config)
    fleet.on_reload(read)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, fleet.reload)
    await fleet.start()
    # What start-up made stays for good: keep the collector from walking it again and again while pushes allocate.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    announce(fleet.running.ports)
    log.info("started", ports=fleet.running.ports)
    await ended.wait()
    log.info("stopping")
    await fleet.stop()
    log.info("stopped")


def run(config: FleetConfig, read: Callable[[], FleetConfig], announce: Callable[[dict[str, int]], None]) -> None:
    """`serve` on the fastest event loop that is installed."""
    if sys.platform != "win32":
        import uvloop

        uvloop.run(serve(config, read, announce))
    else:
        asyncio.run(serve(config, read, announce))
