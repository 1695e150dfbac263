"""How full the volumes of EchoStores are and how far they are sealed, by Echo's health endpoint. Polled in the
background."""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ingero_contract import echo
from ingero_kit.clock import Clock
from ingero_operator.cache import OwnerKey
from ingero_operator.sealing import SealingReport, parse_sealing
from ingero_operator.tasks import Tasks
from ingero_operator.untrusted_http import NoResponse, get_json, open_session

POLL_SECONDS: Final = 60.0
"""Least time between two polls of one store."""
SECONDS: Final = 5.0
"""Longest time of a poll."""
TOLERATED_FAILURES: Final = 3
"""Failed polls in a row after which the band is unknown."""
CONCURRENT: Final = 16
"""Most concurrent polls; further stores wait for their next reconcile."""
MAX_ANSWER: Final = 64 << 10
HYSTERESIS: Final = 0.02
"""How far a share must leave its band before the band changes."""


def band(share: float, before: str | None) -> str:
    """A share from 0 to 1 in steps of ten percent, rounded down; hysteresis prevents flapping at an edge."""
    if before and before.removesuffix("%").isdecimal():
        low = int(before.removesuffix("%")) / 100
        if low - HYSTERESIS <= share < low + 0.1 + HYSTERESIS:
            return before
    return f"{math.floor(share * 10 + 1e-9) * 10}%"


def used_share(response: Any) -> float | None:
    """The share of the volume in Echo's health response; `None` where it has none."""
    share = response.get(echo.VOLUME_USED) if isinstance(response, dict) else None
    if isinstance(share, bool) or not isinstance(share, int | float):
        return None
    return float(share) if 0 <= share <= 1 else None


_Writer = tuple[OwnerKey, int]
"""A store, and one of its writers."""


@dataclass
class _Known:
    band: str | None
    sealing: SealingReport | None = None
    polled: float = -math.inf
    failures: int = 0


@dataclass
class VolumeUsagePoller:
    """Polls the stores and reports which bands and seals have changed. Bounded by the number of stores."""

    clock: Clock
    on_change: Callable[[OwnerKey], None]
    tasks: Tasks = field(default_factory=Tasks)
    polls: int = 0
    failed: int = 0
    _known: dict[_Writer, _Known] = field(default_factory=dict)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    def band(self, key: OwnerKey, url: str, authority: str | None, before: str | None, shard: int = 0) -> str | None:
        """The band of a writer, `before` until the first poll; starts a poll when it is time."""
        known = self._known.setdefault((key, shard), _Known(before))
        if self.clock() - known.polled >= POLL_SECONDS and len(self.running) < CONCURRENT:
            known.polled = self.clock()
            task = self.tasks.start("volume usage poll", self._ask((key, shard), known, url + echo.HEALTH, authority))
            self.running.add(task)
            task.add_done_callback(self.running.discard)
        return known.band

    def sealing(self, key: OwnerKey, shard: int = 0) -> SealingReport | None:
        """What a store said last of sealing."""
        known = self._known.get((key, shard))
        return known.sealing if known else None

    def pending(self, key: OwnerKey, shard: int = 0) -> bool:
        """Whether a store may still answer: it was not polled yet, or too few polls have failed."""
        known = self._known.get((key, shard))
        return known is None or known.failures < TOLERATED_FAILURES

    def forget(self, key: OwnerKey) -> None:
        """Drop what is known of a store that is gone."""
        for known in [item for item in self._known if item[0] == key]:
            del self._known[known]

    async def _ask(self, key: _Writer, known: _Known, url: str, authority: str | None) -> None:
        self.polls += 1
        before = known.band, known.sealing
        try:
            async with open_session(SECONDS, 1) as session:
                answer = await get_json(session, url, limit=MAX_ANSWER, authority=authority)
        except NoResponse:
            self.failed += 1
            known.failures += 1
            if known.failures >= TOLERATED_FAILURES:
                known.band = known.sealing = None
        else:
            known.failures, share = 0, used_share(answer)
            known.band = None if share is None else band(share, known.band)
            known.sealing = parse_sealing(answer, self.clock())
        if (known.band, known.sealing) != before and self._known.get(key) is known:
            self.on_change(key[0])
