"""Builds Fleet from its settings: listeners, engine and exporters are connected here and nowhere else."""

import asyncio
import gc
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from ingero_fleet import api
from ingero_fleet.collectives.collector import COLLECTIVES
from ingero_fleet.collectives.polling import poll_between_ticks
from ingero_fleet.collectors import FindingsCollector, RuntimeStatsCollector
from ingero_fleet.cost.tracker import COST
from ingero_fleet.engine import Engine
from ingero_fleet.export_state import ExportState, export_answer
from ingero_fleet.intake import Observe
from ingero_fleet.page.live import LivePage
from ingero_fleet.page.serve import add_page
from ingero_fleet.receivers.ingest import IngestService, make_authenticator, try_reload
from ingero_fleet.receivers.pool import ReceiverPool
from ingero_fleet.receivers.traffic import Traffic, total
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.settings import FleetConfig
from ingero_fleet.state_machine import StateMachine
from ingero_fleet.taints.tracker import TAINTS
from ingero_http.asgi import AsgiServer, head_as_get
from ingero_kit.addresses import parse_endpoint
from ingero_kit.clock import SlewedClock
from ingero_kit.logs import get
from ingero_kit.metrics_table import TableCollector
from ingero_kit.otlp_receiver import Push
from ingero_kit.otlp_signal import Signal
from ingero_kit.process_memory import use_single_malloc_arena
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ServerTls

if TYPE_CHECKING:
    from ingero_fleet.replication.jetstream import JetStreamLog
    from ingero_fleet.replication.replica import Replica

log = get(__name__)

DRAIN_SECONDS = 5.0
"""How long a stop waits for pending requests, seconds."""


class Fleet:
    """One Fleet. `ports` says where it listens, by purpose, once it has started."""

    def __init__(self, config: FleetConfig, read: Callable[[], FleetConfig]) -> None:
        """`read` reads the settings again."""
        self.config = config
        self._read = read
        self.ports: dict[str, int] = {}
        self._servers: list[AsgiServer] = []
        self._receiver_pool: ReceiverPool | None = None
        self._replica: Replica | None = None
        self._log: JetStreamLog

    async def start(self) -> None:
        """Open every configured listener; raises `SettingsError` or `OSError` when one cannot be opened."""
        config = self.config
        clock = SlewedClock()
        engine, receiving, observe = self._replicated(clock) if config.log.nats else self._alone(clock)
        machine = engine.machine
        self.engine, self._collectives, self._cost = engine, machine.collectives, machine.cost
        self._taints = machine.taints
        ingest = self._ingest = IngestService(config, receiving, engine.clock, observe)
        engine.facts.append(lambda: _receiving_facts(self._traffic()))
        self._live = LivePage(
            lambda: engine.snapshot, lambda: engine.config, self._cost, self._collectives, self._taints
        )
        engine.after_tick.append(self._live.record)
        if ingest.exports(Signal.LOGS):
            engine.export_logs.append(lambda body: ingest.export(Push(Signal.LOGS, "protobuf", body)))
        if config.receivers.otlp.processes == 1:
            engine.publish.append(ingest.adopt)
            self.ports |= await ingest.listen()
        else:
            pool = self._receiver_pool = ReceiverPool(config, receiving, clock.offset, observe)
            engine.collect_reports = pool.gather
            engine.publish.append(pool.publish)
            engine.facts.append(pool.facts)
            self.ports |= await pool.start()
        await self._pages()
        if self._replica:
            self._replica.collect_reports = engine.collect_reports
            self._log.start()
            self._ticking = [asyncio.create_task(self._replica.run())]
            return
        self._ticking = [asyncio.create_task(engine.run())]
        if machine.polls:
            often = config.processors.nccl.poll_interval
            self._ticking.append(asyncio.create_task(poll_between_ticks(self._collectives, engine.clock, often)))

    def _alone(self, clock: SlewedClock) -> tuple[Engine, ScoreTable, Observe]:
        """An engine that is fed by this process's receivers and ticks by its clock."""
        export, export_logs = self._exporter(Signal.METRICS), self._exporter(Signal.LOGS)
        machine = StateMachine(self.config.processors, clock(), export, export_logs)
        return Engine(machine, clock), machine.table, machine.take

    def _replicated(self, clock: SlewedClock) -> tuple[Engine, ScoreTable, Observe]:
        """An engine that is fed by the shared log, and the score map from which the log is fed."""
        try:
            from ingero_fleet.replication.jetstream import JetStreamLog
        except ModuleNotFoundError as error:
            raise SettingsError(f"log.nats: {error}; pip install 'ingero[fleet,fleet-log]'") from None
        from ingero_fleet.replication.processor_pin import check_pinned
        from ingero_fleet.replication.replica import Replica
        from ingero_fleet.replication.replicated_state import ReplicatedState
        from ingero_fleet.replication.rules import rules_of

        assert self.config.log.nats
        check_pinned()
        ingero = self.config.processors.ingero
        # The state is kept in the log's snapshots.
        detector = ingero.detector.model_copy(update={"snapshot": None})
        processors = self.config.processors.model_copy(
            update={"ingero": ingero.model_copy(update={"detector": detector})}
        )
        wanted = tuple(self._exporter(signal) is not None for signal in (Signal.METRICS, Signal.LOGS))

        def new_machine(export: Callable[[Push], None]) -> StateMachine:
            return StateMachine(processors, 0.0, *(export if one else None for one in wanted))

        state = ReplicatedState(new_machine, rules_of(processors, exports=wanted))
        engine, receiving = Engine(state.machine, clock), ScoreTable.of(ingero)
        name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._log = JetStreamLog(self.config.log.nats)
        self._replica = Replica(engine, state, self._log, receiving, name, lambda push: self._ingest.export(push))
        return engine, receiving, self._replica.observe

    def _exporter(self, signal: Signal) -> Callable[[Push], None] | None:
        """Where findings of a signal go; `None` when nothing exports them."""
        exporters = getattr(self.config.service.pipelines, signal.name.lower()).exporters
        wanted = any(name != "prometheus" for name in exporters)
        return (lambda push: self._ingest.export(push)) if wanted else None

    def _exporters(self) -> dict[str, Any]:
        return _exporting(self._traffic())

    def _traffic(self) -> Traffic:
        parts = [self._ingest.traffic()]
        return total([*parts, self._receiver_pool.traffic()] if self._receiver_pool else parts)

    async def _pages(self) -> None:
        extensions, engine = self.config.extensions, self.engine
        by = self.config.processors.ingero.cohort.by
        wanted = self.config.service.extensions
        if "ingero_threshold" in wanted:
            threshold = extensions.ingero_threshold
            app = api.agent_api(
                engine, make_authenticator(threshold.auth), self._cost, self._collectives, self._exporters,
                self._replica.log_answer if self._replica else None,
            )  # fmt: skip
            await self._serve("threshold", app, threshold.agent_endpoint, threshold.tls)
            await self._serve(
                "diagnostics",
                add_page(
                    api.admin_api(engine, self._collectives, self._taints, make_authenticator(threshold.admin_auth)),
                    self._live,
                ),
                threshold.admin_endpoint,
                threshold.admin_tls,
            )
        if "healthee" in wanted:
            healthee = extensions.healthee
            app = api.health_api(engine, make_authenticator(healthee.auth))
            await self._serve("health", app, healthee.endpoint, healthee.tls)
        if "zpages" in wanted:
            await self._serve("zpages", api.zpages(engine), extensions.zpages.endpoint)
        if any(
            "prometheus" in getattr(self.config.service.pipelines, kind.name.lower()).exporters for kind in Signal
        ):
            findings = CollectorRegistry()
            findings.register(FindingsCollector(lambda: engine.snapshot, by))
            findings.register(TableCollector(COST, lambda: self._cost))
            findings.register(TableCollector(COLLECTIVES, lambda: self._collectives))
            findings.register(TableCollector(TAINTS, lambda: self._taints))
            await self._serve("prometheus", api.metrics_app(findings), self.config.exporters.prometheus.endpoint)
        stats = CollectorRegistry()
        stats.register(RuntimeStatsCollector(engine, self._traffic))
        if self._replica:
            from ingero_fleet.replication.log_stats import LOG

            stats.register(TableCollector(LOG, lambda: self._log.stats))
        ProcessCollector(registry=stats)
        PlatformCollector(registry=stats)
        await self._serve("telemetry", api.metrics_app(stats), self.config.service.telemetry.metrics.address)

    async def _serve(self, name: str, app: FastAPI, endpoint: str, tls: ServerTls | None = None) -> None:
        server = AsgiServer(head_as_get(app))
        self.ports[name] = await server.start(*parse_endpoint(endpoint), tls=tls, purpose=name)
        self._servers.append(server)

    def reload(self) -> None:
        """Read settings, rates and rules again. Failures are logged, and the old ones stay in force."""
        try_reload(self._read_again)

    def _read_again(self) -> None:
        self._ingest.reload()
        if self._receiver_pool:
            self._receiver_pool.reload()
        self.adopt(self._read())
        log.info("reloaded")

    def adopt(self, config: FleetConfig) -> None:
        """Apply the settings that may change while Fleet runs: the processor's. Listeners need a restart."""
        new, old = config.processors.ingero, self.engine.config
        # Replicas judge by equal settings. The state of one that is alone depends on three.
        first = self.config.processors.ingero
        kept = (
            {name: getattr(first, name) for name in type(first).model_fields}
            if self._replica
            else {name: getattr(old, name) for name in ("cohort", "push_interval", "detector")}
        )
        if any(getattr(new, name) != value for name, value in kept.items()):
            log.warning("restart_needed", settings=[f"processors.ingero.{name}" for name in kept])
            new = new.model_copy(update=kept)
        if config.model_copy(update={"processors": self.config.processors}) != self.config:
            log.warning("restart_needed", settings=["receivers, extensions, exporters, service"])
        self._cost.adopt(config.processors.cost)
        self._ingest.provide(self._cost.prices.providers)
        if not self._replica:
            self.engine.machine.config = new

    async def stop(self) -> None:
        """Stop taking pushes, answer pending requests, send what is queued, then close."""
        self._live.close()
        await self._ingest.stop_listening(DRAIN_SECONDS)
        if self._receiver_pool:
            await self._receiver_pool.stop()
        for task in self._ticking:
            task.cancel()
        await asyncio.gather(*self._ticking, return_exceptions=True)
        if self._replica:
            await self._replica.hand_over(DRAIN_SECONDS)
            await self._log.stop()
        else:
            self._collectives.close(self.engine.clock())
        self.engine.close()
        await self._ingest.stop_sending(DRAIN_SECONDS)
        await asyncio.gather(*(server.stop(DRAIN_SECONDS) for server in self._servers))


def _receiving_facts(traffic: Traffic) -> dict[str, Any]:
    return {"reports": traffic.totals["reports"], "exporters": _exporting(traffic)}


def _exporting(traffic: Traffic) -> dict[str, Any]:
    """Every exporter: what waits, what was dropped since Fleet began, and why nothing is delivered."""
    return {
        name: export_answer(traffic.exports.get(name, ExportState()), counters)
        for name, counters in traffic.exporters.items()
    }


async def serve(
    config: FleetConfig, read: Callable[[], FleetConfig], announce: Callable[[dict[str, int]], None]
) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reloads."""
    fleet = Fleet(config, read)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_signal_handler(signal.SIGHUP, fleet.reload)
    await fleet.start()
    # Objects from start-up live as long as the process: exclude them from garbage collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    # Threads switch after 0.2 ms instead of 5 ms, so that pushes wait less for a tick's thread.
    sys.setswitchinterval(0.0002)
    announce(fleet.ports)
    log.info("started", ports=fleet.ports)
    await ended.wait()
    log.info("stopping")
    await fleet.stop()
    log.info("stopped")


def run(config: FleetConfig, read: Callable[[], FleetConfig], announce: Callable[[dict[str, int]], None]) -> None:
    """`serve` on the fastest event loop that is installed."""
    use_single_malloc_arena()
    if sys.platform != "win32":
        import uvloop

        uvloop.run(serve(config, read, announce))
    else:
        asyncio.run(serve(config, read, announce))
