"""What a Fleet receives with: listeners in its own process, or several receiver processes on the same ports."""

from collections.abc import Awaitable, Callable
from typing import Any

from ingero_fleet.export_state import ExportState, export_answer
from ingero_fleet.intake import Observe
from ingero_fleet.receivers.ingest import IngestService
from ingero_fleet.receivers.pool import ReceiverPool
from ingero_fleet.receivers.traffic import Traffic, total
from ingero_fleet.score_table import ScoreTable
from ingero_fleet.settings import FleetConfig
from ingero_fleet.verdict_cache import VerdictCache
from ingero_kit.clock import SlewedClock


class Reception:
    """Takes pushes into a score map, answers them by the latest verdict cache, and exports."""

    def __init__(self, config: FleetConfig, table: ScoreTable, clock: SlewedClock, observe: Observe) -> None:
        self.ingest = IngestService(config, table, clock, observe)
        several = config.receivers.otlp.processes > 1
        self._pool = ReceiverPool(config, table, clock.offset, observe) if several else None

    @property
    def collect_reports(self) -> Callable[[], Awaitable[None]] | None:
        """Collects the reports of the receiver processes; `None` without such processes."""
        return self._pool.gather if self._pool else None

    async def listen(self) -> dict[str, int]:
        """Open the listeners and return their ports; raises `SettingsError` or `OSError`."""
        return await (self._pool.start() if self._pool else self.ingest.listen())

    def adopt(self, verdict_cache: VerdictCache) -> None:
        """Answer from this verdict cache from now on."""
        self.ingest.adopt(verdict_cache)
        if self._pool:
            self._pool.publish(verdict_cache)

    def traffic(self) -> Traffic:
        """The counts so far, over all processes."""
        parts = [self.ingest.traffic()]
        return total([*parts, self._pool.traffic()] if self._pool else parts)

    def exporting(self) -> dict[str, Any]:
        """Every exporter: what waits, what was dropped since Fleet began, and why nothing is delivered."""
        return _exporting(self.traffic())

    def facts(self) -> dict[str, Any]:
        """Facts for Fleet's health page."""
        traffic = self.traffic()
        facts = {"reports": traffic.totals["reports"], "exporters": _exporting(traffic)}
        return facts | (self._pool.facts() if self._pool else {})

    def reload(self) -> None:
        """Read rules, tokens and certificates again."""
        self.ingest.reload()
        if self._pool:
            self._pool.reload()

    async def stop_listening(self, grace_seconds: float) -> None:
        """Take no more pushes, and answer pending ones."""
        await self.ingest.stop_listening(grace_seconds)
        if self._pool:
            await self._pool.stop()

    async def stop_sending(self, grace_seconds: float) -> None:
        """Send what is queued, then close."""
        await self.ingest.stop_sending(grace_seconds)


def _exporting(traffic: Traffic) -> dict[str, Any]:
    return {
        name: export_answer(traffic.exports.get(name, ExportState()), counters)
        for name, counters in traffic.exporters.items()
    }
