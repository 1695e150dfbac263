"""The receiving side of one process: listeners, the intake of pushes, and exporters."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping

from ingero_contract.identifiers import NodeKey
from ingero_fleet.cost.files import read_providers
from ingero_fleet.cost.providers import ProviderMap
from ingero_fleet.exporters import Exporter, make_client
from ingero_fleet.intake import Intake, Observe
from ingero_fleet.provider_tag import ProviderTag
from ingero_fleet.receiver_settings import ListenerAuthConfig, ListenerConfig
from ingero_fleet.receivers.traffic import Traffic
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.settings import FleetConfig
from ingero_fleet.verdict_cache import VerdictCache
from ingero_kit.addresses import is_loopback, parse_endpoint
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_kit.otlp_receiver import Authenticator, OtlpGrpcReceiver, OtlpHttpReceiver, Push
from ingero_kit.otlp_signal import Signal
from ingero_kit.settings import SettingsError
from ingero_kit.tokens import TokenStore, read_digests

log = get(__name__)

HTTP, GRPC = "otlp/http", "otlp/grpc"
"""Listeners by name."""


def listeners(config: FleetConfig) -> list[tuple[str, ListenerConfig]]:
    """The configured listeners by name."""
    protocols = config.receivers.otlp.protocols
    return [(name, item) for name, item in ((HTTP, protocols.http), (GRPC, protocols.grpc)) if item]


def make_authenticator(auth: ListenerAuthConfig) -> Authenticator:
    """The authenticator of one listener; raises `SettingsError` when its tokens cannot be read."""
    return Authenticator(TokenStore(auth.bearer_token_file, read_digests) if auth.bearer_token_file else None)


class IngestService:
    """Takes pushes into a score map and exports them. Created and used on one event loop."""

    def __init__(
        self,
        config: FleetConfig,
        table: ScoreTable,
        clock: Clock,
        observe: Observe | None = None,
    ) -> None:
        self._config = config
        self._exporters: dict[str, Exporter] = {}
        self._routes: dict[Signal, list[Exporter]] = {}
        loop = asyncio.get_running_loop()
        for kind in Signal:
            for name in getattr(config.service.pipelines, kind.name.lower()).exporters:
                if name == "prometheus":
                    continue
                if name not in self._exporters:
                    settings = getattr(config.exporters, name)
                    self._exporters[name] = Exporter(name, settings, make_client(name, settings), loop)
                self._routes.setdefault(kind, []).append(self._exporters[name])
        self.table = table
        if self.exports(Signal.METRICS):
            self.provide(read_providers(config.processors.cost))
        self.intake = Intake(table, clock, self.export if self._exporters else None, observe, time.time)
        self._receivers: dict[str, OtlpHttpReceiver | OtlpGrpcReceiver] = {}
        for exporter in self._exporters.values():
            exporter.start()

    def provide(self, providers: ProviderMap) -> None:
        """Add the node's provider to exported metrics."""
        tag = ProviderTag(providers, self._reported)
        for exporter in self._exporters.values():
            exporter.tag = tag

    def _reported(self, node: NodeKey) -> str:
        row = self.table.row_of(node)
        return "" if row is None else self.table.hardware[int(self.table.view("hardware")[row])].provider

    def exports(self, signal: Signal) -> bool:
        """Whether anything of this signal is exported."""
        return signal in self._routes

    def export(self, push: Push) -> None:
        """Hand a push to the exporters of its pipeline."""
        for exporter in self._routes.get(push.signal, ()):
            exporter.export(push)

    def adopt(self, verdict_cache: VerdictCache) -> None:
        """Answer from this verdict cache from now on."""
        self.intake.verdict_cache = verdict_cache

    async def listen(self, ports: Mapping[str, int] | None = None) -> dict[str, int]:
        """Open the configured listeners and return where they listen.

        `ports` are those to share with other processes. Raises `SettingsError` or `OSError` with a message when a
        listener cannot be opened.
        """
        taken: dict[str, int] = {}
        for name, settings in listeners(self._config):
            kind = OtlpHttpReceiver if name == HTTP else OtlpGrpcReceiver
            authenticator = make_authenticator(settings.auth)
            authenticator.local_only = authenticator.tokens is None and is_loopback(settings.endpoint)
            receiver = kind(self.intake, authenticator, settings.limits())
            host, port = parse_endpoint(settings.endpoint)
            shared = ports.get(name) if ports else None
            taken[name] = await receiver.start(host, shared or port, tls=settings.tls, reuse_port=shared is not None)
            self._receivers[name] = receiver
        return taken

    def traffic(self) -> Traffic:
        """The counts so far."""
        intake = self.intake
        return Traffic(
            pushes=Counter({signal.name.lower(): count for signal, count in intake.pushes.items()}),
            rejected=Counter(intake.rejected),
            totals=self.table.losses + Counter(reports=intake.accepted_reports, malformed_pushes=intake.malformed),
            listeners={name.replace("/", "_"): item.counters for name, item in self._receivers.items()},
            exporters={name: item.counters for name, item in self._exporters.items()},
            exports={name: item.state() for name, item in self._exporters.items()},
        )

    def reload(self) -> None:
        """Read the rules of providers again; on `SettingsError` or `OSError` the old ones stay in force."""
        if self.exports(Signal.METRICS):
            self.provide(read_providers(self._config.processors.cost))

    async def stop_listening(self, grace_seconds: float) -> None:
        """Take no more pushes, and answer pending ones."""
        for receiver in self._receivers.values():
            await receiver.stop(grace_seconds)

    async def stop_sending(self, grace_seconds: float) -> None:
        """Send what is queued, then close."""
        await asyncio.gather(*(exporter.stop(grace_seconds) for exporter in self._exporters.values()))


def try_reload(reload: Callable[[], None]) -> None:
    """Reload, or log why not."""
    try:
        reload()
    except (SettingsError, OSError) as error:
        log.error("reload_failed", reason=str(error))
