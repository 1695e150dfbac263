"""Builds a Fleet that only receives (`log.role: receiver`): listeners, the shared log, health and its own metrics."""

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Final

from ingero_fleet.collectors import LISTENERS, TRAFFIC
from ingero_fleet.health_facts import Health
from ingero_fleet.page_servers import PageServers
from ingero_fleet.plain_pages import health_pages, metrics_pages, plain_app, zpages
from ingero_fleet.receivers.ingest import make_authenticator, try_reload
from ingero_fleet.receivers.reception import Reception
from ingero_fleet.replication.jetstream import JetStreamLog
from ingero_fleet.replication.log_receiver import LOG_RECEIVER, LogReceiver
from ingero_fleet.replication.log_stats import LOG
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.settings import FleetConfig
from ingero_kit.clock import SlewedClock
from ingero_kit.exposition import Collector
from ingero_kit.logs import get
from ingero_kit.metrics_table import TableCollector
from ingero_kit.otlp_receiver import Push
from ingero_kit.process_metrics import PROCESS

log = get(__name__)


class ReceiverFleet:
    """One receiver. `ports` says where it listens, by purpose, once it has started."""

    def __init__(self, config: FleetConfig, read: Callable[[], FleetConfig]) -> None:
        """`read` reads the settings again."""
        self.config = config
        self._read = read
        self._pages = PageServers()
        self.ports: Final = self._pages.ports

    async def start(self) -> None:
        """Open the listeners; raises `SettingsError` or `OSError` when one cannot be opened."""
        config, clock = self.config, SlewedClock()
        assert config.log.nats
        table, interval = ScoreTable.of(config.processors.ingero), config.processors.ingero.push_interval
        self._log = JetStreamLog(config.log.nats)
        name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        self._receiver = LogReceiver(
            self._log, table, clock, interval, name, lambda cache: self._reception.adopt(cache)
        )
        observe: Callable[[Push, float], None] = self._receiver.publisher.observe
        self._reception = Reception(config, table, clock, observe)
        self._receiver.publisher.collect_reports = self._reception.collect_reports
        self.ports.update(await self._reception.listen())
        await self._open_pages()
        self._log.start()
        self._running = asyncio.create_task(self._receiver.run())

    async def _open_pages(self) -> None:
        wanted, extensions = self.config.service.extensions, self.config.extensions
        if "healthee" in wanted:
            app = plain_app(health_pages(self._health, make_authenticator(extensions.healthee.auth)))
            await self._pages.open("health", app, extensions.healthee.endpoint, extensions.healthee.tls)
        if "zpages" in wanted:
            await self._pages.open("zpages", plain_app(zpages(self._health)), extensions.zpages.endpoint)
        stats: list[Collector] = [
            TableCollector(TRAFFIC, self._reception.traffic),
            TableCollector(LISTENERS, lambda: self._reception.traffic().listeners),
            TableCollector(LOG, lambda: self._log.stats),
            TableCollector(LOG_RECEIVER, lambda: self._receiver),
            PROCESS,
        ]
        address = self.config.service.telemetry.metrics.address
        await self._pages.open("telemetry", plain_app(metrics_pages(stats)), address)

    def _health(self) -> Health:
        healthy, facts = self._receiver.health()
        return healthy, facts | self._reception.facts()

    def reload(self) -> None:
        """Read rules of providers, tokens and certificates again. Settings need a restart."""
        try_reload(self._read_again)

    def _read_again(self) -> None:
        self._reception.reload()
        if self._read() != self.config:
            log.warning("restart_needed", settings=["all"])

    async def stop(self, grace_seconds: float) -> None:
        """Stop taking pushes, answer pending requests, publish and send what is queued, then close."""
        await self._reception.stop_listening(grace_seconds)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._receiver.publisher.hand_over(grace_seconds)
        await self._log.stop()
        await self._reception.stop_sending(grace_seconds)
        await self._pages.stop(grace_seconds)
