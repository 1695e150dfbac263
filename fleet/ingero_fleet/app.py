"""Builds Fleet from its settings: listeners, engine and exporters are connected here and nowhere else."""

import asyncio
import gc
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import uvloop

from ingero_fleet.collectives.collector import COLLECTIVES
from ingero_fleet.collectives.polling import poll_between_ticks
from ingero_fleet.collectives.topology_file import TopologyFile, follow_topology
from ingero_fleet.collectors import ENGINE, LISTENERS, TRAFFIC, FindingsCollector
from ingero_fleet.cost.tracker import COST
from ingero_fleet.engine import Engine
from ingero_fleet.hangs import HANGS
from ingero_fleet.intake import Observe
from ingero_fleet.listening import how_to_push
from ingero_fleet.page.live import LivePage
from ingero_fleet.page_servers import PageServers
from ingero_fleet.plain_pages import health_pages, late_app, metrics_pages, plain_app, zpages
from ingero_fleet.receivers.ingest import make_authenticator, try_reload
from ingero_fleet.receivers.reception import Reception
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.settings import FleetConfig
from ingero_fleet.state_machine import StateMachine
from ingero_fleet.taints.tracker import TAINTS
from ingero_kit.clock import SlewedClock
from ingero_kit.exposition import Collector
from ingero_kit.extras import pip_command
from ingero_kit.logs import get
from ingero_kit.metrics_table import TableCollector
from ingero_kit.otlp_receiver import Authenticator, Push
from ingero_kit.otlp_signal import Signal
from ingero_kit.process_memory import leave_out_pydantic_v1, use_single_malloc_arena
from ingero_kit.process_metrics import PROCESS
from ingero_kit.settings import Settings, SettingsError
from ingero_kit.signals import on_end

if TYPE_CHECKING:
    from ingero_fleet.receiver_app import ReceiverFleet
    from ingero_fleet.replication.jetstream import JetStreamLog
    from ingero_fleet.replication.replica import Replica

log = get(__name__)

TOPOLOGY_SECONDS: Final = 5.0
"""Time between two checks of the topology file, where this process judges alone."""

DRAIN_SECONDS = 5.0
"""How long a stop waits for pending requests, seconds."""


class Fleet:
    """One Fleet. `ports` says where it listens, by purpose, once it has started."""

    def __init__(self, config: FleetConfig, read: Callable[[], FleetConfig]) -> None:
        """`read` reads the settings again."""
        self.config = config
        self._read = read
        self._pages = PageServers()
        self.ports = self._pages.ports
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
        reception = self._reception = Reception(config, receiving, clock, observe)
        engine.facts.append(reception.facts)
        self._live = LivePage(
            lambda: engine.snapshot, lambda: engine.config, self._cost, self._collectives, self._taints, machine.hangs
        )
        engine.after_tick.append(self._live.record)
        if reception.ingest.exports(Signal.LOGS):
            engine.export_logs.append(lambda body: self._export(Push(Signal.LOGS, "protobuf", body)))
        engine.collect_reports = reception.collect_reports
        engine.publish.append(reception.adopt)
        self.ports.update(await reception.listen())
        await self._open_pages()
        if self._replica:
            self._replica.publisher.collect_reports = engine.collect_reports
            self._log.start()
            self._ticking = [asyncio.create_task(self._replica.run())]
            return
        self._ticking = [asyncio.create_task(engine.run())]
        nccl = config.processors.nccl
        if nccl.topology_file:
            topology = TopologyFile(nccl.topology_file, self._collectives.network.ports)
            follow = follow_topology(topology, self._collectives.use_topology, TOPOLOGY_SECONDS)
            self._ticking.append(asyncio.create_task(follow))
        if machine.polls:
            often = nccl.poll_interval
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
            raise without_client(error) from None
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
        self._replica = Replica(engine, state, self._log, receiving, name, self._export)
        return engine, receiving, self._replica.publisher.observe

    def _exporter(self, signal: Signal) -> Callable[[Push], None] | None:
        """Where findings of a signal go; `None` when nothing exports them."""
        exporters = getattr(self.config.service.pipelines, signal.name.lower()).exporters
        wanted = any(name != "prometheus" for name in exporters)
        return self._export if wanted else None

    def _export(self, push: Push) -> None:
        self._reception.ingest.export(push)

    async def _open_pages(self) -> None:
        extensions, engine = self.config.extensions, self.engine
        by = self.config.processors.ingero.cohort.by
        wanted = self.config.service.extensions
        if "ingero_threshold" in wanted:
            threshold = extensions.ingero_threshold
            agents, people = make_authenticator(threshold.auth), make_authenticator(threshold.admin_auth)
            await self._pages.open(
                "threshold",
                late_app(lambda: self._agent_api(agents)),
                threshold.agent_endpoint,
                threshold.tls,
                agents,
            )
            await self._pages.open(
                "diagnostics",
                late_app(lambda: self._admin_api(people)),
                threshold.admin_endpoint,
                threshold.admin_tls,
                people,
            )
        if "healthee" in wanted:
            healthee = extensions.healthee
            app = plain_app(health_pages(engine.health, make_authenticator(healthee.auth)))
            await self._pages.open("health", app, healthee.endpoint, healthee.tls)
        if "zpages" in wanted:
            await self._pages.open("zpages", plain_app(zpages(engine.health)), extensions.zpages.endpoint)
        if any(
            "prometheus" in getattr(self.config.service.pipelines, kind.name.lower()).exporters for kind in Signal
        ):
            findings: list[Collector] = [
                FindingsCollector(lambda: engine.snapshot, by),
                TableCollector(COST, lambda: self._cost),
                TableCollector(COLLECTIVES, lambda: self._collectives),
                TableCollector(TAINTS, lambda: self._taints),
                TableCollector(HANGS, lambda: engine.machine.hangs),
            ]
            page = plain_app(metrics_pages(findings))
            await self._pages.open("prometheus", page, self.config.exporters.prometheus.endpoint)
        traffic = self._reception.traffic
        stats: list[Collector] = [
            TableCollector(ENGINE, lambda: engine),
            TableCollector(TRAFFIC, traffic),
            TableCollector(LISTENERS, lambda: traffic().listeners),
            PROCESS,
        ]
        if self._replica:
            from ingero_fleet.replication.log_stats import LOG

            stats.append(TableCollector(LOG, lambda: self._log.stats))
        page = plain_app(metrics_pages(stats))
        await self._pages.open("telemetry", page, self.config.service.telemetry.metrics.address)

    def _agent_api(self, authenticator: Authenticator) -> Any:
        from ingero_fleet.api import agent_api

        log_answer = self._replica.log_answer if self._replica else None
        exporting = self._reception.exporting
        return agent_api(self.engine, authenticator, self._cost, self._collectives, exporting, log_answer)

    def _admin_api(self, authenticator: Authenticator) -> Any:
        from ingero_fleet.api import admin_api
        from ingero_fleet.page.serve import add_page

        return add_page(admin_api(self.engine, self._collectives, self._taints, authenticator), self._live)

    def reload(self) -> None:
        """Read settings, rates and rules again. Failures are logged, and the old ones stay in force."""
        try_reload(self._read_again)

    def _read_again(self) -> None:
        self._reception.reload()
        self.adopt(self._read())
        log.info("reloaded")

    def adopt(self, config: FleetConfig) -> None:
        """Apply the settings that may change while Fleet runs: the processor's. Listeners need a restart."""
        first, new = self.config.processors.ingero, config.processors.ingero
        # Replicas judge by equal settings. The state of one that is alone depends on three.
        kept = list(type(first).model_fields) if self._replica else ["cohort", "push_interval", "detector"]
        if ignored := needing_restart(self.config, config, kept):
            log.warning("restart_needed", settings=ignored)
            new = new.model_copy(update={name: getattr(first, name) for name in kept})
        self._cost.adopt(config.processors.cost)
        self._reception.ingest.provide(self._cost.prices.providers)
        if not self._replica:
            self.engine.machine.config = new

    async def stop(self, grace_seconds: float) -> None:
        """Stop taking pushes, answer pending requests, send what is queued, then close.

        The state is saved first, because the successor of a deleted pod may read it before this process has ended.
        """
        self._live.close()
        if not self._replica:
            await self._stop_ticking()
            await self.engine.save()
        await self._reception.stop_listening(grace_seconds)
        await self._stop_ticking()
        if self._replica:
            await self._replica.publisher.hand_over(grace_seconds)
            await self._log.stop()
        else:
            self._collectives.close(self.engine.clock())
        self.engine.close()
        await self._reception.stop_sending(grace_seconds)
        await self._pages.stop(grace_seconds)

    async def _stop_ticking(self) -> None:
        for task in self._ticking:
            task.cancel()
        await asyncio.gather(*self._ticking, return_exceptions=True)


def _fleet(config: FleetConfig, read: Callable[[], FleetConfig]) -> "Fleet | ReceiverFleet":
    """The Fleet for the role that the settings give it; raises `SettingsError` without the client of the log."""
    if config.log.role == "replica":
        return Fleet(config, read)
    try:
        from ingero_fleet.receiver_app import ReceiverFleet
    except ModuleNotFoundError as error:
        raise without_client(error) from None
    return ReceiverFleet(config, read)


def without_client(error: ModuleNotFoundError) -> SettingsError:
    """What a user is told where the client of NATS is not installed."""
    return SettingsError(f"log.nats: {error}: {pip_command('fleet-log')}")


def needing_restart(old: FleetConfig, new: FleetConfig, kept: Iterable[str]) -> list[str]:
    """Paths of the changed settings that a running Fleet does not adopt; `kept`: those of `processors.ingero`."""

    def changed(section: str, a: Settings, b: Settings, names: Iterable[str]) -> list[str]:
        return [f"{section}{name}" for name in names if getattr(a, name) != getattr(b, name)]

    nccl = type(old.processors.nccl).model_fields
    sections = [name for name in type(old).model_fields if name != "processors"]
    return [
        *changed("processors.ingero.", old.processors.ingero, new.processors.ingero, kept),
        *changed("processors.nccl.", old.processors.nccl, new.processors.nccl, nccl),
        *changed("", old, new, sections),
    ]


async def serve(
    config: FleetConfig, read: Callable[[], FleetConfig], announce: Callable[[dict[str, int]], None]
) -> None:
    """Run until SIGTERM or SIGINT; SIGHUP reloads."""
    fleet = _fleet(config, read)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    on_end(ended.set)
    loop.add_signal_handler(signal.SIGHUP, fleet.reload)
    await fleet.start()
    for name in config.unused_exporters():
        log.warning("exporter_not_used", exporter=name, reason=f"no list in service.pipelines.*.exporters has {name}")
    # Objects from start-up live as long as the process: exclude them from garbage collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 50)
    # Threads switch after 0.2 ms instead of 5 ms, so that pushes wait less for a tick's thread.
    sys.setswitchinterval(0.0002)
    announce(fleet.ports)
    log.info("started", ports=fleet.ports, **how_to_push(config, fleet.ports))
    await ended.wait()
    log.info("stopping")
    await fleet.stop(DRAIN_SECONDS)
    log.info("stopped")


def run(config: FleetConfig, read: Callable[[], FleetConfig], announce: Callable[[dict[str, int]], None]) -> None:
    """`serve` on the event loop of uvloop."""
    use_single_malloc_arena()
    leave_out_pydantic_v1()
    uvloop.run(serve(config, read, announce))
